// What a launch reads and writes, as the host lays it out. `runtime` has the same structs; sizes are asserted on both sides.
#pragma once
#include "fastdiv.cuh"
#include "options.cuh"
#include "prelude.cuh"

namespace tilewright {

// Consecutive pages that neighbouring requests of a Q tile share. A Q tile's segments, one behind the other, are its KV range.
struct alignas(16) KvSegment {
  u32 begin;    // its first token, counted along the KV range: a multiple of 16
  u32 pages;    // where in `page_ids` its first page stands; and whether it is `EVICT_FIRST`
  u32 position; // which token of its requests the first one is
  u32 members;  // first request of the Q tile that has it, one past the last (12 bits each), and the tokens by which the next segment begins later
};
static_assert(sizeof(KvSegment) == 16, "the host writes 16 bytes a run");
// Flag beside a page's place: one item alone reads these pages, so they are evicted first from L2.
constexpr u32 EVICT_FIRST = 0x80000000u;

// What a CTA of each KV head computes: the rows of a Q tile over a range of its KV range.
struct alignas(16) WorkItem {
  u32 requests;   // where in `requests` the Q tile's first request stands
  u16 row_begin;  // first row of the Q tile: request in the Q tile x GQA ratio + query head of the KV head
  u16 row_end;    // one past the last; at most m rows
  u32 segments;           // where in `segments` the first segment of the range stands
  u16 segment_count;      // how many segments the range touches
  u8 tile;                // which of the tiles compiled together computes it
  u8 private_phase_first; // 1 if the private KV phase comes before the other steps, where there is one
  u32 kv_begin; // first token, counted along the Q tile's KV range: a multiple of 16
  u32 kv_end;   // one past the last
  u32 output_targets;      // where in `output_targets` the destination of the Q tile's first request stands
  u32 certain_end; // one past the last token of the first segment that some row sees for certain; not beyond `kv_end`
  KvSegment first; // the first segment, here too: most items have no other, and find their pages one step of latency earlier
};
static_assert(sizeof(WorkItem) == 48, "the host writes 48 bytes a work item");

// Where a request of a work item goes: a partial, and the item of `merges` that it is merged by.
struct OutputTarget {
  u32 partial; // or one of the two below
  u32 merge;
};
constexpr u32 DIRECT = 0xffffffffu;    // it has no other chunk: its row of the output
constexpr u32 UNTOUCHED = 0xfffffffeu; // no segment of the item is its own: nowhere

// Partials of one request that have to be merged.
struct alignas(16) MergeItem {
  u32 request;
  u32 partial_begin;
  u32 partial_end;
  u32 arrivals; // CTAs of one KV head that leave some of them
};
static_assert(sizeof(MergeItem) == 16, "the host writes 16 bytes a merge item");

// Timestamps of a CTA, in nanoseconds of the device's clock; zeros where it did not come so far.
struct TimelineEntry {
  u64 begin;    // before anything was read
  u64 ready;    // the first tokens had arrived
  u64 computed; // the last ones were computed
  u64 end;      // results were written
  u32 multiprocessor;
  u32 unused;
};
static_assert(sizeof(TimelineEntry) == 40, "the host reads 40 bytes an entry");

// Of `Arguments::value_maps`, those whose boxes have all panels.
constexpr u32 EIGHT_VALUES = 3, WHOLE_VALUES = 4, CLIPPED_VALUES = 5;

// Strides are in elements, 64 bits wide. The elements of one head's vector are neighbours.
struct Arguments {
  const u16 *query;   // [batch, q_heads, head_dim]
  const void *keys;   // pages; elements of the query's type, or FP8
  const void *values; // pages, laid out like keys
  u16 *output;        // [batch, q_heads, head_dim]
  float *lse;         // [batch, q_heads], natural logarithm; may be null
  const float *sinks; // [q_heads]: a logit that every row has beside its tokens; null without the option
  const float *key_scales;   // what an element of K in FP8 is multiplied by; null for other elements
  const float *value_scales; // the same of V
  float *partial_output;  // [partials, q_heads, head_dim], not normalised
  float *partial_softmax; // [partials, q_heads, 2]: maximum (base 2) and sum
  u32 *arrivals;          // [merges, kv_heads]: zero; null if partials are merged by a launch of their own
  const u32 *counts;      // how many merges there are, then of each launch how many work items, and whether CTAs of a head are neighbours
  const WorkItem *items;
  const MergeItem *merges;
  const KvSegment *segments;
  const u32 *requests;
  const i32 *page_ids;
  const OutputTarget *output_targets;
  const i32 *lengths; // [batch]: tokens that each query sees; a request of several queries is as many requests here
  TimelineEntry *timeline; // an entry for each CTA of the launch; written only with the option
  i64 query_request, query_head;
  i64 output_request, output_head;
  i64 page, token, head;
  i64 scale_head; // from KV head to KV head of the scales: 1, or 0 where all heads have the same
  FastDiv q_heads;
  FastDiv kv_heads;
  FastDiv gqa_ratio;
  FastDiv page_size;
  FastDiv launch_items; // items that this launch has CTAs for
  u32 group;            // which launch of `counts` it is
  MaskArguments mask;
  u32 zero;         // 0, which the compiler does not know
  u32 heads_a_page; // page stride over head stride; read, as what follows, by TMA producers only
  // K and V as tensors of elements of a panel, tokens modulo 8, panels, tokens divided by 8, pages and KV heads. Where panels have rows of 64 bytes,
  // the map of 1 token has it alone in a dimension of its own, and the token of the page instead of tokens divided by 8: boxes of it have 2.
  // The last map has eight tokens in a dimension of their own, and where they begin instead of tokens divided by 8, from eight before the page on.
  alignas(64) TensorMap key_maps; // of 16 tokens and all panels
  TensorMap value_maps[6];        // of 1, 2 and 4 tokens of a panel, of 8 and 16 of all, and of 8 of all that lie partly outside of their tensor
};
static_assert(sizeof(Arguments) == round_up(20 * 8 + 8 * 8 + 13 * 4 + sizeof(MaskArguments), 64) + 7 * 128, "the host lays out the same struct");

} // namespace tilewright
