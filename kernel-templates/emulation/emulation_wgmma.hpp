// What `wgmma.cuh` gives the kernels, on a host.
//
// Sums are poison from the first product on until they are waited for, as a device may write them at any time in between, and so long what is
// multiplied counts as read. A barrier before that ends the launch with an error, and so does a product that reads what no
// `fence_for_warpgroups` has followed.
#pragma once
#include "emulation.hpp"

namespace tilewright {

// Without TILEWRIGHT_EMULATE_WARPGROUPS a device is emulated that has none.
#ifdef TILEWRIGHT_EMULATE_WARPGROUPS
constexpr bool HAS_WGMMA = true;
#else
constexpr bool HAS_WGMMA = false;
#endif

template <u32 COUNT> TILEWRIGHT_DEVICE void stmatrix_transposed(u32 row_address, const u32 (&from)[COUNT]) { emulation::stmatrix_transposed(row_address, from, COUNT); }

template <u32 REGISTERS> TILEWRIGHT_DEVICE void setmaxnreg_inc() {}
template <u32 REGISTERS> TILEWRIGHT_DEVICE void setmaxnreg_dec() {}

template <class Left, class Right> constexpr emulation::Types TYPES = emulation::Types::F16;
template <> constexpr emulation::Types TYPES<Bf16, Bf16> = emulation::Types::Bf16;
template <> constexpr emulation::Types TYPES<E4m3, E4m3> = emulation::Types::E4m3E4m3;
template <> constexpr emulation::Types TYPES<E4m3, E5m2> = emulation::Types::E4m3E5m2;
template <> constexpr emulation::Types TYPES<E5m2, E4m3> = emulation::Types::E5m2E4m3;

template <u32 COUNT> TILEWRIGHT_DEVICE void hold_left(u32 (&)[COUNT][4]) {}

template <u32 TILES> TILEWRIGHT_DEVICE void begin_wgmma(float (&sum)[TILES][4]) {
  static_assert(TILES * 4 <= 128, "sums of a thread");
  emulation::begin_wgmma(&sum[0][0], TILES * 4);
}

template <u32 TILES> TILEWRIGHT_DEVICE void wait_first_wgmma(float (&sum)[TILES][4]) { emulation::wait_first_wgmma(&sum[0][0], TILES * 4); }

template <u32 TILES> TILEWRIGHT_DEVICE void wait_wgmma(float (&sum)[TILES][4]) {
  emulation::wait_wgmma(&sum[0][0], TILES * 4);
  emulation::no_more_wgmma();
}

template <u32 TILES> TILEWRIGHT_DEVICE void wait_wgmma_if_any(float (&sum)[TILES][4]) {
  if (emulation::has_begun_wgmma(&sum[0][0])) wait_wgmma(sum);
}

// `a` is registers, or a matrix.
template <u32 COLUMNS, bool TRANSPOSED, u32 FIRST, class Left, class Right, class A, u32 TILES>
TILEWRIGHT_DEVICE void wgmma_async(Left, Right, float (&sum)[TILES][4], const A &a, const SharedMatrix &b, bool add) {
  static_assert(COLUMNS == 8 || COLUMNS == 16 || COLUMNS == 32 || COLUMNS == 64 || COLUMNS == 128, "the widths that a device has as well");
  static_assert(FIRST + COLUMNS / 8 <= TILES, "columns that there are");
  emulation::wgmma_async(&sum[0][0], FIRST * 4, a, b, add, COLUMNS, TRANSPOSED, TYPES<Left, Right>);
}

} // namespace tilewright
