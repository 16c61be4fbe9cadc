// What `warpgroup.cuh` gives the kernels, on a host.
//
// Sums are poison from the first product on until `end_products`, as a device may write them at any time in between. A barrier before that
// ends the launch with an error, and so does a product that reads what no `fence_for_warpgroups` has followed.
#pragma once
#include "emulation.hpp"

namespace tilewright {

// Without TILEWRIGHT_EMULATE_WARPGROUPS a device is emulated that has none.
#ifdef TILEWRIGHT_EMULATE_WARPGROUPS
constexpr bool HAS_WARPGROUPS = true;
#else
constexpr bool HAS_WARPGROUPS = false;
#endif

template <u32 REGISTERS> TILEWRIGHT_DEVICE void take_registers() {}
template <u32 REGISTERS> TILEWRIGHT_DEVICE void leave_registers() {}

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

// sum[64, COLUMNS] += a[64, 16] * b of the warpgroup that the last lane to arrive is of.
template <class Element, u32 COLUMNS, bool TRANSPOSED> inline void multiply_add_together(u32 first_warp) {
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
      memcpy(chunk, machine->read_together(matrix.element(row, column)), 16);
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

template <u32 TILES> TILEWRIGHT_DEVICE void begin_products(float (&sum)[TILES][4]) {
  emulation::Fiber &fiber = *emulation::machine->current;
  static_assert(TILES * 4 <= sizeof fiber.sums / sizeof fiber.sums[0], "sums of a thread");
  if (fiber.products) emulation::machine->fail("begin_products: earlier products have not ended");
  fiber.products = &sum;
  memcpy(fiber.sums, sum, sizeof sum);
  memset(sum, 0xff, sizeof sum);
}

TILEWRIGHT_DEVICE void commit_products() {
  if (!emulation::machine->current->products) emulation::machine->fail("commit_products: none have begun");
}

template <u32 TILES> TILEWRIGHT_DEVICE void end_products(float (&sum)[TILES][4]) {
  emulation::Fiber &fiber = *emulation::machine->current;
  if (fiber.products != &sum) emulation::machine->fail("end_products: these did not begin");
  fiber.products = nullptr;
  memcpy(sum, fiber.sums, sizeof sum);
}

template <u32 COLUMNS, bool TRANSPOSED, u32 FIRST, class Element, u32 TILES>
TILEWRIGHT_DEVICE void multiply_add_together(Element, float (&sum)[TILES][4], const u32 (&a)[4], const SharedMatrix &b, bool add) {
  static_assert(COLUMNS == 16 || COLUMNS == 32 || COLUMNS == 64 || COLUMNS == 128, "the widths that a device has as well");
  static_assert(FIRST + COLUMNS / 8 <= TILES, "columns that there are");
  emulation::Fiber &fiber = *emulation::machine->current;
  if (fiber.products != &sum) emulation::machine->fail("multiply_add_together: its sums were not begun");
  const u32 lane = emulation::current_lane();
  emulation::Warp &warp = emulation::current_warp();
  warp.left[lane] = a;
  warp.matrices[lane] = &b;
  warp.result[lane] = fiber.sums + FIRST * 4;
  if (!add) memset(fiber.sums + FIRST * 4, 0, COLUMNS / 2 * sizeof(float));
  emulation::machine->meet_together(emulation::multiply_add_together<Element, COLUMNS, TRANSPOSED>);
}

} // namespace tilewright
