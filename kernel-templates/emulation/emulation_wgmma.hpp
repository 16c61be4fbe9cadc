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

template <u32 REGISTERS> TILEWRIGHT_DEVICE void setmaxnreg_inc() {}
template <u32 REGISTERS> TILEWRIGHT_DEVICE void setmaxnreg_dec() {}

struct SharedMatrix {
  u32 address, columns_64, rows_8;

  TILEWRIGHT_DEVICE static SharedMatrix at(u32 address, u32 columns_64, u32 rows_8) { return SharedMatrix{address, columns_64, rows_8}; }
  TILEWRIGHT_DEVICE SharedMatrix further(u32 bytes) const { return SharedMatrix{address + bytes, columns_64, rows_8}; }

  // Where the element of a row and a column lies. Chunks are exchanged by their addresses.
  u32 element(u32 row, u32 column) const {
    const u32 plain = address + row / 8 * rows_8 + row % 8 * 128 + column / 64 * columns_64 + column % 64 * 2;
    return plain ^ (plain / 128 % 8) * 16;
  }
};

namespace emulation {

// sum[64, COLUMNS] += a[64, 16] * b of the warpgroup that the last lane to arrive is of; `products` is the place of `sum` in `Fiber::begun`.
template <class Element, u32 COLUMNS, bool TRANSPOSED> inline void wgmma_async(u32 first_warp, u32 products) {
  Warp *const group = machine->warps + first_warp;
  const SharedMatrix matrix = *group[0].matrices[0];
  for (u32 i = 0; i < 128; i++)
    if (memcmp(group[i / 32].matrices[i % 32], &matrix, sizeof matrix) != 0) machine->fail("a product of a warpgroup has several matrices");
  if (matrix.address / 128 % 8) machine->fail("a product of a warpgroup has a matrix at %u, between the exchanged rows", matrix.address);
  float b[16][COLUMNS];
  // Chunks of eight elements.
  for (u32 row = 0; row < (TRANSPOSED ? 16 : COLUMNS); row++) {
    for (u32 column = 0; column < (TRANSPOSED ? COLUMNS : 16); column += 8) {
      u16 chunk[8];
      memcpy(chunk, machine->read_together(first_warp, products, matrix.element(row, column)), 16);
      for (u32 i = 0; i < 8; i++) {
        machine->poison_reads += chunk[i] == 0xffffu;
        (TRANSPOSED ? b[row][column + i] : b[column + i][row]) = widen(Element{}, u32x4{chunk[i], 0, 0, 0})[0];
      }
    }
  }
  for (u32 row = 0; row < 64; row++) {
    // Four lanes have a row, pairs of its elements and of its sums each.
    const Warp &warp = group[row / 16];
    const u32 first_lane = row % 8 * 4, half = row / 8 % 2;
    float left[16], sums[COLUMNS];
    for (u32 quad = 0; quad < 4; quad++) {
      const u32 *const a = warp.left[first_lane + quad];
      const float *const sum = static_cast<float *>(warp.result[first_lane + quad]);
      const f32x4 pairs = widen(Element{}, u32x4{a[half] & 0xffffu, a[half] >> 16, a[half + 2] & 0xffffu, a[half + 2] >> 16});
      for (u32 i = 0; i < 4; i++) left[i / 2 * 8 + quad * 2 + i % 2] = pairs[i];
      for (u32 j = 0; j < COLUMNS / 8; j++) memcpy(&sums[8 * j + quad * 2], &sum[4 * j + 2 * half], 8);
    }
    for (u32 k = 0; k < 16; k++)
      for (u32 column = 0; column < COLUMNS; column++) sums[column] += left[k] * b[k][column];
    for (u32 quad = 0; quad < 4; quad++) {
      float *const sum = static_cast<float *>(warp.result[first_lane + quad]);
      for (u32 j = 0; j < COLUMNS / 8; j++) memcpy(&sum[4 * j + 2 * half], &sums[8 * j + quad * 2], 8);
    }
  }
}

} // namespace emulation

TILEWRIGHT_DEVICE void fence_for_warpgroups() { emulation::machine->fence_copies(); }

template <u32 TILES> TILEWRIGHT_DEVICE void begin_wgmma(float (&sum)[TILES][4]) {
  emulation::Fiber &fiber = *emulation::machine->current;
  static_assert(TILES * 4 <= sizeof fiber.begun[0].sums / sizeof fiber.begun[0].sums[0], "sums of a thread");
  if (fiber.begun_of(&sum)) emulation::machine->fail("begin_products: earlier products of the same sums have not ended");
  emulation::Begun *const begun = fiber.begun_of(nullptr);
  if (!begun) emulation::machine->fail("begin_products: two earlier ones have not ended");
  if (!fiber.begun[0].products && !fiber.begun[1].products) fiber.first = &sum;
  begun->products = &sum;
  memcpy(begun->sums, sum, sizeof sum);
  memset(sum, 0xff, sizeof sum);
}

TILEWRIGHT_DEVICE void commit_wgmma() {
  const emulation::Fiber &fiber = *emulation::machine->current;
  if (!fiber.begun[0].products && !fiber.begun[1].products) emulation::machine->fail("commit_products: none have begun");
}

namespace emulation {

template <u32 TILES> inline void wait_wgmma(float (&sum)[TILES][4]) {
  Fiber &fiber = *machine->current;
  Begun *const begun = fiber.begun_of(&sum);
  if (!begun) machine->fail("end_products: these did not begin");
  begun->products = nullptr;
  memcpy(sum, begun->sums, sizeof sum);
  machine->end_reading(begun - fiber.begun);
  fiber.first = fiber.begun[0].products ? fiber.begun[0].products : fiber.begun[1].products;
}

} // namespace emulation

template <u32 TILES> TILEWRIGHT_DEVICE void wait_first_wgmma(float (&sum)[TILES][4]) {
  if (emulation::machine->current->first != &sum) emulation::machine->fail("end_first_products: others began before these");
  emulation::wait_wgmma(sum);
}

template <u32 TILES> TILEWRIGHT_DEVICE void wait_wgmma(float (&sum)[TILES][4]) {
  emulation::wait_wgmma(sum);
  const emulation::Fiber &fiber = *emulation::machine->current;
  if (fiber.begun[0].products || fiber.begun[1].products) emulation::machine->fail("end_products: this would wait for others too");
}

template <u32 COLUMNS, bool TRANSPOSED, u32 FIRST, class Element, u32 TILES>
TILEWRIGHT_DEVICE void wgmma_async(Element, float (&sum)[TILES][4], const u32 (&a)[4], const SharedMatrix &b, bool add) {
  static_assert(COLUMNS == 16 || COLUMNS == 32 || COLUMNS == 64 || COLUMNS == 128, "the widths that a device has as well");
  static_assert(FIRST + COLUMNS / 8 <= TILES, "columns that there are");
  emulation::Fiber &fiber = *emulation::machine->current;
  emulation::Begun *const begun = fiber.begun_of(&sum);
  if (!begun) emulation::machine->fail("multiply_add_together: its sums were not begun");
  const u32 lane = emulation::current_lane();
  emulation::Warp &warp = emulation::current_warp();
  warp.left[lane] = a;
  warp.matrices[lane] = &b;
  warp.result[lane] = begun->sums + FIRST * 4;
  if (!add) memset(begun->sums + FIRST * 4, 0, COLUMNS / 2 * sizeof(float));
  const u32 products = begun - fiber.begun;
  emulation::machine->meet_together([products](u32 first) { emulation::wgmma_async<Element, COLUMNS, TRANSPOSED>(first, products); });
}

} // namespace tilewright
