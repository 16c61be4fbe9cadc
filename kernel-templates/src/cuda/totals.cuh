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

  // Behind a granule with which a chunk ends, the last one of a softmax: its rows leave the chunk. `value_scale` is a factor of all elements of V.
  TILEWRIGHT_DEVICE void leave_chunk(Accumulators<S> &acc, const Granule &last, float value_scale) const {
#pragma unroll
    for (u32 half = 0; half < 2; half++) add(acc, half, leaves(last, half), true, value_scale);
  }

  // Whether one of the thread's rows does.
  TILEWRIGHT_DEVICE bool leaves(const Granule &last, u32 half) const {
    const u32 row = cta.warp_q * 16 + cta.fragment_row + half * 8;
    return last.ends_chunk() && row >= last.first_row() && row < last.last_row();
  }

  // Behind the last step: all rows leave theirs, and the accumulators are all chunks, with the sums of whole rows.
  TILEWRIGHT_DEVICE void leave_chunks(Accumulators<S> &acc, float value_scale) const {
#pragma unroll
    for (u32 half = 0; half < 2; half++) add(acc, half, true, false, value_scale);
  }

  // The last granule of a step. Where a chunk ends with it, the tokens of its softmax are those of one segment: all of them. All warps of a CTA find the same.
  TILEWRIGHT_DEVICE const Granule &last_granule(const PipelineState<S> &at) const { return cta.granules(at)[S::GRANULES - 1]; }
  TILEWRIGHT_DEVICE bool ends_chunk(const PipelineState<S> &at) const { return last_granule(at).ends_chunk(); }

  // Adds the chunk of a row to its total, if `wanted` and if the row has seen some of it: in shared memory, where the next chunk begins from
  // nothing, or else in the accumulators.
  TILEWRIGHT_DEVICE void add(Accumulators<S> &acc, u32 half, bool wanted, bool keep, float value_scale) const {
    Softmax chunk = acc.softmax[half];
    chunk.sum += from_lane_xor(chunk.sum, 1);
    chunk.sum += from_lane_xor(chunk.sum, 2);
    const bool has_tokens = chunk.sum != 0.f, has_total = acc.total[half].max != negative_infinity();
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
    acc.softmax[half] = keep ? Softmax{0.f, 0.f} : acc.total[half];
  }
};

} // namespace tilewright
