// A CTA at its work item: what each of its threads knows from the start, and what they tell each other through shared memory.
#pragma once
#include "abi.cuh"
#include "prelude.cuh"
#include "kernel_traits.cuh"
#include "softmax.cuh"

namespace tilewright {

// A row of the item: which tokens of its request it sees, and where it goes.
struct Row {
  i32 begin; // first token
  i32 end;   // one past the last
  u32 request;
  OutputTarget output_target;
};

// A segment of the item. Its tokens are counted along the KV range.
struct SegmentInShared {
  u32 begin;    // first token, perhaps before the item's
  u32 tokens;   // how many it has
  u32 pages;    // where in `page_ids` its first page stands; and whether it is `EVICT_FIRST`
  i32 position; // what to add to a token of the KV range for its place in the request
  u32 rows;     // rows that share it: first, and one past the last (12 bits)
  i32 seen;     // first token of the requests that some row sees
  i32 end;      // one past the last one
};

// What each Q warp has for itself, of the KV range, and in which segment it begins; one past the last token before; and how many steps have been
// asked for before lengths were known.
template <class S> struct PrivatePhase {
  u32 shared_end, early;
  u32 begin[S::WARPS_Q], end[S::WARPS_Q], segment[S::WARPS_Q];
};

// Sixteen tokens of a step.
struct Granule {
  i32 position; // place of the first in the requests that share it
  u32 rows;     // rows that share it: first (12 bits), and one past the last (10 bits); whether a chunk ends with it; and how many of the tokens are theirs

  TILEWRIGHT_DEVICE u32 first_row() const { return rows % 4096; }
  TILEWRIGHT_DEVICE u32 last_row() const { return rows / 4096 % 1024; } // one past
  static constexpr u32 ENDS_CHUNK = 4096 * 1024; // noted in batch-invariant kernels alone
  TILEWRIGHT_DEVICE bool ends_chunk() const { return (rows & ENDS_CHUNK) > 0; }
  TILEWRIGHT_DEVICE u32 tokens() const { return rows / (4096 * 4096); }
};

// Where a step lies: buffers and notes are ring buffers.
template <class S> struct PipelineState {
  u32 buffer = 0, note = 0;
  u32 round = 0; // how often all buffers were used before, modulo 2
  u32 wide = 0, wide_round = 0; // the same of buffers of widened K and V, which steps of a warpgroup have alone

  // The state STEPS steps ahead, of which none is a warpgroup's.
  template <u32 STEPS> TILEWRIGHT_DEVICE PipelineState ahead() const {
    const u32 next = further<STEPS % S::STAGES, S::STAGES>(buffer);
    const u32 wrapped = next < buffer ? 1 : 0;
    return PipelineState{next, further<STEPS % S::NOTES, S::NOTES>(note), (round + STEPS / S::STAGES + wrapped) % 2, wide, wide_round};
  }

  // Behind a step of a warpgroup.
  TILEWRIGHT_DEVICE PipelineState behind_together() const {
    PipelineState next = ahead<1>();
    if constexpr (S::WIDENED) {
      next.wide = wide + 1 == S::WIDE_BUFFERS ? 0 : wide + 1;
      next.wide_round = next.wide == 0 ? wide_round ^ 1 : wide_round;
    }
    return next;
  }

  template <u32 STEPS, u32 SIZE> TILEWRIGHT_DEVICE static u32 further(u32 at) {
    if constexpr (STEPS == 0) return at;
    return at < SIZE - STEPS ? at + STEPS : at + STEPS - SIZE;
  }
};

template <class S> struct Cta {
  static_assert(sizeof(PrivatePhase<S>) == S::ROWS_AT - S::PRIVATE_PHASE_AT, "it has a place of this size");

  const Arguments &args;
  const WorkItem &item;
  const u32 kv_head;
  const FastDiv &page_size;
  const u32 thread;
  const u32 lane = thread % 32;
  const u32 looks_at = S::TMA ? lane % S::GRANULES * S::GRANULE : thread; // the first token of a step that it looks up
  const u32 warp = thread / 32;
  const u32 warp_q = warp % S::WARPS_Q;
  const u32 warp_kv = S::WARPS_KV == 1 ? 0 : warp / S::WARPS_Q;
  const u32 warp_d = S::WARPS_D == 1 ? 0 : warp / S::WARPS_Q;
  const u32 fragment_row = lane / 4;        // rows of the accumulators that a lane holds: this one and 8 below
  const u32 fragment_column = lane % 4 * 2; // and this column and the next, of every 8
  u8 *const shared = shared_memory();
  const float signed_scale; // what makes logits in base 2 of products
  const float scale;        // the same, positive: a negative one's sign goes to the query, so that a larger product is a larger logit

  TILEWRIGHT_DEVICE Cta(const Arguments &arguments, const WorkItem &work_item, u32 head, u32 thread_of_cta)
      : args(arguments), item(work_item), kv_head(head), page_size(arguments.page_size), thread(thread_of_cta),
        signed_scale(arguments.mask.scale_log2 * (S::FP8 ? arguments.key_scales[head * arguments.scale_head] : 1.f)),
        scale(larger(larger(signed_scale, -signed_scale), 1e-30f)) {}

  // The same, with all that threads know of themselves found out anew.
  TILEWRIGHT_DEVICE Cta(const Cta &before, u32 thread_of_cta)
      : args(before.args), item(before.item), kv_head(before.kv_head), page_size(before.page_size), thread(thread_of_cta),
        signed_scale(before.signed_scale), scale(before.scale) {}

  // Its number among the threads that read the item's description. In a producer warpgroup the two warps that copy come last: mostly they have nothing
  // to read, and begin to copy.
  TILEWRIGHT_DEVICE u32 describer() const { return S::SETMAXNREG ? thread - S::WARPS * 32 ^ 64 : thread; }
  TILEWRIGHT_DEVICE u32 row_count() const { return item.row_end - item.row_begin; }
  TILEWRIGHT_DEVICE Row *rows() const { return reinterpret_cast<Row *>(shared + S::ROWS_AT); }
  TILEWRIGHT_DEVICE SegmentInShared *segments() const { return reinterpret_cast<SegmentInShared *>(shared + S::SEGMENTS_AT); }
  TILEWRIGHT_DEVICE PrivatePhase<S> &private_phase() const { return *reinterpret_cast<PrivatePhase<S> *>(shared + S::PRIVATE_PHASE_AT); }
  TILEWRIGHT_DEVICE i64 *offsets(const PipelineState<S> &at) const { return reinterpret_cast<i64 *>(shared + S::OFFSETS_AT) + at.note * S::N; }
  TILEWRIGHT_DEVICE Granule *granules(const PipelineState<S> &at) const { return reinterpret_cast<Granule *>(shared + S::GRANULES_AT) + at.note * S::GRANULES; }
  // A row's softmax as a warp has it.
  TILEWRIGHT_DEVICE Softmax *warp_softmax(u32 of_warp, u32 row) const { return reinterpret_cast<Softmax *>(shared + S::SOFTMAX_AT) + of_warp * S::WARP_ROWS + row; }
  TILEWRIGHT_DEVICE float &row_max(u32 row) const { return reinterpret_cast<float *>(shared + S::MAXIMA_AT)[row]; } // of transposed products
  // What makes logits in base 2 of a row's products, where each row has its own (`query.cuh`).
  TILEWRIGHT_DEVICE float &row_factor(u32 row) const { return reinterpret_cast<float *>(shared + S::FACTORS_AT)[row]; }
  TILEWRIGHT_DEVICE u32 query_head(u32 row) const { return kv_head * args.gqa_ratio + args.gqa_ratio.remainder(item.row_begin + row); }

  // Chunks of a panel's row are exchanged by its number: eight rows of the same column then lie in different banks. Where it has but half or a
  // quarter of them, two or four rows share the banks of one.
  TILEWRIGHT_DEVICE static constexpr u32 exchange(u32 row) { return row / (8 / S::PANEL_CHUNKS) % S::PANEL_CHUNKS; }
  // Where a row's first panel begins. Of rows without a bit in common it is the sum.
  TILEWRIGHT_DEVICE static constexpr u32 row_at(u32 row) { return row / 8 * 8 * S::ROW_BYTES + row % 8 * S::PANEL_ROW_BYTES; }
  TILEWRIGHT_DEVICE static u32 chunk_address(u32 base, u32 row, u32 chunk) {
    return base + row_at(row) + chunk / S::PANEL_CHUNKS * S::PANEL_BYTES + (chunk % S::PANEL_CHUNKS ^ exchange(row)) * 16;
  }
  // The same of widened K and V, whose panels have 128 bytes a row.
  TILEWRIGHT_DEVICE static u32 wide_chunk_address(u32 base, u32 row, u32 chunk) {
    return base + row / 8 * 8 * S::WIDE_ROW_BYTES + row % 8 * 128 + chunk / 8 * S::WIDE_PANEL_BYTES + (chunk % 8 ^ row % 8) * 16;
  }
  TILEWRIGHT_DEVICE u32 keys_at(const PipelineState<S> &at) const { return shared_address(shared) + at.buffer * 2 * S::STAGE_BYTES; }
  TILEWRIGHT_DEVICE u32 values_at(const PipelineState<S> &at) const { return keys_at(at) + S::STAGE_BYTES; }
  // Where products of a warpgroup find them.
  TILEWRIGHT_DEVICE u32 wide_keys_at(const PipelineState<S> &at) const {
    if constexpr (!S::WIDENED) return keys_at(at);
    return shared_address(shared) + S::WIDE_AT + at.wide * S::WIDE_MATRICES * S::WIDE_STAGE_BYTES;
  }
  TILEWRIGHT_DEVICE u32 wide_values_at(const PipelineState<S> &at) const {
    if constexpr (!S::WIDENED) return values_at(at);
    return shared_address(shared) + S::WIDE_AT + (at.wide * S::WIDE_MATRICES + S::WIDE_MATRICES - 1) * S::WIDE_STAGE_BYTES;
  }
  // Where the query lies in a place of its own.
  TILEWRIGHT_DEVICE u32 own_query_at() const { return shared_address(shared + S::BUFFER_BYTES); }
  // The same of the query. For FP8 four rows of the same two chunks are what is read at once. Of 12 chunks a row, two rows share the banks of one.
  TILEWRIGHT_DEVICE static u32 query_exchange(u32 row) {
    if constexpr (S::QUERY_CHUNKS % 8 != 0) return S::FP8 ? row / 2 % 2 * 2 : row / 2 % 4;
    return S::FP8 ? row % 4 * 2 : row % 8;
  }
  // Where a chunk of it lies, in a buffer or in a place of its own. What becomes two parts beside transposed products is copied to the weights' place.
  TILEWRIGHT_DEVICE u32 query_address(const PipelineState<S> &at, u32 row, u32 chunk) const {
    if constexpr (S::KEYS_IN_FP8 && S::TRANSPOSED) return shared_address(shared + S::WEIGHTS_AT) + row * S::QUERY_ROW_BYTES + (chunk ^ query_exchange(row)) * 16;
    const u32 base = S::QUERY_IN_VALUES ? values_at(at) : S::QUERY_IN_BUFFER ? keys_at(at) : own_query_at();
    if constexpr (S::QUERY_SHARED) return base + chunk / 8 * S::QUERY_PANEL_BYTES + row * 128 + (chunk % 8 ^ row % 8) * 16;
    return base + row * S::QUERY_ROW_BYTES + (chunk ^ query_exchange(row)) * 16;
  }
};

} // namespace tilewright
