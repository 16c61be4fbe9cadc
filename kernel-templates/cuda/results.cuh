// Results of an item: what its warps have accumulated becomes rows of the output, or partials of them, and the last partials are merged.
//
// Warps that own the same rows are merged by their maxima and sums.
#pragma once
#include "merge.cuh"
#include "products.cuh"
#include "softmax.cuh"

namespace tilewright {

template <class S> struct Results {
  const Cta<S> &cta;

  TILEWRIGHT_DEVICE Softmax *warp_softmax(u32 of_warp, u32 row) const {
    return reinterpret_cast<Softmax *>(cta.shared + S::SOFTMAX_AT) + of_warp * 16 + row;
  }
  TILEWRIGHT_DEVICE float *warp_output(u32 of_warp, u32 row) const {
    return reinterpret_cast<float *>(cta.shared) + (of_warp * 16 + row) * S::OUTPUT_STRIDE;
  }

  // Leaves each warp's rows in shared memory, all warps that share rows under one maximum.
  TILEWRIGHT_DEVICE void gather_warps(Accumulators<S> &acc) const {
    float value_scale = 1.f;
    if constexpr (S::FP8) value_scale = cta.args.value_scales[cta.kv_head * cta.args.scale_head];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      Softmax &softmax = acc.softmax[half];
      softmax.sum += from_lane_xor(softmax.sum, 1);
      softmax.sum += from_lane_xor(softmax.sum, 2);
      if (cta.lane % 4 == 0) *warp_softmax(cta.warp, cta.fragment_row + half * 8) = softmax;
    }
    barrier(); // all maxima are there, and the buffers are no longer read
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const u32 row = cta.fragment_row + half * 8;
      const float factor = exp2_fast(acc.softmax[half].max - finite_or_zero(common_softmax(cta.row_warp, row).max)) * value_scale;
      if constexpr (S::FP8) {
#pragma unroll
        for (u32 d = 0; d < S::HEAD_DIM / 16; d++) {
          float *target = warp_output(cta.warp, row) + d * 16 + 2 * cta.fragment_column;
#pragma unroll
          for (u32 e = 0; e < 4; e++) target[e] = acc.output[2 * d + e % 2][2 * half + e / 2] * factor;
        }
      } else {
#pragma unroll
        for (u32 d = 0; d < S::HEAD_DIM / 8; d++) {
          float *target = warp_output(cta.warp, row) + d * 8 + cta.fragment_column;
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
    for (u32 w = 0; w < S::KV_WARPS; w++) common.max = larger(common.max, warp_softmax(w * S::ROW_WARPS + of_row_warp, row)->max);
#pragma unroll
    for (u32 w = 0; w < S::KV_WARPS; w++) {
      const Softmax *one = warp_softmax(w * S::ROW_WARPS + of_row_warp, row);
      common.sum += one->sum * exp2_fast(one->max - finite_or_zero(common.max));
    }
    return common;
  }

  // Four neighbouring elements a thread: final where the row has one partial, else as a partial.
  TILEWRIGHT_DEVICE void write_rows() const {
    constexpr u32 QUADS = S::HEAD_DIM / 4;
    for (u32 index = cta.thread; index < cta.row_count() * QUADS; index += S::WARPS * 32) {
      const u32 row = index / QUADS, element = index % QUADS * 4;
      Softmax softmax = common_softmax(row / 16, row % 16);
      float sum[4] = {};
#pragma unroll
      for (u32 w = 0; w < S::KV_WARPS; w++) {
        const float *part = warp_output(w * S::ROW_WARPS + row / 16, row % 16) + element;
#pragma unroll
        for (u32 e = 0; e < 4; e++) sum[e] += part[e];
      }
      const Row found = cta.rows()[row];
      const u32 head = cta.query_head(row);
      if (found.slot.partial == DIRECT) {
        float factor = 1.f;
        if constexpr (S::SINKS) factor = add_sink(softmax, cta.args.sinks[head]);
        factor = softmax.sum > 0.f ? factor / softmax.sum : 0.f;
        u16 *target = cta.args.output + found.request * cta.args.output_request + head * cta.args.output_head + element;
        u32 *pair = reinterpret_cast<u32 *>(target);
        pair[0] = narrow(typename S::Element{}, sum[0] * factor, sum[1] * factor);
        pair[1] = narrow(typename S::Element{}, sum[2] * factor, sum[3] * factor);
        if (element == 0 && cta.args.lse) cta.args.lse[u64(found.request) * cta.args.q_heads + head] = log_sum_exp(softmax);
      } else if (found.slot.partial != UNTOUCHED) {
        const u64 partial = u64(found.slot.partial) * cta.args.q_heads + head;
        float *target = cta.args.partial_output + partial * S::HEAD_DIM + element;
#pragma unroll
        for (u32 e = 0; e < 4; e++) target[e] = sum[e];
        if (element == 0) {
          cta.args.partial_softmax[partial * 2] = softmax.max;
          cta.args.partial_softmax[partial * 2 + 1] = softmax.sum;
        }
      }
    }
  }

  // The CTA that leaves the last partial of a request and KV head merges them all.
  TILEWRIGHT_DEVICE void merge_arrived() const {
    u32 *const last = reinterpret_cast<u32 *>(cta.shared + S::SOFTMAX_AT); // nobody reads the warps' softmaxes any more
    memory_fence();
    barrier(); // all of this CTA's partials are written
    // Rows of whole requests, or some of one.
    const u32 count = divide_up(cta.row_count(), cta.args.gqa_ratio);
    for (u32 member = cta.thread; member < count; member += S::WARPS * 32) {
      const Row &row = cta.rows()[member * cta.args.gqa_ratio];
      bool arrived_last = false;
      if (row.slot.partial < UNTOUCHED) {
        u32 *const counter = cta.args.arrivals + row.slot.merge * cta.args.kv_heads + cta.kv_head;
        arrived_last = count_arrival(counter) + 1 == cta.args.merges[row.slot.merge].arrivals;
        if (arrived_last) *counter = 0; // ready for the next launch
      }
      last[member] = arrived_last ? row.slot.merge : DIRECT;
    }
    memory_fence();
    barrier();
    for (u32 index = cta.warp; index < count * cta.args.gqa_ratio; index += S::WARPS) { // of those that are left
      const u32 merge = last[index / cta.args.gqa_ratio];
      if (merge == DIRECT) continue;
      const MergeItem merged = cta.args.merges[merge];
      const u32 head = cta.kv_head * cta.args.gqa_ratio + index % cta.args.gqa_ratio;
      MergedRow<S::HEAD_DIM / 32> row =
          sum_partials<S::HEAD_DIM>(cta.args, merged, head, merged.partial_end - merged.partial_begin, 0, 1);
      write_merged<S::HEAD_DIM, typename S::Element, S::SINKS>(cta.args, merged.request, head, row);
    }
  }
  static_assert(S::M <= S::WARPS * 32, "a flag for each request of a block fits in the place of the warps' softmaxes");
};

} // namespace tilewright
