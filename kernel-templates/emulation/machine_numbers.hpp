// Numbers of two bytes, four at a time.
#pragma once
#include "emulation.hpp"

namespace tilewright::emulation {

typedef u32 u32x4 __attribute__((vector_size(16)));
typedef i32 i32x4 __attribute__((vector_size(16)));
typedef float f32x4 __attribute__((vector_size(16)));

inline f32x4 widen(F16, u32x4 half) {
  const u32x4 magnitude = half & 0x7fffu;
  // The exponent's bias is put right by a multiplication, which normalises small numbers too.
  const f32x4 scaled = bits_as<f32x4>(magnitude << 13) * 0x1p112f;
  const i32x4 special = bits_as<i32x4>(magnitude) > 0x7bff; // infinity and NaN
  return bits_as<f32x4>(bits_as<u32x4>(scaled) | (bits_as<u32x4>(special) & 0x7f800000u) | (half & 0x8000u) << 16);
}
inline f32x4 widen(Bf16, u32x4 half) { return bits_as<f32x4>(half << 16); }

inline float widen(E5m2, u8 byte) { return widen(F16{}, u32x4{u32(byte) << 8, 0, 0, 0})[0]; }
inline float widen(E4m3, u8 byte) {
  if ((byte & 0x7f) == 0x7f) return __builtin_nanf("");
  // The biases of the exponents differ by 8.
  return widen(F16{}, u32x4{(byte & 0x80u) << 8 | (byte & 0x7fu) << 7, 0, 0, 0})[0] * 256.f;
}

inline u32 rounded(F16, float value) {
  const u32 bits = bits_as<u32>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;  // NaN
  if (magnitude >= 0x47800000u) return sign | 0x7c00u; // 65536 and more, infinity
  // Below the smallest normal number: adding 0.5 leaves multiples of 2^-24 in the lowest bits, rounded to nearest even.
  if (magnitude < 0x38800000u) return sign | (bits_as<u32>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u);
  return sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13; // may carry into infinity, as it should
}
inline u32 rounded(Bf16, float value) {
  const u32 bits = bits_as<u32>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

} // namespace tilewright::emulation
