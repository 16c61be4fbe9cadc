// Merge: online softmax over the partials of each row (PAT, section 7), in the plan's order, so the same plan gives the same bits.
#pragma once
#include "abi.cuh"
#include "chunk.cuh"
#include "softmax.cuh"

namespace tilewright {

// Elements of a row that a lane has: a power of two, so that they are read at once. Of 96 and 192 the last eight lanes have none.
TILEWRIGHT_DEVICE constexpr u32 lane_elements(u32 head_dim) { return power_of_two_from(head_dim) / 32; }
template <u32 HEAD_DIM> TILEWRIGHT_DEVICE constexpr bool lane_has_elements(u32 lane) {
  return lane_elements(HEAD_DIM) * 32 == HEAD_DIM || lane * lane_elements(HEAD_DIM) < HEAD_DIM;
}

// What a lane has of a row: some neighbouring elements, and the softmax that all lanes have.
template <u32 ELEMENTS> struct MergedRow {
  Softmax softmax;
  float sum[ELEMENTS];
};

// Sums every `stride`-th partial of a row (request, query head), from `from` on, under the maximum of all of them. By one warp, whose lanes
// look at the softmaxes of 32 partials at once.
template <u32 HEAD_DIM> TILEWRIGHT_DEVICE MergedRow<lane_elements(HEAD_DIM)> sum_partials(const Arguments &args, const MergeItem &item, u32 head, u32 count,
                                                                                u32 from, u32 stride) {
  constexpr u32 ELEMENTS = lane_elements(HEAD_DIM);
  constexpr u32 BATCH = 32 / ELEMENTS; // partials that are read before they are waited for
  const u32 lane = thread_index() % 32;
  const u64 first = u64(item.partial_begin) * args.q_heads + head;
  MergedRow<ELEMENTS> row = {};
  row.softmax.max = negative_infinity();
  for (u32 begin = 0; begin < count; begin += 32) {
    const u32 here = smaller(count - begin, 32u);
    float parts[BATCH][ELEMENTS];
    const auto read_parts = [&](u32 i) {
#pragma unroll
      for (u32 j = 0; j < BATCH; j++) {
        const u32 partial = i + j * stride;
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) parts[j][e] = 0.f;
        if (partial < here && lane_has_elements<HEAD_DIM>(lane)) load_coherent(parts[j], args.partial_output + (first + u64(begin + partial) * args.q_heads) * HEAD_DIM + lane * ELEMENTS);
      }
    };
    // An empty range has the maximum -inf and weighs nothing.
    float mine[2] = {negative_infinity(), 0.f};
    if (begin + lane < count) load_coherent(mine, args.partial_softmax + (first + u64(begin + lane) * args.q_heads) * 2);
    read_parts(from); // they arrive with their softmaxes
    float max = mine[0];
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) max = larger(max, from_lane_xor(max, mask));
    max = larger(max, row.softmax.max);
    const float factor = exp2_fast(row.softmax.max - finite_or_zero(max)), weight = exp2_fast(mine[0] - finite_or_zero(max));
    float sum = weight * mine[1];
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) sum += from_lane_xor(sum, mask);
    row.softmax = Softmax{max, row.softmax.sum * factor + sum};
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) row.sum[e] *= factor;
    for (u32 i = from; i < here; i += BATCH * stride) {
      if (i > from) read_parts(i);
#pragma unroll
      for (u32 j = 0; j < BATCH; j++) {
        const float its_weight = from_lane(weight, (i + j * stride) % 32); // of what is not there, zeros are weighed
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) row.sum[e] += its_weight * parts[j][e];
      }
    }
  }
  return row;
}

// Adds up the partials of a row in their order, as a CTA adds up chunks (`totals.cuh`). By one warp.
template <u32 HEAD_DIM> TILEWRIGHT_DEVICE MergedRow<lane_elements(HEAD_DIM)> add_partials(const Arguments &args, const MergeItem &item, u32 head, u32 count) {
  constexpr u32 ELEMENTS = lane_elements(HEAD_DIM);
  constexpr u32 BATCH = 32 / ELEMENTS; // partials that are read before they are waited for
  const u32 lane = thread_index() % 32;
  const u64 first = u64(item.partial_begin) * args.q_heads + head;
  MergedRow<ELEMENTS> row = {};
  row.softmax.max = negative_infinity();
  for (u32 begin = 0; begin < count; begin += 32) {
    float mine[2] = {negative_infinity(), 0.f};
    if (begin + lane < count) load_coherent(mine, args.partial_softmax + (first + u64(begin + lane) * args.q_heads) * 2);
    const u32 here = smaller(count - begin, 32u);
    for (u32 i = 0; i < here; i += BATCH) {
      float parts[BATCH][ELEMENTS];
#pragma unroll
      for (u32 j = 0; j < BATCH; j++) {
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) parts[j][e] = 0.f;
        if (i + j < here && lane_has_elements<HEAD_DIM>(lane)) load_coherent(parts[j], args.partial_output + (first + u64(begin + i + j) * args.q_heads) * HEAD_DIM + lane * ELEMENTS);
      }
#pragma unroll
      for (u32 j = 0; j < BATCH; j++) {
        const Softmax partial{from_lane(mine[0], (i + j) % 32), from_lane(mine[1], (i + j) % 32)};
        if (partial.max == negative_infinity()) continue; // it has no tokens, or does not exist
        const ChunkFactors factors = add_chunk(row.softmax, partial);
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) row.sum[e] = add_chunk_element(row.sum[e], parts[j][e], factors);
      }
    }
  }
  return row;
}

// Normalises a row and writes it, its LSE too if another thread wants it. By one warp.
template <u32 HEAD_DIM, class Element, bool SINKS>
TILEWRIGHT_DEVICE void write_merged(const Arguments &args, u32 request, u32 head, MergedRow<lane_elements(HEAD_DIM)> &row) {
  constexpr u32 ELEMENTS = lane_elements(HEAD_DIM);
  static_assert(ELEMENTS % 2 == 0, "elements are written in pairs");
  const u32 lane = thread_index() % 32;
  float factor = 1.f;
  if constexpr (SINKS) factor = add_sink(row.softmax, args.sinks[head]);
  factor = row.softmax.sum > 0.f ? factor / row.softmax.sum : 0.f;
  u16 *target = args.output + request * args.output_request + head * args.output_head + lane * ELEMENTS;
#pragma unroll
  for (u32 e = 0; e < ELEMENTS; e += 2)
    if (lane_has_elements<HEAD_DIM>(lane)) *reinterpret_cast<u32 *>(target + e) = narrow(Element{}, row.sum[e] * factor, row.sum[e + 1] * factor);
  if (lane == 0 && args.lse) args.lse[u64(request) * args.q_heads + head] = log_sum_exp(row.softmax);
}

// One row (request, query head) a group of WARPS_A_ROW warps. One warp serves the usual few partials; with more, a long row is read
// by several at once.
template <u32 WARPS_A_ROW, u32 HEAD_DIM, class Element, bool SINKS, bool INVARIANT = false> struct Merge {
  static_assert(!INVARIANT || WARPS_A_ROW == 1, "partials are added one after the other");
  static constexpr u32 WARPS = 4;
  static constexpr u32 THREADS = WARPS * 32;
  static constexpr u32 ROWS = WARPS / WARPS_A_ROW; // of one CTA
  static constexpr u32 ELEMENTS = lane_elements(HEAD_DIM);   // of one lane
  static constexpr u32 ROW = ELEMENTS * 32;        // of all lanes
  static constexpr u32 SHARED_BYTES = WARPS * ROW * 4;
  static_assert(WARPS % WARPS_A_ROW == 0, "warps of a CTA are shared among whole rows");

  TILEWRIGHT_DEVICE static void run(const Arguments &args) {
    const u32 lane = thread_index() % 32, warp = thread_index() / 32;
    const u32 index = block_index() * ROWS + warp / WARPS_A_ROW;
    const u32 part = warp % WARPS_A_ROW;
    // The host leaves room behind the last item, so that this load does not wait for the count.
    const MergeItem item = args.merges[index / args.q_heads];
    const bool valid = index < args.counts[0] * args.q_heads;
    wait_for_launch_before(); // up to here only what the plan says was read
    const u32 head = index % args.q_heads;
    const u32 count = valid ? item.partial_end - item.partial_begin : 0;
    MergedRow<ELEMENTS> row =
        INVARIANT ? add_partials<HEAD_DIM>(args, item, head, count) : sum_partials<HEAD_DIM>(args, item, head, count, part, WARPS_A_ROW);
    if constexpr (WARPS_A_ROW > 1) {
      float *parts = reinterpret_cast<float *>(shared_memory());
#pragma unroll
      for (u32 e = 0; e < ELEMENTS; e++) parts[warp * ROW + lane * ELEMENTS + e] = row.sum[e];
      barrier();
#pragma unroll
      for (u32 e = 0; e < ELEMENTS; e++) {
        row.sum[e] = 0.f;
#pragma unroll
        for (u32 w = 0; w < WARPS_A_ROW; w++) row.sum[e] += parts[(warp - part + w) * ROW + lane * ELEMENTS + e];
      }
    }
    if (valid && part == 0) write_merged<HEAD_DIM, Element, SINKS>(args, item.request, head, row);
  }
};

} // namespace tilewright
