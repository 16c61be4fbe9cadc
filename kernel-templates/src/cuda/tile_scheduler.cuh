// Tile scheduler: which work item and KV head a CTA of a launch takes.
#pragma once
#include "abi.cuh"
#include "prelude.cuh"

namespace tilewright {

struct ScheduledTile {
  WorkItem item;
  u32 index; // of the item
  u32 head;
  bool exists; // a launch may have more CTAs than its plan has items for

  // Its number whatever the order is.
  TILEWRIGHT_DEVICE u32 unit(const Arguments &args) const { return index * args.kv_heads + head; }
};

// The CTAs of an item lie side by side, which together read whole pages, or those of a head, which read the same tokens.
TILEWRIGHT_DEVICE ScheduledTile schedule(const Arguments &args) {
  const u32 of_items = args.kv_heads.quotient(block_index()), of_heads = args.launch_items.quotient(block_index());
  const u32 beside = block_index() - of_heads * args.launch_items;
  const WorkItem item = load_now(args.items[of_items]), other = load_now(args.items[beside]);
  const u32 *const launch = args.counts + 1 + 2 * args.group;
  const u32 count = launch[0], by_head = launch[1];
  if (by_head) return ScheduledTile{other, beside, of_heads, beside < count && of_heads < args.kv_heads};
  return ScheduledTile{item, of_items, block_index() - of_items * args.kv_heads, of_items < count};
}

} // namespace tilewright
