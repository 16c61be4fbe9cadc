// What tensor cores compute, with the operands that the lanes of a warp or of a warpgroup have brought.
#pragma once
#include "machine.hpp"
#include "machine_numbers.hpp"

namespace tilewright::emulation {

template <class Element> void mma_sync(const Warp &warp) {
  float a[16][16];
  alignas(16) float b[16][8], sum[16][8];
  for (u32 lane = 0; lane < 32; lane++) {
    const u32 row = lane / 4, column = lane % 4 * 2;
    u32x4 pairs;
    memcpy(&pairs, warp.left[lane], 16);
    f32x4 low = widen(Element{}, pairs & 0xffffu), high = widen(Element{}, pairs >> 16);
    for (u32 i = 0; i < 4; i++) {
      a[row + i % 2 * 8][column + i / 2 * 8] = low[i];
      a[row + i % 2 * 8][column + i / 2 * 8 + 1] = high[i];
    }
    const u32 b0 = warp.operands[lane][0], b1 = warp.operands[lane][1];
    low = widen(Element{}, u32x4{b0 & 0xffffu, b0 >> 16, b1 & 0xffffu, b1 >> 16});
    b[column][row] = low[0];
    b[column + 1][row] = low[1];
    b[column + 8][row] = low[2];
    b[column + 9][row] = low[3];
    const float *const c = static_cast<const float *>(warp.result[lane]);
    sum[row][column] = c[0];
    sum[row][column + 1] = c[1];
    sum[row + 8][column] = c[2];
    sum[row + 8][column + 1] = c[3];
  }
  for (u32 row = 0; row < 16; row++) {
    f32x4 *const out = reinterpret_cast<f32x4 *>(sum[row]);
    f32x4 left = out[0], right = out[1];
    for (u32 k = 0; k < 16; k++) {
      const f32x4 *const of_k = reinterpret_cast<const f32x4 *>(b[k]);
      left += a[row][k] * of_k[0];
      right += a[row][k] * of_k[1];
    }
    out[0] = left;
    out[1] = right;
  }
  for (u32 lane = 0; lane < 32; lane++) {
    const u32 row = lane / 4, column = lane % 4 * 2;
    float *const c = static_cast<float *>(warp.result[lane]);
    c[0] = sum[row][column];
    c[1] = sum[row][column + 1];
    c[2] = sum[row + 8][column];
    c[3] = sum[row + 8][column + 1];
  }
}

// sum[64, COLUMNS] += a[64, 16] * b of the warpgroup that the last lane to arrive is of; `products` is the place of `sum` in `Fiber::begun`.
template <class Element, u32 COLUMNS, bool TRANSPOSED> void multiply_together(Machine &machine, u32 first_warp, u32 products) {
  Warp *const group = machine.warps + first_warp;
  const SharedMatrix matrix = *group[0].matrices[0];
  for (u32 i = 0; i < 128; i++)
    if (memcmp(group[i / 32].matrices[i % 32], &matrix, sizeof matrix) != 0) machine.fail("a product of a warpgroup has several matrices");
  if (matrix.address / 128 % (matrix.row_bytes / 16)) machine.fail("a product of a warpgroup has a matrix at %u, between the exchanged rows", matrix.address);
  float b[16][COLUMNS];
  // Chunks of eight elements.
  for (u32 row = 0; row < (TRANSPOSED ? 16 : COLUMNS); row++) {
    for (u32 column = 0; column < (TRANSPOSED ? COLUMNS : 16); column += 8) {
      u16 chunk[8];
      memcpy(chunk, machine.read_together(first_warp, products, matrix.element(row, column)), 16);
      for (u32 i = 0; i < 8; i++) {
        machine.poison_reads += chunk[i] == 0xffffu;
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

} // namespace tilewright::emulation
