// Four FP8 numbers of a register as two pairs of f16, which tensor cores take, beside queries in bf16 too. All of them are exact there.
//
// e5m2 is the upper byte of f16: bytes move to where f16 has them, infinities and NaN too.
//
// e4m3: where the device has an instruction for it, that is used. Elsewhere each byte goes to the upper half of 16 bits, sign by sign; its
// exponent and mantissa then move down to where f16 has them. What comes out differs from the number by the bias of the
// exponent alone, small (subnormal) numbers too, and one multiplication puts that right. There is no infinity to care for; NaN becomes
// some number or NaN.
#pragma once
#include "prelude.cuh"

namespace tilewright {

// 2^8 in both halves: the biases 15 of f16 and 7 of e4m3 differ by 8.
constexpr u32 fp8_rebias(F16) { return 0x5c005c00; }
constexpr u32 fp8_exponent(F16, u32 pair) { return pair >> 1 & 0x3f803f80; }

// Of two bytes in the upper halves of 16 bits each; what the lower halves hold does not matter.
template <class Element> TILEWRIGHT_DEVICE u32 widen_upper_bytes(Element type, u32 pair) {
  return multiply_pairs(type, (pair & 0x80008000) | fp8_exponent(type, pair), fp8_rebias(type));
}

// Numbers 0 and 1, and 2 and 3.
template <class Element> TILEWRIGHT_DEVICE void widen_neighbours(E4m3, Element type, u32 bytes, u32 &low, u32 &high) {
  if constexpr (has_fp8_conversion(Element{})) {
    convert_fp8(type, bytes, low, high);
  } else {
    low = widen_upper_bytes(type, permute_bytes(bytes, 0x1404));
    high = widen_upper_bytes(type, permute_bytes(bytes, 0x3424));
  }
}

TILEWRIGHT_DEVICE void widen_neighbours(E5m2, F16, u32 bytes, u32 &low, u32 &high) {
  low = permute_bytes(bytes, 0x1404);
  high = permute_bytes(bytes, 0x3424);
}

// Numbers 0 and 2, and 1 and 3.
template <class Element> TILEWRIGHT_DEVICE void widen_alternate(E4m3 format, Element type, u32 bytes, u32 &even, u32 &odd) {
  if constexpr (has_fp8_conversion(Element{})) {
    widen_neighbours(format, type, permute_bytes(bytes, 0x3120), even, odd);
  } else {
    even = widen_upper_bytes(type, bytes << 8);
    odd = widen_upper_bytes(type, bytes);
  }
}
TILEWRIGHT_DEVICE void widen_alternate(E5m2, F16, u32 bytes, u32 &even, u32 &odd) {
  even = permute_bytes(bytes, 0x2404);
  odd = bytes & 0xff00ff00;
}

} // namespace tilewright
