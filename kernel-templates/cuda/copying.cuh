// Copies of the tokens of a walk to shared memory, and of the query: each token is gathered through the page ids, into one of STAGES buffers
// while earlier ones are computed.
#pragma once
#include "walk.cuh"

namespace tilewright {

// Goes along the runs with the tokens that one thread looks at, forwards only.
struct Cursor {
  u32 run = 0;
  u32 next; // where the next run begins
};

// A token of a thread that copies: its page, and which of its tokens it is.
struct Found {
  i32 id;
  u32 place; // or UNSEEN: no row sees it
};
constexpr u32 UNSEEN = 0xffffffffu;

// The tokens of the step after the last one with offsets, of a thread that copies.
template <class S> struct Ahead {
  Found found[S::TOKENS_A_THREAD];
  Cursor cursor;
};

template <class S> struct Copying {
  const Cta<S> &cta;

  TILEWRIGHT_DEVICE void load_query(const Rings<S> &at) const {
    for (u32 index = cta.copier; index < S::M * S::QUERY_CHUNKS; index += S::COPIERS) {
      const u32 row = index / S::QUERY_CHUNKS, chunk = index % S::QUERY_CHUNKS;
      const bool valid = row < cta.row_count();
      const u32 request = valid ? cta.rows()[row].request : 0;
      const u32 head = valid ? cta.query_head(row) : 0;
      const u16 *source = cta.args.query + request * cta.args.query_request + head * cta.args.query_head + chunk * 8;
      copy_async_16(cta.query_address(at, row, chunk), source, valid ? 0 : -1);
    }
  }

  TILEWRIGHT_DEVICE Cursor first_run() const { return Cursor{0, next_run(0)}; }
  // Whether a step has tokens that this thread looks for.
  TILEWRIGHT_DEVICE bool has_tokens() const { return S::N >= S::COPIERS || cta.copier < S::N; }

  TILEWRIGHT_DEVICE u32 next_run(u32 run) const { return run + 1 < cta.item.run_count ? cta.runs()[run + 1].begin : 0xffffffffu; }

  // The token of the walk that is this thread's `i`-th of a step, and one past the last one that it may be.
  TILEWRIGHT_DEVICE u32 token_of(const Steps &steps, u32 step, u32 i, u32 &end) const {
    if (S::TURNS && steps.in_turns(step)) {
      end = steps.end;
      return steps.begin + (step - steps.turns) * S::TURN;
    }
    end = steps.shared_end;
    return cta.item.walk_begin + (step - steps.shared) * S::N + cta.copier + i * S::COPIERS;
  }

  // The run of a token of the walk that is not before the one asked for last.
  TILEWRIGHT_DEVICE const SharedRun &run_of(Cursor &cursor, u32 token) const {
    while (token >= cursor.next) cursor.next = next_run(++cursor.run);
    return cta.runs()[cursor.run];
  }

  // Finds this thread's tokens of a step, and says which rows see them; `look_up` is given each one's number and where its page id stands. What
  // is no token at all gets a page before it.
  template <class LookUp>
  TILEWRIGHT_DEVICE void find_tokens(Ahead<S> &ahead, const Steps &steps, u32 step, const Rings<S> &at, const LookUp &look_up) const {
    if (!has_tokens()) return;
    // Where the tokens of all warps begin behind the turns, they are before the ones of the last step.
    if (S::TURNS && step == steps.shared && step > 0) ahead.cursor = first_run();
#pragma unroll
    for (u32 i = 0; i < S::TOKENS_A_THREAD; i++) {
      u32 end;
      const u32 place = cta.copier + i * S::COPIERS;
      const u32 asked = token_of(steps, step, i, end), token = smaller(asked, end - 1);
      const SharedRun &run = run_of(ahead.cursor, token);
      const i32 position = static_cast<i32>(asked) + run.position;
      const bool before_end = asked < end && position < run.end;
      const u32 within = smaller(token - run.begin, run.tokens - 1), page = cta.page_size.quotient(within);
      look_up(i, run.pages + page);
      ahead.found[i].place = before_end && (!S::WINDOW || position >= run.seen) ? within - page * cta.page_size.by : UNSEEN;
      if (place % S::GRANULE == 0 && place < S::N) {
        const bool some = before_end && (!S::WINDOW || position + static_cast<i32>(S::GRANULE) > run.seen);
        const u32 tokens = some ? smaller(static_cast<u32>(run.end - position), S::GRANULE) : 0;
        cta.granules(at)[place / S::GRANULE] = Granule{position, some ? run.rows | tokens << 24 : 0};
      }
    }
  }

  // The same, with their pages' ids.
  TILEWRIGHT_DEVICE void fetch_pages(Ahead<S> &ahead, const Steps &steps, u32 step, const Rings<S> &at) const {
    find_tokens(ahead, steps, step, at, [&](u32 i, u32 page) { ahead.found[i].id = cta.args.page_ids[page]; });
  }

  // Only the ids, of an item of one run, from the item alone.
  TILEWRIGHT_DEVICE void fetch_first_pages(Ahead<S> &ahead, u32 step) const {
#pragma unroll
    for (u32 i = 0; i < S::TOKENS_A_THREAD; i++) {
      const u32 token = smaller(cta.item.walk_begin + step * S::N + cta.copier + i * S::COPIERS, cta.item.walk_end - 1);
      ahead.found[i].id = cta.args.page_ids[cta.item.first.pages + cta.page_size.quotient(token - cta.item.first.begin)];
    }
  }

  // Turns what was found into distances in bytes, where all threads find them. Tokens that no row sees have none: their memory may hold
  // anything, NaN too.
  TILEWRIGHT_DEVICE void store_offsets(const Ahead<S> &ahead, const Rings<S> &at) const {
    if (!has_tokens()) return;
#pragma unroll
    for (u32 i = 0; i < S::TOKENS_A_THREAD; i++) {
      const u32 place = cta.copier + i * S::COPIERS;
      if (S::N % S::COPIERS != 0 && place >= S::N) break;
      const i64 distance = ahead.found[i].id * cta.args.page + ahead.found[i].place * cta.args.token;
      cta.offsets(at)[place] = ahead.found[i].place == UNSEEN ? -1 : distance * static_cast<i64>(sizeof(typename S::KvBits));
    }
  }

  // What this thread copies of each token: a chunk of the KV head's K and V.
  struct Column {
    const u8 *keys, *values;
  };
  TILEWRIGHT_DEVICE Column column() const {
    const i64 distance = (cta.kv_head * cta.args.head + cta.copier % S::CHUNKS * S::CHUNK_ELEMENTS) * static_cast<i64>(sizeof(typename S::KvBits));
    return Column{computed_once(static_cast<const u8 *>(cta.args.keys) + distance), computed_once(static_cast<const u8 *>(cta.args.values) + distance)};
  }

  // Starts the copies of one step. Tokens that no row sees become zeros.
  TILEWRIGHT_DEVICE void load_step(const Column &from, const Rings<S> &at) const {
    const u32 first_row = cta.copier / S::CHUNKS, chunk = cta.copier % S::CHUNKS;
    const u32 target = cta.keys_at(at) + chunk / S::PANEL_CHUNKS * S::PANEL_BYTES + first_row * S::PANEL_ROW_BYTES;
    const u32 exchanged = chunk % S::PANEL_CHUNKS ^ cta.exchange(first_row);
    constexpr u32 BATCH = 4; // offsets that are read before they are waited for
#pragma unroll
    for (u32 i = 0; i < divide_up(S::N, S::ROWS_AT_ONCE); i += BATCH) {
      i64 offset[BATCH];
#pragma unroll
      for (u32 j = 0; j < BATCH; j++) {
        const u32 next = (i + j) * S::ROWS_AT_ONCE;
        offset[j] = first_row + next < S::N ? cta.offsets(at)[first_row + next] : -1;
      }
#pragma unroll
      for (u32 j = 0; j < BATCH; j++) {
        const u32 next = (i + j) * S::ROWS_AT_ONCE;
        if (next >= S::N || (S::N % S::ROWS_AT_ONCE != 0 && first_row + next >= S::N)) break;
        // The rows of a thread differ in other bits than those of `first_row`, so what they exchange adds up.
        const u32 to = target + next * S::PANEL_ROW_BYTES + (exchanged ^ cta.exchange(next)) * 16;
        const i32 sign = static_cast<i32>(offset[j] >> 32);
        copy_async_16(to, from.keys + offset[j], sign);
        copy_async_16(to + S::STAGE_BYTES, from.values + offset[j], sign);
      }
    }
  }

  // Waits for this thread's copies, but for so many groups; a barrier has to follow.
  template <int PENDING> TILEWRIGHT_DEVICE static void wait_for_copies() {
    copy_async_wait<PENDING>();
    if constexpr (S::TOGETHER) fence_for_warpgroups();
  }

  // Starts what copies the step that is as many steps ahead as there are buffers, and looks up pages for later ones.
  TILEWRIGHT_DEVICE void copy_ahead(Ahead<S> &ahead, const Steps &steps, u32 step, const Column &from, const Rings<S> &at) const {
    const u32 next = step + S::STAGES - 1;
    if (next < steps.last) load_step(from, at.template ahead<S::STAGES - 1>());
    copy_async_commit();
    if (next + 1 < steps.last) store_offsets(ahead, at.template ahead<S::STAGES>());
    if (next + 2 < steps.last) fetch_pages(ahead, steps, next + 2, at.template ahead<S::STAGES + 1>());
  }

  // What makes a step ready, for the threads that copy: returns when it has arrived for all threads, and the buffer of the one before is
  // free.
  TILEWRIGHT_DEVICE void next_step(Ahead<S> &ahead, const Steps &steps, u32 step, const Column &from, const Rings<S> &at) const {
    if constexpr (S::STAGES > 1) wait_for_copies<S::STAGES - 2>();
    barrier();
    if constexpr (S::STAGES == 1) {
      copy_ahead(ahead, steps, step, from, at);
      wait_for_copies<0>();
      barrier();
    }
  }

  // The same for the others.
  TILEWRIGHT_DEVICE static void await_step() {
    barrier();
    if constexpr (S::STAGES == 1) barrier();
  }
};

} // namespace tilewright
