// Division by a number that is known once a CTA: two multiplications instead of some twenty instructions.
#pragma once
#include "prelude.cuh"

namespace tilewright {

struct FastDiv {
  u32 by;
  u32 reciprocal; // of 2^32, less than one too small

  TILEWRIGHT_DEVICE explicit FastDiv(u32 divisor) : by(divisor), reciprocal(0xffffffffu / divisor) {}

  // At most one less than the quotient, as `value` is below 2^32.
  TILEWRIGHT_DEVICE u32 estimate(u32 value) const { return multiply_high(value, reciprocal); }
  TILEWRIGHT_DEVICE u32 quotient(u32 value) const {
    const u32 estimated = estimate(value);
    return value - estimated * by >= by ? estimated + 1 : estimated;
  }
};

} // namespace tilewright
