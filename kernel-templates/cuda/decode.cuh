// Forward of one work item: attention of up to M rows over a walk along runs of pages that lie anywhere.
//
// Rows are (request, query head) pairs of one KV head, padded to M. A run is read once for all rows; those that do not share it are masked.
// Tokens of the walk come in steps of N, each gathered through the page ids into one of STAGES buffers while earlier ones are computed.
// Each warp owns 16 rows and a share of the N tokens; warps that own the same rows are merged at the end by their maxima and sums.
//
// Where warps own different rows, runs that the rows of one of them share alone stand behind all others. There the warps take turns: each
// step brings as many tokens for every row warp, so that none of them waits while another computes.
//
// K and V in FP8 stay bytes up to the registers. Their scales cost nothing a token: K's is part of the factor of the logits, V's is
// multiplied into the sums at the end. Bytes reach lanes four at a time, where the matrix unit wants pairs of 16 bits: a product does not
// care in which order its elements are summed, so both of its sides take K's and Q's in another order; and of V a lane gets two
// neighbouring elements of each token, so even and odd elements are products of their own.
#pragma once
#include "arguments.cuh"
#include "divisor.cuh"
#include "fp8.cuh"
#include "merge.cuh"
#include "prelude.cuh"
#include "softmax.cuh"

namespace tilewright {

template <u32 M, u32 N, u32 WARPS, u32 STAGES, u32 HEAD_DIM, class Element, class KvElement, bool WINDOW, bool SOFTCAP, bool SINKS,
          u32 LOADERS = 0>
struct Decode {
  static_assert(M % 16 == 0 && M > 0, "the matrix unit takes 16 rows at once");
  static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "rows of a power of two of chunks of 16 bytes, at least 4");
  static constexpr u32 THREADS = (WARPS + LOADERS) * 32;
  static constexpr u32 COPIERS = (LOADERS > 0 ? LOADERS : WARPS) * 32; // threads that copy tokens, the last of a CTA
  static constexpr u32 ROW_WARPS = M / 16;           // warps side by side along the rows
  static constexpr u32 KV_WARPS = WARPS / ROW_WARPS; // warps that share their rows, each with its tokens
  static_assert(WARPS % ROW_WARPS == 0 && KV_WARPS > 0, "each warp owns 16 rows: warps are a multiple of M / 16");
  static constexpr u32 WARP_N = N / KV_WARPS;
  static_assert(N % KV_WARPS == 0 && WARP_N % 16 == 0, "the matrix unit takes 16 tokens of a warp at once");
  static_assert(STAGES > 0, "at least one buffer");

  using KvBits = typename Bits<KvElement>::Type;
  static constexpr bool FP8 = sizeof(KvBits) == 1;
  static constexpr u32 QUERY_ROW_BYTES = HEAD_DIM * 2;
  static constexpr u32 QUERY_CHUNKS = QUERY_ROW_BYTES / 16; // 16 bytes each
  static constexpr u32 ROW_BYTES = HEAD_DIM * sizeof(KvBits); // of K or V
  static constexpr u32 CHUNKS = ROW_BYTES / 16;
  static constexpr u32 CHUNK_ELEMENTS = 16 / sizeof(KvBits);
  static constexpr u32 ROWS_AT_ONCE = COPIERS / CHUNKS; // rows that the threads copy with a chunk each
  static constexpr u32 STAGE_BYTES = N * ROW_BYTES; // of K or of V
  // The rows of a step lie side by side in panels of up to 128 bytes, as products of warpgroups want them.
  static constexpr u32 PANEL_CHUNKS = smaller(CHUNKS, 8u);
  static constexpr u32 PANEL_ROW_BYTES = PANEL_CHUNKS * 16;
  static constexpr u32 PANEL_BYTES = N * PANEL_ROW_BYTES;
  // Beyond 128 elements the fragments of Q do not fit the registers beside the accumulators: they are loaded when needed.
  static constexpr bool QUERY_IN_REGISTERS = HEAD_DIM <= 128;
  static constexpr u32 QUERY_FRAGMENTS = QUERY_IN_REGISTERS ? HEAD_DIM / 16 : 1;
  static constexpr u32 OUTPUT_STRIDE = HEAD_DIM + 8; // f32; 8 more keep the rows of a store in different banks
  static constexpr u32 OFFSET_SETS = larger(STAGES, 2u);
  static constexpr u32 GRANULE = 16; // tokens that one request's row sees or not as far as runs go: the matrix unit's, and where runs begin
  static constexpr u32 GRANULES = N / GRANULE;
  static constexpr u32 WARP_GRANULES = WARP_N / GRANULE;
  static constexpr u32 GRANULE_SETS = STAGES + 1; // a step's are read when it is computed, after those of STAGES later ones are written
  static constexpr u32 MAX_RUNS = M + 32;         // the host cuts walks of more
  // Whether warps take turns, and how many tokens a step has for each row warp then, and for each of its warps. A thread looks at the
  // tokens of one warp only, so that it goes along the runs forwards.
  static constexpr bool TURNS = !WINDOW && ROW_WARPS > 1 && WARP_GRANULES % ROW_WARPS == 0 && N <= COPIERS;
  static constexpr u32 TURN = N / ROW_WARPS;
  static constexpr u32 WARP_TURN = larger(WARP_N / ROW_WARPS, GRANULE);

  // Whether the four warps of a warpgroup multiply their 64 rows together, but for the turns. K in FP8 has to be widened in registers.
  static constexpr bool TOGETHER = HAS_WARPGROUPS && !FP8 && ROW_WARPS % 4 == 0 && QUERY_IN_REGISTERS;

  static_assert(LOADERS == 0 || (TOGETHER && LOADERS == 4 && WARPS % 4 == 0), "whole warpgroups have a task");

  // Shared memory, in this order. At the end the buffers are used again for the warps' outputs.
  static constexpr u32 BUFFER_BYTES = larger(STAGES * 2 * STAGE_BYTES, WARPS * 16 * OUTPUT_STRIDE * 4);
  // The query is copied to its registers through the buffer that is filled last, where it fits there.
  static constexpr bool QUERY_IN_BUFFER = QUERY_IN_REGISTERS && M * QUERY_ROW_BYTES <= 2 * STAGE_BYTES;
  static constexpr u32 OFFSETS_AT = BUFFER_BYTES + (QUERY_IN_BUFFER ? 0 : M * QUERY_ROW_BYTES);
  static constexpr u32 GRANULES_AT = OFFSETS_AT + OFFSET_SETS * N * 8;
  static constexpr u32 SOFTMAX_AT = GRANULES_AT + GRANULE_SETS * GRANULES * 8;
  static constexpr u32 ROWS_AT = SOFTMAX_AT + WARPS * 16 * 8;
  static constexpr u32 RUNS_AT = ROWS_AT + M * 20;
  static constexpr u32 SHARED_BYTES = round_up(RUNS_AT + MAX_RUNS * 28, 16);

  // A row of the item: which tokens of its request it sees, and where it goes.
  struct Row {
    i32 begin; // first token
    i32 end;   // one past the last
    u32 request;
    Slot slot;
  };

  // A run of the item. Its tokens are counted along the walk.
  struct Shared {
    u32 begin;    // first token, perhaps before the item's
    u32 tokens;   // how many it has
    u32 pages;    // where in `page_ids` its first page stands
    i32 position; // what to add to a token of the walk for its place in the request
    u32 rows;     // rows that share it: first, and one past the last (12 bits)
    i32 seen;     // first token of the requests that some row sees
    i32 end;      // one past the last one
  };

  // How the tokens of the walk come in steps.
  struct Steps {
    u32 first, last; // one past
    u32 shared;      // the first one whose tokens are for all row warps,
    u32 shared_end;  // and one past the last such token
    u32 turns, turn_count; // the first one in which warps take turns, and how many there are
    u32 begin, end;  // of the walk: what this thread's row warp has for itself

    TILEWRIGHT_DEVICE bool in_turns(u32 step) const { return step - turns < turn_count; }
  };

  // What each row warp has for itself, of the walk; and one past the last token before.
  struct Turns {
    u32 shared_end;
    u32 begin[ROW_WARPS], end[ROW_WARPS];
  };
  static_assert(sizeof(Turns) <= WARPS * 16 * 8, "it lies where the warps leave their softmaxes when all steps are over");

  // Registers of a thread that multiplies and of one that copies: those of a CTA are shared out anew when its warps part.
  static constexpr u32 LOADER_REGISTERS = 56;
  static constexpr u32 MATH_REGISTERS = WARPS == 4 ? 200 : 224;

  // Sixteen tokens of a step.
  struct Granule {
    i32 position; // place of the first in the requests that share it
    u32 rows;     // rows that share it: first, and one past the last (12 bits each), and how many of the tokens are theirs

    TILEWRIGHT_DEVICE u32 first_row() const { return rows % 4096; }
    TILEWRIGHT_DEVICE u32 last_row() const { return rows / 4096 % 4096; } // one past
    TILEWRIGHT_DEVICE u32 tokens() const { return rows / (4096 * 4096); }
  };

  // Goes along the runs with the tokens that one thread looks at, forwards only.
  struct Cursor {
    u32 run = 0;
    u32 next; // where the next run begins
  };

  const Arguments &args;
  const WorkItem item;
  const u32 kv_head;
  const bool turns_first; // the steps in turns before the others
  const u32 thread = thread_index();
  const u32 copier = LOADERS > 0 ? thread % COPIERS : thread; // of a warpgroup that does not copy, nothing that is used
  const u32 lane = thread % 32;
  const u32 warp = thread / 32;
  const u32 row_warp = warp % ROW_WARPS;
  const u32 kv_warp = warp / ROW_WARPS;
  const u32 fragment_row = lane / 4;        // rows of the accumulators that a lane holds: this one and 8 below
  const u32 fragment_column = lane % 4 * 2; // and this column and the next, of every 8
  u8 *const shared = shared_memory();
  const float signed_scale; // what makes logits in base 2 of products
  const float scale;        // the same, positive: a negative one's sign goes to the query, so that a larger product is a larger logit
  const Divisor page_size;

  // `index` is the item's, or any number. What is read in turns is read once, from device memory, while most of the other tokens come from
  // the second-level cache and keep the matrix unit busy: every second item begins with its turns, so that both go on at any time.
  TILEWRIGHT_DEVICE Decode(const Arguments &arguments, const WorkItem &work_item, u32 index, u32 head)
      : args(arguments), item(work_item), kv_head(head), turns_first(index % 2 == 1),
        signed_scale(arguments.scale_log2 * (FP8 ? arguments.key_scales[head * arguments.scale_head] : 1.f)),
        scale(larger(larger(signed_scale, -signed_scale), 1e-30f)), page_size(arguments.page_size) {}

  // As a kernel of its own: one CTA an item and KV head, those of an item side by side. More CTAs than the plan has items do nothing.
  TILEWRIGHT_DEVICE static void run(const Arguments &arguments) {
    const u32 index = block_index() / arguments.kv_heads;
    const WorkItem item = arguments.items[index];
    if (index >= arguments.counts[1 + arguments.group]) return;
    Decode(arguments, item, index, block_index() % arguments.kv_heads).execute();
  }

  TILEWRIGHT_DEVICE u32 row_count() const { return item.row_end - item.row_begin; }
  TILEWRIGHT_DEVICE Row *rows() const { return reinterpret_cast<Row *>(shared + ROWS_AT); }
  TILEWRIGHT_DEVICE Shared *runs() const { return reinterpret_cast<Shared *>(shared + RUNS_AT); }
  TILEWRIGHT_DEVICE Turns &turns() const { return *reinterpret_cast<Turns *>(shared + SOFTMAX_AT); }
  TILEWRIGHT_DEVICE i64 *offsets(u32 step) const {
    return reinterpret_cast<i64 *>(shared + OFFSETS_AT) + step % OFFSET_SETS * N;
  }
  TILEWRIGHT_DEVICE Granule *granules(u32 step) const {
    return reinterpret_cast<Granule *>(shared + GRANULES_AT) + step % GRANULE_SETS * GRANULES;
  }
  TILEWRIGHT_DEVICE u32 query_head(u32 row) const { return kv_head * args.gqa_ratio + (item.row_begin + row) % args.gqa_ratio; }

  // Chunks of a row are exchanged by its number: eight rows of the same column then lie in different banks. Where a row has but half of
  // them, so do four pairs of rows.
  TILEWRIGHT_DEVICE static constexpr u32 exchange(u32 row) { return CHUNKS < 8 ? row / 2 % 4 : row % 8; }
  TILEWRIGHT_DEVICE static u32 chunk_address(u32 base, u32 row, u32 chunk) {
    return base + chunk / PANEL_CHUNKS * PANEL_BYTES + row * PANEL_ROW_BYTES + (chunk % PANEL_CHUNKS ^ exchange(row)) * 16;
  }
  TILEWRIGHT_DEVICE u32 keys_at(u32 step) const { return shared_address(shared) + step % STAGES * 2 * STAGE_BYTES; }
  TILEWRIGHT_DEVICE u32 values_at(u32 step) const { return keys_at(step) + STAGE_BYTES; }
  // The same of the query, for a walk that begins with step `first`. For FP8 four rows of the same two chunks are what is read at once.
  TILEWRIGHT_DEVICE u32 query_address(u32 first, u32 row, u32 chunk) const {
    const u32 base = QUERY_IN_BUFFER ? keys_at(first + STAGES - 1) : shared_address(shared + BUFFER_BYTES);
    return base + row * QUERY_ROW_BYTES + (chunk ^ (FP8 ? row % 4 * 2 : row % 8)) * 16;
  }

  // Finds what each row sees. Lengths are read here, so a plan holds while requests grow inside their pages.
  TILEWRIGHT_DEVICE void describe_rows() const {
    for (u32 row = thread; row < row_count(); row += THREADS) {
      const u32 member = (item.row_begin + row) / args.gqa_ratio;
      const u32 request = args.requests[item.requests + member];
      const i32 length = args.lengths[request];
      const i32 begin = WINDOW ? larger(length - static_cast<i32>(args.window), 0) : 0;
      rows()[row] = Row{begin, length, request, args.slots[item.slots + member]};
    }
  }

  TILEWRIGHT_DEVICE void describe_runs() const {
    if constexpr (TURNS) {
      if (thread < ROW_WARPS) turns().begin[thread] = turns().end[thread] = 0;
      if (thread == 0) turns().shared_end = item.walk_begin;
    }
    const i32 count = static_cast<i32>(row_count());
    for (u32 index = thread; index < item.run_count; index += THREADS) {
      const Run run = index == 0 ? item.first : args.runs[item.runs + index];
      const i32 first = static_cast<i32>(run.members % 4096 * args.gqa_ratio) - item.row_begin;
      const i32 last = static_cast<i32>(run.members / 4096 % 4096 * args.gqa_ratio) - item.row_begin;
      const u32 end = index + 1 < item.run_count ? args.runs[item.runs + index + 1].begin - run.members / (4096 * 4096) : item.walk_end;
      const u32 rows = static_cast<u32>(larger(first, 0)) | static_cast<u32>(larger(smaller(last, count), 0)) << 12;
      runs()[index] = Shared{run.begin, end - run.begin, run.pages, static_cast<i32>(run.position - run.begin), rows, 0, 0};
    }
  }

  // What some row sees of each run. Rows of a request see the same, and its queries are requests here.
  TILEWRIGHT_DEVICE void find_seen() const {
    if (item.run_count == 1) return find_seen_of_one();
    for (u32 index = thread; index < item.run_count; index += THREADS) {
      Shared &run = runs()[index];
      i32 seen = 0x7fffffff, end = 0;
      const u32 last = run.rows / 4096;
#pragma unroll 4
      for (u32 row = run.rows % 4096; row < last; row += args.gqa_ratio) {
        if constexpr (WINDOW) seen = smaller(seen, rows()[row].begin);
        end = larger(end, rows()[row].end);
      }
      limit_run(run, seen, end);
      if constexpr (TURNS) find_turns(index);
    }
    barrier();
  }

  // The row warp whose rows alone share a run; ROW_WARPS where several do.
  TILEWRIGHT_DEVICE static u32 owner(const Shared &run) {
    const u32 first = run.rows % 4096 / 16, last = (run.rows / 4096 - 1) / 16;
    return first == last ? first : ROW_WARPS;
  }

  // Notes where a run is the first or the last one of its owner.
  TILEWRIGHT_DEVICE void find_turns(u32 index) const {
    const Shared &run = runs()[index];
    const u32 own = owner(run);
    const i32 begin = static_cast<i32>(larger(run.begin, item.walk_begin));
    const u32 end = static_cast<u32>(larger(smaller(run.end - run.position, static_cast<i32>(item.walk_end)), begin));
    const bool is_first = index == 0 || owner(runs()[index - 1]) != own;
    const bool is_last = index + 1 == item.run_count || owner(runs()[index + 1]) != own;
    if (own == ROW_WARPS) {
      if (is_last) turns().shared_end = end;
    } else {
      if (is_first) turns().begin[own] = static_cast<u32>(begin);
      if (is_last) turns().end[own] = end;
    }
  }

  // The steps of the walk. Warps take turns unless most of the tokens behind the shared ones are one warp's: then steps would be half empty.
  TILEWRIGHT_DEVICE Steps find_steps() const {
    Steps steps{WINDOW ? first_step() : 0, last_step(), 0, item.walk_end, 0, 0, 0, 0};
    if constexpr (TURNS) {
      if (item.run_count == 1) return steps;
      u32 most = 0, all = 0;
#pragma unroll
      for (u32 w = 0; w < ROW_WARPS; w++) {
        const u32 tokens = turns().end[w] - turns().begin[w];
        most = larger(most, tokens);
        all += tokens;
      }
      const u32 in_turns = divide_up(most, TURN);
      if (in_turns >= 2 * divide_up(all, N)) return steps;
      steps.shared_end = turns().shared_end;
      const u32 for_all = divide_up(steps.shared_end - item.walk_begin, N);
      steps.turn_count = in_turns;
      steps.turns = turns_first ? 0 : for_all;
      steps.shared = turns_first ? in_turns : 0;
      steps.last = for_all + in_turns;
      const u32 own = copier % WARP_N / WARP_TURN;
      steps.begin = turns().begin[own] + copier / WARP_N * WARP_TURN + copier % WARP_TURN;
      steps.end = turns().end[own];
    }
    return steps;
  }

  // The token of the walk that is this thread's `i`-th of a step, and one past the last one that it may be.
  TILEWRIGHT_DEVICE u32 token_of(const Steps &steps, u32 step, u32 i, u32 &end) const {
    if (TURNS && steps.in_turns(step)) {
      end = steps.end;
      return steps.begin + (step - steps.turns) * TURN;
    }
    end = steps.shared_end;
    return item.walk_begin + (step - steps.shared) * N + copier + i * COPIERS;
  }

  // The same for the only run, by every warp for itself: that needs no barrier.
  TILEWRIGHT_DEVICE void find_seen_of_one() const {
    Shared &run = runs()[0];
    i32 seen = 0x7fffffff, end = 0;
    for (u32 row = run.rows % 4096 + lane; row < run.rows / 4096; row += 32) {
      if constexpr (WINDOW) seen = smaller(seen, rows()[row].begin);
      end = larger(end, rows()[row].end);
    }
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) {
      if constexpr (WINDOW) seen = smaller(seen, from_lane_xor(seen, mask));
      end = larger(end, from_lane_xor(end, mask));
    }
    limit_run(run, seen, end);
  }

  TILEWRIGHT_DEVICE void limit_run(Shared &run, i32 seen, i32 end) const {
    run.seen = WINDOW ? seen : 0;
    run.end = smaller(end, static_cast<i32>(run.begin + run.tokens) + run.position);
  }

  // The first step with a token that some row's window reaches.
  TILEWRIGHT_DEVICE u32 first_step() const {
    u32 first = item.walk_end - item.walk_begin;
    for (u32 index = 0; index < item.run_count; index++) {
      const Shared &run = runs()[index];
      const i32 token = larger(run.seen - run.position, static_cast<i32>(larger(run.begin, item.walk_begin)));
      if (token + run.position < run.end) first = smaller(first, static_cast<u32>(token) - item.walk_begin);
    }
    return first / N;
  }

  // One past the last step with a token that some row sees, as far as the last run tells: its last page may be nearly empty, and early
  // queries of a request see nothing of it. Runs before it are walked to their ends.
  TILEWRIGHT_DEVICE u32 last_step() const {
    const Shared &run = runs()[item.run_count - 1];
    const i32 end = larger(smaller(run.end - run.position, static_cast<i32>(item.walk_end)), static_cast<i32>(run.begin));
    return divide_up(static_cast<u32>(larger(end - static_cast<i32>(item.walk_begin), 0)), N);
  }

  TILEWRIGHT_DEVICE void load_query(u32 first) const {
    for (u32 index = copier; index < M * QUERY_CHUNKS; index += COPIERS) {
      const u32 row = index / QUERY_CHUNKS, chunk = index % QUERY_CHUNKS;
      const bool valid = row < row_count();
      const u32 request = valid ? rows()[row].request : 0;
      const u32 head = valid ? query_head(row) : 0;
      const u16 *source = args.query + request * args.query_request + head * args.query_head + chunk * 8;
      copy_async_16(query_address(first, row, chunk), source, valid ? 0 : -1);
    }
  }

  static constexpr u32 TOKENS_A_THREAD = divide_up(N, COPIERS);

  TILEWRIGHT_DEVICE u32 next_run(u32 run) const { return run + 1 < item.run_count ? runs()[run + 1].begin : 0xffffffffu; }

  // Before a thread's tokens of a step: where those of all warps begin behind the turns, they are before the ones of the last step.
  TILEWRIGHT_DEVICE void begin_step(Cursor &cursor, const Steps &steps, u32 step) const {
    if (TURNS && step == steps.shared && step > 0) cursor = Cursor{0, next_run(0)};
  }

  // The run of a token of the walk that is not before the one asked for last.
  TILEWRIGHT_DEVICE const Shared &run_of(Cursor &cursor, u32 token) const {
    while (token >= cursor.next) cursor.next = next_run(++cursor.run);
    return runs()[cursor.run];
  }

  // Page ids of this thread's tokens of a step. What is no token at all gets the id of one before it.
  TILEWRIGHT_DEVICE void fetch_pages(i32 (&ids)[TOKENS_A_THREAD], const Steps &steps, u32 step, Cursor &cursor) const {
    begin_step(cursor, steps, step);
#pragma unroll
    for (u32 i = 0; i < TOKENS_A_THREAD; i++) {
      u32 end;
      const u32 at = token_of(steps, step, i, end), token = smaller(at, end - 1);
      const Shared &run = run_of(cursor, token);
      ids[i] = args.page_ids[run.pages + page_size.quotient(smaller(token - run.begin, run.tokens - 1))];
    }
  }

  // The same for an item of one run, from the item alone.
  TILEWRIGHT_DEVICE void fetch_first_pages(i32 (&ids)[TOKENS_A_THREAD], u32 step) const {
#pragma unroll
    for (u32 i = 0; i < TOKENS_A_THREAD; i++) {
      const u32 token = smaller(item.walk_begin + step * N + copier + i * COPIERS, item.walk_end - 1);
      ids[i] = args.page_ids[item.first.pages + page_size.quotient(token - item.first.begin)];
    }
  }

  // Turns page ids into distances in bytes, where all threads find them. Tokens that no row sees have none: their memory may hold anything,
  // NaN too.
  TILEWRIGHT_DEVICE void store_offsets(const i32 (&ids)[TOKENS_A_THREAD], const Steps &steps, u32 step, Cursor &cursor) const {
    begin_step(cursor, steps, step);
#pragma unroll
    for (u32 i = 0; i < TOKENS_A_THREAD; i++) {
      const u32 place = copier + i * COPIERS;
      if (place >= N) break;
      u32 end;
      const u32 token = token_of(steps, step, i, end);
      const Shared &run = run_of(cursor, smaller(token, end - 1));
      const i32 position = static_cast<i32>(token) + run.position;
      const bool before_end = token < end && position < run.end;
      const bool visible = before_end && (!WINDOW || position >= run.seen);
      const i64 distance = ids[i] * args.page + page_size.remainder(token - run.begin) * args.token;
      offsets(step)[place] = visible ? distance * static_cast<i64>(sizeof(KvBits)) : -1;
      if (place % GRANULE == 0) {
        const bool some = before_end && (!WINDOW || position + static_cast<i32>(GRANULE) > run.seen);
        const u32 tokens = some ? smaller(static_cast<u32>(run.end - position), GRANULE) : 0;
        granules(step)[place / GRANULE] = Granule{position, some ? run.rows | tokens << 24 : 0};
      }
    }
  }

  // Starts the copies of one step. Tokens that no row sees become zeros.
  TILEWRIGHT_DEVICE void load_step(u32 step) const {
    const u32 first_row = copier / CHUNKS, chunk = copier % CHUNKS;
    const i64 column = (kv_head * args.head + chunk * CHUNK_ELEMENTS) * static_cast<i64>(sizeof(KvBits));
    const u8 *const keys = computed_once(static_cast<const u8 *>(args.keys) + column);
    const u8 *const values = computed_once(static_cast<const u8 *>(args.values) + column);
    const u32 target = keys_at(step) + chunk / PANEL_CHUNKS * PANEL_BYTES + first_row * PANEL_ROW_BYTES;
    const u32 exchanged = chunk % PANEL_CHUNKS ^ exchange(first_row);
    constexpr u32 BATCH = 4; // offsets that are read before they are waited for
#pragma unroll
    for (u32 i = 0; i < divide_up(N, ROWS_AT_ONCE); i += BATCH) {
      i64 offset[BATCH];
#pragma unroll
      for (u32 j = 0; j < BATCH; j++) {
        const u32 next = (i + j) * ROWS_AT_ONCE;
        offset[j] = first_row + next < N ? offsets(step)[first_row + next] : -1;
      }
#pragma unroll
      for (u32 j = 0; j < BATCH; j++) {
        const u32 next = (i + j) * ROWS_AT_ONCE;
        if (next >= N || (N % ROWS_AT_ONCE != 0 && first_row + next >= N)) break;
        // The rows of a thread differ in other bits than those of `first_row`, so what they exchange adds up.
        const u32 to = target + next * PANEL_ROW_BYTES + (exchanged ^ exchange(next)) * 16;
        const i32 sign = static_cast<i32>(offset[j] >> 32);
        copy_async_16(to, keys + offset[j], sign);
        copy_async_16(to + STAGE_BYTES, values + offset[j], sign);
      }
    }
  }

  // Sixteen elements of the warp's rows. Beside K in FP8 a lane takes four neighbours, as it does there.
  TILEWRIGHT_DEVICE void query_fragment(u32 (&fragment)[4], u32 k, u32 first) const {
    if constexpr (FP8) {
      const u32 row = row_warp * 16 + fragment_row, chunk = k * 2 + lane % 4 / 2, within = lane % 2 * 8;
      load_words(fragment[0], fragment[2], query_address(first, row, chunk) + within);
      load_words(fragment[1], fragment[3], query_address(first, row + 8, chunk) + within);
    } else {
      load_matrices(fragment, query_address(first, row_warp * 16 + lane % 16, k * 2 + lane / 16));
    }
    if (signed_scale < 0.f) {
#pragma unroll
      for (u32 i = 0; i < 4; i++) fragment[i] ^= 0x80008000; // both signs of a pair
    }
  }

  // What a warp accumulates.
  struct Accumulators {
    float output[HEAD_DIM / 8][4];
    Softmax softmax[2];
  };

  // What a lane's two rows see, and what all of the warp's rows see.
  struct Sight {
    i32 begin[2], end[2];
    i32 all_begin, all_end;
    // Tokens of the walk that all of them see, where that is plain: in its first runs, as far as all rows multiplied together share them.
    i32 plain_begin, plain_end;
  };

  // Rows that are multiplied by the same steps: the warp's, or the warpgroup's.
  static constexpr u32 ROWS_TOGETHER = TOGETHER ? 64 : 16;
  TILEWRIGHT_DEVICE u32 first_row_together() const { return row_warp * 16 / ROWS_TOGETHER * ROWS_TOGETHER; }

  TILEWRIGHT_DEVICE Sight sight(const Steps &steps) const {
    Sight sight{{0, 0}, {0, 0}, 0, 0x7fffffff, 0, 0};
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const u32 row = row_warp * 16 + fragment_row + half * 8;
      // Rows that only pad are computed like the others, from zeros, and never written.
      sight.begin[half] = row < row_count() ? rows()[row].begin : 0;
      sight.end[half] = row < row_count() ? rows()[row].end : 0x7fffffff;
      sight.all_begin = larger(sight.all_begin, sight.begin[half]);
      sight.all_end = smaller(sight.all_end, sight.end[half]);
    }
#pragma unroll
    for (u32 mask = 4; mask < 32; mask *= 2) {
      sight.all_begin = larger(sight.all_begin, from_lane_xor(sight.all_begin, mask));
      sight.all_end = smaller(sight.all_end, from_lane_xor(sight.all_end, mask));
    }
    const u32 first = first_row_together(), last = smaller(first + ROWS_TOGETHER, row_count());
    for (u32 index = 0; index < item.run_count; index++) {
      const Shared &run = runs()[index];
      const bool shared_by_all = run.rows % 4096 <= first && run.rows / 4096 >= last && run.position == runs()[0].position;
      if (!shared_by_all) break;
      if (index == 0) sight.plain_begin = larger(sight.all_begin, run.seen) - run.position; // a warp's rows may all be padding
      sight.plain_end = smaller(sight.all_end, run.end) - run.position;
      // What is beyond a run's last page is not the next one's.
      if (sight.plain_end < static_cast<i32>(run.begin + run.tokens)) break;
    }
    sight.plain_end = smaller(sight.plain_end, static_cast<i32>(steps.shared_end));
    return sight;
  }

  // A bounded logit, in base 2.
  TILEWRIGHT_DEVICE float bounded_logit(float product) const {
    // tanh(x) = 1 - 2 / (exp(2 x) + 1), exact at both ends.
    const float x = product * scale / args.softcap;
    return args.softcap * LOG2_E * (1.f - 2.f / (exp2_fast(2.f * x) + 1.f));
  }

  // A bit for each of a warp's granules.
  static constexpr u32 all_granules(u32 count) { return (1u << count) - 1; }
  static_assert(WARP_GRANULES <= 16, "granules of a warp are the bits of a mask");

  // Logits of the warp's rows with GRANULES_HERE granules of a step, `first` and the next ones; those outside of `active` stay zero.
  template <bool ALL, u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE void multiply_keys(float (&scores)[GRANULES_HERE * 2][4], const u32 (&query)[QUERY_FRAGMENTS][4], u32 step, u32 first,
                                       u32 active) const {
    constexpr u32 PRODUCTS = CHUNK_ELEMENTS / 8; // that two chunks are enough for
#pragma unroll
    for (u32 j = 0; j < GRANULES_HERE * 2; j++) scores[j][0] = scores[j][1] = scores[j][2] = scores[j][3] = 0.f;
#pragma unroll
    for (u32 k = 0; k < CHUNKS / 2; k++) {
      u32 a[PRODUCTS][4];
#pragma unroll
      for (u32 p = 0; p < PRODUCTS; p++) {
        if constexpr (QUERY_IN_REGISTERS) {
#pragma unroll
          for (u32 i = 0; i < 4; i++) a[p][i] = query[k * PRODUCTS + p][i];
        } else {
          query_fragment(a[p], k * PRODUCTS + p, 0); // in a place of its own
        }
      }
#pragma unroll
      for (u32 n = 0; n < GRANULES_HERE; n++) {
        if (!ALL && !(active >> n & 1)) continue;
        const u32 row = (first + n) * GRANULE + lane % 8 + lane / 16 * 8;
        u32 b[4];
        load_matrices(b, chunk_address(keys_at(step), row, k * 2 + lane / 8 % 2));
        if constexpr (FP8) {
#pragma unroll
          for (u32 i = 0; i < 4; i++) { // tokens 0 to 7 with both chunks, then 8 to 15
            u32 low, high;
            widen_neighbours(Element{}, b[i], low, high);
            multiply_add(Element{}, scores[2 * n + i / 2], a[i % 2], low, high);
          }
        } else {
          multiply_add(Element{}, scores[2 * n], a[0], b[0], b[1]);
          multiply_add(Element{}, scores[2 * n + 1], a[0], b[2], b[3]);
        }
      }
    }
  }

  // The weights of a granule: accumulators of two products lie as the left side of the next one wants them.
  template <u32 TILES> TILEWRIGHT_DEVICE static void narrow_weights(u32 (&a)[4], const float (&scores)[TILES][4], u32 n) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) a[i] = narrow(Element{}, scores[2 * n + i / 2][i % 2 * 2], scores[2 * n + i / 2][i % 2 * 2 + 1]);
  }

  // Adds the values of these granules under their weights.
  template <bool ALL, u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE void multiply_values(Accumulators &acc, const float (&scores)[GRANULES_HERE * 2][4], u32 step, u32 first, u32 active) const {
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) {
      if (!ALL && !(active >> n & 1)) continue;
      u32 a[4];
      narrow_weights(a, scores, n);
      const u32 row = (first + n) * GRANULE + lane % 16;
#pragma unroll
      for (u32 d = 0; d < CHUNKS / 2; d++) {
        u32 b[4];
        load_matrices_transposed(b, chunk_address(values_at(step), row, d * 2 + lane / 16));
        if constexpr (FP8) {
#pragma unroll
          for (u32 i = 0; i < 2; i++) { // a chunk: its even elements, and its odd ones
            u32 even[2], odd[2];
            widen_alternate(Element{}, b[2 * i], even[0], odd[0]);
            widen_alternate(Element{}, b[2 * i + 1], even[1], odd[1]);
            multiply_add(Element{}, acc.output[4 * d + 2 * i], a, even[0], even[1]);
            multiply_add(Element{}, acc.output[4 * d + 2 * i + 1], a, odd[0], odd[1]);
          }
        } else {
          multiply_add(Element{}, acc.output[2 * d], a, b[0], b[1]);
          multiply_add(Element{}, acc.output[2 * d + 1], a, b[2], b[3]);
        }
      }
    }
  }

  // Which of these granules some of the rows that are multiplied at once share, a bit each; and whether some row of the warp does not see
  // all of them.
  template <u32 GRANULES_HERE, bool WITH_GROUP>
  TILEWRIGHT_DEVICE u32 active_granules(u32 step, u32 first, const Sight &sight, bool &masked) const {
    const u32 first_row = row_warp * 16, last_row = smaller(first_row + 16, row_count());
    const u32 first_active = WITH_GROUP ? first_row_together() : first_row;
    const u32 last_active = WITH_GROUP ? smaller(first_active + ROWS_TOGETHER, row_count()) : last_row;
    u32 active = 0;
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) {
      const Granule granule = granules(step)[first + n];
      const u32 begin = granule.first_row(), end = granule.last_row();
      const bool some = begin < last_active && end > first_active;
      const bool all = begin <= first_row && end >= last_row && granule.tokens() == GRANULE &&
                       granule.position + static_cast<i32>(GRANULE) <= sight.all_end && (!WINDOW || granule.position >= sight.all_begin);
      active |= static_cast<u32>(some) << n;
      masked = masked || !all;
    }
    return active;
  }

  // Makes -inf of the logits that a row has with tokens that it does not see.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE void mask_scores(float (&scores)[GRANULES_HERE * 2][4], u32 step, u32 first, const Sight &sight) const {
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) {
      const Granule granule = granules(step)[first + n];
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        const u32 row = row_warp * 16 + fragment_row + half * 8;
        const bool shares = row >= granule.first_row() && row < granule.last_row();
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
          const u32 within = fragment_column + e / 2 * 8 + e % 2;
          const i32 token = granule.position + static_cast<i32>(within);
          const bool visible = shares && within < granule.tokens() && token < sight.end[half] && (!WINDOW || token >= sight.begin[half]);
          if (!visible) scores[2 * n + e / 2][2 * half + e % 2] = negative_infinity();
        }
      }
    }
  }

  // Weights are of the largest logit that a row had when its accumulators were brought under it last; up to 2^8 above that they are exact
  // in any type, and the accumulators stay as they are.
  static constexpr float SLACK = 8.f;

  // Brings the accumulators under the largest logits of a step, where they are too far below. In `max` lie those of a lane, then what is to
  // be subtracted.
  TILEWRIGHT_DEVICE void raise_maxima(Accumulators &acc, float (&max)[2]) const {
    bool far = false;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      max[half] = larger(max[half], from_lane_xor(max[half], 1));
      max[half] = larger(max[half], from_lane_xor(max[half], 2));
      far = far || max[half] > acc.softmax[half].max + SLACK;
    }
    if (any_in_warp(far)) {
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        Softmax &softmax = acc.softmax[half];
        const float next = larger(softmax.max, max[half]);
        const float factor = exp2_fast(softmax.max - finite_or_zero(next));
        softmax.max = next;
        softmax.sum *= factor;
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 8; d++) {
          acc.output[d][2 * half] *= factor;
          acc.output[d][2 * half + 1] *= factor;
        }
      }
    }
    max[0] = finite_or_zero(acc.softmax[0].max);
    max[1] = finite_or_zero(acc.softmax[1].max);
  }

  // As many columns at once as there are products for.
  static constexpr u32 widest_product(u32 columns) { return columns >= 128 ? 128 : columns >= 64 ? 64 : columns >= 32 ? 32 : 16; }

  // The product of a warpgroup's rows with the columns of a matrix, from COLUMN on; added to `sum`, or in its place. The columns are tokens'
  // keys, or elements of values.
  template <bool VALUES, u32 COLUMN, u32 TILES>
  TILEWRIGHT_DEVICE static void multiply_columns(float (&sum)[TILES][4], const u32 (&a)[4], SharedMatrix matrix, bool add) {
    if constexpr (COLUMN < TILES * 8) {
      constexpr u32 COLUMNS = widest_product(TILES * 8 - COLUMN);
      const u32 at = VALUES ? COLUMN / 64 * PANEL_BYTES : COLUMN * PANEL_ROW_BYTES;
      multiply_add_together<COLUMNS, VALUES, COLUMN / 8>(Element{}, sum, a, matrix.further(at), add);
      multiply_columns<VALUES, COLUMN + COLUMNS>(sum, a, matrix, add);
    }
  }
  TILEWRIGHT_DEVICE static SharedMatrix matrix_at(u32 address) { return SharedMatrix::at(address, PANEL_BYTES, 8 * PANEL_ROW_BYTES); }

  // Begins the same as `multiply_keys` does, by a warpgroup.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE void begin_keys_together(float (&scores)[GRANULES_HERE * 2][4], const u32 (&query)[QUERY_FRAGMENTS][4], u32 step,
                                                u32 first) const {
    const SharedMatrix keys = matrix_at(keys_at(step) + first * GRANULE * PANEL_ROW_BYTES);
    begin_products(scores);
#pragma unroll
    for (u32 k = 0; k < HEAD_DIM / 16; k++) multiply_columns<false, 0>(scores, query[k], keys.further(k / 4 * PANEL_BYTES + k % 4 * 32), k > 0);
    commit_products();
  }

  // The same as `multiply_values`, by a warpgroup.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE void multiply_values_together(Accumulators &acc, const float (&scores)[GRANULES_HERE * 2][4], u32 step, u32 first) const {
    u32 weights[GRANULES_HERE][4];
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) narrow_weights(weights[n], scores, n);
    const SharedMatrix values = matrix_at(values_at(step) + first * GRANULE * PANEL_ROW_BYTES);
    begin_products(acc.output);
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) multiply_columns<true, 0>(acc.output, weights[n], values.further(n * GRANULE * PANEL_ROW_BYTES), true);
    commit_products();
    end_products(acc.output);
  }

  // One step of online softmax over GRANULES_HERE granules, `first` and the next ones of a step. WITH_GROUP, the warpgroup does it together,
  // and `meanwhile` is done while it multiplies. Where it is `plain`, all rows see all of it.
  template <u32 GRANULES_HERE, bool WITH_GROUP, class Meanwhile>
  TILEWRIGHT_DEVICE void compute_step(Accumulators &acc, const u32 (&query)[QUERY_FRAGMENTS][4], u32 step, u32 first, const Sight &sight,
                                      bool plain, const Meanwhile &meanwhile) const {
    constexpr u32 ALL_GRANULES = all_granules(GRANULES_HERE);
    bool masked = false;
    const u32 active = plain ? ALL_GRANULES : active_granules<GRANULES_HERE, WITH_GROUP>(step, first, sight, masked);
    if (active == 0) return meanwhile();
    float scores[GRANULES_HERE * 2][4];
    if constexpr (WITH_GROUP) begin_keys_together<GRANULES_HERE>(scores, query, step, first);
    meanwhile();
    if constexpr (WITH_GROUP) {
      end_products(scores);
    } else if (active == ALL_GRANULES) {
      multiply_keys<true, GRANULES_HERE>(scores, query, step, first, active);
    } else {
      multiply_keys<false, GRANULES_HERE>(scores, query, step, first, active);
    }
    if constexpr (SOFTCAP) {
#pragma unroll
      for (u32 j = 0; j < GRANULES_HERE * 2; j++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) scores[j][e] = bounded_logit(scores[j][e]);
      }
    }
    const float factor = SOFTCAP ? 1.f : scale; // what makes logits of the scores from here on
    if (masked) mask_scores<GRANULES_HERE>(scores, step, first, sight);

    float max[2] = {negative_infinity(), negative_infinity()};
#pragma unroll
    for (u32 j = 0; j < GRANULES_HERE * 2; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) max[e / 2] = larger(max[e / 2], scores[j][e]);
    }
    max[0] *= factor;
    max[1] *= factor;
    raise_maxima(acc, max);
#pragma unroll
    for (u32 j = 0; j < GRANULES_HERE * 2; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) {
        scores[j][e] = exp2_fast(scores[j][e] * factor - max[e / 2]);
        acc.softmax[e / 2].sum += scores[j][e];
      }
    }
    if constexpr (WITH_GROUP) {
      multiply_values_together<GRANULES_HERE>(acc, scores, step, first);
    } else if (active == ALL_GRANULES) {
      multiply_values<true, GRANULES_HERE>(acc, scores, step, first, active);
    } else {
      multiply_values<false, GRANULES_HERE>(acc, scores, step, first, active);
    }
  }

  TILEWRIGHT_DEVICE Softmax *warp_softmax(u32 of_warp, u32 row) const {
    return reinterpret_cast<Softmax *>(shared + SOFTMAX_AT) + of_warp * 16 + row;
  }
  TILEWRIGHT_DEVICE float *warp_output(u32 of_warp, u32 row) const {
    return reinterpret_cast<float *>(shared) + (of_warp * 16 + row) * OUTPUT_STRIDE;
  }

  // Leaves each warp's rows in shared memory, all warps that share rows under one maximum.
  TILEWRIGHT_DEVICE void gather_warps(Accumulators &acc) const {
    float value_scale = 1.f;
    if constexpr (FP8) value_scale = args.value_scales[kv_head * args.scale_head];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      Softmax &softmax = acc.softmax[half];
      softmax.sum += from_lane_xor(softmax.sum, 1);
      softmax.sum += from_lane_xor(softmax.sum, 2);
      if (lane % 4 == 0) *warp_softmax(warp, fragment_row + half * 8) = softmax;
    }
    barrier(); // all maxima are there, and the buffers are no longer read
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const u32 row = fragment_row + half * 8;
      const float factor = exp2_fast(acc.softmax[half].max - finite_or_zero(common_softmax(row_warp, row).max)) * value_scale;
      if constexpr (FP8) {
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 16; d++) {
          float *target = warp_output(warp, row) + d * 16 + 2 * fragment_column;
#pragma unroll
          for (u32 e = 0; e < 4; e++) target[e] = acc.output[2 * d + e % 2][2 * half + e / 2] * factor;
        }
      } else {
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 8; d++) {
          float *target = warp_output(warp, row) + d * 8 + fragment_column;
          target[0] = acc.output[d][2 * half] * factor;
          target[1] = acc.output[d][2 * half + 1] * factor;
        }
      }
    }
    barrier();
  }

  // Softmax of a row over all warps that share it.
  TILEWRIGHT_DEVICE Softmax common_softmax(u32 of_row_warp, u32 row) const {
    Softmax common{negative_infinity(), 0.f};
#pragma unroll
    for (u32 w = 0; w < KV_WARPS; w++) common.max = larger(common.max, warp_softmax(w * ROW_WARPS + of_row_warp, row)->max);
#pragma unroll
    for (u32 w = 0; w < KV_WARPS; w++) {
      const Softmax *one = warp_softmax(w * ROW_WARPS + of_row_warp, row);
      common.sum += one->sum * exp2_fast(one->max - finite_or_zero(common.max));
    }
    return common;
  }

  // Four neighbouring elements a thread: final where the row has one partial, else as a partial.
  TILEWRIGHT_DEVICE void write_rows() const {
    constexpr u32 QUADS = HEAD_DIM / 4;
    for (u32 index = thread; index < row_count() * QUADS; index += WARPS * 32) {
      const u32 row = index / QUADS, element = index % QUADS * 4;
      Softmax softmax = common_softmax(row / 16, row % 16);
      float sum[4] = {};
#pragma unroll
      for (u32 w = 0; w < KV_WARPS; w++) {
        const float *part = warp_output(w * ROW_WARPS + row / 16, row % 16) + element;
#pragma unroll
        for (u32 e = 0; e < 4; e++) sum[e] += part[e];
      }
      const Row found = rows()[row];
      const u32 head = query_head(row);
      if (found.slot.partial == DIRECT) {
        float factor = 1.f;
        if constexpr (SINKS) factor = add_sink(softmax, args.sinks[head]);
        factor = softmax.sum > 0.f ? factor / softmax.sum : 0.f;
        u16 *target = args.output + found.request * args.output_request + head * args.output_head + element;
        u32 *pair = reinterpret_cast<u32 *>(target);
        pair[0] = narrow(Element{}, sum[0] * factor, sum[1] * factor);
        pair[1] = narrow(Element{}, sum[2] * factor, sum[3] * factor);
        if (element == 0 && args.lse) args.lse[u64(found.request) * args.q_heads + head] = log_sum_exp(softmax);
      } else if (found.slot.partial != UNTOUCHED) {
        const u64 partial = u64(found.slot.partial) * args.q_heads + head;
        float *target = args.partial_output + partial * HEAD_DIM + element;
#pragma unroll
        for (u32 e = 0; e < 4; e++) target[e] = sum[e];
        if (element == 0) {
          args.partial_softmax[partial * 2] = softmax.max;
          args.partial_softmax[partial * 2 + 1] = softmax.sum;
        }
      }
    }
  }

  // The CTA that leaves the last partial of a request and KV head merges them all.
  TILEWRIGHT_DEVICE void merge_arrived() const {
    u32 *const last = reinterpret_cast<u32 *>(shared + SOFTMAX_AT); // nobody reads the warps' softmaxes any more
    memory_fence();
    barrier(); // all of this CTA's partials are written
    // Rows of whole requests, or some of one.
    const u32 count = divide_up(row_count(), args.gqa_ratio);
    for (u32 member = thread; member < count; member += WARPS * 32) {
      const Row &row = rows()[member * args.gqa_ratio];
      bool arrived_last = false;
      if (row.slot.partial < UNTOUCHED) {
        u32 *const counter = args.arrivals + row.slot.merge * args.kv_heads + kv_head;
        arrived_last = count_arrival(counter) + 1 == args.merges[row.slot.merge].arrivals;
        if (arrived_last) *counter = 0; // ready for the next launch
      }
      last[member] = arrived_last ? row.slot.merge : DIRECT;
    }
    memory_fence();
    barrier();
    for (u32 index = warp; index < count * args.gqa_ratio; index += WARPS) { // of those that are left
      const u32 merge = last[index / args.gqa_ratio];
      if (merge == DIRECT) continue;
      const MergeItem merged = args.merges[merge];
      const u32 head = kv_head * args.gqa_ratio + index % args.gqa_ratio;
      MergedRow<HEAD_DIM / 32> row =
          sum_partials<HEAD_DIM>(args, merged, head, merged.partial_end - merged.partial_begin, 0, 1);
      write_merged<HEAD_DIM, Element, SINKS>(args, merged.request, head, row);
    }
  }
  static_assert(M <= WARPS * 32, "a flag for each request of a block fits in the place of the warps' softmaxes");

  // Waits for this thread's copies, but for so many groups; a barrier has to follow.
  template <int PENDING> TILEWRIGHT_DEVICE static void wait_for_copies() {
    copy_async_wait<PENDING>();
    if constexpr (TOGETHER) fence_for_warpgroups();
  }

  // The pages of the steps ahead, of a thread that copies.
  struct Ahead {
    i32 ids[TOKENS_A_THREAD]; // of the step after the last one with offsets
    Cursor fetched, stored;
  };

  // Starts what copies the step that is as many steps ahead as there are buffers, and looks up pages for later ones.
  TILEWRIGHT_DEVICE void copy_ahead(Ahead &ahead, const Steps &steps, u32 step) const {
    const u32 next = step + STAGES - 1;
    if (next < steps.last) load_step(next);
    copy_async_commit();
    if (next + 1 < steps.last) store_offsets(ahead.ids, steps, next + 1, ahead.stored);
    if (next + 2 < steps.last) fetch_pages(ahead.ids, steps, next + 2, ahead.fetched);
  }

  // What makes a step ready, for the threads that copy: returns when it has arrived for all threads, and the buffer of the one before is
  // free.
  TILEWRIGHT_DEVICE void next_step(Ahead &ahead, const Steps &steps, u32 step) const {
    if constexpr (STAGES > 1) wait_for_copies<STAGES - 2>();
    barrier();
    if constexpr (STAGES == 1) {
      copy_ahead(ahead, steps, step);
      wait_for_copies<0>();
      barrier();
    }
  }

  // The same for the others.
  TILEWRIGHT_DEVICE static void await_step() {
    barrier();
    if constexpr (STAGES == 1) barrier();
  }

  template <class Meanwhile>
  TILEWRIGHT_DEVICE void compute(Accumulators &acc, const u32 (&query)[QUERY_FRAGMENTS][4], const Steps &steps, u32 step, const Sight &seen,
                                 const Meanwhile &meanwhile) const {
    if constexpr (TURNS) {
      constexpr u32 OWN_GRANULES = WARP_TURN / GRANULE;
      if (steps.in_turns(step)) {
        const u32 first = kv_warp * WARP_GRANULES + row_warp * OWN_GRANULES;
        return compute_step<OWN_GRANULES, false>(acc, query, step, first, seen, false, meanwhile);
      }
    }
    const u32 first = kv_warp * WARP_GRANULES;
    const i32 token = static_cast<i32>(item.walk_begin + (step - steps.shared) * N + first * GRANULE);
    const bool plain = token + static_cast<i32>(WARP_N) <= seen.plain_end && (!WINDOW || token >= seen.plain_begin);
    compute_step<WARP_GRANULES, TOGETHER>(acc, query, step, first, seen, plain, meanwhile);
  }

  // Waits until the query has arrived, and copies the warp's rows of it to registers.
  TILEWRIGHT_DEVICE void read_query(u32 (&query)[QUERY_FRAGMENTS][4], u32 first) const {
    if constexpr (QUERY_IN_REGISTERS) {
      barrier();
#pragma unroll
      for (u32 k = 0; k < HEAD_DIM / 16; k++) query_fragment(query[k], k, first);
    }
  }

  TILEWRIGHT_DEVICE void execute() const {
    const bool any = item.run_count > 0;
    const bool early = !WINDOW && item.run_count == 1; // the first steps' pages are known before anything else is
    i32 first_ids[STAGES][TOKENS_A_THREAD] = {};
    Ahead ahead = {};
    if (early) {
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) fetch_first_pages(first_ids[s], s);
      fetch_first_pages(ahead.ids, STAGES);
    }
    describe_runs();
    describe_rows();
    barrier();
    if (any) find_seen();
    const Steps steps = any ? find_steps() : Steps{};
    const u32 first = steps.first;
    if constexpr (LOADERS > 0) {
      if (warp < WARPS) {
        take_registers<MATH_REGISTERS>();
        barrier(); // as the loaders do, for each other's offsets
        return finish(steps, [&](auto &acc, auto &query, const Sight &seen) {
          read_query(query, first);
          for (u32 step = first; step < steps.last; step++) {
            await_step();
            compute(acc, query, steps, step, seen, [] {});
          }
        });
      }
      leave_registers<LOADER_REGISTERS>();
    }
    load_query(first);
    if (any) {
      ahead.fetched = ahead.stored = Cursor{0, next_run(0)};
      if (!early) {
#pragma unroll
        for (u32 s = 0; s < STAGES; s++) fetch_pages(first_ids[s], steps, first + s, ahead.fetched);
        fetch_pages(ahead.ids, steps, first + STAGES, ahead.fetched);
      }
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) store_offsets(first_ids[s], steps, first + s, ahead.stored);
    }
    barrier();
#pragma unroll
    for (u32 s = 0; s + 1 < STAGES; s++) {
      if (first + s < steps.last) load_step(first + s);
      copy_async_commit(); // the query travels in the first group
    }
    if constexpr (STAGES == 1) copy_async_commit();
    if constexpr (QUERY_IN_REGISTERS) copy_async_wait<STAGES == 1 ? 0 : STAGES - 2>();
    if constexpr (LOADERS > 0) {
      if constexpr (QUERY_IN_REGISTERS) barrier(); // in `read_query`
#pragma unroll 1
      for (u32 step = first; step < steps.last; step++) {
        next_step(ahead, steps, step);
        if constexpr (STAGES > 1) copy_ahead(ahead, steps, step);
      }
      copy_async_wait<0>();
    } else {
      finish(steps, [&](auto &acc, auto &query, const Sight &seen) {
        read_query(query, first);
#pragma unroll 1
        for (u32 step = first; step < steps.last; step++) {
          next_step(ahead, steps, step);
          compute(acc, query, steps, step, seen, [&] {
            if constexpr (STAGES > 1) copy_ahead(ahead, steps, step);
          });
        }
        copy_async_wait<0>();
      });
    }
  }

  // Accumulates as `walk` does, and writes what comes of it. Threads that copy only have ended by then, or will.
  template <class Walk> TILEWRIGHT_DEVICE void finish(const Steps &steps, const Walk &walk) const {
    const Sight seen = sight(steps);
    Accumulators acc = {};
    acc.softmax[0].max = acc.softmax[1].max = negative_infinity();
    u32 query[QUERY_FRAGMENTS][4];
    walk(acc, query, seen);
    gather_warps(acc);
    write_rows();
    if (args.arrivals) merge_arrived();
  }
};

} // namespace tilewright
