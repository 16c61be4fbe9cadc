// FP8 of f32: what `fp8.cuh` widens. To the nearest number, ties to even; what is beyond the largest, infinity too, becomes the largest in its sign.
#pragma once
#include "prelude.cuh"

namespace tilewright {

#ifdef __CUDACC__ // `emulation.hpp` has the same names
// a * b + c, rounded once.
TILEWRIGHT_DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TILEWRIGHT_DEVICE constexpr bool has_fp8_narrowing() { return __CUDA_ARCH__ >= 890; }
// Two numbers, the first in the lower byte. NaN loses its sign.
TILEWRIGHT_DEVICE u32 narrow_fp8_pair(E4m3, float low, float high) {
  u16 pair = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#endif
  return pair;
}
TILEWRIGHT_DEVICE u32 narrow_fp8_pair(E5m2, float low, float high) {
  u16 pair = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#endif
  return pair;
}
#endif

// A format: bits of its mantissa and bias of its exponent, its largest number as a byte and as f32, and what sums with are multiples of its
// smallest one.
template <class Format> struct Fp8Format;
template <> struct Fp8Format<E4m3> {
  static constexpr u32 MANTISSA = 3, BIAS = 7, MAX = 0x7e, MAX_F32 = 0x43e00000; // 448
  static constexpr float SHIFT = 0x1p14f;                                        // 2^-9 is the last bit of it
};
template <> struct Fp8Format<E5m2> {
  static constexpr u32 MANTISSA = 2, BIAS = 15, MAX = 0x7b, MAX_F32 = 0x47600000; // 57344
  static constexpr float SHIFT = 0x1p7f;                                          // 2^-16
};

TILEWRIGHT_DEVICE float magnitude_of(float value) { return bits_float(float_bits(value) & 0x7fffffff); }

// The byte of a number, by integers.
template <class Format> TILEWRIGHT_DEVICE u32 narrow_fp8(float value) {
  using Of = Fp8Format<Format>;
  constexpr u32 NORMAL = (127 - Of::BIAS + 1) << 23, REBIAS = (127 - Of::BIAS) << 23, CUT = 23 - Of::MANTISSA, HALF = (1 << (CUT - 1)) - 1;
  constexpr float SHIFT = Of::SHIFT;
  const u32 bits = float_bits(value), magnitude = bits & 0x7fffffff;
  u32 rounded;
  if (magnitude > 0x7f800000) rounded = 0x7f;
  else if (magnitude >= Of::MAX_F32) rounded = Of::MAX;
  else if (magnitude < NORMAL) rounded = float_bits(bits_float(magnitude) + SHIFT) - float_bits(SHIFT);
  // Half of what is cut off, a little less where the number before is even; a carry goes into the exponent.
  else rounded = (magnitude - REBIAS + HALF + (magnitude >> CUT & 1)) >> CUT;
  return (bits >> 24 & 0x80) | rounded;
}

// Four numbers, the first in the lowest byte.
template <class Format, u32 COUNT> TILEWRIGHT_DEVICE u32 narrow_fp8(const float (&from)[COUNT], u32 first) {
  if constexpr (has_fp8_narrowing()) {
    return narrow_fp8_pair(Format{}, from[first], from[first + 1]) | narrow_fp8_pair(Format{}, from[first + 2], from[first + 3]) << 16;
  } else {
    return narrow_fp8<Format>(from[first]) | narrow_fp8<Format>(from[first + 1]) << 8 | narrow_fp8<Format>(from[first + 2]) << 16 |
           narrow_fp8<Format>(from[first + 3]) << 24;
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
      // Elsewhere FP8 has zero, its largest number or NaN anyway, and the correction may be no number or of another sign.
      const bool counts = magnitude_of(quotient) > 0x1p-20f && magnitude_of(quotient) < 0x1p20f;
      numbers[i] = counts ? corrected : quotient;
    }
  } else {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) numbers[i] = numbers[i] / scale;
  }
}

} // namespace tilewright
