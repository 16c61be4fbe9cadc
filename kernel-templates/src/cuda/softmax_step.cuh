// A step of online softmax: each warp accumulates its rows over its share of the tokens.
#pragma once
#include "mma.cuh"
#include "softmax.cuh"
#include "mask.cuh"
#include "totals.cuh"

namespace tilewright {

template <class S> struct SoftmaxStep {
  const Cta<S> &cta;
  const Mask<S> masking{cta};
  const Mma<S> mma{cta};
  const Totals<S> totals{cta};

  // Weights are of the largest logit that a row had when its accumulators were brought under it last. Up to 2^8 times that much fits any
  // type with the same precision, so the accumulators stay as they are.
  static constexpr float SLACK = 8.f;

  // Rounded the same way in all kernels where a row's bits matter; elsewhere the compiler may join operations.
  TILEWRIGHT_DEVICE static float product(float a, float b) { return S::INVARIANT ? rounded_product(a, b) : a * b; }
  TILEWRIGHT_DEVICE static float multiply_subtract(float a, float b, float c) { return S::INVARIANT ? fused_multiply_add(a, b, -c) : a * b - c; }

  // Whether the accumulators of some row of the warp have to be brought under larger logits, and the maxima that they are under; where bits must
  // not depend on the batch, those of the step.
  struct Raise {
    bool far;
    float before[2];
  };

  // A maximum that may be subtracted: where a row has seen no token all its logits are -inf, and so are their differences.
  TILEWRIGHT_DEVICE static float subtracted(float max) { return larger(max, -3e38f); }

  // Brings the accumulators under the maxima of their softmaxes. Those that are under them stay as they are, to the bit.
  TILEWRIGHT_DEVICE static void raise_accumulators(Accumulators<S> &acc, const Raise &raise) {
    float factor[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      factor[half] = exp2_fast(raise.before[half] - subtracted(acc.softmax[half].max));
      acc.softmax[half].sum = product(acc.softmax[half].sum, factor[half]);
    }
#pragma unroll
    for (u32 d = 0; d < S::HEAD_DIM / 8; d++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) acc.output[d][e] *= factor[e / 2];
    }
  }

  // The largest logit of a lane's rows with some tiles of 8 tokens, which all lanes of a row get.
  template <u32 TILES> TILEWRIGHT_DEVICE void largest_logits(float (&max)[2], const float (&scores)[TILES][4]) const {
    const float factor = S::BENDS ? 1.f : cta.scale;
    max[0] = scores[0][0], max[1] = scores[0][2];
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) max[e / 2] = larger(max[e / 2], scores[j][e]);
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      max[half] = product(max[half], factor);
      max[half] = larger(max[half], from_lane_xor(max[half], 1));
      max[half] = larger(max[half], from_lane_xor(max[half], 2));
    }
  }

  // Where bits must not depend on the batch, what a row's accumulators are under is decided granule by granule: neither where a step begins nor
  // how many tokens it has matters then. Granules after which that changes again, the warp multiplies by itself, in their order; mostly there are
  // none. What is left of the step begins with one that is entered. `max` are the largest logits of the whole step.
  template <u32 GRANULES_HERE, class Values>
  TILEWRIGHT_DEVICE void weigh_by_granules(Accumulators<S> &acc, float (&scores)[GRANULES_HERE * 2][4], const PipelineState<S> &at, u32 first, u32 begins,
                                           const float (&max)[2], const Values &values) const {
#pragma unroll 1
    for (u32 n = 0;; n++) {
      float granule[2][4];
#pragma unroll
      for (u32 e = 0; e < 8; e++) {
        granule[e / 4][e % 4] = scores[e / 4][e % 4];
#pragma unroll
        for (u32 other = 1; other < GRANULES_HERE; other++) granule[e / 4][e % 4] = n == other ? scores[2 * other + e / 4][e % 4] : granule[e / 4][e % 4];
      }
      float granule_max[2];
      largest_logits<2>(granule_max, granule);
      enter_granule(acc, begins, granule_max);
      if (n + 1 == GRANULES_HERE) return;
      begins >>= 2;
      // The largest logits may be of granules before: then others are multiplied one by one, too.
      const bool changes = begins != 0 || max[0] > acc.softmax[0].max + SLACK || max[1] > acc.softmax[1].max + SLACK;
      if (!any_in_warp(changes)) return;
      // Values of a granule that no row sees are not even copied.
      if (any_in_warp(granule_max[0] != negative_infinity() || granule_max[1] != negative_infinity())) {
        values.wait_values_full();
        make_weights<1, 0, 2>(granule, acc.softmax);
        add_weights<1>(acc.softmax, granule);
        mma.template multiply_values<true, 1>(acc, granule, at, first + n, 1);
      }
#pragma unroll
      for (u32 e = 0; e < GRANULES_HERE * 8; e++) scores[e / 4][e % 4] = n == e / 8 ? negative_infinity() : scores[e / 4][e % 4];
    }
  }

  // Brings accumulators to the beginning of a granule: of rows that begin a chunk there, those of the one before are added to the totals.
  TILEWRIGHT_DEVICE void enter_granule(Accumulators<S> &acc, u32 begins, const float (&max)[2]) const {
    if (any_in_warp((begins & 3) != 0)) {
      const bool leaves = totals.leaves_chunks();
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        if (leaves) totals.leave(acc, half, begins >> half & 1, value_scale(cta));
        else totals.add(acc, half, begins >> half & 1, true, value_scale(cta));
      }
    }
    Raise raise{false, {acc.softmax[0].max, acc.softmax[1].max}};
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      // A row is brought under what it needs itself, not under what others of the warp need.
      const bool raises = max[half] > acc.softmax[half].max + SLACK;
      acc.softmax[half].max = raises ? max[half] : acc.softmax[half].max;
      raise.far = raise.far || raises;
    }
    if (any_in_warp(raise.far)) raise_accumulators(acc, raise);
  }

  // Weights are made in two parts. Between them lies the branch that raises accumulators, if they have to be: the answer of the other lanes comes
  // while those of the first granule are made, and the compiler moves no wait for earlier products before it.
  //
  // Makes the first weights of a step's products, and brings the softmaxes under its largest logits where they are too far below. Where bits must
  // not depend on the batch, `end_raise` does so, and here is only said whether it has to, of rows that begin a chunk, too.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE Raise begin_weighing(Softmax (&softmax)[2], float (&scores)[GRANULES_HERE * 2][4], const PipelineState<S> &at, u32 first,
                                         const MaskState &mask_state, bool masked, u32 begins) const {
    if constexpr (S::BENDS) {
#pragma unroll
      for (u32 j = 0; j < GRANULES_HERE * 2; j++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) scores[j][e] = S::bent(cta.args.mask, scores[j][e], cta.scale);
      }
    }
    const float factor = S::BENDS ? 1.f : cta.scale; // what makes logits of the scores from here on
    if (masked) masking.template mask_scores<GRANULES_HERE>(scores, at, first, mask_state);
    float max[2] = {scores[0][0], scores[0][2]};
#pragma unroll
    for (u32 j = 0; j < GRANULES_HERE * 2; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) max[e / 2] = larger(max[e / 2], scores[j][e]);
    }
    Raise raise{false, {softmax[0].max, softmax[1].max}};
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      max[half] = product(max[half], factor);
      max[half] = larger(max[half], from_lane_xor(max[half], 1));
      max[half] = larger(max[half], from_lane_xor(max[half], 2));
      // A row is brought under what it needs itself, not under what others of the warp need.
      const bool raises = max[half] > softmax[half].max + SLACK;
      if constexpr (S::INVARIANT) {
        // A chunk before which there is nothing begins by itself.
        raise.far = raise.far || raises || (begins >> half & 1 && softmax[half].max != negative_infinity());
        raise.before[half] = max[half];
      } else {
        softmax[half].max = raises ? max[half] : softmax[half].max;
        raise.far = raise.far || raises;
      }
    }
    if constexpr (S::INVARIANT) raise.far = raise.far || begins >> 2 != 0;
    raise.far = any_in_warp(raise.far);
    if (!S::INVARIANT || !raise.far) make_weights<GRANULES_HERE, 0, first_tiles(GRANULES_HERE)>(scores, softmax);
    return raise;
  }

  // Raises accumulators to which nothing is being added. `values` waits for those of the step.
  template <u32 GRANULES_HERE, class Values>
  TILEWRIGHT_DEVICE void end_raise(Accumulators<S> &acc, float (&scores)[GRANULES_HERE * 2][4], const Raise &raise, const PipelineState<S> &at, u32 first, u32 begins,
                                   const Values &values) const {
    if constexpr (S::INVARIANT) {
      weigh_by_granules<GRANULES_HERE>(acc, scores, at, first, begins, raise.before, values);
      make_weights<GRANULES_HERE, 0, first_tiles(GRANULES_HERE)>(scores, acc.softmax);
    } else {
      raise_accumulators(acc, raise);
    }
  }

  // Tiles of 8 tokens whose weights are made first. The more tokens a step has, the sooner its buffer of values has to be filled again.
  static constexpr u32 first_tiles(u32 granules) { return granules <= 4 ? 2 : 1; }

  // Makes the other weights, and sums all.
  template <u32 GRANULES_HERE> TILEWRIGHT_DEVICE void end_weighing(Softmax (&softmax)[2], float (&scores)[GRANULES_HERE * 2][4]) const {
    make_weights<GRANULES_HERE, first_tiles(GRANULES_HERE), GRANULES_HERE * 2>(scores, softmax);
    add_weights<GRANULES_HERE>(softmax, scores);
  }

  template <u32 GRANULES_HERE> TILEWRIGHT_DEVICE static void add_weights(Softmax (&softmax)[2], const float (&weights)[GRANULES_HERE * 2][4]) {
#pragma unroll
    for (u32 j = 0; j < GRANULES_HERE * 2; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) softmax[e / 2].sum += weights[j][e];
    }
  }


  template <u32 GRANULES_HERE, u32 BEGIN, u32 END>
  TILEWRIGHT_DEVICE void make_weights(float (&scores)[GRANULES_HERE * 2][4], const Softmax (&softmax)[2]) const {
    const float factor = S::BENDS ? 1.f : cta.scale; // what makes logits of the scores from here on
    const float max[2] = {subtracted(softmax[0].max), subtracted(softmax[1].max)};
#pragma unroll
    for (u32 j = BEGIN; j < END; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) scores[j][e] = exp2_fast(multiply_subtract(scores[j][e], factor, max[e / 2]));
    }
  }

  // One step of online softmax over GRANULES_HERE granules, `first` and the next ones of a step. WITH_GROUP, the warpgroup does it together.
  // Where it is `plain`, all rows see all of it. `buffers` is told how far it is with K and V.
  template <u32 GRANULES_HERE, bool WITH_GROUP, class Buffers>
  TILEWRIGHT_DEVICE void compute_step(Accumulators<S> &acc, const u32 (&query)[S::QUERY_FRAGMENTS][4], const PipelineState<S> &at, u32 first, const MaskState &mask_state,
                                      bool plain, u32 begins, const Buffers &buffers) const {
    constexpr u32 ALL_GRANULES = Mask<S>::all_granules(GRANULES_HERE);
    bool masked = false;
    u32 active = plain ? ALL_GRANULES : masking.template active_granules<GRANULES_HERE, WITH_GROUP>(at, first, mask_state, masked);
    // All lanes have the same. Said so, the branch does not diverge, and lanes meet before the buffer is released.
    if constexpr (!WITH_GROUP) active = static_cast<u32>(largest_in_warp(static_cast<i32>(active)));
    if (active == 0) {
      buffers.meanwhile();
      buffers.keys_are_read();
      buffers.wait_values_full();
      return buffers.values_are_read();
    }
    float scores[GRANULES_HERE * 2][4];
    if constexpr (WITH_GROUP) mma.template begin_keys_together<GRANULES_HERE>(scores, query, mma.keys_together(at, first));
    buffers.meanwhile();
    if constexpr (WITH_GROUP) {
      wait_wgmma(scores);
    } else if (active == ALL_GRANULES) {
      mma.template multiply_keys<true, GRANULES_HERE>(scores, query, at, first, active);
    } else {
      mma.template multiply_keys<false, GRANULES_HERE>(scores, query, at, first, active);
    }
    buffers.keys_are_read();
    const Raise raise = begin_weighing<GRANULES_HERE>(acc.softmax, scores, at, first, mask_state, masked, begins);
    if (raise.far) end_raise<GRANULES_HERE>(acc, scores, raise, at, first, begins, buffers);
    end_weighing<GRANULES_HERE>(acc.softmax, scores);
    buffers.wait_values_full();
    if constexpr (WITH_GROUP) {
      u32 weights[GRANULES_HERE][4];
      mma.narrow_all(weights, scores);
      mma.template begin_values_together<GRANULES_HERE>(acc, weights, mma.values_of(mma.keys_together(at, first)));
      wait_wgmma(acc.output);
    } else if (active == ALL_GRANULES) {
      mma.template multiply_values<true, GRANULES_HERE>(acc, scores, at, first, active);
    } else {
      mma.template multiply_values<false, GRANULES_HERE>(acc, scores, at, first, active);
    }
    buffers.values_are_read();
  }

  // A step of the private KV phase: each warp multiplies the private KV of its rows.
  template <class Buffers>
  TILEWRIGHT_DEVICE void compute_private(Accumulators<S> &acc, const u32 (&query)[S::QUERY_FRAGMENTS][4], const PipelineState<S> &at, const MaskState &seen,
                                      const Buffers &buffers) const {
    constexpr u32 OWN_GRANULES = S::WARP_PRIVATE_STEP / S::GRANULE;
    const u32 first = cta.warp_kv * S::WARP_GRANULES + cta.warp_q * OWN_GRANULES;
    u32 begins = 0;
    if constexpr (S::INVARIANT) begins = totals.template beginnings<OWN_GRANULES>(at, first);
    compute_step<OWN_GRANULES, false>(acc, query, at, first, seen, false, begins, buffers);
  }

  // The first granule of a step that is this warp's, outside the private KV phase.
  TILEWRIGHT_DEVICE u32 first_granule() const { return cta.warp_kv * S::WARP_GRANULES; }
  // Whether all rows see all that the warp has of such a step.
  TILEWRIGHT_DEVICE bool is_plain(const Steps &steps, u32 step, const MaskState &seen) const {
    const i32 token = static_cast<i32>(cta.item.kv_begin + (step - steps.shared) * S::N + first_granule() * S::GRANULE);
    return token + static_cast<i32>(S::WARP_N) <= seen.plain_end && (!S::HIDES_FIRST || token >= seen.plain_begin);
  }

  // The same, said in a way that the compiler can tell: code that depends on it does not diverge.
  TILEWRIGHT_DEVICE bool is_plain_in_warp(const Steps &steps, u32 step, const MaskState &seen) const { return !any_in_warp(!is_plain(steps, step, seen)); }

  // Which of a lane's rows begin a chunk with which granule of a step, outside the private KV phase; and of one that is plain.
  TILEWRIGHT_DEVICE u32 beginnings(const Steps &steps, u32 step, const PipelineState<S> &at, bool plain) const {
    if constexpr (!S::INVARIANT) return 0;
    else return plain ? plain_beginnings(steps, step) : totals.template beginnings<S::WARP_GRANULES>(at, first_granule());
  }
  TILEWRIGHT_DEVICE u32 plain_beginnings(const Steps &steps, u32 step) const {
    if constexpr (!S::INVARIANT) return 0;
    else return totals.template beginnings_from<S::WARP_GRANULES>(cta.item.kv_begin + (step - steps.shared) * S::N + static_cast<u32>(cta.segments()[0].position));
  }

  // A step of either kind.
  template <class Buffers>
  TILEWRIGHT_DEVICE void compute(Accumulators<S> &acc, const u32 (&query)[S::QUERY_FRAGMENTS][4], const Steps &steps, u32 step, const PipelineState<S> &at,
                                 const MaskState &seen, const Buffers &buffers) const {
    if constexpr (S::PRIVATE_PHASE) {
      if (steps.in_private_phase(step)) return compute_private(acc, query, at, seen, buffers);
    }
    const bool plain = is_plain(steps, step, seen);
    compute_step<S::WARP_GRANULES, S::TOGETHER>(acc, query, at, first_granule(), seen, plain, beginnings(steps, step, at, plain), buffers);
  }
};

// For buffers that are handed over by barriers of the CTA: what is done while products of a warpgroup go on.
template <class Meanwhile> struct SharedBuffers {
  const Meanwhile &meanwhile;
  TILEWRIGHT_DEVICE void keys_are_read() const {}
  TILEWRIGHT_DEVICE void wait_values_full() const {}
  TILEWRIGHT_DEVICE void values_are_read() const {}
};

} // namespace tilewright
