// Attention to one step of the walk: online softmax, of which each warp accumulates its rows over its share of the tokens.
#pragma once
#include "products.cuh"
#include "softmax.cuh"
#include "visibility.cuh"

namespace tilewright {

template <class S> struct Attention {
  const Cta<S> &cta;
  const Visibility<S> visibility{cta};
  const Products<S> products{cta};

  // A bounded logit, in base 2.
  TILEWRIGHT_DEVICE float bounded_logit(float product) const {
    // tanh(x) = 1 - 2 / (exp(2 x) + 1), exact at both ends.
    const float x = product * cta.scale / cta.args.softcap;
    return cta.args.softcap * LOG2_E * (1.f - 2.f / (exp2_fast(2.f * x) + 1.f));
  }

  // Weights are of the largest logit that a row had when its accumulators were brought under it last. Up to 2^8 times that much fits any
  // type with the same precision, so the accumulators stay as they are.
  static constexpr float SLACK = 8.f;

  // Brings the accumulators under the largest logits of a step, where they are too far below. In `max` lie those of a lane, then what is to
  // be subtracted.
  TILEWRIGHT_DEVICE void raise_maxima(Accumulators<S> &acc, float (&max)[2]) const {
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
        for (u32 d = 0; d < S::HEAD_DIM / 8; d++) {
          acc.output[d][2 * half] *= factor;
          acc.output[d][2 * half + 1] *= factor;
        }
      }
    }
    max[0] = finite_or_zero(acc.softmax[0].max);
    max[1] = finite_or_zero(acc.softmax[1].max);
  }

  // One step of online softmax over GRANULES_HERE granules, `first` and the next ones of a step. WITH_GROUP, the warpgroup does it together,
  // and `meanwhile` is done while it multiplies. Where it is `plain`, all rows see all of it.
  template <u32 GRANULES_HERE, bool WITH_GROUP, class Meanwhile>
  TILEWRIGHT_DEVICE void compute_step(Accumulators<S> &acc, const u32 (&query)[S::QUERY_FRAGMENTS][4], const Rings<S> &at, u32 first, const Sight &sight,
                                      bool plain, const Meanwhile &meanwhile) const {
    constexpr u32 ALL_GRANULES = Visibility<S>::all_granules(GRANULES_HERE);
    bool masked = false;
    const u32 active = plain ? ALL_GRANULES : visibility.template active_granules<GRANULES_HERE, WITH_GROUP>(at, first, sight, masked);
    if (active == 0) return meanwhile();
    float scores[GRANULES_HERE * 2][4];
    if constexpr (WITH_GROUP) products.template begin_keys_together<GRANULES_HERE>(scores, query, at, first);
    meanwhile();
    if constexpr (WITH_GROUP) {
      end_products(scores);
    } else if (active == ALL_GRANULES) {
      products.template multiply_keys<true, GRANULES_HERE>(scores, query, at, first, active);
    } else {
      products.template multiply_keys<false, GRANULES_HERE>(scores, query, at, first, active);
    }
    if constexpr (S::SOFTCAP) {
#pragma unroll
      for (u32 j = 0; j < GRANULES_HERE * 2; j++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) scores[j][e] = bounded_logit(scores[j][e]);
      }
    }
    const float factor = S::SOFTCAP ? 1.f : cta.scale; // what makes logits of the scores from here on
    if (masked) visibility.template mask_scores<GRANULES_HERE>(scores, at, first, sight);

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
      products.template multiply_values_together<GRANULES_HERE>(acc, scores, at, first);
    } else if (active == ALL_GRANULES) {
      products.template multiply_values<true, GRANULES_HERE>(acc, scores, at, first, active);
    } else {
      products.template multiply_values<false, GRANULES_HERE>(acc, scores, at, first, active);
    }
  }

  template <class Meanwhile>
  TILEWRIGHT_DEVICE void compute(Accumulators<S> &acc, const u32 (&query)[S::QUERY_FRAGMENTS][4], const Steps &steps, u32 step, const Rings<S> &at, const Sight &seen,
                                 const Meanwhile &meanwhile) const {
    if constexpr (S::TURNS) {
      constexpr u32 OWN_GRANULES = S::WARP_TURN / S::GRANULE;
      if (steps.in_turns(step)) {
        const u32 first = cta.kv_warp * S::WARP_GRANULES + cta.row_warp * OWN_GRANULES;
        return compute_step<OWN_GRANULES, false>(acc, query, at, first, seen, false, meanwhile);
      }
    }
    const u32 first = cta.kv_warp * S::WARP_GRANULES;
    const i32 token = static_cast<i32>(cta.item.walk_begin + (step - steps.shared) * S::N + first * S::GRANULE);
    const bool plain = token + static_cast<i32>(S::WARP_N) <= seen.plain_end && (!S::WINDOW || token >= seen.plain_begin);
    compute_step<S::WARP_GRANULES, S::TOGETHER>(acc, query, at, first, seen, plain, meanwhile);
  }
};

} // namespace tilewright
