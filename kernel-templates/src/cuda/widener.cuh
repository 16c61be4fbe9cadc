// Widening warps: what TMA has brought of K or V in FP8 becomes 16-bit elements in shared memory, once for all rows of the CTA, as products of a
// warpgroup take them from there.
//
// Elements come in the order in which a warp that widens its own in registers has them (`mma.cuh`): of 16 neighbours of K those that lie in the
// lower halves of four bytes, then the others; of V the even ones, then the odd ones.
#pragma once
#include "fp8.cuh"
#include "kv_range.cuh"
#include "pipeline.cuh"

namespace tilewright {

template <class S> struct Widener {
  const Cta<S> &cta;
  const Pipeline<S> pipeline{cta};

  // A warp takes 64 bytes of eight rows at once: a lane 16. Rows whose numbers differ by 5 modulo 8 are neighbours, so that eight lanes
  // read, and write, in different banks.
  static constexpr u32 PARTS = S::ROW_BYTES / 64, TASKS = S::N / 8 * PARTS, AT_ONCE = smaller(TASKS, 4u);
  static_assert(!S::WIDENED || (S::PANELS == 1 && PARTS <= 2 && TASKS % AT_ONCE == 0), "a row is one panel, and each part of it one when it is widened");

  template <bool VALUES> TILEWRIGHT_DEVICE void widen(const PipelineState<S> &at) const {
    const u32 row = cta.lane / 8 ^ cta.lane / 4 % 2 * 5, chunk = cta.lane % 4;
    const u32 from = (VALUES ? cta.values_at(at) : cta.keys_at(at)) + row * S::ROW_BYTES + (chunk ^ cta.exchange(row)) * 16;
    const u32 to = (VALUES ? cta.wide_values_at(at) : cta.wide_keys_at(at)) + row * 128 + (2 * chunk ^ row) * 16;
#pragma unroll 1
    for (u32 begin = 0; begin < TASKS; begin += AT_ONCE) {
      u32 bytes[AT_ONCE][4];
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; i++) load_four_words(bytes[i], (from + (begin + i) / PARTS * 8 * S::ROW_BYTES) ^ i % PARTS * 64);
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; i++) {
        u32 first[4], second[4];
#pragma unroll
        for (u32 w = 0; w < 4; w++) {
          if constexpr (VALUES) widen_alternate(typename S::KvElement{}, typename S::MmaElement{}, bytes[i][w], first[w], second[w]);
          else widen_neighbours(typename S::KvElement{}, typename S::MmaElement{}, bytes[i][w], first[w], second[w]);
        }
        const u32 target = to + (begin + i) / PARTS * 8 * S::WIDE_ROW_BYTES + i % PARTS * S::WIDE_PANEL_BYTES;
        store_four_words(target, first);
        store_four_words(target ^ 16, second);
      }
    }
  }

  template <bool VALUES> TILEWRIGHT_DEVICE void run(const Steps &steps) const {
    PipelineState<S> at;
#pragma unroll 1
    for (u32 step = steps.first; step < steps.last; step++) {
      if (S::PRIVATE_PHASE && steps.in_private_phase(step)) {
        pipeline.template wait_and_release<VALUES>(at);
        at = at.template ahead<1>();
        continue;
      }
      pipeline.template wait_to_widen<VALUES>(at);
      widen<VALUES>(at);
      pipeline.template release_widened<VALUES>(at);
      at = at.behind_together();
    }
  }
};

} // namespace tilewright
