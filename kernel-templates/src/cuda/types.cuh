// Types that all sources share. No header of the toolkit or of the host is needed.
#pragma once

namespace tilewright {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

// Element types of Q, K, V and the output. Accumulation is always f32.
struct F16 {};
struct Bf16 {};
// FP8 with four bits of exponent and three of mantissa, no infinities (e4m3fn): of K and V alone.
struct E4m3 {};
// FP8 with five bits of exponent and two of mantissa, the upper byte of f16 (e5m2): of K and V alone.
struct E5m2 {};

// The bits of an element in memory.
template <class Element> struct Bits {
  using Type = u16;
};
template <> struct Bits<E4m3> {
  using Type = u8;
};
template <> struct Bits<E5m2> {
  using Type = u8;
};

// What both sides of a product have, of the types of Q and of K and V.
template <class Element, class KvElement> struct Multiplied {
  using Type = Element;
};
template <class Element> struct Multiplied<Element, E4m3> {
  using Type = F16;
};
template <class Element> struct Multiplied<Element, E5m2> {
  using Type = F16;
};

// What both sides of QK^T have: the same, but for K in FP8 as it is, beside which the query is a sum of e4m3 (`query.cuh`).
template <bool KEYS_IN_FP8, class Element, class KvElement> struct KeyProduct {
  using Query = typename Multiplied<Element, KvElement>::Type;
  using Key = Query;
};
template <class Element, class KvElement> struct KeyProduct<true, Element, KvElement> {
  using Query = E4m3;
  using Key = KvElement;
};

template <class Element> constexpr bool IS_BF16 = false;
template <> constexpr bool IS_BF16<Bf16> = true;

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float F16_MAX = 65504.f;
constexpr float LN_2 = 0.6931471805599453f;

constexpr u32 divide_up(u32 value, u32 by) { return (value + by - 1) / by; }
constexpr u32 round_up(u32 value, u32 to) { return divide_up(value, to) * to; }
// The largest power of two that divides a number, and the smallest one that is not below it.
constexpr u32 power_of_two_in(u32 value) { return value & (~value + 1); }
constexpr u32 power_of_two_from(u32 value) { return value <= 1 ? 1 : 2 * power_of_two_from(divide_up(value, 2)); }
template <class T> constexpr T larger(T a, T b) { return a > b ? a : b; }
template <class T> constexpr T smaller(T a, T b) { return a < b ? a : b; }

} // namespace tilewright
