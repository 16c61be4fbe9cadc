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

  // By one thread of the warp that fills K's buffers, before any of the rest,
  TILEWRIGHT_DEVICE void init_keys() const {
    for (u32 s = 0; s < S::STAGES; s++) {
      init_mbarrier(barrier_of(PipelineState<S>{s}, KEYS_FULL), S::GRANULES);
      init_mbarrier(barrier_of(PipelineState<S>{s}, KEYS_EMPTY), S::WARPS * 32);
    }
    init_mbarrier(query_full(), S::COPIERS);
    init_mbarrier(query_empty(), S::WARPS);
    fence_mbarriers();
  }
  // and of the warp that fills V's.
  TILEWRIGHT_DEVICE void init_values() const {
    for (u32 s = 0; s < S::STAGES; s++) {
      init_mbarrier(barrier_of(PipelineState<S>{s}, VALUES_FULL), 1);
      init_mbarrier(barrier_of(PipelineState<S>{s}, VALUES_EMPTY), S::WARPS);
    }
    fence_mbarriers();
  }

  // The query's barriers stand behind those of the buffers.
  TILEWRIGHT_DEVICE u32 query_full() const { return shared_address(cta.shared + S::ARRIVALS_AT) + 4 * S::STAGES * 8; }
  TILEWRIGHT_DEVICE u32 query_empty() const { return query_full() + 8; }

  // For consumer warps.
  TILEWRIGHT_DEVICE void wait_keys_full(const PipelineState<S> &at) const { wait_mbarrier(barrier_of(at, KEYS_FULL), at.round); }
  TILEWRIGHT_DEVICE void wait_values_full(const PipelineState<S> &at) const { wait_mbarrier(barrier_of(at, VALUES_FULL), at.round); }
  // The warp has read them. Each lane says so of keys, as it has also read of the step's granules what the producer writes next;
  TILEWRIGHT_DEVICE void release_keys(const PipelineState<S> &at) const { arrive(barrier_of(at, KEYS_EMPTY)); }
  // of values one lane arrives for all, which their reads have to come before.
  TILEWRIGHT_DEVICE void release_values(const PipelineState<S> &at) const {
    sync_warp();
    if (cta.lane == 0) arrive(barrier_of(at, VALUES_EMPTY));
  }

  TILEWRIGHT_DEVICE void wait_query_full() const { wait_mbarrier(query_full(), 0); }
  // The warp has it in registers. TMA loads fill its place next, and do not wait for other copies by themselves.
  TILEWRIGHT_DEVICE void release_query() const {
    fence_for_warpgroups();
    sync_warp();
    if (cta.lane == 0) arrive(query_empty());
  }

  // For producer warps. In the first round all buffers are free, but those in which the query lies.
  TILEWRIGHT_DEVICE void wait_keys_empty(const PipelineState<S> &at) const { wait_mbarrier(barrier_of(at, KEYS_EMPTY), at.round ^ 1); }
  TILEWRIGHT_DEVICE void wait_values_empty(const PipelineState<S> &at) const { wait_mbarrier(barrier_of(at, VALUES_EMPTY), at.round ^ 1); }
  TILEWRIGHT_DEVICE void wait_query_empty() const { wait_mbarrier(query_empty(), 0); }
};

} // namespace tilewright
