// Attention to all steps of a walk whose buffers one warp fills: the others wait for what they need next, and hand back what they have read.
//
// A warpgroup multiplies the keys of a step while it adds the values of the one before, and makes its weights meanwhile.
#pragma once
#include "attention.cuh"
#include "stages.cuh"

namespace tilewright {

template <class S> struct Pipeline {
  const Cta<S> &cta;
  const Attention<S> attention{cta};
  const Stages<S> stages{cta};

  // Whether a thread has registers for the weights of a step beside the logits of the next one.
  static constexpr bool OVERLAPS = S::TOGETHER && (S::WARPS > 4 || S::WARP_N <= 96);

  // A buffer during one step.
  struct Buffers {
    const Stages<S> &stages;
    const Rings<S> &at;
    TILEWRIGHT_DEVICE void meanwhile() const {}
    TILEWRIGHT_DEVICE void keys_are_read() const { stages.free_keys(at); }
    TILEWRIGHT_DEVICE void await_values() const { stages.await_values(at); }
    TILEWRIGHT_DEVICE void values_are_read() const { stages.free_values(at); }
  };

  // Which of a step some rows of the warpgroup share, and whether some row of the warp does not see all of it.
  struct Extent {
    bool any, masked;
  };
  TILEWRIGHT_DEVICE Extent extent(const Steps &steps, u32 step, const Rings<S> &at, const Sight &seen) const {
    if (attention.is_plain(steps, step, seen)) return Extent{true, false};
    bool masked = false;
    const u32 active = attention.visibility.template active_granules<S::WARP_GRANULES, true>(at, attention.first_granule(), seen, masked);
    return Extent{active != 0, masked};
  }

  // Steps that a warpgroup multiplies together. Those between a first and a last one have no branch between the beginning and the end of a
  // product, without which the compiler would let each end before the next one begins.
  TILEWRIGHT_DEVICE void compute_together(Accumulators<S> &acc, const u32 (&query)[S::QUERY_FRAGMENTS][4], const Steps &steps, u32 &step, u32 end,
                                          Rings<S> &at, const Sight &seen) const {
    const auto &products = attention.products;
    const u32 first = attention.first_granule();
    while (step < end) {
      stages.await_keys(at);
      Extent here = extent(steps, step, at, seen);
      if (!here.any) {
        stages.free_keys(at);
        stages.await_values(at);
        stages.free_values(at);
        at = at.template ahead<1>();
        step++;
        continue;
      }
      float scores[S::WARP_GRANULES * 2][4];
      u32 weights[S::WARP_GRANULES][4];
      products.template begin_keys_together<S::WARP_GRANULES>(scores, query, at, first);
      end_products(scores);
      stages.free_keys(at);
      attention.raise_output(acc, attention.template weigh<S::WARP_GRANULES>(acc.softmax, scores, at, first, seen, here.masked));
      products.narrow_all(weights, scores);
      Rings<S> before = at;
      at = at.template ahead<1>();
#pragma unroll 1
      for (step++; step < end; step++) {
        stages.await_keys(at);
        here = extent(steps, step, at, seen);
        if (!here.any) break;
        stages.await_values(before);
        products.template begin_keys_together<S::WARP_GRANULES>(scores, query, at, first);
        products.template begin_values_together<S::WARP_GRANULES>(acc, weights, before, first);
        end_first_products(scores);
        stages.free_keys(at);
        const typename Attention<S>::Raise raise = attention.template weigh<S::WARP_GRANULES>(acc.softmax, scores, at, first, seen, here.masked);
        end_products(acc.output);
        stages.free_values(before);
        attention.raise_output(acc, raise);
        products.narrow_all(weights, scores);
        before = at;
        at = at.template ahead<1>();
      }
      stages.await_values(before);
      products.template begin_values_together<S::WARP_GRANULES>(acc, weights, before, first);
      end_products(acc.output);
      stages.free_values(before);
    }
  }

  TILEWRIGHT_DEVICE void accumulate(Accumulators<S> &acc, const u32 (&query)[S::QUERY_FRAGMENTS][4], const Steps &steps, const Sight &seen) const {
    Rings<S> at;
    u32 step = steps.first;
    // Steps of a kind are neighbours.
    while (step < steps.last) {
      if (S::TURNS && steps.in_turns(step)) {
        if constexpr (S::TURNS) {
#pragma unroll 1
          for (; step < steps.turns + steps.turn_count; step++) {
            stages.await_keys(at);
            attention.compute_turn(acc, query, at, seen, Buffers{stages, at});
            at = at.template ahead<1>();
          }
        }
      } else {
        const u32 end = steps.turn_count > 0 && steps.turns > step ? steps.turns : steps.last;
        if constexpr (OVERLAPS) {
          compute_together(acc, query, steps, step, end, at, seen);
        } else {
#pragma unroll 1
          for (; step < end; step++) {
            stages.await_keys(at);
            const bool plain = attention.is_plain(steps, step, seen);
            attention.template compute_step<S::WARP_GRANULES, S::TOGETHER>(acc, query, at, attention.first_granule(), seen, plain, Buffers{stages, at});
            at = at.template ahead<1>();
          }
        }
      }
    }
  }
};

} // namespace tilewright
