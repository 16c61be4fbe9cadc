// Forward of work items of several tiles in one launch: each item says which of them computes it.
//
// The CTAs are those of the tile with the most threads and the most shared memory; threads and memory that an item's tile has no use for
// are idle. Registers are the compiler's most for all tiles, so an SM holds as many CTAs as the greediest tile allows.
#pragma once
#include "decode.cuh"

namespace tilewright {

template <class... Variants> struct DecodeMix {
  static_assert(sizeof...(Variants) > 0, "at least one tile");

  static constexpr u32 largest(u32 one) { return one; }
  template <class... More> static constexpr u32 largest(u32 one, u32 two, More... more) { return largest(larger(one, two), more...); }
  static constexpr u32 THREADS = largest(Variants::THREADS...);
  static constexpr u32 SHARED_BYTES = largest(Variants::SHARED_BYTES...);

  TILEWRIGHT_DEVICE static void run(const Arguments &arguments) {
    let_dependents_begin();
    const Assignment assigned = assignment(arguments);
    if (!assigned.exists) return;
    const u32 tile = same_in_warp(assigned.item.tile), warp = same_in_warp(thread_index() / 32);
    run_item<0, Variants...>(arguments, assigned, tile, warp);
  }

  // All threads of a CTA have the same item, so they take the same way. Whole warps that the tile has no use for end at once: barriers
  // count only threads that have not ended (compute capability 7.0 and up).
  template <u32 TILE, class Variant, class... Others>
  TILEWRIGHT_DEVICE static void run_item(const Arguments &arguments, const Assignment &assigned, u32 tile, u32 warp) {
    if (tile == TILE) {
      if (warp < Variant::THREADS / 32) Variant(arguments, assigned).execute();
    } else if constexpr (sizeof...(Others) > 0) {
      run_item<TILE + 1, Others...>(arguments, assigned, tile, warp);
    }
  }
};

} // namespace tilewright
