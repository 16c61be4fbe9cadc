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

// Numbers of 32 bits of a matrix.
template <class Element> constexpr u32 NUMBERS = sizeof(typename Bits<Element>::Type) == 1 ? 4 : 2;
template <class Element> void widen_word(u32 word, float (&to)[NUMBERS<Element>]) {
  if constexpr (NUMBERS<Element> == 4) {
    for (u32 i = 0; i < 4; i++) to[i] = widen(Element{}, static_cast<u8>(word >> 8 * i));
  } else {
    const f32x4 pair = widen(Element{}, u32x4{word & 0xffffu, word >> 16, 0, 0});
    to[0] = pair[0], to[1] = pair[1];
  }
}

// The matrix that all lanes of a warpgroup name as a side of their product.
inline SharedMatrix common_matrix(Machine &machine, const Warp *group, u32 side) {
  const SharedMatrix matrix = *group[0].matrices[0][side];
  for (u32 i = 0; i < 128; i++) {
    const SharedMatrix *const of_lane = group[i / 32].matrices[i % 32][side];
    if (!of_lane || memcmp(of_lane, &matrix, sizeof matrix) != 0) machine.fail("a product of a warpgroup has several matrices");
  }
  // It may begin in any row: chunks are found by their addresses.
  if (matrix.address % 16) machine.fail("a product of a warpgroup has a matrix at %u, within a chunk", matrix.address);
  return matrix;
}

// sum[64, COLUMNS] += a[64, 32 bytes] * b of the warpgroup that the last lane to arrive is of; `products` is the place of `sum` in `Fiber::begun`.
template <class Left, class Right, u32 COLUMNS, bool TRANSPOSED> void multiply_together(Machine &machine, u32 first_warp, u32 products) {
  constexpr u32 DEPTH = 8 * NUMBERS<Right>;
  Warp *const group = machine.warps + first_warp;
  const SharedMatrix matrix = common_matrix(machine, group, 1);
  // The 16 bytes of a row of a matrix from a place on, counted in 16 bits.
  const auto read = [&](const SharedMatrix &from, u32 row, u32 place, u32 (&words)[4]) {
    memcpy(words, machine.read_together(first_warp, products, from.element(row, place)), 16);
    for (u32 i = 0; i < 8; i++) machine.poison_reads += (words[i / 2] >> i % 2 * 16 & 0xffffu) == 0xffffu;
  };
  float b[DEPTH][COLUMNS];
  for (u32 row = 0; row < (TRANSPOSED ? DEPTH : COLUMNS); row++) {
    for (u32 place = 0; place < (TRANSPOSED ? COLUMNS : 16); place += 8) {
      u32 words[4];
      read(matrix, row, place, words);
      for (u32 word = 0; word < 4; word++) {
        float numbers[NUMBERS<Right>];
        widen_word<Right>(words[word], numbers);
        for (u32 i = 0; i < NUMBERS<Right>; i++) {
          const u32 column = (place / 2 + word) * NUMBERS<Right> + i;
          (TRANSPOSED ? b[row][column] : b[column][row]) = numbers[i];
        }
      }
    }
  }
  float left[64][DEPTH];
  if (group[0].matrices[0][0]) {
    const SharedMatrix rows = common_matrix(machine, group, 0);
    for (u32 row = 0; row < 64; row++) {
      for (u32 place = 0; place < 16; place += 8) {
        u32 words[4];
        read(rows, row, place, words);
        for (u32 word = 0; word < 4; word++) {
          float numbers[NUMBERS<Left>];
          widen_word<Left>(words[word], numbers);
          memcpy(&left[row][(place / 2 + word) * NUMBERS<Left>], numbers, sizeof numbers);
        }
      }
    }
  } else {
    // Four lanes have a row, a word of each half of it.
    for (u32 row = 0; row < 64; row++) {
      for (u32 quad = 0; quad < 4; quad++) {
        const u32 *const a = group[row / 16].left[row % 8 * 4 + quad];
        for (u32 second = 0; second < 2; second++) {
          float numbers[NUMBERS<Left>];
          widen_word<Left>(a[row / 8 % 2 + 2 * second], numbers);
          memcpy(&left[row][(second * 4 + quad) * NUMBERS<Left>], numbers, sizeof numbers);
        }
      }
    }
  }
  for (u32 row = 0; row < 64; row++) {
    // And pairs of its sums.
    const Warp &warp = group[row / 16];
    const u32 first_lane = row % 8 * 4, half = row / 8 % 2;
    float sums[COLUMNS];
    for (u32 quad = 0; quad < 4; quad++) {
      const float *const sum = static_cast<float *>(warp.result[first_lane + quad]);
      for (u32 j = 0; j < COLUMNS / 8; j++) memcpy(&sums[8 * j + quad * 2], &sum[4 * j + 2 * half], 8);
    }
    for (u32 k = 0; k < DEPTH; k++)
      for (u32 column = 0; column < COLUMNS; column++) sums[column] += left[row][k] * b[k][column];
    for (u32 quad = 0; quad < 4; quad++) {
      float *const sum = static_cast<float *>(warp.result[first_lane + quad]);
      for (u32 j = 0; j < COLUMNS / 8; j++) memcpy(&sum[4 * j + 2 * half], &sums[8 * j + quad * 2], 8);
    }
  }
}

} // namespace tilewright::emulation
