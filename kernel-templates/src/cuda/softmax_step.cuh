// A step of online softmax: each warp accumulates its rows over its share of the tokens.
#pragma once
#include "mma.cuh"
#include "softmax.cuh"
#include "mask.cuh"
#include "split_dim.cuh"
#include "split_step.cuh"
#include "totals.cuh"

namespace tilewright {

template <class S> struct SoftmaxStep {
  const Cta<S> &cta;
  const Mask<S> masking{cta};
  const Mma<S> mma{cta};

  // Weights are of the logit that a row is under: the largest one when its accumulators were brought under it last. Up to 2^8 times that much, or 2^14, fits any
  // type with the same precision, so the accumulators stay as they are. Where bits matter, a row begins under 0, and stays there unless the largest logit of its first
  // softmax is 14 above or 8 below: so most rows never are brought under another.
  static constexpr float SLACK = S::INVARIANT ? 14.f : 8.f, SLACK_BELOW = 8.f, MOST_WEIGHT = 256.f;

  // Rounded the same way in all kernels where a row's bits matter; elsewhere the compiler may join operations.
  TILEWRIGHT_DEVICE static float product(float a, float b) { return S::INVARIANT ? rounded_product(a, b) : a * b; }
  TILEWRIGHT_DEVICE static float multiply_subtract(float a, float b, float c) { return S::INVARIANT ? fused_multiply_add(a, b, -c) : a * b - c; }

  // Whether some row of the warp has to be brought under a larger logit, and the thread's largest logits of its rows.
  struct Raise {
    bool far;
    float largest[2];
  };

  // A maximum that may be subtracted: where a row has seen no token all its logits are -inf, and so are their differences.
  TILEWRIGHT_DEVICE static float subtracted(float max) { return S::INVARIANT ? max : larger(max, -3e38f); }

  // Brings the accumulators under the maxima of their softmaxes, from under those before. Those that are under them stay as they are, to the bit.
  TILEWRIGHT_DEVICE static void raise_accumulators(Accumulators<S> &acc, const float (&before)[2]) {
    float factor[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      factor[half] = exp2_fast(before[half] - subtracted(acc.softmax[half].max));
      acc.softmax[half].sum = product(acc.softmax[half].sum, factor[half]);
    }
#pragma unroll
    for (u32 d = 0; d < S::WARP_DIM / 8; d++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) acc.output[d][e] *= factor[e / 2];
    }
  }

  // Brings the rows that have logits too far away under these, once earlier products are added.
  TILEWRIGHT_DEVICE static void raise_rows(Accumulators<S> &acc, const Raise &raise) {
    float before[2], max[2] = {raise.largest[0], raise.largest[1]};
    find_largest_of_rows(max);
    bring_under(acc.softmax, max, before);
    raise_accumulators(acc, before);
  }

  // Logits of a head that warps share out: the sums of their parts.
  template <u32 TILES> TILEWRIGHT_DEVICE void add_split(float (&scores)[TILES][4]) const {
    if constexpr (S::SPLIT_DIM) SplitDim<S>{cta}.add_logits(scores);
  }

  // Makes logits of a step's products: bent, and -inf where a row does not see a token.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE void make_logits(const Query<S> &query, float (&scores)[GRANULES_HERE * 2][4], const PipelineState<S> &at, u32 first, const MaskState &mask_state,
                                     bool masked) const {
    if constexpr (S::BENDS) {
#pragma unroll
      for (u32 j = 0; j < GRANULES_HERE * 2; j++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) scores[j][e] = S::bent(cta.args.mask, scores[j][e], query.scale(cta, e / 2));
      }
    }
    if (masked) masking.template mask_scores<GRANULES_HERE>(scores, at, first, mask_state);
  }

  // The thread's largest logits of its rows in some of these tiles of 8 tokens.
  template <u32 BEGIN, u32 END, u32 TILES> TILEWRIGHT_DEVICE void find_largest(float (&max)[2], const Query<S> &query, const float (&scores)[TILES][4]) const {
    max[0] = scores[BEGIN][0], max[1] = scores[BEGIN][2];
#pragma unroll
    for (u32 j = BEGIN; j < END; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) max[e / 2] = larger(max[e / 2], scores[j][e]);
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) max[half] = product(max[half], factor(query, half));
  }

  // Those of whole rows, of which four threads have a part each.
  TILEWRIGHT_DEVICE static void find_largest_of_rows(float (&max)[2]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      max[half] = larger(max[half], from_lane_xor(max[half], 1));
      max[half] = larger(max[half], from_lane_xor(max[half], 2));
    }
  }

  // Whether a thread's largest logits are too far from what its rows are under. Of rows of which it has no weight yet it says so too often. No branch, which
  // would diverge.
  TILEWRIGHT_DEVICE static bool is_far(const Softmax (&softmax)[2], const float (&max)[2]) {
    bool far = false;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      far = far | (max[half] > softmax[half].max + SLACK);
      if constexpr (S::INVARIANT) far = far | ((softmax[half].sum == 0.f) & (max[half] < softmax[half].max - SLACK_BELOW) & (max[half] > negative_infinity()));
    }
    return far;
  }

  // Whether a row has weights: a first one is 2^-8 at least.
  TILEWRIGHT_DEVICE static bool has_begun(const Softmax &softmax) {
    float sum = softmax.sum;
    sum += from_lane_xor(sum, 1);
    sum += from_lane_xor(sum, 2);
    return sum != 0.f;
  }

  // Brings softmaxes under the largest logits of their rows where these are too far above, or, where bits matter and the row begins, too far away; `before` is what their
  // accumulators are under. A row is brought under what it needs itself, not under what others of the warp need.
  TILEWRIGHT_DEVICE static void bring_under(Softmax (&softmax)[2], const float (&max)[2], float (&before)[2]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const bool begun = !S::INVARIANT || has_begun(softmax[half]);
      const bool below = !begun & (max[half] < softmax[half].max - SLACK_BELOW) & (max[half] > negative_infinity());
      const float under = (max[half] > softmax[half].max + SLACK) | below ? max[half] : softmax[half].max;
      before[half] = begun ? softmax[half].max : under;
      softmax[half].max = under;
    }
  }

  // Makes logits, and finds whether rows have to be brought under larger ones. Mostly none has: then no thread needs another's logits.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE Raise begin_weighing(const Softmax (&softmax)[2], const Query<S> &query, float (&scores)[GRANULES_HERE * 2][4], const PipelineState<S> &at, u32 first,
                                         const MaskState &mask_state, bool masked) const {
    make_logits<GRANULES_HERE>(query, scores, at, first, mask_state, masked);
    Raise raise;
    find_largest<0, GRANULES_HERE * 2>(raise.largest, query, scores);
    raise.far = any_in_warp(is_far(softmax, raise.largest));
    return raise;
  }

  // Makes the first weights of a step's products, once rows are raised: while earlier products are still added.
  template <u32 GRANULES_HERE> TILEWRIGHT_DEVICE void make_first_weights(const Softmax (&softmax)[2], const Query<S> &query, float (&scores)[GRANULES_HERE * 2][4]) const {
    make_weights<0, first_tiles(GRANULES_HERE)>(scores, softmax, query);
  }

  // Tiles of 8 tokens whose weights are made first. The more tokens a step has, the sooner its buffer of values has to be filled again.
  static constexpr u32 first_tiles(u32 granules) { return granules <= 4 ? 2 : 1; }

  // Makes the other weights, and sums all.
  template <u32 GRANULES_HERE> TILEWRIGHT_DEVICE void end_weighing(Softmax (&softmax)[2], const Query<S> &query, float (&scores)[GRANULES_HERE * 2][4]) const {
    make_weights<first_tiles(GRANULES_HERE), GRANULES_HERE * 2>(scores, softmax, query);
    if constexpr (S::INVARIANT) {
#pragma unroll
      for (u32 n = 0; n < GRANULES_HERE; n++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) softmax[half].sum += granule_sum(scores, n, half);
      }
    } else {
#pragma unroll
      for (u32 j = 0; j < GRANULES_HERE * 2; j++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) softmax[e / 2].sum += scores[j][e];
      }
    }
  }

  // Where a row's bits matter, a lane sums its weights of each granule by themselves: granules may be other warps'.
  template <u32 TILES> TILEWRIGHT_DEVICE static float granule_sum(const float (&scores)[TILES][4], u32 n, u32 half) {
    return (scores[2 * n][2 * half] + scores[2 * n][2 * half + 1]) + (scores[2 * n + 1][2 * half] + scores[2 * n + 1][2 * half + 1]);
  }

  // What makes logits of a row's scores once they are bent.
  TILEWRIGHT_DEVICE float factor(const Query<S> &query, u32 half) const { return S::BENDS ? 1.f : query.scale(cta, half); }

  template <u32 BEGIN, u32 END, u32 TILES> TILEWRIGHT_DEVICE void make_weights(float (&scores)[TILES][4], const Softmax (&softmax)[2], const Query<S> &query) const {
    const float max[2] = {subtracted(softmax[0].max), subtracted(softmax[1].max)};
#pragma unroll
    for (u32 j = BEGIN; j < END; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) scores[j][e] = exp2_fast(multiply_subtract(scores[j][e], factor(query, e / 2), max[e / 2]));
    }
  }

  // One step of online softmax over GRANULES_HERE granules, `first` and the next ones of a step. WITH_GROUP, the warpgroup does it together.
  // Where it is `plain`, all rows see all of it. `buffers` is told how far it is with K and V.
  template <u32 GRANULES_HERE, bool WITH_GROUP, class Buffers>
  TILEWRIGHT_DEVICE void compute_step(Accumulators<S> &acc, const Query<S> &query, const PipelineState<S> &at, u32 first, const MaskState &mask_state,
                                      bool plain, const Buffers &buffers) const {
    constexpr u32 ALL_GRANULES = Mask<S>::all_granules(GRANULES_HERE);
    bool masked = false;
    u32 active = plain ? ALL_GRANULES : masking.template active_granules<GRANULES_HERE, WITH_GROUP>(at, first, mask_state, masked);
    // All lanes have the same. Said so, the branch does not diverge, and lanes meet before the buffer is released. By a vote instead of a maximum, `ptxas` moves
    // arrivals before reads of the buffer (`docs/tried.md`).
    if constexpr (!WITH_GROUP) active = static_cast<u32>(largest_in_warp(static_cast<i32>(active)));
    // Where bits matter, a warp multiplies what a warpgroup does: the whole step.
    if (S::INVARIANT && active != 0) active = ALL_GRANULES;
    if (active == 0) {
      buffers.meanwhile();
      buffers.keys_are_read(0);
      buffers.wait_values_full();
      return buffers.values_are_read(0);
    }
    if constexpr (S::SPLIT_STEP) return compute_split<GRANULES_HERE>(acc, query, at, first, active, mask_state, masked, buffers);
    float scores[GRANULES_HERE * 2][4];
    u32 keys_read = 0, values_read = 0; // products of a warpgroup are waited for
    if constexpr (WITH_GROUP) mma.template begin_keys_together<GRANULES_HERE>(scores, query, mma.keys_together(at, first));
    buffers.meanwhile();
    if constexpr (WITH_GROUP) {
      wait_wgmma(scores);
    } else if (active == ALL_GRANULES) {
      keys_read = mma.template multiply_keys<true, GRANULES_HERE>(scores, query, at, first, active);
    } else {
      keys_read = mma.template multiply_keys<false, GRANULES_HERE>(scores, query, at, first, active);
    }
    buffers.keys_are_read(keys_read);
    add_split(scores);
    const Raise raise = begin_weighing<GRANULES_HERE>(acc.softmax, query, scores, at, first, mask_state, masked);
    if (raise.far) raise_rows(acc, raise);
    make_first_weights<GRANULES_HERE>(acc.softmax, query, scores);
    end_weighing<GRANULES_HERE>(acc.softmax, query, scores);
    buffers.wait_values_full();
    if constexpr (WITH_GROUP) {
      u32 weights[GRANULES_HERE][4];
      mma.narrow_all(weights, scores);
      mma.template begin_values_together<GRANULES_HERE>(acc, weights, mma.values_of(mma.keys_together(at, first), at, first));
      wait_wgmma(acc.output);
    } else {
      const auto fragment = [&](u32(&a)[4], u32 n) { mma.narrow_weights(a, scores, n); };
      if (active == ALL_GRANULES) values_read = mma.template multiply_values<true, GRANULES_HERE>(acc, fragment, at, first, active);
      else values_read = mma.template multiply_values<false, GRANULES_HERE>(acc, fragment, at, first, active);
    }
    buffers.values_are_read(values_read);
  }

  // The last granules of a step's softmaxes, with which chunks may end.
  struct ChunkEnds {
    Granule granule[S::SOFTMAXES];
  };

  // The same by warps that share out a step: each makes the weights of its granules under what the rows are under, and multiplies its part of V with all. Mostly no
  // logit is too far above, which they find when they meet; else they tell each other their largest ones, and weigh anew. Softmaxes follow each other, but their
  // products with K and their weights are made at once.
  template <u32 GRANULES_HERE, class Buffers>
  TILEWRIGHT_DEVICE void compute_split(Accumulators<S> &acc, const Query<S> &query, const PipelineState<S> &at, u32 first, u32 active, const MaskState &mask_state, bool masked,
                                       const Buffers &buffers) const {
    constexpr u32 OWN = S::OWN_GRANULES, ALL_OWN = S::SOFTMAXES * OWN;
    static_assert(ALL_OWN * S::WARPS_D == GRANULES_HERE, "a whole step");
    const u32 own_first = first + cta.warp_d * OWN;
    const SplitStep<S> split{cta, acc.turn};
    const Totals<S> totals{cta};
    float scores[ALL_OWN * 2][4], max[S::SOFTMAXES][2];
    ChunkEnds ends; // but with the last softmax, whose rows leave behind the step
#pragma unroll
    for (u32 s = 0; s + 1 < S::SOFTMAXES; s++) ends.granule[s] = cta.granules(at)[first + (s + 1) * S::SOFTMAX_GRANULES - 1];
    buffers.meanwhile();
    const u32 keys_read = mma.template multiply_keys<true, ALL_OWN>(scores, query, at, own_first, Mask<S>::all_granules(ALL_OWN));
    buffers.keys_are_read(keys_read);
    make_logits<ALL_OWN>(query, scores, at, own_first, mask_state, masked);
    find_all_largest<0>(max, query, scores);
    Softmax softmax[S::SOFTMAXES][2];
    bool far = begin_softmaxes<false>(softmax, acc.softmax, ends, max);
    leave_weights(split, own_first, softmax, query, scores);
    far = split.meet_any(far);
    if (far) {
#pragma unroll
      for (u32 s = 0; s < S::SOFTMAXES; s++) find_largest_of_rows(max[s]);
      split.share_maxima(max);
      begin_softmaxes<true>(softmax, acc.softmax, ends, max);
      leave_weights(split, own_first, softmax, query, scores);
      split.meet();
    }
    acc.turn ^= 1;
    u32 values_read = 0;
#pragma unroll
    for (u32 s = 0; s < S::SOFTMAXES; s++) {
      const u32 its_first = first + s * S::SOFTMAX_GRANULES;
      if (far) {
        float before[2];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
          before[half] = has_begun(acc.softmax[half]) ? acc.softmax[half].max : softmax[s][half].max;
          acc.softmax[half].max = softmax[s][half].max;
        }
        raise_accumulators(acc, before);
      }
#pragma unroll
      for (u32 n = 0; n < S::SOFTMAX_GRANULES; n++) split.add_sums(acc.softmax, its_first + n);
      if (s == 0) buffers.wait_values_full();
      const auto fragment = [&](u32(&a)[4], u32 n) { split.weights(a, its_first + n); };
      constexpr u32 ALL_GRANULES = Mask<S>::all_granules(S::SOFTMAX_GRANULES);
      if (S::INVARIANT || active == ALL_GRANULES) values_read ^= mma.template multiply_values<true, S::SOFTMAX_GRANULES>(acc, fragment, at, its_first, ALL_GRANULES);
      else values_read ^= mma.template multiply_values<false, S::SOFTMAX_GRANULES>(acc, fragment, at, its_first, active);
      if constexpr (S::SOFTMAXES > 1) {
        if (s + 1 < S::SOFTMAXES && ends.granule[s].ends_chunk()) totals.leave_chunk(acc, ends.granule[s], value_scale(cta));
      }
    }
    buffers.values_are_read(values_read);
  }

  // What the rows are under in each softmax of a step: the one before, or 0 where the row leaves a chunk between them; RAISES, brought under these largest logits of whole
  // rows. Says whether some logit is too far away.
  template <bool RAISES>
  TILEWRIGHT_DEVICE bool begin_softmaxes(Softmax (&softmax)[S::SOFTMAXES][2], const Softmax (&before)[2], const ChunkEnds &ends, const float (&max)[S::SOFTMAXES][2]) const {
    bool far = false;
#pragma unroll
    for (u32 s = 0; s < S::SOFTMAXES; s++) {
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        softmax[s][half] = s == 0 ? before[half] : softmax[s == 0 ? 0 : s - 1][half];
        if (s > 0 && Totals<S>{cta}.leaves(ends.granule[s == 0 ? 0 : s - 1], half)) softmax[s][half] = Softmax{0.f, 0.f};
      }
      far = far | is_far(softmax[s], max[s]);
      if constexpr (RAISES) {
        float unused[2];
        bring_under(softmax[s], max[s], unused);
        // Weights are not summed yet: that a row has some is said by any sum.
#pragma unroll
        for (u32 half = 0; half < 2; half++) softmax[s][half].sum += max[s][half] > negative_infinity() ? 1.f : 0.f;
      }
    }
    return far;
  }

  // Makes the weights of the warp's granules, and leaves them and their sums for all.
  template <u32 TILES>
  TILEWRIGHT_DEVICE void leave_weights(const SplitStep<S> &split, u32 own_first, const Softmax (&softmax)[S::SOFTMAXES][2], const Query<S> &query, const float (&scores)[TILES][4]) const {
    float weights[TILES][4];
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) weights[j][e] = scores[j][e];
    }
    weigh_all<0>(softmax, query, weights);
#pragma unroll
    for (u32 n = 0; n < TILES / 2; n++) {
      u32 fragment[4];
      mma.narrow_weights(fragment, weights, n);
      split.leave(own_first + S::own_granule(n), fragment, granule_sum(weights, n, 0), granule_sum(weights, n, 1));
    }
  }

  // The thread's largest logits of each softmax of a step.
  template <u32 SOFTMAX, u32 TILES> TILEWRIGHT_DEVICE void find_all_largest(float (&max)[S::SOFTMAXES][2], const Query<S> &query, const float (&scores)[TILES][4]) const {
    if constexpr (SOFTMAX < S::SOFTMAXES) {
      find_largest<SOFTMAX * S::OWN_GRANULES * 2, (SOFTMAX + 1) * S::OWN_GRANULES * 2>(max[SOFTMAX], query, scores);
      find_all_largest<SOFTMAX + 1>(max, query, scores);
    }
  }

  // Their weights.
  template <u32 SOFTMAX, u32 TILES> TILEWRIGHT_DEVICE void weigh_all(const Softmax (&softmax)[S::SOFTMAXES][2], const Query<S> &query, float (&scores)[TILES][4]) const {
    if constexpr (SOFTMAX < S::SOFTMAXES) {
      make_weights<SOFTMAX * S::OWN_GRANULES * 2, (SOFTMAX + 1) * S::OWN_GRANULES * 2>(scores, softmax[SOFTMAX], query);
      weigh_all<SOFTMAX + 1>(softmax, query, scores);
    }
  }

  // A step of the private KV phase: each warp multiplies the private KV of its rows.
  template <class Buffers>
  TILEWRIGHT_DEVICE void compute_private(Accumulators<S> &acc, const Query<S> &query, const PipelineState<S> &at, const MaskState &seen,
                                      const Buffers &buffers) const {
    constexpr u32 OWN_GRANULES = S::WARP_PRIVATE_STEP / S::GRANULE;
    const u32 first = cta.warp_kv * S::WARP_GRANULES + cta.warp_q * OWN_GRANULES;
    compute_step<OWN_GRANULES, false>(acc, query, at, first, seen, false, buffers);
  }

  // The first granule of a step that is this warp's, outside the private KV phase.
  TILEWRIGHT_DEVICE u32 first_granule() const { return cta.warp_kv * S::WARP_GRANULES; }
  // Whether all rows see all that the warp has of such a step.
  TILEWRIGHT_DEVICE bool is_plain(const Steps &steps, u32 step, const MaskState &seen) const {
    const i32 token = static_cast<i32>(cta.item.kv_begin + steps.shared_step(step) * S::N + first_granule() * S::GRANULE);
    return token + static_cast<i32>(S::WARP_N) <= seen.plain_end && (!S::HIDES_FIRST || token >= seen.plain_begin);
  }

  // The same, said in a way that the compiler can tell: code that depends on it does not diverge.
  TILEWRIGHT_DEVICE bool is_plain_in_warp(const Steps &steps, u32 step, const MaskState &seen) const { return !any_in_warp(!is_plain(steps, step, seen)); }

  // A step of either kind.
  template <class Buffers>
  TILEWRIGHT_DEVICE void compute(Accumulators<S> &acc, const Query<S> &query, const Steps &steps, u32 step, const PipelineState<S> &at,
                                 const MaskState &seen, const Buffers &buffers) const {
    if constexpr (S::PRIVATE_PHASE) {
      if (steps.in_private_phase(step)) return compute_private(acc, query, at, seen, buffers);
    }
    compute_step<S::WARP_GRANULES, S::TOGETHER>(acc, query, at, first_granule(), seen, is_plain(steps, step, seen), buffers);
  }
};

// For buffers that are handed over by barriers of the CTA: what is done while products of a warpgroup go on.
template <class Meanwhile> struct SharedBuffers {
  const Meanwhile &meanwhile;
  TILEWRIGHT_DEVICE void keys_are_read(u32) const {}
  TILEWRIGHT_DEVICE void wait_values_full() const {}
  TILEWRIGHT_DEVICE void values_are_read(u32) const {}
};

} // namespace tilewright
