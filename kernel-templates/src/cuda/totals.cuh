// Totals of batch-invariant attention: what a CTA has of its rows' chunks before the one that it sums.
//
// They lie in shared memory, each thread's where only it looks: the accumulators in registers begin anew with each chunk.
#pragma once
#include "chunk.cuh"
#include "mma.cuh"

namespace tilewright {

template <class S> struct Totals {
  const Cta<S> &cta;

  // Two neighbouring elements of one of the thread's rows.
  TILEWRIGHT_DEVICE Pair &pair(Accumulators<S> &acc, u32 half, u32 d) const {
    if constexpr (S::TOTALS_IN_REGISTERS) return acc.pairs[half][d];
    else return reinterpret_cast<Pair *>(cta.shared + S::TOTALS_AT)[(half * (S::WARP_DIM / 8) + d) * S::COPIERS + cta.thread];
  }

  // Behind a step with which a chunk ends: its rows leave the chunk. `value_scale` is a factor of all elements of V.
  TILEWRIGHT_DEVICE void leave_chunk(Accumulators<S> &acc, const PipelineState<S> &at, float value_scale) const {
    const Granule last = cta.granules(at)[S::GRANULES - 1];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const u32 row = cta.warp_q * 16 + cta.fragment_row + half * 8;
      add(acc, half, row >= last.first_row() && row < last.last_row(), true, value_scale);
    }
  }

  // Behind the last step: all rows leave theirs, and the accumulators are all chunks, with the sums of whole rows.
  TILEWRIGHT_DEVICE void leave_chunks(Accumulators<S> &acc, float value_scale) const {
#pragma unroll
    for (u32 half = 0; half < 2; half++) add(acc, half, true, false, value_scale);
  }

  // Whether a chunk ends with a step, whose tokens are those of one segment then: all of them. All warps of a CTA find the same.
  TILEWRIGHT_DEVICE bool ends_chunk(const PipelineState<S> &at) const { return (cta.granules(at)[S::GRANULES - 1].rows & Granule::ENDS_CHUNK) > 0; }

  // Adds the chunk of a row to its total, if `wanted` and if the row has seen some of it: in shared memory, where the next chunk begins from
  // nothing, or else in the accumulators.
  TILEWRIGHT_DEVICE void add(Accumulators<S> &acc, u32 half, bool wanted, bool keep, float value_scale) const {
    Softmax chunk = acc.softmax[half];
    chunk.sum += from_lane_xor(chunk.sum, 1);
    chunk.sum += from_lane_xor(chunk.sum, 2);
    const bool has_tokens = chunk.max != negative_infinity(), has_total = acc.total[half].max != negative_infinity();
    if (!wanted || (!has_tokens && keep)) return;
    // What has no tokens adds nothing, not even a zero of another sign.
    const ChunkFactors factors = has_tokens ? add_chunk(acc.total[half], chunk) : ChunkFactors{1.f, 0.f};
#pragma unroll
    for (u32 d = 0; d < S::WARP_DIM / 8; d++) {
      Pair sum{{0.f, 0.f}};
      if (has_total) sum = pair(acc, half, d);
#pragma unroll
      for (u32 e = 0; e < 2; e++) {
        float &element = acc.output[d][2 * half + e];
        if (has_tokens) sum.element[e] = add_chunk_element(sum.element[e], rounded_product(element, value_scale), factors);
        element = keep ? 0.f : sum.element[e];
      }
      if (keep) pair(acc, half, d) = sum;
    }
    acc.softmax[half] = keep ? Softmax{negative_infinity(), 0.f} : acc.total[half];
  }
};

} // namespace tilewright
