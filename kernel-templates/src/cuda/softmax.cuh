// The online softmax of one row: what forward accumulates, what partials keep, and how both end.
#pragma once
#include "prelude.cuh"

namespace tilewright {

// The softmax of one row so far: maximum in base 2 and the sum of the weights under it.
struct Softmax {
  float max;
  float sum;
};

// A maximum that may be subtracted: with no token so far nothing is.
TILEWRIGHT_DEVICE float finite_or_zero(float max) { return max == negative_infinity() ? 0.f : max; }

// Takes a row's sink into its softmax; returns the factor for what was summed before.
TILEWRIGHT_DEVICE float add_sink(Softmax &softmax, float sink) {
  const float logit = sink * LOG2_E;
  const float max = larger(softmax.max, logit);
  const float factor = exp2_fast(softmax.max - finite_or_zero(max));
  softmax.sum = fused_multiply_add(softmax.sum, factor, exp2_fast(logit - finite_or_zero(max)));
  softmax.max = max;
  return factor;
}

TILEWRIGHT_DEVICE float log_sum_exp(const Softmax &softmax) {
  return softmax.sum > 0.f ? (softmax.max + log2_fast(softmax.sum)) * LN_2 : negative_infinity();
}

} // namespace tilewright
