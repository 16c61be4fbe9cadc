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

  // Before a step: rows that share it and begin a chunk there leave the one before. Where the KV range `ends`, all do: the accumulators are all
  // chunks then, with the sums of whole rows. One piece of code, as what is run seldom has to be fetched first. `value_scale` is a factor of all
  // elements of V.
  TILEWRIGHT_DEVICE void leave_chunk(Accumulators<S> &acc, const PipelineState<S> &at, bool ends, float value_scale) const {
#pragma unroll 1
    for (u32 left = ends ? 1 : begins_chunk(at) ? begins(at) : 0; left > 0; left &= left - 1) {
      const Granule granule = cta.granules(at)[lowest_bit(left)];
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        const u32 row = cta.warp_q * 16 + cta.fragment_row + half * 8;
        add(acc, half, ends || (row >= granule.first_row() && row < granule.last_row()), !ends, value_scale);
      }
    }
  }

  // Whether some rows begin a chunk with a step: with its first granule, or where a segment is shorter than a step, with a later one. All warps
  // of a CTA find the same.
  TILEWRIGHT_DEVICE bool begins_chunk(const PipelineState<S> &at) const {
    if constexpr (S::TMA) return (cta.granules(at)[0].rows & Granule::STEP_BEGINS_CHUNK) > 0;
    else return begins(at) > 0;
  }
  // A bit for each granule with which a chunk begins. What no row sees begins nothing.
  TILEWRIGHT_DEVICE u32 begins(const PipelineState<S> &at) const {
    u32 granules = 0;
#pragma unroll
    for (u32 n = 0; n < S::GRANULES; n++) granules |= cta.granules(at)[n].rows / Granule::BEGINS_CHUNK % 2 << n;
    return granules;
  }

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
