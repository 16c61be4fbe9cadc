// Forward of one work item: attention of up to M rows over a range of tokens whose pages lie anywhere.
//
// Rows are (request, query head) pairs of one KV head, padded to M. Tokens come in steps of N, each gathered through the page table
// into one of STAGES buffers while earlier ones are computed. Each warp owns 16 rows and a share of the N tokens; warps that
// own the same rows are merged at the end by their maxima and sums.
#pragma once
#include "arguments.cuh"
#include "prelude.cuh"

namespace tilewright {

// Options of the attention itself, compiled in.
struct Options {
  bool window;  // a row sees its last tokens only
  bool softcap; // logits are bounded by a scaled tanh
  bool sinks;   // every row has a logit beside its tokens
};

// The softmax of one row so far: maximum in base 2 and the sum of the weights under it.
struct Softmax {
  float max;
  float sum;
};

// A maximum that may be subtracted: with no token so far nothing is.
TILEWRIGHT_DEVICE float finite_or_zero(float max) { return max == negative_infinity() ? 0.f : max; }

// Takes a row's sink into its softmax; returns the factor for what was summed before.
TILEWRIGHT_DEVICE float add_sink(Softmax &softmax, float sink) {
  const float logit = sink * LOG2_E;
  const float max = larger(softmax.max, logit);
  const float factor = exp2_fast(softmax.max - finite_or_zero(max));
  softmax.sum = softmax.sum * factor + exp2_fast(logit - finite_or_zero(max));
  softmax.max = max;
  return factor;
}

TILEWRIGHT_DEVICE float log_sum_exp(const Softmax &softmax) {
  return softmax.sum > 0.f ? (softmax.max + log2_fast(softmax.sum)) * LN_2 : negative_infinity();
}

template <u32 M, u32 N, u32 WARPS, u32 STAGES, u32 HEAD_DIM, class Element, bool WINDOW, bool SOFTCAP, bool SINKS> struct Decode {
  static_assert(M % 16 == 0 && M > 0, "the matrix unit takes 16 rows at once");
  static_assert(HEAD_DIM % 64 == 0 && HEAD_DIM <= 256, "rows of 8 chunks of 16 bytes, or a multiple, for the swizzle");
  static constexpr u32 THREADS = WARPS * 32;
  static constexpr u32 ROW_WARPS = M / 16;           // warps side by side along the rows
  static constexpr u32 KV_WARPS = WARPS / ROW_WARPS; // warps that share their rows, each with its tokens
  static_assert(WARPS % ROW_WARPS == 0 && KV_WARPS > 0, "each warp owns 16 rows: warps are a multiple of M / 16");
  static constexpr u32 WARP_N = N / KV_WARPS;
  static_assert(N % KV_WARPS == 0 && WARP_N % 16 == 0, "the matrix unit takes 16 tokens of a warp at once");
  static_assert(STAGES > 0, "at least one buffer");

  static constexpr u32 CHUNKS = HEAD_DIM / 8; // 16 bytes each
  static constexpr u32 ROW_BYTES = HEAD_DIM * 2;
  static constexpr u32 STAGE_BYTES = N * ROW_BYTES; // of K or of V
  // Beyond 128 elements the fragments of Q do not fit the registers beside the accumulators: they are loaded when needed.
  static constexpr bool QUERY_IN_REGISTERS = HEAD_DIM <= 128;
  static constexpr u32 QUERY_FRAGMENTS = QUERY_IN_REGISTERS ? HEAD_DIM / 16 : 1;
  static constexpr u32 OUTPUT_STRIDE = HEAD_DIM + 8; // f32; 8 more keep the rows of a store in different banks
  static constexpr u32 OFFSET_SETS = larger(STAGES, 2u);

  // Shared memory, in this order. At the end the buffers are used again for the warps' outputs.
  static constexpr u32 BUFFER_BYTES = larger(STAGES * 2 * STAGE_BYTES, WARPS * 16 * OUTPUT_STRIDE * 4);
  static constexpr u32 QUERY_AT = BUFFER_BYTES;
  static constexpr u32 OFFSETS_AT = QUERY_AT + M * ROW_BYTES;
  static constexpr u32 SOFTMAX_AT = OFFSETS_AT + OFFSET_SETS * N * 8;
  static constexpr u32 ROWS_AT = SOFTMAX_AT + WARPS * 16 * 8;
  static constexpr u32 SHARED_BYTES = ROWS_AT + M * 16;

  // A row of the item. Tokens are counted from the item's first.
  struct Row {
    i32 begin; // first token that it sees
    i32 end;   // one past the last
    u32 request;
    u32 slot;
  };

  // What all rows together need.
  struct Range {
    i32 begin, end;         // tokens that some row sees
    i32 all_begin, all_end; // tokens that every row sees
  };

  const Arguments &args;
  const WorkItem item;
  const u32 thread = thread_index();
  const u32 lane = thread % 32;
  const u32 warp = thread / 32;
  const u32 row_warp = warp % ROW_WARPS;
  const u32 kv_warp = warp / ROW_WARPS;
  const u32 fragment_row = lane / 4;        // rows of the accumulators that a lane holds: this one and 8 below
  const u32 fragment_column = lane % 4 * 2; // and this column and the next, of every 8
  u8 *const shared = shared_memory();

  TILEWRIGHT_DEVICE explicit Decode(const Arguments &arguments) : args(arguments), item(arguments.items[block_index()]) {}

  TILEWRIGHT_DEVICE static void run(const Arguments &arguments) { Decode(arguments).execute(); }

  TILEWRIGHT_DEVICE u32 row_count() const { return item.row_end - item.row_begin; }
  TILEWRIGHT_DEVICE Row *rows() const { return reinterpret_cast<Row *>(shared + ROWS_AT); }
  TILEWRIGHT_DEVICE i64 *offsets(u32 step) const {
    return reinterpret_cast<i64 *>(shared + OFFSETS_AT) + step % OFFSET_SETS * N;
  }
  TILEWRIGHT_DEVICE u32 query_head(u32 row) const {
    return item.kv_head * args.gqa_ratio + (item.row_begin + row) % args.gqa_ratio;
  }

  // Chunks of a row are exchanged by its number: eight rows of the same column then lie in different banks.
  TILEWRIGHT_DEVICE static u32 chunk_address(u32 base, u32 row, u32 chunk) {
    return base + row * ROW_BYTES + (chunk ^ row % 8) * 16;
  }
  TILEWRIGHT_DEVICE u32 keys_at(u32 step) const { return shared_address(shared) + step % STAGES * 2 * STAGE_BYTES; }
  TILEWRIGHT_DEVICE u32 values_at(u32 step) const { return keys_at(step) + STAGE_BYTES; }

  // Finds what each row sees. Lengths are read here, so a plan holds while requests grow inside their pages.
  TILEWRIGHT_DEVICE void describe_rows() const {
    for (u32 row = thread; row < row_count(); row += THREADS) {
      const u32 member = (item.row_begin + row) / args.gqa_ratio;
      const u32 request = args.requests[item.requests + member];
      const i32 length = args.lengths[request];
      const i32 end = smaller(static_cast<i32>(item.kv_end), length) - static_cast<i32>(item.kv_begin);
      const i32 begin = WINDOW ? larger(length - static_cast<i32>(args.window), 0) - static_cast<i32>(item.kv_begin) : 0;
      rows()[row] = Row{larger(begin, 0), larger(end, 0), request, args.slots[item.slots + member]};
    }
  }

  // The same in every thread.
  TILEWRIGHT_DEVICE Range range_of_rows() const {
    Range range{0x7fffffff, 0, 0, 0x7fffffff};
    for (u32 row = lane; row < row_count(); row += 32) {
      const Row &found = rows()[row];
      range.begin = smaller(range.begin, found.begin);
      range.all_begin = larger(range.all_begin, found.begin);
      range.end = larger(range.end, found.end);
      range.all_end = smaller(range.all_end, found.end);
    }
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) {
      range.begin = smaller(range.begin, from_lane_xor(range.begin, mask));
      range.all_begin = larger(range.all_begin, from_lane_xor(range.all_begin, mask));
      range.end = larger(range.end, from_lane_xor(range.end, mask));
      range.all_end = smaller(range.all_end, from_lane_xor(range.all_end, mask));
    }
    return range;
  }

  TILEWRIGHT_DEVICE void load_query() const {
    for (u32 index = thread; index < M * CHUNKS; index += THREADS) {
      const u32 row = index / CHUNKS, chunk = index % CHUNKS;
      const bool valid = row < row_count();
      const u32 request = valid ? rows()[row].request : 0;
      const u32 head = valid ? query_head(row) : 0;
      const u16 *source = args.query + request * args.query_request + head * args.query_head + chunk * 8;
      copy_async_16(chunk_address(shared_address(shared + QUERY_AT), row, chunk), source, valid);
    }
  }

  static constexpr u32 TOKENS_A_THREAD = divide_up(N, THREADS);

  // Page ids of this thread's tokens of a step; a token that no row sees gets the id of the nearest that one does.
  TILEWRIGHT_DEVICE void fetch_pages(i32 (&ids)[TOKENS_A_THREAD], u32 step, const Range &range) const {
#pragma unroll
    for (u32 i = 0; i < TOKENS_A_THREAD; i++) {
      i32 token = smaller(static_cast<i32>(step * N + thread + i * THREADS), range.end - 1);
      if (WINDOW) token = larger(token, range.begin);
      ids[i] = args.page_ids[item.pages + static_cast<u32>(token) / args.page_size];
    }
  }

  // Turns page ids into distances from the head's first element, where all threads find them.
  TILEWRIGHT_DEVICE void store_offsets(const i32 (&ids)[TOKENS_A_THREAD], u32 step) const {
#pragma unroll
    for (u32 i = 0; i < TOKENS_A_THREAD; i++) {
      const u32 place = thread + i * THREADS;
      if (place < N) offsets(step)[place] = ids[i] * args.page + (step * N + place) % args.page_size * args.token;
    }
  }

  // Starts the copies of one step. Tokens that no row sees become zeros: their memory may hold anything, NaN too.
  TILEWRIGHT_DEVICE void load_step(u32 step, const Range &range) const {
    const u16 *const keys = args.keys + item.kv_head * args.head;
    const u16 *const values = args.values + item.kv_head * args.head;
#pragma unroll
    for (u32 index = thread; index < N * CHUNKS; index += THREADS) {
      const u32 row = index / CHUNKS, chunk = index % CHUNKS;
      const i32 token = static_cast<i32>(step * N + row);
      const bool valid = token < range.end && (!WINDOW || token >= range.begin);
      const i64 offset = valid ? offsets(step)[row] + chunk * 8 : 0;
      copy_async_16(chunk_address(keys_at(step), row, chunk), keys + offset, valid);
      copy_async_16(chunk_address(values_at(step), row, chunk), values + offset, valid);
    }
  }

  TILEWRIGHT_DEVICE void query_fragment(u32 (&fragment)[4], u32 k) const {
    const u32 row = row_warp * 16 + lane % 16;
    load_matrices(fragment, chunk_address(shared_address(shared + QUERY_AT), row, k * 2 + lane / 16));
  }

  // What a warp accumulates.
  struct Accumulators {
    float output[HEAD_DIM / 8][4];
    Softmax softmax[2];
  };

  TILEWRIGHT_DEVICE float logit(float product) const {
    if constexpr (SOFTCAP) {
      // tanh(x) = 1 - 2 / (exp(2 x) + 1), exact at both ends.
      const float x = product * args.scale_log2 / args.softcap;
      return args.softcap * LOG2_E * (1.f - 2.f / (exp2_fast(2.f * x) + 1.f));
    } else {
      return product * args.scale_log2;
    }
  }

  // One step of online softmax over WARP_N tokens.
  TILEWRIGHT_DEVICE void compute_step(Accumulators &acc, const u32 (&query)[QUERY_FRAGMENTS][4], u32 step, const Range &range,
                                      const i32 (&row_begin)[2], const i32 (&row_end)[2]) const {
    float scores[WARP_N / 8][4] = {};
#pragma unroll
    for (u32 k = 0; k < HEAD_DIM / 16; k++) {
      u32 a[4];
      if constexpr (QUERY_IN_REGISTERS) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) a[i] = query[k][i];
      } else {
        query_fragment(a, k);
      }
#pragma unroll
      for (u32 n = 0; n < WARP_N / 16; n++) {
        const u32 row = kv_warp * WARP_N + n * 16 + lane % 8 + lane / 16 * 8;
        u32 b[4];
        load_matrices(b, chunk_address(keys_at(step), row, k * 2 + lane / 8 % 2));
        multiply_add(Element{}, scores[2 * n], a, b[0], b[1]);
        multiply_add(Element{}, scores[2 * n + 1], a, b[2], b[3]);
      }
    }

    const i32 first = static_cast<i32>(step * N);
    const bool masked = first + static_cast<i32>(N) > range.all_end || (WINDOW && first < range.all_begin);
    const i32 column = first + static_cast<i32>(kv_warp * WARP_N + fragment_column);
    float max[2] = {negative_infinity(), negative_infinity()};
#pragma unroll
    for (u32 j = 0; j < WARP_N / 8; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) {
        const i32 token = column + static_cast<i32>(j * 8 + e % 2);
        float value = logit(scores[j][e]);
        if (masked && (token >= row_end[e / 2] || (WINDOW && token < row_begin[e / 2]))) value = negative_infinity();
        scores[j][e] = value;
        max[e / 2] = larger(max[e / 2], value);
      }
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      max[half] = larger(max[half], from_lane_xor(max[half], 1));
      max[half] = larger(max[half], from_lane_xor(max[half], 2));
      Softmax &softmax = acc.softmax[half];
      const float next = larger(softmax.max, max[half]);
      max[half] = finite_or_zero(next);
      const float factor = exp2_fast(softmax.max - max[half]);
      softmax.max = next;
      softmax.sum *= factor;
#pragma unroll
      for (u32 d = 0; d < HEAD_DIM / 8; d++) {
        acc.output[d][2 * half] *= factor;
        acc.output[d][2 * half + 1] *= factor;
      }
    }
#pragma unroll
    for (u32 j = 0; j < WARP_N / 8; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) {
        scores[j][e] = exp2_fast(scores[j][e] - max[e / 2]);
        acc.softmax[e / 2].sum += scores[j][e];
      }
    }

#pragma unroll
    for (u32 n = 0; n < WARP_N / 16; n++) {
      // Accumulators of two products lie as the left side of the next one wants them.
      const u32 a[4] = {narrow(Element{}, scores[2 * n][0], scores[2 * n][1]), narrow(Element{}, scores[2 * n][2], scores[2 * n][3]),
                        narrow(Element{}, scores[2 * n + 1][0], scores[2 * n + 1][1]),
                        narrow(Element{}, scores[2 * n + 1][2], scores[2 * n + 1][3])};
      const u32 row = kv_warp * WARP_N + n * 16 + lane % 16;
#pragma unroll
      for (u32 d = 0; d < HEAD_DIM / 16; d++) {
        u32 b[4];
        load_matrices_transposed(b, chunk_address(values_at(step), row, d * 2 + lane / 16));
        multiply_add(Element{}, acc.output[2 * d], a, b[0], b[1]);
        multiply_add(Element{}, acc.output[2 * d + 1], a, b[2], b[3]);
      }
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
      const float factor = exp2_fast(acc.softmax[half].max - finite_or_zero(common_softmax(row_warp, row).max));
#pragma unroll
      for (u32 d = 0; d < HEAD_DIM / 8; d++) {
        float *target = warp_output(warp, row) + d * 8 + fragment_column;
        target[0] = acc.output[d][2 * half] * factor;
        target[1] = acc.output[d][2 * half + 1] * factor;
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
    for (u32 index = thread; index < row_count() * QUADS; index += THREADS) {
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
      if (found.slot == DIRECT) {
        float factor = 1.f;
        if constexpr (SINKS) factor = add_sink(softmax, args.sinks[head]);
        factor = softmax.sum > 0.f ? factor / softmax.sum : 0.f;
        u16 *target = args.output + found.request * args.output_request + head * args.output_head + element;
        u32 *pair = reinterpret_cast<u32 *>(target);
        pair[0] = narrow(Element{}, sum[0] * factor, sum[1] * factor);
        pair[1] = narrow(Element{}, sum[2] * factor, sum[3] * factor);
        if (element == 0 && args.lse) args.lse[u64(found.request) * args.q_heads + head] = log_sum_exp(softmax);
      } else {
        const u64 partial = u64(found.slot) * args.q_heads + head;
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

  TILEWRIGHT_DEVICE void execute() const {
    describe_rows();
    barrier();
    const Range range = range_of_rows();
    const bool any = range.begin < range.end;
    const u32 first = any ? static_cast<u32>(range.begin) / N : 0;
    const u32 last = any ? divide_up(static_cast<u32>(range.end), N) : 0; // one past
    i32 ids[TOKENS_A_THREAD] = {};
    load_query();
    if (any) {
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) {
        fetch_pages(ids, first + s, range);
        store_offsets(ids, first + s);
      }
      fetch_pages(ids, first + STAGES, range);
    }
    barrier();
#pragma unroll
    for (u32 s = 0; s + 1 < STAGES; s++) {
      if (first + s < last) load_step(first + s, range);
      copy_async_commit(); // the query travels in the first group
    }
    if constexpr (STAGES == 1) copy_async_commit();

    i32 row_begin[2] = {0, 0}, row_end[2] = {0, 0};
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const u32 row = row_warp * 16 + fragment_row + half * 8;
      // Rows that only pad are computed like the others, from zeros, and never written.
      row_begin[half] = row < row_count() ? rows()[row].begin : 0;
      row_end[half] = row < row_count() ? rows()[row].end : 0x7fffffff;
    }
    Accumulators acc = {};
    acc.softmax[0].max = acc.softmax[1].max = negative_infinity();
    u32 query[QUERY_FRAGMENTS][4];
    if constexpr (QUERY_IN_REGISTERS) {
      copy_async_wait<STAGES == 1 ? 0 : STAGES - 2>();
      barrier();
#pragma unroll
      for (u32 k = 0; k < HEAD_DIM / 16; k++) query_fragment(query[k], k);
    }

#pragma unroll 1
    for (u32 step = first; step < last; step++) {
      const u32 next = step + STAGES - 1;
      if constexpr (STAGES > 1) copy_async_wait<STAGES - 2>();
      barrier(); // this step has arrived for all threads, and the buffer of the one before is free
      if (next < last) load_step(next, range);
      copy_async_commit();
      if (next + 1 < last) store_offsets(ids, next + 1);
      if (next + 2 < last) fetch_pages(ids, next + 2, range);
      if constexpr (STAGES == 1) {
        copy_async_wait<0>();
        barrier();
      }
      compute_step(acc, query, step, range, row_begin, row_end);
    }
    copy_async_wait<0>();
    gather_warps(acc);
    write_rows();
  }
};

} // namespace tilewright
