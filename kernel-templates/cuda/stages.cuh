// The buffers of K and V as the warps that copy and the ones that multiply hand them to each other: each has a barrier that says that its
// tokens have arrived, and one that says that nobody reads it any more. So has the query, which lies in the buffers that are filled last
// until it is in registers.
#pragma once
#include "cta.cuh"

namespace tilewright {

template <class S> struct Stages {
  const Cta<S> &cta;

  // Each buffer's, in this order.
  enum Barrier : u32 { KEYS_ARRIVED, VALUES_ARRIVED, KEYS_FREE, VALUES_FREE };
  TILEWRIGHT_DEVICE u32 barrier_of(const Rings<S> &at, Barrier which) const {
    return shared_address(cta.shared + S::ARRIVALS_AT) + (which * S::STAGES + at.buffer) * 8;
  }

  // By one thread of the warp that fills K's buffers, before any of the rest,
  TILEWRIGHT_DEVICE void init_keys() const {
    for (u32 s = 0; s < S::STAGES; s++) {
      init_arrivals(barrier_of(Rings<S>{s}, KEYS_ARRIVED), 1);
      init_arrivals(barrier_of(Rings<S>{s}, KEYS_FREE), S::WARPS);
    }
    init_arrivals(query_arrived(), S::COPIERS);
    init_arrivals(query_free(), S::WARPS);
    fence_arrivals();
  }
  // and of the warp that fills V's.
  TILEWRIGHT_DEVICE void init_values() const {
    for (u32 s = 0; s < S::STAGES; s++) {
      init_arrivals(barrier_of(Rings<S>{s}, VALUES_ARRIVED), 1);
      init_arrivals(barrier_of(Rings<S>{s}, VALUES_FREE), S::WARPS);
    }
    fence_arrivals();
  }

  // The query's barriers stand behind those of the buffers.
  TILEWRIGHT_DEVICE u32 query_arrived() const { return shared_address(cta.shared + S::ARRIVALS_AT) + 4 * S::STAGES * 8; }
  TILEWRIGHT_DEVICE u32 query_free() const { return query_arrived() + 8; }

  // For the warps that multiply.
  TILEWRIGHT_DEVICE void await_keys(const Rings<S> &at) const { await_arrivals(barrier_of(at, KEYS_ARRIVED), at.round); }
  TILEWRIGHT_DEVICE void await_values(const Rings<S> &at) const { await_arrivals(barrier_of(at, VALUES_ARRIVED), at.round); }
  // The warp reads them no more.
  TILEWRIGHT_DEVICE void free_keys(const Rings<S> &at) const {
    if (cta.lane == 0) arrive(barrier_of(at, KEYS_FREE));
  }
  TILEWRIGHT_DEVICE void free_values(const Rings<S> &at) const {
    if (cta.lane == 0) arrive(barrier_of(at, VALUES_FREE));
  }

  TILEWRIGHT_DEVICE void await_query() const { await_arrivals(query_arrived(), 0); }
  // The warp has it in registers. What comes to its place next are boxes, which do not wait for other copies by themselves.
  TILEWRIGHT_DEVICE void free_query() const {
    fence_for_warpgroups();
    meet_warp();
    if (cta.lane == 0) arrive(query_free());
  }

  // For the warps that copy. In the first round all are free, but for the buffers in which the query lies.
  TILEWRIGHT_DEVICE void await_free_keys(const Rings<S> &at) const { await_arrivals(barrier_of(at, KEYS_FREE), at.round ^ 1); }
  TILEWRIGHT_DEVICE void await_free_values(const Rings<S> &at) const { await_arrivals(barrier_of(at, VALUES_FREE), at.round ^ 1); }
  TILEWRIGHT_DEVICE void await_free_query() const { await_arrivals(query_free(), 0); }
};

} // namespace tilewright
