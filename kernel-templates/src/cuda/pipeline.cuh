// Full and empty barriers of the buffers of K and V, and of the query, which lies in the buffers that are filled last until it is in
// registers.
#pragma once
#include "cta.cuh"

namespace tilewright {

template <class S> struct Pipeline {
  const Cta<S> &cta;

  // Each buffer's, in this order.
  enum Barrier : u32 { KEYS_FULL, VALUES_FULL, KEYS_EMPTY, VALUES_EMPTY };
  TILEWRIGHT_DEVICE u32 barrier_of(const PipelineState<S> &at, Barrier which) const {
    return shared_address(cta.shared + S::ARRIVALS_AT) + (which * S::STAGES + at.buffer) * 8;
  }

  // Those of a buffer of widened K and V.
  TILEWRIGHT_DEVICE u32 wide_barrier_of(const PipelineState<S> &at, Barrier which) const {
    return query_full() + (2 + which * S::WIDE_BUFFERS + at.wide) * 8;
  }
  // Whether warps multiply what was widened before, of V or of K.
  template <bool TOGETHER, bool VALUES> static constexpr bool IS_WIDE = S::WIDENED && TOGETHER && (VALUES || !S::KEYS_IN_FP8);
  // Those that hand K or V of a step over to the warps that multiply.
  template <bool TOGETHER, Barrier WHICH> TILEWRIGHT_DEVICE u32 multiplied_barrier_of(const PipelineState<S> &at) const {
    if constexpr (IS_WIDE<TOGETHER, WHICH % 2 == VALUES_FULL>) return wide_barrier_of(at, WHICH);
    return barrier_of(at, WHICH);
  }

  // Warps that say when a buffer of K, or of V, is free: those that multiply, and those that widen.
  template <bool VALUES> static constexpr u32 READERS = S::WARPS + (VALUES || !S::KEYS_IN_FP8 ? S::WIDENERS : 0);

  // By one thread of the warp that fills K's buffers, before any of the rest,
  TILEWRIGHT_DEVICE void init_keys() const {
    for (u32 s = 0; s < S::STAGES; s++) {
      init_mbarrier(barrier_of(PipelineState<S>{s}, KEYS_FULL), S::GRANULES);
      init_mbarrier(barrier_of(PipelineState<S>{s}, KEYS_EMPTY), READERS<false> * 32);
    }
    for (u32 b = 0; b < S::WIDE_BUFFERS; b++) {
      const PipelineState<S> at{0, 0, 0, b};
      init_mbarrier(wide_barrier_of(at, KEYS_FULL), 32);
      init_mbarrier(wide_barrier_of(at, KEYS_EMPTY), S::WARPS * 32);
      init_mbarrier(wide_barrier_of(at, VALUES_FULL), S::WIDENERS * 32);
      init_mbarrier(wide_barrier_of(at, VALUES_EMPTY), S::WARPS);
    }
    init_mbarrier(query_full(), S::COPIERS);
    init_mbarrier(query_empty(), S::WARPS);
    fence_mbarriers();
  }
  // and of the warp that fills V's.
  TILEWRIGHT_DEVICE void init_values() const {
    for (u32 s = 0; s < S::STAGES; s++) {
      init_mbarrier(barrier_of(PipelineState<S>{s}, VALUES_FULL), 1);
      init_mbarrier(barrier_of(PipelineState<S>{s}, VALUES_EMPTY), READERS<true>);
    }
    fence_mbarriers();
  }

  // The query's barriers stand behind those of the buffers.
  TILEWRIGHT_DEVICE u32 query_full() const { return shared_address(cta.shared + S::ARRIVALS_AT) + 4 * S::STAGES * 8; }
  TILEWRIGHT_DEVICE u32 query_empty() const { return query_full() + 8; }

  // For consumer warps, of a step of a warpgroup or of each warp.
  template <bool TOGETHER> TILEWRIGHT_DEVICE void wait_keys_full(const PipelineState<S> &at) const {
    wait_mbarrier(multiplied_barrier_of<TOGETHER, KEYS_FULL>(at), round_of<TOGETHER, false>(at));
  }
  template <bool TOGETHER> TILEWRIGHT_DEVICE void wait_values_full(const PipelineState<S> &at) const {
    wait_mbarrier(multiplied_barrier_of<TOGETHER, VALUES_FULL>(at), round_of<TOGETHER, true>(at));
  }
  // Whether keys of a step or values of the one before have not arrived yet. All lanes of a warp get the same answer, and where it is no they
  // need not wait. Asked for early, it is there when it is needed.
  template <bool TOGETHER> TILEWRIGHT_DEVICE bool are_late(const PipelineState<S> &at, const PipelineState<S> &before) const {
    const bool keys = test_mbarrier(multiplied_barrier_of<TOGETHER, KEYS_FULL>(at), round_of<TOGETHER, false>(at));
    const bool values = test_mbarrier(multiplied_barrier_of<TOGETHER, VALUES_FULL>(before), round_of<TOGETHER, true>(before));
    return any_in_warp(!keys || !values);
  }
  // The warp has read them. Each lane says so of keys, as it has also read of the step's granules what the producer writes next;
  template <bool TOGETHER> TILEWRIGHT_DEVICE void release_keys(const PipelineState<S> &at, u32 read = 0) const {
    arrive_having_read(multiplied_barrier_of<TOGETHER, KEYS_EMPTY>(at), read);
  }
  // of values one lane arrives for all, which their reads have to come before.
  template <bool TOGETHER> TILEWRIGHT_DEVICE void release_values(const PipelineState<S> &at, u32 read = 0) const {
    sync_warp();
    if (cta.lane == 0) arrive_having_read(multiplied_barrier_of<TOGETHER, VALUES_EMPTY>(at), read);
  }
  // The same of a warpgroup whose products are waited for, without a branch (`arrive_if`).
  TILEWRIGHT_DEVICE void release_multiplied_values(const PipelineState<S> &at) const {
    sync_warp();
    arrive_if(cta.lane == 0, multiplied_barrier_of<true, VALUES_EMPTY>(at));
  }

  TILEWRIGHT_DEVICE void wait_query_full() const { wait_mbarrier(query_full(), 0); }
  // The warp has it in registers. TMA loads fill its place next, and do not wait for other copies by themselves.
  TILEWRIGHT_DEVICE void release_query(u32 read) const {
    fence_for_warpgroups();
    sync_warp();
    if (cta.lane == 0) arrive_having_read(query_empty(), read);
  }

  // For producer warps. In the first round all buffers are free, but those in which the query lies.
  TILEWRIGHT_DEVICE void wait_empty(bool keys, const PipelineState<S> &at) const { wait_mbarrier(barrier_of(at, keys ? KEYS_EMPTY : VALUES_EMPTY), at.round ^ 1); }
  TILEWRIGHT_DEVICE u32 full(bool keys, const PipelineState<S> &at) const { return barrier_of(at, keys ? KEYS_FULL : VALUES_FULL); }
  TILEWRIGHT_DEVICE void wait_query_empty() const { wait_mbarrier(query_empty(), 0); }

  // For the warps that widen. A step of a warpgroup has arrived, and there is room for it;
  template <bool VALUES> TILEWRIGHT_DEVICE void wait_to_widen(const PipelineState<S> &at) const {
    wait_mbarrier(wide_barrier_of(at, VALUES ? VALUES_EMPTY : KEYS_EMPTY), at.wide_round ^ 1);
    wait_mbarrier(barrier_of(at, VALUES ? VALUES_FULL : KEYS_FULL), at.round);
  }
  // it is widened, and its buffer is free: the warps that widen say so for all readers.
  template <bool VALUES> TILEWRIGHT_DEVICE void release_widened(const PipelineState<S> &at) const {
    fence_for_warpgroups();
    arrive(wide_barrier_of(at, VALUES ? VALUES_FULL : KEYS_FULL));
    release_for<VALUES, READERS<VALUES> / S::WIDENERS>(at);
  }
  // A step of each warp: this one has nothing to do but to know that it has come, as phases are told apart by their parity alone.
  template <bool VALUES> TILEWRIGHT_DEVICE void wait_and_release(const PipelineState<S> &at) const {
    wait_mbarrier(barrier_of(at, VALUES ? VALUES_FULL : KEYS_FULL), at.round);
    release_for<VALUES, 1>(at);
  }

private:
  // The machine code of an arrival does not wait for reads of shared memory that are still on their way to registers, as it does for products of a
  // warpgroup and barriers of the CTA: TMA may overwrite what they are to read. So its address depends on bits that the last of them bring; a warp's reads
  // end in their order.
  TILEWRIGHT_DEVICE void arrive_having_read(u32 barrier, u32 read) const { arrive(barrier + (read & cta.args.zero)); }

  template <bool VALUES, u32 WARPS> TILEWRIGHT_DEVICE void release_for(const PipelineState<S> &at) const {
    if constexpr (VALUES) sync_warp();
    if (!VALUES || cta.lane == 0) arrive_for<WARPS>(barrier_of(at, VALUES ? VALUES_EMPTY : KEYS_EMPTY));
  }
  template <bool TOGETHER, bool VALUES> TILEWRIGHT_DEVICE static u32 round_of(const PipelineState<S> &at) { return IS_WIDE<TOGETHER, VALUES> ? at.wide_round : at.round; }
};

} // namespace tilewright
