// A step whose warps share rows: each makes the weights of a part of the tokens, and all of them sum a part of V's elements each.
//
// Lanes of the same number have the same rows and columns in all of these warps, so each leaves its weights to the others' lanes of its number. There are two places,
// in turn: one is written again behind the next step's meeting, to which all come behind their reads.
#pragma once
#include "cta.cuh"

namespace tilewright {

template <class S> struct SplitStep {
  const Cta<S> &cta;
  const u32 turn; // 0 or 1

  // The warps of 16 rows meet by themselves: others may compute other steps, or fewer. Barrier 0 is the whole CTA's.
  TILEWRIGHT_DEVICE void meet() const { barrier_of_warps<S::WARPS_D>(1 + cta.warp_q); }
  // The same; whether something is true of any of their threads.
  TILEWRIGHT_DEVICE bool meet_any(bool value) const { return any_of_warps<S::WARPS_D>(1 + cta.warp_q, value); }

  // Where lanes have something of a granule, an entry each.
  TILEWRIGHT_DEVICE u32 entry(u32 granule) const { return ((turn * S::WARPS_Q + cta.warp_q) * S::GRANULES + granule) * 32 + cta.lane; }
  TILEWRIGHT_DEVICE u32 weights_at(u32 granule) const { return shared_address(cta.shared + S::LOGITS_AT) + entry(granule) * 16; }
  struct alignas(8) Sums {
    float of_half[2];
  };
  TILEWRIGHT_DEVICE Sums &sums(u32 granule) const { return reinterpret_cast<Sums *>(cta.shared + S::GRANULE_SUMS_AT)[entry(granule)]; }
  // Of the lane's rows, one below the other by eight.
  TILEWRIGHT_DEVICE float &maximum(u32 index, u32 half) const {
    const u32 row = cta.warp_q * 16 + half * 8 + cta.fragment_row;
    return reinterpret_cast<float *>(cta.shared + S::SHARED_MAXIMA_AT)[row * S::MAXIMA + index];
  }

  // Tells the others this warp's maxima, and gets those of all in their order.
  TILEWRIGHT_DEVICE void share_maxima(const float (&own)[S::OWN_MAXIMA][2], float (&all)[S::MAXIMA][2]) const {
#pragma unroll
    for (u32 i = 0; i < S::OWN_MAXIMA; i++) {
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        if (cta.lane % 4 == 0) maximum(cta.warp_d * S::OWN_MAXIMA + i, half) = own[i][half];
      }
    }
    meet();
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
#pragma unroll
      for (u32 i = 0; i < S::MAXIMA; i++) all[i][half] = maximum(i, half);
    }
  }

  TILEWRIGHT_DEVICE void leave(u32 granule, const u32 (&weights)[4], float sum_above, float sum_below) const {
    store_four_words(weights_at(granule), weights);
    sums(granule) = Sums{{sum_above, sum_below}};
  }
  TILEWRIGHT_DEVICE void weights(u32 (&to)[4], u32 granule) const { load_four_words(to, weights_at(granule)); }
  TILEWRIGHT_DEVICE void add_sums(Softmax (&softmax)[2], u32 granule) const {
    const Sums of = sums(granule);
#pragma unroll
    for (u32 half = 0; half < 2; half++) softmax[half].sum += of.of_half[half];
  }
};

} // namespace tilewright
