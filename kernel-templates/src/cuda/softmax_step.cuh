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
  // type with the same precision, so the accumulators stay as they are. Where bits matter, a row begins under 0, and stays there unless its first granule's largest
  // logit is 14 above or 8 below. So most rows never are brought under another, and nothing has to be known of other tokens.
  static constexpr float SLACK = S::INVARIANT ? 14.f : 8.f, SLACK_BELOW = 8.f, MOST_WEIGHT = 256.f;

  // Rounded the same way in all kernels where a row's bits matter; elsewhere the compiler may join operations.
  TILEWRIGHT_DEVICE static float product(float a, float b) { return S::INVARIANT ? rounded_product(a, b) : a * b; }
  TILEWRIGHT_DEVICE static float multiply_subtract(float a, float b, float c) { return S::INVARIANT ? fused_multiply_add(a, b, -c) : a * b - c; }

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

  // Whether a logit is too far above what its row is under.
  TILEWRIGHT_DEVICE static bool is_far(const Softmax (&softmax)[2], const float (&max)[2]) {
    return (max[0] > softmax[0].max + SLACK) | (max[1] > softmax[1].max + SLACK);
  }

  // What a row is under from a granule or a step on, of which `max` is its largest logit. One that has begun is brought under that if it is too far above; one that has
  // not, where bits matter, if it is too far away. It is brought under what it needs itself, not under what others of the warp need.
  TILEWRIGHT_DEVICE static float under_with(float under, bool begun, float max) {
    const bool below = !begun & (max < under - SLACK_BELOW) & (max > negative_infinity());
    return (max > under + SLACK) | below ? max : under;
  }

  // Whether a row has begun: a first weight is 2^-8 at least.
  TILEWRIGHT_DEVICE static bool has_begun(const Softmax &softmax) {
    float sum = softmax.sum;
    sum += from_lane_xor(sum, 1);
    sum += from_lane_xor(sum, 2);
    return sum != 0.f;
  }

  // Brings softmaxes under what their rows have to be under, with these largest logits of theirs; `before` is what the accumulators are under.
  TILEWRIGHT_DEVICE static void bring_under(Softmax (&softmax)[2], const float (&max)[2], float (&before)[2]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const bool begun = !S::INVARIANT || has_begun(softmax[half]);
      const float under = under_with(softmax[half].max, begun, max[half]);
      before[half] = begun ? softmax[half].max : under;
      softmax[half].max = under;
    }
  }

  // Whether a thread may have to begin rows under another logit, with granules in which these are its lowest largest ones. Of rows of which it has no weight yet it
  // says so too often. No branch, which would diverge.
  TILEWRIGHT_DEVICE static bool begins_far(const Softmax (&softmax)[2], const float (&low)[2]) {
    return ((softmax[0].sum == 0.f) & (low[0] < -SLACK_BELOW)) | ((softmax[1].sum == 0.f) & (low[1] < -SLACK_BELOW));
  }
  // The lower one of them, where the rows see some of both granules.
  TILEWRIGHT_DEVICE static void find_lower(float (&low)[2], const float (&max)[2]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) low[half] = smaller(low[half], max[half] > negative_infinity() ? max[half] : 0.f);
  }

  // Makes logits, and finds whether rows have to be brought under others. Mostly none has: then no thread needs another's logits.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE bool begin_weighing(const Softmax (&softmax)[2], const Query<S> &query, float (&scores)[GRANULES_HERE * 2][4], const PipelineState<S> &at, u32 first,
                                        const MaskState &mask_state, bool masked) const {
    make_logits<GRANULES_HERE>(query, scores, at, first, mask_state, masked);
    float largest[2];
    find_largest<0, GRANULES_HERE * 2>(largest, query, scores);
    bool far = is_far(softmax, largest);
    if constexpr (S::INVARIANT) {
      // Rows begin with the first granule, but where some of them do not see it.
      float low[2];
      find_largest<0, 2>(low, query, scores);
      if (masked) find_lowest<0>(low, query, scores);
      far = far | begins_far(softmax, low);
    }
    return any_in_warp(far);
  }
  // The lowest one of the thread's largest logits of its rows in each granule that they see.
  template <u32 N, u32 TILES> TILEWRIGHT_DEVICE void find_lowest(float (&low)[2], const Query<S> &query, const float (&scores)[TILES][4]) const {
    if constexpr (N == 0) low[0] = low[1] = 0.f;
    if constexpr (2 * N < TILES) {
      float max[2];
      find_largest<2 * N, 2 * N + 2>(max, query, scores);
      find_lower(low, max);
      find_lowest<N + 1>(low, query, scores);
    }
  }

  // Brings rows under other logits, and their accumulators, to which all earlier products are added. Where bits matter, rows are brought under those of the granules that are
  // too far away, in turn, so that it does not depend on what other tokens are in their step. If some row of the warp has weights under several logits in it, the warp adds this
  // step's values alone, a granule after the other, and its weights are 0 in the products of all. `wait_values_full` waits for these values.
  template <u32 GRANULES_HERE, bool WITH_GROUP, class Wait>
  TILEWRIGHT_DEVICE void raise_rows(Accumulators<S> &acc, const Query<S> &query, float (&scores)[GRANULES_HERE * 2][4], const PipelineState<S> &at, u32 first,
                                    const Wait &wait_values_full) const {
    float before[2];
    if constexpr (!S::INVARIANT) {
      float largest[2];
      find_largest<0, GRANULES_HERE * 2>(largest, query, scores);
      find_largest_of_rows(largest);
      bring_under(acc.softmax, largest, before);
      raise_accumulators(acc, before);
    } else {
      float max[GRANULES_HERE][2];
      find_largest_of_granules<0>(max, query, scores);
      Turns turns{acc.softmax};
#pragma unroll
      for (u32 n = 0; n < GRANULES_HERE; n++) turns.add(max[n]);
      if (!any_in_warp(turns.apart)) {
        turns.finish(acc.softmax, before);
        return raise_accumulators(acc, before);
      }
      wait_values_full();
#pragma unroll 1
      for (u32 n = 0; n < GRANULES_HERE; n++) {
        float weights[2][4], largest[2];
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
#pragma unroll
          for (u32 e = 0; e < 4; e++) weights[j][e] = scores[j][e];
        }
        find_largest<0, 2>(largest, query, weights);
        find_largest_of_rows(largest);
        bring_under(acc.softmax, largest, before);
        raise_accumulators(acc, before);
        make_weights<0, 2>(weights, acc.softmax, query);
#pragma unroll
        for (u32 half = 0; half < 2; half++) acc.softmax[half].sum += granule_sum(weights, 0, half);
        u32 a[4];
        mma.narrow_weights(a, weights, 0);
        if constexpr (WITH_GROUP) {
          mma.multiply_granule_of_group(acc, a, at, first + n);
        } else {
          const auto fragment = [&](u32(&to)[4], u32) { to[0] = a[0], to[1] = a[1], to[2] = a[2], to[3] = a[3]; };
          mma.template multiply_values<true, 1>(acc, fragment, at, first + n, 1);
        }
        // What follows comes first, and nothing behind it: in the end there is nothing left to weigh.
#pragma unroll
        for (u32 j = 0; j < GRANULES_HERE * 2; j++) {
#pragma unroll
          for (u32 e = 0; e < 4; e++) scores[j][e] = j + 2 < GRANULES_HERE * 2 ? scores[j + 2 < GRANULES_HERE * 2 ? j + 2 : j][e] : negative_infinity();
        }
      }
    }
  }

  // What rows are under, granule by granule of a step.
  struct Turns {
    float under[2], before[2];
    bool begun[2], begun_before[2], here[2] = {false, false}; // whether a row has weights, has some before the step, has some in it
    bool apart = false;                                      // whether some row has weights under several logits in this step

    TILEWRIGHT_DEVICE explicit Turns(const Softmax (&softmax)[2]) {
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        under[half] = before[half] = softmax[half].max;
        begun[half] = begun_before[half] = has_begun(softmax[half]);
      }
    }
    TILEWRIGHT_DEVICE void add(const float (&max)[2]) {
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        const bool sees = max[half] > negative_infinity();
        const float next = under_with(under[half], begun[half], max[half]);
        apart = apart | (here[half] & (next != under[half]));
        under[half] = next;
        begun[half] = begun[half] | sees, here[half] = here[half] | sees;
      }
    }
    // A row leaves its chunk: it begins anew.
    TILEWRIGHT_DEVICE void leave(u32 half) { under[half] = 0.f, begun[half] = false; }
    // Where no row has weights under several logits, what accumulators are under and what they are to be brought under.
    TILEWRIGHT_DEVICE void finish(Softmax (&softmax)[2], float (&accumulators)[2]) const {
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        softmax[half].max = under[half];
        accumulators[half] = begun_before[half] ? before[half] : under[half];
      }
    }
  };

  // The largest logits of the rows in each granule.
  template <u32 N, u32 GRANULES_HERE, u32 TILES>
  TILEWRIGHT_DEVICE void find_largest_of_granules(float (&max)[GRANULES_HERE][2], const Query<S> &query, const float (&scores)[TILES][4]) const {
    if constexpr (N < GRANULES_HERE) {
      find_largest<2 * N, 2 * N + 2>(max[N], query, scores);
      find_largest_of_rows(max[N]);
      find_largest_of_granules<N + 1>(max, query, scores);
    }
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
    const bool far = begin_weighing<GRANULES_HERE>(acc.softmax, query, scores, at, first, mask_state, masked);
    if (far) raise_rows<GRANULES_HERE, WITH_GROUP>(acc, query, scores, at, first, [&] { buffers.wait_values_full(); });
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

  // The same by warps that share out a step: each makes the weights of its granules under what the rows are under, and multiplies its part of V with all. Mostly no
  // logit is too far away, which they find when they meet; else they tell each other their largest ones, and weigh anew. Where bits matter, they add a granule after the
  // other where a row has weights under several logits, or leaves a chunk within the step; all of these warps find the same.
  template <u32 GRANULES_HERE, class Buffers>
  TILEWRIGHT_DEVICE void compute_split(Accumulators<S> &acc, const Query<S> &query, const PipelineState<S> &at, u32 first, u32 active, const MaskState &mask_state, bool masked,
                                       const Buffers &buffers) const {
    constexpr u32 OWN = S::OWN_GRANULES, ALL_GRANULES = Mask<S>::all_granules(GRANULES_HERE);
    static_assert(OWN * S::WARPS_D == GRANULES_HERE, "a whole step");
    const u32 own_first = first + cta.warp_d * OWN;
    const SplitStep<S> split{cta, acc.turn};
    float scores[OWN * 2][4], own_max[S::OWN_MAXIMA][2];
    buffers.meanwhile();
    const u32 keys_read = mma.template multiply_keys<true, OWN>(scores, query, at, own_first, Mask<S>::all_granules(OWN));
    const bool ends_within = ends_chunk_within(at, first);
    buffers.keys_are_read(keys_read);
    make_logits<OWN>(query, scores, at, own_first, mask_state, masked);
    find_own_maxima<0>(own_max, query, scores);
    bool far = ends_within;
    float low[2] = {0.f, 0.f};
#pragma unroll
    for (u32 i = 0; i < S::OWN_MAXIMA; i++) {
      far = far | is_far(acc.softmax, own_max[i]);
      if constexpr (S::INVARIANT) find_lower(low, own_max[i]);
    }
    if constexpr (S::INVARIANT) far = far | begins_far(acc.softmax, low);
    leave_weights(split, own_first, [&](u32) -> const Softmax(&)[2] { return acc.softmax; }, query, scores);
    far = split.meet_any(far);
    bool apart = false;
    float before[2] = {acc.softmax[0].max, acc.softmax[1].max};
    if (far) {
      float max[S::MAXIMA][2];
#pragma unroll
      for (u32 i = 0; i < S::OWN_MAXIMA; i++) find_largest_of_rows(own_max[i]);
      split.share_maxima(own_max, max);
      if constexpr (S::INVARIANT) {
        apart = weigh_granules(split, query, scores, acc.softmax, before, max, at, first) || ends_within;
        // They are brought under these one after the other.
        if (apart) acc.softmax[0].max = before[0], acc.softmax[1].max = before[1];
      } else {
#pragma unroll
        for (u32 i = 0; i < S::MAXIMA; i++) max[0][0] = larger(max[0][0], max[i][0]), max[0][1] = larger(max[0][1], max[i][1]);
        bring_under(acc.softmax, max[0], before);
        leave_weights(split, own_first, [&](u32) -> const Softmax(&)[2] { return acc.softmax; }, query, scores);
      }
      split.meet();
    }
    acc.turn ^= 1;
    u32 values_read = 0;
    if (apart) {
      buffers.wait_values_full();
      values_read = add_granules<GRANULES_HERE>(acc, split, at, first);
    } else {
      if (far) raise_accumulators(acc, before);
#pragma unroll
      for (u32 n = 0; n < GRANULES_HERE; n++) split.add_sums(acc.softmax, first + n);
      buffers.wait_values_full();
      const auto fragment = [&](u32(&a)[4], u32 n) { split.weights(a, first + n); };
      if (S::INVARIANT || active == ALL_GRANULES) values_read = mma.template multiply_values<true, GRANULES_HERE>(acc, fragment, at, first, ALL_GRANULES);
      else values_read = mma.template multiply_values<false, GRANULES_HERE>(acc, fragment, at, first, active);
    }
    buffers.values_are_read(values_read);
  }

  // Makes the weights of the warp's granules, each under what `softmax_of` has for it, and leaves them and their sums for all.
  template <class Softmaxes, u32 TILES>
  TILEWRIGHT_DEVICE void leave_weights(const SplitStep<S> &split, u32 own_first, const Softmaxes &softmax_of, const Query<S> &query, const float (&scores)[TILES][4]) const {
#pragma unroll
    for (u32 n = 0; n < TILES / 2; n++) {
      float weights[2][4];
#pragma unroll
      for (u32 j = 0; j < 2; j++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) weights[j][e] = scores[2 * n + j][e];
      }
      make_weights<0, 2>(weights, softmax_of(n), query);
      u32 fragment[4];
      mma.narrow_weights(fragment, weights, 0);
      split.leave(own_first + n, fragment, granule_sum(weights, 0, 0), granule_sum(weights, 0, 1));
    }
  }

  // Whether a chunk ends with a part of a step but the last one, behind which rows leave chunks elsewhere.
  TILEWRIGHT_DEVICE bool ends_chunk_within(const PipelineState<S> &at, u32 first) const {
    bool ends = false;
#pragma unroll
    for (u32 part = 1; part < S::PARTS; part++) ends = ends | cta.granules(at)[first + part * S::PART_GRANULES - 1].ends_chunk();
    return ends;
  }

  // Leaves the weights of the warp's granules, each under what its row is brought under up to it, and brings the softmaxes under all; `before` is what the accumulators
  // are under. Says whether some row of the warp has weights under several logits: then softmaxes stay as they are.
  TILEWRIGHT_DEVICE bool weigh_granules(const SplitStep<S> &split, const Query<S> &query, const float (&scores)[S::OWN_GRANULES * 2][4], Softmax (&softmax)[2], float (&before)[2],
                                        const float (&max)[S::MAXIMA][2], const PipelineState<S> &at, u32 first) const {
    constexpr u32 OWN = S::OWN_GRANULES;
    Softmax of_own[OWN][2];
    Turns turns{softmax};
#pragma unroll
    for (u32 n = 0; n < S::MAXIMA; n++) {
      if (n > 0 && n % S::PART_GRANULES == 0) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
          if (Totals<S>{cta}.leaves(cta.granules(at)[first + n - 1], half)) turns.leave(half);
        }
      }
      turns.add(max[n]);
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        if (n < OWN || cta.warp_d == n / OWN) of_own[n % OWN][half].max = turns.under[half];
      }
    }
    leave_weights(split, first + cta.warp_d * OWN, [&](u32 n) -> const Softmax(&)[2] { return of_own[n]; }, query, scores);
    const bool apart = any_in_warp(turns.apart);
    if (!apart) turns.finish(softmax, before);
    return apart;
  }

  // Adds the granules of such a step one after the other, or two where V is read by two; returns bits of what the last read has brought.
  template <u32 GRANULES_HERE> TILEWRIGHT_DEVICE u32 add_granules(Accumulators<S> &acc, const SplitStep<S> &split, const PipelineState<S> &at, u32 first) const {
    constexpr u32 AT_ONCE = S::WARP_CHUNKS % 2 == 0 ? 1 : 2;
    const Totals<S> totals{cta};
    u32 read = 0;
#pragma unroll 1
    for (u32 begin = first; begin < first + GRANULES_HERE; begin += AT_ONCE) {
      const auto fragment = [&](u32(&a)[4], u32 n) {
        const float max[2] = {split.maximum(begin + n, 0), split.maximum(begin + n, 1)};
        float before[2];
        bring_under(acc.softmax, max, before);
        raise_accumulators(acc, before);
        split.add_sums(acc.softmax, begin + n);
        split.weights(a, begin + n);
      };
      read ^= mma.template multiply_values<true, AT_ONCE>(acc, fragment, at, begin, Mask<S>::all_granules(AT_ONCE));
      const u32 behind = begin + AT_ONCE - first;
      if constexpr (S::PARTS > 1) {
        if (behind % S::PART_GRANULES == 0 && behind < GRANULES_HERE) {
          const Granule last = cta.granules(at)[first + behind - 1];
          if (last.ends_chunk()) totals.leave_chunk(acc, last, value_scale(cta));
        }
      }
    }
    return read;
  }

  // The thread's largest logits of what the warp has of a step: of each granule where bits matter, or of all.
  template <u32 INDEX, u32 TILES>
  TILEWRIGHT_DEVICE void find_own_maxima(float (&max)[S::OWN_MAXIMA][2], const Query<S> &query, const float (&scores)[TILES][4]) const {
    constexpr u32 TILES_EACH = TILES / S::OWN_MAXIMA;
    if constexpr (INDEX < S::OWN_MAXIMA) {
      find_largest<INDEX * TILES_EACH, (INDEX + 1) * TILES_EACH>(max[INDEX], query, scores);
      find_own_maxima<INDEX + 1>(max, query, scores);
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
