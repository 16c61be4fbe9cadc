// What `ptx.cuh` gives the kernels, on a host: numerics, tails and the order of the pipeline are checked without a GPU.
//
// Each CUDA thread is a fiber. Operations of a warp are a rendezvous of its 32 lanes; the last one to arrive computes for all.
// Copies arrive as late as the hardware allows: when the thread that issued them waits for their group. Until then their
// destination is poison (all bits set, a NaN of both element types). One CTA runs at a time. What would hang, diverge or race on a
// device ends the launch with an error, and so does an address that nothing lies at.
//
// Whether something races is found by vector clocks: each warp knows how far it has seen each other warp, by the barriers at which they met.
#pragma once
#include "machine_calls.hpp"
#include <cstring>

namespace tilewright {

namespace emulation {

template <class To, class From> inline To bits_as(const From &from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// With TILEWRIGHT_EMULATE_EARLY_READ every wait is for one group fewer than it should be: a pipeline that is wrong on purpose.
#ifdef TILEWRIGHT_EMULATE_EARLY_READ
constexpr bool EARLY_READ = true;
#else
constexpr bool EARLY_READ = false;
#endif

} // namespace emulation

TILEWRIGHT_DEVICE float negative_infinity() { return -__builtin_inff(); }
TILEWRIGHT_DEVICE u32 thread_index_again() { return thread_index(); }
// Barriers so far stand for time.
TILEWRIGHT_DEVICE u64 nanoseconds() { return emulation::epoch(); }
TILEWRIGHT_DEVICE u32 multiprocessor() { return 0; }

TILEWRIGHT_DEVICE void cp_async_16(u32 target, const void *source, i32 sign) { emulation::copy(target, source, sign >= 0); }
TILEWRIGHT_DEVICE void cp_async_commit() { emulation::commit_copies(); }
template <int PENDING> TILEWRIGHT_DEVICE void cp_async_wait() { emulation::deliver(PENDING + emulation::EARLY_READ); }

TILEWRIGHT_DEVICE void ldmatrix(u32 (&to)[4], u32 row_address) { emulation::ldmatrix(to, row_address, false); }
TILEWRIGHT_DEVICE void ldmatrix_transposed(u32 (&to)[4], u32 row_address) { emulation::ldmatrix(to, row_address, true); }

template <class T> TILEWRIGHT_DEVICE T load_now(const T &source) { return source; }

// CTAs run one after the other here, so these have nothing to order.
template <u32 COUNT> TILEWRIGHT_DEVICE void load_coherent(float (&to)[COUNT], const float *source) { memcpy(to, source, sizeof to); }
TILEWRIGHT_DEVICE void launch_dependents() {}
TILEWRIGHT_DEVICE void wait_for_launch_before() {}
TILEWRIGHT_DEVICE void memory_fence() {}
TILEWRIGHT_DEVICE void prefetch(const void *) {}
TILEWRIGHT_DEVICE const u8 *computed_once(const u8 *pointer) { return pointer; }
TILEWRIGHT_DEVICE u32 computed_here(u32 value) { return value; }
TILEWRIGHT_DEVICE void store_words(void *to, u32 first, u32 second) {
  const u32 words[2] = {first, second};
  memcpy(to, words, sizeof words);
}
TILEWRIGHT_DEVICE void store_four(float *to, const float (&from)[4]) { memcpy(to, from, sizeof from); }
TILEWRIGHT_DEVICE u32 float_bits(float value) { return emulation::bits_as<u32>(value); }
TILEWRIGHT_DEVICE float bits_float(u32 bits) { return emulation::bits_as<float>(bits); }
TILEWRIGHT_DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// The device has no instruction that makes FP8 of f32.
constexpr bool has_fp8_narrowing() { return false; }
template <class Format> TILEWRIGHT_DEVICE u32 narrow_fp8_pair(Format, float, float) { return 0; }
TILEWRIGHT_DEVICE u32 multiply_high(u32 a, u32 b) { return u64(a) * b >> 32; }
TILEWRIGHT_DEVICE u32 count_arrival(u32 *counter) { return (*counter)++; }

// Without TILEWRIGHT_EMULATE_FP8_CONVERSION an older device is emulated, which has none.
constexpr bool has_fp8_conversion(F16) {
#ifdef TILEWRIGHT_EMULATE_FP8_CONVERSION
  return true;
#else
  return false;
#endif
}

TILEWRIGHT_DEVICE float larger(float a, float b) { return __builtin_fmaxf(a, b); }

// Like the device's, they have no subnormal numbers.
TILEWRIGHT_DEVICE float rounded_product(float a, float b) { return a * b; }
TILEWRIGHT_DEVICE float fused_multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

TILEWRIGHT_DEVICE float exp2_fast(float x) {
  const float y = __builtin_exp2f(x);
  return y < 0x1p-126f ? 0.f : y;
}
TILEWRIGHT_DEVICE float log2_fast(float x) { return __builtin_log2f(x < 0x1p-126f && x >= 0.f ? 0.f : x); }

TILEWRIGHT_DEVICE float from_lane_xor(float value, u32 mask) {
  return emulation::bits_as<float>(emulation::lane_xor(emulation::bits_as<u32>(value), mask));
}
TILEWRIGHT_DEVICE i32 from_lane_xor(i32 value, u32 mask) {
  return static_cast<i32>(emulation::lane_xor(static_cast<u32>(value), mask));
}
TILEWRIGHT_DEVICE float from_lane(float value, u32 lane) {
  return emulation::bits_as<float>(from_lane(emulation::bits_as<u32>(value), lane));
}
TILEWRIGHT_DEVICE u64 from_lane(u64 value, u32 lane) {
  const u32 low = from_lane(static_cast<u32>(value), lane), high = from_lane(static_cast<u32>(value >> 32), lane);
  return u64(high) << 32 | low;
}
TILEWRIGHT_DEVICE i32 largest_in_warp(i32 value) {
  for (u32 mask = 16; mask > 0; mask /= 2) value = larger(value, from_lane_xor(value, mask));
  return value;
}
TILEWRIGHT_DEVICE i32 smallest_in_warp(i32 value) {
  for (u32 mask = 16; mask > 0; mask /= 2) value = smaller(value, from_lane_xor(value, mask));
  return value;
}
TILEWRIGHT_DEVICE u32 lanes_with(bool value) {
  i32 lanes = value ? static_cast<i32>(1u << thread_index() % 32) : 0;
  for (u32 mask = 16; mask > 0; mask /= 2) lanes |= from_lane_xor(lanes, mask);
  return static_cast<u32>(lanes);
}
TILEWRIGHT_DEVICE u32 lowest_bit(u32 lanes) { return static_cast<u32>(__builtin_ctz(lanes)); }

// Launches `body` as `grid` CTAs of `threads`.
template <class Body> Emulated emulate(u32 grid, u32 threads, u32 shared_bytes, const Body &body, u64 seed) {
  const auto call = [](const void *of) { (*static_cast<const Body *>(of))(); };
  return emulation::run(emulation::Launch{grid, threads, shared_bytes, seed, emulation::EARLY_READ, call, &body});
}

} // namespace tilewright
