// Mainloop of the consumer warps: all steps of a KV range whose buffers the producers fill.
//
// A warpgroup computes QK of a step beside PV of the step before, and the softmax meanwhile.
#pragma once
#include "softmax_step.cuh"
#include "pipeline.cuh"
#include "totals.cuh"

namespace tilewright {

template <class S> struct Mainloop {
  const Cta<S> &cta;
  const SoftmaxStep<S> softmax_step{cta};
  const Pipeline<S> pipeline{cta};
  const Totals<S> totals{cta};

  // Whether a thread has registers for the weights of a step beside the logits of the next one.
  static constexpr bool OVERLAPS = S::TOGETHER && (S::HEAD_DIM > 128 ? S::WARP_N <= 64 : S::WARPS > 4 || S::WARP_N <= 96);

  // Whether a warpgroup's steps have one buffer in turn. What comes next is always late then, and the buffer is wanted back at once.
  static constexpr bool ONE_BUFFER = S::WIDE_BUFFERS == 1;

  // A buffer during one step, of a warpgroup or of each warp.
  template <bool TOGETHER> struct Buffers {
    const Pipeline<S> &pipeline;
    const PipelineState<S> &at;
    TILEWRIGHT_DEVICE void meanwhile() const {}
    TILEWRIGHT_DEVICE void keys_are_read(u32 read) const { pipeline.template release_keys<TOGETHER>(at, read); }
    TILEWRIGHT_DEVICE void wait_values_full() const { pipeline.template wait_values_full<TOGETHER>(at); }
    TILEWRIGHT_DEVICE void values_are_read(u32 read) const { pipeline.template release_values<TOGETHER>(at, read); }
  };

  // Releases a step whose keys have arrived, and of which the warp computes nothing.
  template <bool TOGETHER> TILEWRIGHT_DEVICE void skip(const PipelineState<S> &at) const {
    pipeline.template release_keys<TOGETHER>(at);
    pipeline.template wait_values_full<TOGETHER>(at);
    pipeline.template release_values<TOGETHER>(at);
  }

  // Which of a step some rows of the warpgroup share, and whether some row of the warp does not see all of it.
  struct Extent {
    bool any, masked;
  };
  TILEWRIGHT_DEVICE Extent extent(const Steps &steps, u32 step, const PipelineState<S> &at, const MaskState &seen) const {
    if (softmax_step.is_plain(steps, step, seen)) return Extent{true, false};
    bool masked = false;
    const u32 active = softmax_step.masking.template active_granules<S::WARP_GRANULES, true>(at, softmax_step.first_granule(), seen, masked);
    return Extent{active != 0, masked};
  }

  // Steps that a warpgroup multiplies together. Those between a first and a last one have no branch between the beginning and the end of a
  // product, without which the compiler would let each end before the next one begins. Whether to go on is a vote, which tells it that no warp diverges: else it
  // has a copy of each shuffle, vote and barrier for lanes that do. Returns where the last step lay.
  TILEWRIGHT_DEVICE PipelineState<S> compute_together(Accumulators<S> &acc, const Query<S> &query, const Steps &steps, u32 &step, u32 end,
                                          PipelineState<S> &at, const MaskState &seen) const {
    const auto &mma = softmax_step.mma;
    const u32 first = softmax_step.first_granule();
    PipelineState<S> before;
    do {
      if constexpr (!S::INVARIANT) pipeline.template wait_keys_full<true>(at);
      Extent here = extent(steps, step, at, seen);
      before = at;
      if (!any_in_warp(here.any)) {
        skip<true>(at);
        at = at.behind_together();
        step++;
        continue;
      }
      float scores[S::WARP_GRANULES * 2][4];
      u32 weights[S::WARP_GRANULES][4];
      SharedMatrix keys = mma.keys_together(at, first);
      mma.template begin_keys_together<S::WARP_GRANULES>(scores, query, keys);
      wait_wgmma(scores);
      pipeline.template release_keys<true>(at);
      softmax_step.add_split(scores);
      bool far = softmax_step.template begin_weighing<S::WARP_GRANULES>(acc.softmax, query, scores, at, first, seen, here.masked);
      SharedMatrix values;
      bool late, plain, ends_chunk, again;
      // Ends a step's weights, and finds beside them what the next one needs to know.
      const auto end_step = [&] {
        before = at;
        at = at.behind_together();
        late = ONE_BUFFER || pipeline.template are_late<true>(at, before);
        ends_chunk = S::INVARIANT && totals.ends_chunk(before);
        values = mma.values_of(keys, before, first);
        keys = mma.keys_together(at, first);
        plain = softmax_step.is_plain_in_warp(steps, step + 1, seen);
        softmax_step.template end_weighing<S::WARP_GRANULES>(acc.softmax, query, scores);
        mma.narrow_all(weights, scores);
      };
      // The first step, and each that raises rows, are outside of the loop of the others: its machine code is short then, and what is seldom run is there once.
      do {
        if (far) softmax_step.template raise_rows<S::WARP_GRANULES, true>(acc, query, scores, at, first, [&] { pipeline.template wait_values_full<true>(at); });
        softmax_step.template make_first_weights<S::WARP_GRANULES>(acc.softmax, query, scores);
        end_step();
        again = false;
#pragma unroll 1
        for (step++; step < end; step++) {
          if (S::INVARIANT && ends_chunk) break; // all warps do
          if (late) {
            pipeline.template wait_keys_full<true>(at);
            pipeline.template wait_values_full<true>(before);
          }
          bool masked = false;
          if (!plain) {
            here = extent(steps, step, at, seen);
            if (!any_in_warp(here.any)) break;
            masked = any_in_warp(here.masked);
          }
          mma.template begin_keys_together<S::WARP_GRANULES>(scores, query, keys);
          mma.template begin_values_together<S::WARP_GRANULES>(acc, weights, values);
          wait_first_wgmma(scores);
          pipeline.template release_keys<true>(at);
          if constexpr (ONE_BUFFER) {
            wait_wgmma(acc.output);
            pipeline.template release_values<true>(before);
          }
          softmax_step.add_split(scores);
          far = softmax_step.template begin_weighing<S::WARP_GRANULES>(acc.softmax, query, scores, at, first, seen, masked);
          if (far) {
            if constexpr (!ONE_BUFFER) {
              wait_wgmma(acc.output);
              pipeline.release_multiplied_values(before);
            }
            again = true;
            break;
          }
          softmax_step.template make_first_weights<S::WARP_GRANULES>(acc.softmax, query, scores);
          if constexpr (!ONE_BUFFER) {
            wait_wgmma_if_any(acc.output);
            pipeline.template release_values<true>(before);
          }
          end_step();
        }
      } while (any_in_warp(again));
      pipeline.template wait_values_full<true>(before);
      mma.template begin_values_together<S::WARP_GRANULES>(acc, weights, values);
      wait_wgmma(acc.output);
      pipeline.template release_values<true>(before);
    } while (!S::INVARIANT && any_in_warp(step < end));
    return before;
  }

  TILEWRIGHT_DEVICE void accumulate(Accumulators<S> &acc, const Query<S> &query, const Steps &steps, const MaskState &seen) const {
    PipelineState<S> at;
    u32 step = steps.first;
    if constexpr (S::INVARIANT) return accumulate_chunks(acc, query, steps, seen);
    // Steps of a kind are neighbours.
    while (step < steps.last) {
      if (S::PRIVATE_PHASE && steps.in_private_phase(step)) {
        if constexpr (S::PRIVATE_PHASE) {
#pragma unroll 1
          for (; step < steps.private_phase + steps.private_steps; step++) {
            pipeline.template wait_keys_full<false>(at);
            softmax_step.compute_private(acc, query, at, seen, Buffers<false>{pipeline, at});
            at = at.template ahead<1>();
          }
        }
      } else {
        const u32 end = end_of_shared(steps, step);
        if constexpr (OVERLAPS) {
          compute_together(acc, query, steps, step, end, at, seen);
        } else {
#pragma unroll 1
          for (; step < end; step++) {
            pipeline.template wait_keys_full<true>(at);
            compute_shared(acc, query, steps, step, at, seen);
          }
        }
      }
    }
  }

  // The same where chunks end. Behind the last step, all rows leave theirs.
  TILEWRIGHT_DEVICE void accumulate_chunks(Accumulators<S> &acc, const Query<S> &query, const Steps &steps, const MaskState &seen) const {
    PipelineState<S> at;
    u32 step = steps.first;
#pragma unroll 1
    while (step < steps.last) {
      pipeline.template wait_keys_full<true>(at);
      const PipelineState<S> last = compute_some(acc, query, steps, step, at, seen);
      // Its notes are there until the next step is read.
      if (any_in_warp(step < steps.last && totals.ends_chunk(last))) totals.leave_chunk(acc, totals.last_granule(last), value_scale(cta));
    }
    totals.leave_chunks(acc, value_scale(cta));
  }

  // Steps up to one with which a chunk ends: one at least, whose keys have arrived. Returns where the last one lay.
  TILEWRIGHT_DEVICE PipelineState<S> compute_some(Accumulators<S> &acc, const Query<S> &query, const Steps &steps, u32 &step, PipelineState<S> &at,
                                                  const MaskState &seen) const {
    if constexpr (OVERLAPS) {
      return compute_together(acc, query, steps, step, steps.last, at, seen);
    } else {
      const PipelineState<S> here = at;
      compute_shared(acc, query, steps, step++, at, seen);
      return here;
    }
  }

  // One past the steps of all rows that `step` is one of.
  TILEWRIGHT_DEVICE static u32 end_of_shared(const Steps &steps, u32 step) {
    return steps.private_steps > 0 && steps.private_phase > step ? steps.private_phase : steps.last;
  }

  // A step whose keys have arrived.
  TILEWRIGHT_DEVICE void compute_shared(Accumulators<S> &acc, const Query<S> &query, const Steps &steps, u32 step, PipelineState<S> &at,
                                        const MaskState &seen) const {
    const bool plain = softmax_step.is_plain(steps, step, seen);
    softmax_step.template compute_step<S::WARP_GRANULES, S::TOGETHER>(acc, query, at, softmax_step.first_granule(), seen, plain, Buffers<true>{pipeline, at});
    at = at.behind_together();
  }
};

} // namespace tilewright
