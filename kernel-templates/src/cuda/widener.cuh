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

  // A warp takes 64 bytes of eight rows at once, which are a panel when they are widened: a lane 16. Rows whose numbers differ by 5 modulo 8 are
  // neighbours, so that eight lanes read, and write, in different banks.
  static constexpr u32 PARTS = S::ROW_BYTES / 64, PARTS_A_PANEL = S::PANEL_ROW_BYTES / 64;
  // Where two warps widen the same, each has half of the rows.
  static constexpr u32 EIGHTS = S::N / 8 / larger(S::WIDENERS, 1u), TASKS = EIGHTS * PARTS;
  // Tasks whose addresses are constants, so that no instruction computes them: up to 16, all parts of as many rows as divide the step evenly. The code of more
  // would not stay in the instruction cache.
  TILEWRIGHT_DEVICE static constexpr u32 unrolled(u32 eights) { return EIGHTS % eights == 0 ? eights * PARTS : unrolled(eights - 1); }
  static constexpr u32 UNROLLED = S::WIDENED ? unrolled(16 / PARTS) : 1, AT_ONCE = UNROLLED % 2 == 0 ? 2 : 1;
  static_assert(!S::WIDENED || S::WIDE_PANEL_ROW_BYTES == 128, "each part of a row is a panel when it is widened");

  // Where a lane's bytes of the first task lie, in FP8 and widened: of the parts of a panel one is the other with a bit of its address changed, as are the
  // two chunks that sixteen bytes become.
  struct Place {
    u32 parts[PARTS_A_PANEL], chunks[2];
  };

  TILEWRIGHT_DEVICE static void load(u32 (&bytes)[AT_ONCE][4], const Place &place, u32 first) {
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
      const u32 task = first + i, part = task % PARTS;
      load_four_words(bytes[i], place.parts[part % PARTS_A_PANEL] + task / PARTS * 8 * S::ROW_BYTES + part / PARTS_A_PANEL * S::PANEL_BYTES);
    }
  }

  template <bool VALUES> TILEWRIGHT_DEVICE static void convert_and_store(const u32 (&bytes)[AT_ONCE][4], const Place &place, u32 first) {
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
      u32 words[2][4];
#pragma unroll
      for (u32 w = 0; w < 4; w++) {
        if constexpr (VALUES) widen_alternate(typename S::KvElement{}, typename S::MmaElement{}, bytes[i][w], words[0][w], words[1][w]);
        else widen_neighbours(typename S::KvElement{}, typename S::MmaElement{}, bytes[i][w], words[0][w], words[1][w]);
      }
      const u32 further = (first + i) / PARTS * 8 * S::WIDE_ROW_BYTES + (first + i) % PARTS * S::WIDE_PANEL_BYTES;
#pragma unroll
      for (u32 chunk = 0; chunk < 2; chunk++) store_four_words(place.chunks[chunk] + further, words[chunk]);
    }
  }

  template <bool VALUES> TILEWRIGHT_DEVICE void widen(const PipelineState<S> &at, u32 share) const {
    const u32 row = cta.lane / 8 ^ cta.lane / 4 % 2 * 5, chunk = cta.lane % 4, first = share * EIGHTS * 8;
    const u32 from = (VALUES ? cta.values_at(at) : cta.keys_at(at)) + first * S::ROW_BYTES + row * S::PANEL_ROW_BYTES + (chunk ^ cta.exchange(row)) * 16;
    const u32 to = (VALUES ? cta.wide_values_at(at) : cta.wide_keys_at(at)) + first * S::WIDE_ROW_BYTES + row * 128 + (2 * chunk ^ row) * 16;
    Place place;
#pragma unroll
    for (u32 part = 0; part < PARTS_A_PANEL; part++) place.parts[part] = from ^ part * 64;
    place.chunks[0] = to;
    place.chunks[1] = to ^ 16;
#pragma unroll 1
    for (u32 begin = 0; begin < TASKS; begin += UNROLLED) {
      // What is loaded next is on its way while the last is converted.
      u32 bytes[2][AT_ONCE][4];
      load(bytes[0], place, 0);
#pragma unroll
      for (u32 first = 0; first < UNROLLED; first += AT_ONCE) {
        if (first + AT_ONCE < UNROLLED) load(bytes[(first / AT_ONCE + 1) % 2], place, first + AT_ONCE);
        convert_and_store<VALUES>(bytes[first / AT_ONCE % 2], place, first);
      }
#pragma unroll
      for (u32 part = 0; part < PARTS_A_PANEL; part++) place.parts[part] += UNROLLED / PARTS * 8 * S::ROW_BYTES;
      place.chunks[0] += UNROLLED / PARTS * 8 * S::WIDE_ROW_BYTES;
      place.chunks[1] += UNROLLED / PARTS * 8 * S::WIDE_ROW_BYTES;
    }
  }

  // By a warp that widens all rows of K, or of V, or its share of them.
  template <bool VALUES> TILEWRIGHT_DEVICE void run(const Steps &steps, u32 share) const {
    PipelineState<S> at;
#pragma unroll 1
    for (u32 step = steps.first; step < steps.last; step++) {
      if (S::PRIVATE_PHASE && steps.in_private_phase(step)) {
        pipeline.template wait_and_release<VALUES>(at);
        at = at.template ahead<1>();
        continue;
      }
      pipeline.template wait_to_widen<VALUES>(at);
      widen<VALUES>(at, share);
      pipeline.template release_widened<VALUES>(at);
      at = at.behind_together();
    }
  }
};

} // namespace tilewright
