// Split-D: logits of warps that share their rows and have a part of a head's elements each.
//
// A logit is the sum of the warps' products. Each warp leaves its own in shared memory and adds up all of them in the order of the elements, so that all
// have the same bits, and with them the same maxima and weights.
#pragma once
#include "cta.cuh"

namespace tilewright {

template <class S> struct SplitDim {
  const Cta<S> &cta;

  // Each Q warp's group meets by itself: groups may compute other steps, or fewer. Barrier 0 is the whole CTA's.
  TILEWRIGHT_DEVICE void meet() const { barrier_of_warps<S::WARPS_D>(1 + cta.warp_q); }

  // Where a warp's products of 8 tokens lie: 16 bytes a lane.
  TILEWRIGHT_DEVICE u32 address(u32 warp_d, u32 j) const {
    return shared_address(cta.shared + S::LOGITS_AT) + (((warp_d * S::WARPS_Q + cta.warp_q) * (S::N / 8) + j) * 32 + cta.lane) * 16;
  }

  template <u32 TILES> TILEWRIGHT_DEVICE void add_logits(float (&scores)[TILES][4]) const {
    static_assert(TILES * 8 <= S::N, "a step has room for its logits");
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
      const u32 words[4] = {float_bits(scores[j][0]), float_bits(scores[j][1]), float_bits(scores[j][2]), float_bits(scores[j][3])};
      store_four_words(address(cta.warp_d, j), words);
    }
    meet(); // all are there
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
      u32 words[S::WARPS_D][4];
#pragma unroll
      for (u32 d = 0; d < S::WARPS_D; d++) load_four_words(words[d], address(d, j));
#pragma unroll
      for (u32 e = 0; e < 4; e++) {
        scores[j][e] = bits_float(words[0][e]);
#pragma unroll
        for (u32 d = 1; d < S::WARPS_D; d++) scores[j][e] += bits_float(words[d][e]);
      }
    }
    // They are read before a later step's take their place. With the cp.async producer the CTA meets between two steps.
    if constexpr (S::TMA) meet();
  }
};

} // namespace tilewright
