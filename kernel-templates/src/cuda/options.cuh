// Kernel options: what is compiled in beside a tile and a kernel class. Kernel traits inherit them.
#pragma once
#include "prelude.cuh"

namespace tilewright {

// The numbers of the mask; those of an option are read by kernels that have it.
struct MaskArguments {
  u32 window;       // a row sees its last `window` tokens
  float scale_log2; // factor of the logits x log2(e)
  float softcap;    // bound of the logits
};

template <bool WINDOW_, bool SOFTCAP_, bool SINKS_, bool TIMELINE_, bool INVARIANT_ = false, bool MERGES_LAST_ = false> struct KernelOptions {
  static constexpr bool WINDOW = WINDOW_, SOFTCAP = SOFTCAP_, SINKS = SINKS_, TIMELINE = TIMELINE_;

  // Whether a row's bits depend on its own tokens alone: they are summed in chunks that begin at fixed positions (`chunk.cuh`).
  static constexpr bool INVARIANT = INVARIANT_;

  // Whether the last CTA of a row may merge its partials, if the launch says so.
  static constexpr bool MERGES_LAST = MERGES_LAST_;

  // Whether rows may begin behind the first token of their request, and the first token that a row sees with `length` tokens up to its own.
  static constexpr bool HIDES_FIRST = WINDOW;
  TILEWRIGHT_DEVICE static i32 first_seen(const MaskArguments &mask, i32 length) {
    return WINDOW ? larger(length - static_cast<i32>(mask.window), 0) : 0;
  }

  // Whether logits are more than scaled products, and a logit then, in base 2.
  static constexpr bool BENDS = SOFTCAP;
  TILEWRIGHT_DEVICE static float bent(const MaskArguments &mask, float product, float scale) {
    // tanh(x) = 1 - 2 / (exp(2 x) + 1), exact at both ends.
    const float x = product * scale / mask.softcap;
    return mask.softcap * LOG2_E * (1.f - 2.f / (exp2_fast(2.f * x) + 1.f));
  }
};

} // namespace tilewright
