// Forward of work items of several tiles in one launch: each item says which of them computes it.
//
// The CTAs are those of the tile with the most threads and the most shared memory. Beside TMA producer warps all tiles have the same
// threads, and share out the same registers, so that a CTA costs an SM as much as one of the greediest tile alone. Where all warps copy,
// threads and memory that an item's tile has no use for are idle.
#pragma once
#include "decode.cuh"

namespace tilewright {

template <class... Variants> struct DecodeMix {
  static_assert(sizeof...(Variants) > 0, "at least one tile");

  static constexpr u32 largest(u32 one) { return one; }
  template <class... More> static constexpr u32 largest(u32 one, u32 two, More... more) { return largest(larger(one, two), more...); }
  static constexpr u32 THREADS = largest(Variants::THREADS...);
  static constexpr u32 SHARED_BYTES = largest(Variants::SHARED_BYTES...);

  static constexpr u32 PRODUCERS = largest(Variants::PRODUCERS...), CONSUMER_WARPS = largest(Variants::CONSUMER_WARPS...);
  static_assert(((Variants::PRODUCERS == PRODUCERS) && ...), "all tiles have the same producer warps, or none has any");
  static_assert(PRODUCERS == 0 || ((Variants::CONSUMER_WARPS == CONSUMER_WARPS) && ...),
                "registers are shared out among whole warpgroups: those of warps that leave would be lost");
  // The compiler assumes one split of registers: that of the tile with the longest steps.
  using Registers = RegisterSplit<CONSUMER_WARPS, (Variants::Registers::LONG_STEPS || ...)>;

  TILEWRIGHT_DEVICE static void run(const Arguments &arguments) {
    launch_dependents();
    const ScheduledTile scheduled = schedule(arguments);
    if (!scheduled.exists) return;
    run_item<0, Variants...>(arguments, scheduled, same_in_warp(scheduled.item.tile));
  }

  // All threads of a CTA have the same item, so they take the same branch: nothing but this branch lies between a tile's code and that of its
  // own kernel. Whole warps that a tile has no use for end at once: barriers count only threads that have not ended (compute capability 7.0
  // and up).
  template <u32 TILE, class Variant, class... Others>
  TILEWRIGHT_DEVICE static void run_item(const Arguments &arguments, const ScheduledTile &scheduled, u32 tile) {
    if constexpr (sizeof...(Others) > 0) {
      if (tile != TILE) return run_item<TILE + 1, Others...>(arguments, scheduled, tile);
    }
    const u32 thread = thread_index();
    if constexpr (Variant::THREADS < THREADS) {
      if (same_in_warp(thread / 32) >= Variant::THREADS / 32) return;
    }
    Variant(arguments, scheduled, thread).template execute<Registers>();
  }
};

} // namespace tilewright
