// The cp.async producer: all warps copy the tokens of a KV range, and the query, to shared memory. Each token is gathered through the page ids
// into one of STAGES buffers while earlier ones are computed.
#pragma once
#include "paged_kv.cuh"

namespace tilewright {

// A token of a producer thread: its page, and which of its tokens it is.
struct Found {
  i32 id;
  u32 place; // or UNSEEN: no row sees it
};
constexpr u32 UNSEEN = 0xffffffffu;

// The tokens of the step after the last one with offsets, of a producer thread.
template <class S> struct Ahead {
  Found found[S::TOKENS_A_THREAD];
  Cursor cursor;
};

template <class S> struct ProducerCpAsync {
  const Cta<S> &cta;
  const PagedKv<S> paged_kv{cta};

  TILEWRIGHT_DEVICE void load_query(const PipelineState<S> &at) const {
    for (u32 index = cta.thread; index < S::M * S::QUERY_CHUNKS; index += S::COPIERS) {
      const u32 row = index / S::QUERY_CHUNKS, chunk = index % S::QUERY_CHUNKS;
      const bool valid = row < cta.row_count();
      const u32 request = valid ? cta.rows()[row].request : 0;
      const u32 head = valid ? cta.query_head(row) : 0;
      const u16 *source = cta.args.query + request * cta.args.query_request + head * cta.args.query_head + chunk * 8;
      cp_async_16(cta.query_address(at, row, chunk), source, valid ? 0 : -1);
    }
  }

  // Whether a step has tokens that this thread looks for.
  TILEWRIGHT_DEVICE bool has_tokens() const { return S::N >= S::COPIERS || cta.thread < S::N; }

  // Finds this thread's tokens of a step, and says which rows see them; `look_up` is given each one's number and where its page id stands.
  template <class LookUp>
  TILEWRIGHT_DEVICE void find_tokens(Ahead<S> &ahead, const Steps &steps, u32 step, const PipelineState<S> &at, const LookUp &look_up) const {
    if (!has_tokens()) return;
#pragma unroll
    for (u32 i = 0; i < S::TOKENS_A_THREAD; i++) {
      const u32 number = cta.thread + i * S::COPIERS;
      const TokenLocation place = paged_kv.find(ahead.cursor, steps, step, i * S::COPIERS);
      look_up(i, place.page);
      ahead.found[i].place = place.exists && (!S::HIDES_FIRST || place.position >= place.seen) ? place.within : UNSEEN;
      if (number % S::GRANULE == 0 && number < S::N) cta.granules(at)[number / S::GRANULE] = place.template granule<S>(cta);
    }
  }

  // The same, with their pages' ids.
  TILEWRIGHT_DEVICE void fetch_pages(Ahead<S> &ahead, const Steps &steps, u32 step, const PipelineState<S> &at) const {
    find_tokens(ahead, steps, step, at, [&](u32 i, u32 page) { ahead.found[i].id = cta.args.page_ids[page]; });
  }

  // Only the ids, of an item of one segment, from the item alone.
  TILEWRIGHT_DEVICE void fetch_first_pages(Ahead<S> &ahead, u32 step) const {
#pragma unroll
    for (u32 i = 0; i < S::TOKENS_A_THREAD; i++) {
      const u32 token = smaller(cta.item.kv_begin + step * S::N + cta.thread + i * S::COPIERS, cta.item.kv_end - 1);
      ahead.found[i].id = cta.args.page_ids[cta.item.first.pages % EVICT_FIRST + cta.page_size.quotient(token - cta.item.first.begin)];
    }
  }

  // Turns what was found into offsets in bytes, where all threads find them. Tokens that no row sees have none: their memory may hold
  // anything, NaN too.
  TILEWRIGHT_DEVICE void store_offsets(const Ahead<S> &ahead, const PipelineState<S> &at) const {
    if (!has_tokens()) return;
#pragma unroll
    for (u32 i = 0; i < S::TOKENS_A_THREAD; i++) {
      const u32 place = cta.thread + i * S::COPIERS;
      if (S::N % S::COPIERS != 0 && place >= S::N) break;
      const i64 offset = ahead.found[i].id * cta.args.page + ahead.found[i].place * cta.args.token;
      cta.offsets(at)[place] = ahead.found[i].place == UNSEEN ? -1 : offset * static_cast<i64>(sizeof(typename S::KvBits));
    }
  }

  // What this thread copies of each token: a chunk of the KV head's K and V, or of each panel of them.
  struct Column {
    const u8 *keys, *values;
  };
  TILEWRIGHT_DEVICE Column column() const {
    const i64 offset = (cta.kv_head * cta.args.head + cta.thread % S::ROW_COPIERS * S::CHUNK_ELEMENTS) * static_cast<i64>(sizeof(typename S::KvBits));
    return Column{computed_once(static_cast<const u8 *>(cta.args.keys) + offset), computed_once(static_cast<const u8 *>(cta.args.values) + offset)};
  }

  // Starts the copies of one step. Tokens that no row sees become zeros.
  TILEWRIGHT_DEVICE void load_step(const Column &from, const PipelineState<S> &at) const {
    const u32 first_row = cta.thread / S::ROW_COPIERS, chunk = cta.thread % S::ROW_COPIERS;
    const u32 target = cta.keys_at(at) + chunk / S::PANEL_CHUNKS * S::PANEL_BYTES + cta.row_at(first_row);
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
        // The rows of a thread differ in other bits than those of `first_row`, so where they lie and what they exchange adds up.
        const u32 to = target + cta.row_at(next) + (exchanged ^ cta.exchange(next)) * 16;
        const i32 sign = static_cast<i32>(offset[j] >> 32);
        cp_async_16(to, from.keys + offset[j], sign);
        cp_async_16(to + S::STAGE_BYTES, from.values + offset[j], sign);
#pragma unroll
        for (u32 part = 1; part < S::ROW_PARTS; part++) {
          cp_async_16(to + part * S::PANEL_BYTES, from.keys + offset[j] + part * S::PANEL_ROW_BYTES, sign);
          cp_async_16(to + S::STAGE_BYTES + part * S::PANEL_BYTES, from.values + offset[j] + part * S::PANEL_ROW_BYTES, sign);
        }
      }
    }
  }

  // Waits for this thread's copies, but for the last groups; a barrier has to follow.
  template <int PENDING> TILEWRIGHT_DEVICE static void wait_for_copies() {
    cp_async_wait<PENDING>();
    if constexpr (S::TOGETHER) fence_for_warpgroups();
  }

  // Starts what copies the step that is as many steps ahead as there are buffers, and looks up pages for later ones.
  TILEWRIGHT_DEVICE void copy_ahead(Ahead<S> &ahead, const Steps &steps, u32 step, const Column &from, const PipelineState<S> &at) const {
    const u32 next = step + S::STAGES - 1;
    if (next < steps.last) load_step(from, at.template ahead<S::STAGES - 1>());
    cp_async_commit();
    if (next + 1 < steps.last) store_offsets(ahead, at.template ahead<S::STAGES>());
    if (next + 2 < steps.last) fetch_pages(ahead, steps, next + 2, at.template ahead<S::STAGES + 1>());
  }

  // Makes a step ready: returns when it has arrived for all threads, and the buffer of the one before is
  // free.
  TILEWRIGHT_DEVICE void next_step(Ahead<S> &ahead, const Steps &steps, u32 step, const Column &from, const PipelineState<S> &at) const {
    if constexpr (S::STAGES > 1) wait_for_copies<S::STAGES - 2>();
    barrier();
    if constexpr (S::STAGES == 1) {
      copy_ahead(ahead, steps, step, from, at);
      wait_for_copies<0>();
      barrier();
    }
  }
};

} // namespace tilewright
