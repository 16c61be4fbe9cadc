// Division by a number that the host knows: two multiplications instead of some twenty instructions.
#pragma once
#include "prelude.cuh"

namespace tilewright {

struct FastDiv {
  u32 by;
  u32 reciprocal; // 2^32 - 1 over `by`, rounded down

  TILEWRIGHT_DEVICE operator u32() const { return by; }

  // At most one less than the quotient, as `value` is below 2^32.
  TILEWRIGHT_DEVICE u32 estimate(u32 value) const { return multiply_high(value, reciprocal); }
  TILEWRIGHT_DEVICE u32 quotient(u32 value) const {
    const u32 estimated = estimate(value);
    return value - estimated * by >= by ? estimated + 1 : estimated;
  }
  TILEWRIGHT_DEVICE u32 remainder(u32 value) const { return value - quotient(value) * by; }
};

} // namespace tilewright
