// What a launch reads and writes, as the host lays it out. `runtime` has the same structs; sizes are asserted on both sides.
#pragma once
#include "types.cuh"

namespace tilewright {

// What one CTA computes: rows of a pack over a range of its tokens, for one KV head.
struct alignas(16) WorkItem {
  u32 kv_head;
  u32 row_begin; // first row of the pack: request in the pack x GQA ratio + query head of the KV head
  u32 row_end;   // one past the last; at most m rows
  u32 kv_begin;  // first token: a multiple of the page size
  u32 kv_end;    // one past the last, before it is cut by the lengths
  u32 pages;     // where in `page_ids` the page of kv_begin stands
  u32 requests;  // where in `requests` the pack's first request stands
  u32 slots;     // where in `slots` the destination of the pack's first request stands
};
static_assert(sizeof(WorkItem) == 32, "the host writes 32 bytes a work item");

// Partials of one request that have to be merged; none at all if it has no tokens.
struct MergeItem {
  u32 request;
  u32 partial_begin;
  u32 partial_end;
};
static_assert(sizeof(MergeItem) == 12, "the host writes 12 bytes a merge item");

// The destination of a request that has a single partial: its row of the output.
constexpr u32 DIRECT = 0xffffffffu;

// Distances are in elements, so that they reach beyond 2^31 of them. The elements of one head's vector are neighbours.
struct Arguments {
  const u16 *query;   // [batch, q_heads, head_dim]
  const u16 *keys;    // pages
  const u16 *values;  // pages, laid out like keys
  u16 *output;        // [batch, q_heads, head_dim]
  float *lse;         // [batch, q_heads], natural logarithm; may be null
  const float *sinks; // [q_heads]: a logit that every row has beside its tokens; null without the option
  float *partial_output;   // [partials, q_heads, head_dim], not normalised
  float *partial_softmax;  // [partials, q_heads, 2]: maximum (base 2) and sum
  const WorkItem *items;
  const MergeItem *merges;
  const u32 *requests;
  const i32 *page_ids;
  const u32 *slots;
  const i32 *lengths; // [batch]: tokens of each request
  i64 query_request, query_head;
  i64 output_request, output_head;
  i64 page, token, head;
  u32 q_heads;
  u32 gqa_ratio;
  u32 page_size;
  u32 window;       // a row sees its last `window` tokens; read only with the option
  float scale_log2; // factor of the logits x log2(e)
  float softcap;    // bound of the logits; read only with the option
};
static_assert(sizeof(Arguments) == 14 * 8 + 7 * 8 + 6 * 4, "the host lays out the same struct");

} // namespace tilewright
