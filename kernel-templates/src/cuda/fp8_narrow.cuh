// FP8 (e4m3) of f32: what `fp8.cuh` widens. To the nearest number, ties to even; what is beyond 448, infinity too, becomes 448 in its sign.
#pragma once
#include "prelude.cuh"

namespace tilewright {

#ifdef __CUDACC__ // `emulation.hpp` has the same names
// a * b + c, rounded once.
TILEWRIGHT_DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TILEWRIGHT_DEVICE constexpr bool has_fp8_narrowing() { return __CUDA_ARCH__ >= 890; }
// Two numbers, the first in the lower byte. NaN loses its sign.
TILEWRIGHT_DEVICE u32 narrow_fp8_pair(float low, float high) {
  u16 pair = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#endif
  return pair;
}
#endif

TILEWRIGHT_DEVICE float magnitude_of(float value) { return bits_float(float_bits(value) & 0x7fffffff); }

// The byte of a number, by integers.
TILEWRIGHT_DEVICE u32 narrow_fp8(float value) {
  constexpr u32 NORMAL = (127 - 6) << 23, REBIAS = (127 - 7) << 23, MAX = 0x43e00000; // 2^-6, 2^-7, 448
  const u32 bits = float_bits(value), magnitude = bits & 0x7fffffff;
  u32 rounded;
  if (magnitude > 0x7f800000) rounded = 0x7f;
  else if (magnitude >= MAX) rounded = 0x7e;
  // Sums with 2^14 are multiples of 2^-9, the smallest number.
  else if (magnitude < NORMAL) rounded = float_bits(bits_float(magnitude) + 16384.f) - float_bits(16384.f);
  // Half of what is cut off, a little less where the number before is even; a carry goes into the exponent.
  else rounded = (magnitude - REBIAS + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
  return (bits >> 24 & 0x80) | rounded;
}

// Four numbers, the first in the lowest byte.
TILEWRIGHT_DEVICE u32 narrow_fp8(const float (&from)[8], u32 first) {
  if constexpr (has_fp8_narrowing()) {
    return narrow_fp8_pair(from[first], from[first + 1]) | narrow_fp8_pair(from[first + 2], from[first + 3]) << 16;
  } else {
    return narrow_fp8(from[first]) | narrow_fp8(from[first + 1]) << 8 | narrow_fp8(from[first + 2]) << 16 | narrow_fp8(from[first + 3]) << 24;
  }
}

// Division by a scale, as exact as what FP8 keeps of a quotient. A product with the reciprocal and one correction take half of the instructions
// that a division takes, and no branch.
template <u32 COUNT> TILEWRIGHT_DEVICE void divide_by_scale(float (&numbers)[COUNT], float scale) {
  const float reciprocal = 1.f / scale, size = magnitude_of(scale);
  if (size > 0x1p-60f && size < 0x1p60f) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
      const float quotient = numbers[i] * reciprocal;
      const float corrected = multiply_add(multiply_add(-quotient, scale, numbers[i]), reciprocal, quotient);
      // Elsewhere FP8 has zero, 448 or NaN anyway, and the correction may be no number or of another sign.
      const bool counts = magnitude_of(quotient) > 0x1p-20f && magnitude_of(quotient) < 0x1p20f;
      numbers[i] = counts ? corrected : quotient;
    }
  } else {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) numbers[i] = numbers[i] / scale;
  }
}

} // namespace tilewright
