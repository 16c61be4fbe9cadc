// What `tma.cuh` gives the kernels, on a host.
//
// Boxes arrive when another thread waits for the phase that expects them, and what they fill is poison until then. A warp that has not waited for
// them must not read them, and no thread may overwrite what a warp has read before that warp has arrived somewhere since.
#pragma once
#include "emulation.hpp"

namespace tilewright {

// Without TILEWRIGHT_EMULATE_WARPGROUPS a device is emulated that has neither.
#ifdef TILEWRIGHT_EMULATE_WARPGROUPS
constexpr bool HAS_TMA = true;
#else
constexpr bool HAS_TMA = false;
#endif

TILEWRIGHT_DEVICE void fence_mbarriers() {}
TILEWRIGHT_DEVICE void arrive(u32 barrier) { arrive_expect_tx(barrier, 0); }
TILEWRIGHT_DEVICE void arrive_if(bool wanted, u32 barrier) {
  if (wanted) arrive(barrier);
}
template <u32 COUNT> TILEWRIGHT_DEVICE void arrive_for(u32 barrier) {
  for (u32 i = 0; i < COUNT; i++) arrive(barrier);
}

TILEWRIGHT_DEVICE u32 cache_policy(bool) { return 0; }
TILEWRIGHT_DEVICE void tma_load(u32 target, const TensorMap &map, u32 token, u32 panel, u32 eighth, i32 page_and_head, u32, u32 barrier) {
  emulation::begin_box(map, {0, static_cast<i32>(token), static_cast<i32>(panel), static_cast<i32>(eighth), page_and_head}, target, barrier);
}

} // namespace tilewright
