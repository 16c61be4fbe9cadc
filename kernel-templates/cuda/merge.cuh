// Merge: online softmax over the partials of each row (PAT, section 7), in the plan's order, so the same plan gives the same bits.
#pragma once
#include "decode.cuh"

namespace tilewright {

// One row (request, query head) a group of WARPS_A_ROW warps. One warp serves the usual few partials; with more, a long row is read
// by several at once.
template <u32 WARPS_A_ROW, u32 HEAD_DIM, class Element, bool SINKS> struct Merge {
  static constexpr u32 WARPS = 4;
  static constexpr u32 THREADS = WARPS * 32;
  static constexpr u32 ROWS = WARPS / WARPS_A_ROW; // of one CTA
  static constexpr u32 ELEMENTS = HEAD_DIM / 32;   // of one lane
  static constexpr u32 SHARED_BYTES = WARPS * HEAD_DIM * 4;
  static_assert(WARPS % WARPS_A_ROW == 0, "warps of a CTA are shared among whole rows");
  static_assert(ELEMENTS % 2 == 0, "elements are written in pairs");

  TILEWRIGHT_DEVICE static void run(const Arguments &args, u32 row_count) {
    const u32 lane = thread_index() % 32, warp = thread_index() / 32;
    const u32 row = block_index() * ROWS + warp / WARPS_A_ROW;
    const u32 part = warp % WARPS_A_ROW;
    const bool valid = row < row_count;
    const MergeItem item = args.merges[valid ? row / args.q_heads : 0];
    const u32 head = row % args.q_heads;
    const u64 first = u64(item.partial_begin) * args.q_heads + head;
    const u32 count = valid ? item.partial_end - item.partial_begin : 0;
    const float *softmaxes = args.partial_softmax;

    // Every warp of the row looks at all maxima, and so finds the same ones.
    float max = negative_infinity();
    for (u32 i = lane; i < count; i += 32) max = larger(max, softmaxes[(first + u64(i) * args.q_heads) * 2]);
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) max = larger(max, from_lane_xor(max, mask));

    Softmax softmax{max, 0.f};
    float sum[ELEMENTS] = {};
#pragma unroll 4
    for (u32 i = 0; i < count; i++) {
      const u64 partial = first + u64(i) * args.q_heads;
      // An empty range has the maximum -inf and weighs nothing.
      const float weight = exp2_fast(softmaxes[partial * 2] - finite_or_zero(max));
      softmax.sum += weight * softmaxes[partial * 2 + 1];
      if (i % WARPS_A_ROW != part) continue;
      const float *source = args.partial_output + partial * HEAD_DIM + lane * ELEMENTS;
#pragma unroll
      for (u32 e = 0; e < ELEMENTS; e++) sum[e] += weight * source[e];
    }
    if constexpr (WARPS_A_ROW > 1) {
      float *parts = reinterpret_cast<float *>(shared_memory());
#pragma unroll
      for (u32 e = 0; e < ELEMENTS; e++) parts[warp * HEAD_DIM + lane * ELEMENTS + e] = sum[e];
      barrier();
#pragma unroll
      for (u32 e = 0; e < ELEMENTS; e++) {
        sum[e] = 0.f;
#pragma unroll
        for (u32 w = 0; w < WARPS_A_ROW; w++) sum[e] += parts[(warp - part + w) * HEAD_DIM + lane * ELEMENTS + e];
      }
    }
    if (!valid || part != 0) return;
    float factor = 1.f;
    if constexpr (SINKS) factor = add_sink(softmax, args.sinks[head]);
    factor = softmax.sum > 0.f ? factor / softmax.sum : 0.f;
    u16 *target = args.output + item.request * args.output_request + head * args.output_head + lane * ELEMENTS;
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e += 2)
      *reinterpret_cast<u32 *>(target + e) = narrow(Element{}, sum[e] * factor, sum[e + 1] * factor);
    if (lane == 0 && args.lse) args.lse[u64(item.request) * args.q_heads + head] = log_sum_exp(softmax);
  }
};

} // namespace tilewright
