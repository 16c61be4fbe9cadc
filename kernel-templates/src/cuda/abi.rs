//! What a launch reads and writes, as `cuda/abi.cuh` declares it.
//!
//! Strides are in elements and 64 bits wide, so a cache may hold more than 2^31 elements. Pointers are plain addresses: of a
//! device's memory for a GPU, of the host's for the emulation.

use super::MaskArguments;

/// What a CTA of each KV head computes: rows of a Q tile over a KV chunk.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkItem {
    /// Index of the Q tile's first request among the requests.
    pub requests: u32,
    /// First row: request in the Q tile x GQA ratio + query head of the KV head.
    pub row_begin: u16,
    /// One past the last row; at most m rows.
    pub row_end: u16,
    /// Index of the chunk's first segment among the segments.
    pub segments: u32,
    /// Segments that the chunk lies in; at most [`max_segments`].
    pub segment_count: u16,
    /// Which of the tiles compiled together computes it.
    pub tile: u8,
    /// 1 if the private KV phase comes before the other steps, where there is one; else 0.
    pub private_phase_first: u8,
    /// First token, counted along the Q tile's KV range: a multiple of [`GRANULE`].
    pub kv_begin: u32,
    /// One past the last token; the lengths on the device cut it further.
    pub kv_end: u32,
    /// Index of the output target of the Q tile's first request.
    pub output_targets: u32,
    /// One past the last token of the first segment that some row of the item sees for certain, whatever the lengths are as long as requests keep
    /// their pages; not beyond `kv_end`, and not beyond `kv_begin` where none is certain.
    pub certain_end: u32,
    /// The first segment, here too: most items have no other, and find their pages one step of latency earlier.
    pub first: KvSegment,
}

/// Tokens of the smallest step of a kernel. KV segments and KV chunks begin at multiples of it along a KV range.
pub const GRANULE: u32 = tilewright_heuristics::chunk::GRANULE;

/// Rows of one warp. Segments private to the rows of one warp come last in a KV range.
pub const WARP_ROWS: u32 = 16;

/// Segments that a CTA of m rows has room for in shared memory.
pub const fn max_segments(m: u32) -> u32 {
    m + 32
}

/// Consecutive pages that neighbouring requests of a Q tile share. A Q tile's segments, one behind the other, are its KV range.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvSegment {
    /// Its first token, counted along the KV range: a multiple of [`GRANULE`].
    pub begin: u32,
    /// Where its first page stands among the page ids; and whether it is [`EVICT_FIRST`].
    pub pages: u32,
    /// Which token of its requests the first one is.
    pub position: u32,
    /// See [`KvSegment::members`].
    pub members: u32,
}

impl KvSegment {
    /// First request of the Q tile that has it, one past the last, and the tokens by which the next segment begins later than this one ends.
    pub const fn members(first: u32, last: u32, padding: u32) -> u32 {
        first | last << 12 | padding << 24
    }
}

/// Bit of [`KvSegment::pages`]: no other CTA of a KV head reads these pages, so L2 evicts them first.
pub const EVICT_FIRST: u32 = 1 << 31;

/// Where a request of a work item goes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputTarget {
    /// The partial, or [`DIRECT`], or [`UNTOUCHED`].
    pub partial: u32,
    /// The [`MergeItem`] that the partial is merged by.
    pub merge: u32,
}

/// The destination of a request that has no other part: its row of the output.
pub const DIRECT: u32 = u32::MAX;

/// The destination of a request that has nothing in a work item: nowhere.
pub const UNTOUCHED: u32 = u32::MAX - 1;

/// Partials of one request that have to be merged.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeItem {
    /// The request.
    pub request: u32,
    /// Its first partial.
    pub partial_begin: u32,
    /// One past its last partial.
    pub partial_end: u32,
    /// CTAs of one KV head that leave some of them.
    pub arrivals: u32,
}

/// What a CTA notes of itself (PAT, figure 12), in nanoseconds of the device's clock; zeros where it did not come so far.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimelineEntry {
    /// Before anything was read.
    pub begin: u64,
    /// The first tokens had arrived.
    pub ready: u64,
    /// The last ones were computed.
    pub computed: u64,
    /// Results were written.
    pub end: u64,
    /// Where it ran.
    pub multiprocessor: u32,
    /// Fills the entry.
    pub unused: u32,
}

/// A tensor map for TMA (`CUtensorMap`), which the driver encodes from an address, strides and sizes.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorMap {
    /// Opaque.
    pub words: [u64; 16],
}

/// Tokens of the TMA boxes of V whose tokens rows see all or none. Boxes of K have the most.
pub const BOX_TOKENS: [u32; 5] = [1, 2, 4, 8, GRANULE];

/// Tokens of the TMA boxes of V that lie partly outside of their tensor ([`Arguments::value_maps`]).
pub const CLIPPED_TOKENS: u32 = 8;

/// Tensor maps of V: boxes of [`BOX_TOKENS`] tokens, and clipped ones.
pub const VALUE_MAPS: usize = BOX_TOKENS.len() + 1;

/// A divisor and what kernels multiply by instead.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastDiv {
    /// The divisor.
    pub by: u32,
    /// 2^32 - 1 over the divisor, rounded down.
    pub reciprocal: u32,
}

impl FastDiv {
    /// Division by a number; kernels divide nothing by 0.
    pub const fn new(by: u32) -> Self {
        let reciprocal = match u32::MAX.checked_div(by) {
            Some(reciprocal) => reciprocal,
            None => 0,
        };
        Self { by, reciprocal }
    }
}

/// The argument of every launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arguments {
    /// Elements `[batch, q_heads, head_dim]`.
    pub query: u64,
    /// Pages of K: elements of the query's type, or bytes of FP8.
    pub keys: u64,
    /// Pages of V, laid out like K.
    pub values: u64,
    /// Elements `[batch, q_heads, head_dim]`.
    pub output: u64,
    /// f32 `[batch, q_heads]`, natural logarithm; 0 if not wanted.
    pub lse: u64,
    /// f32 `[q_heads]`: a logit that every row has beside its tokens; 0 without the option.
    pub sinks: u64,
    /// f32: what an element of K in FP8 is multiplied by; 0 for other elements.
    pub key_scales: u64,
    /// f32: the same of V.
    pub value_scales: u64,
    /// f32 `[partials, q_heads, head_dim]`, not normalised.
    pub partial_output: u64,
    /// f32 `[partials, q_heads, 2]`: maximum (base 2) and sum.
    pub partial_softmax: u64,
    /// u32 `[merges, kv_heads]`: zero; 0 if partials are merged by a launch of their own.
    pub arrivals: u64,
    /// u32: how many merges there are; then of each launch how many work items it has, and whether CTAs of a KV head lie side by side (1)
    /// instead of those of an item (0).
    pub counts: u64,
    /// [`WorkItem`]s of this launch, a CTA for each KV head; as many as the grid is for can be read.
    pub items: u64,
    /// [`MergeItem`]s; one more than there are can be read.
    pub merges: u64,
    /// [`KvSegment`]s of all blocks.
    pub segments: u64,
    /// u32: the requests of all blocks.
    pub requests: u64,
    /// i32: the pages of all segments.
    pub page_ids: u64,
    /// [`OutputTarget`]s: for each KV chunk of a Q tile, the output target of each of its requests.
    pub output_targets: u64,
    /// i32 `[batch]`: tokens of each request.
    pub lengths: u64,
    /// [`TimelineEntry`]s, one for each CTA of the launch; written only by variants with a timeline.
    pub timeline: u64,
    /// From request to request of the query.
    pub query_request: i64,
    /// From head to head of the query.
    pub query_head: i64,
    /// From request to request of the output.
    pub output_request: i64,
    /// From head to head of the output.
    pub output_head: i64,
    /// From page to page of K and V.
    pub page: i64,
    /// From token to token of a page.
    pub token: i64,
    /// From KV head to KV head.
    pub head: i64,
    /// From KV head to KV head of the scales: 1, or 0 where all heads have the same.
    pub scale_head: i64,
    /// Query heads.
    pub q_heads: FastDiv,
    /// KV heads.
    pub kv_heads: FastDiv,
    /// Query heads of one KV head.
    pub gqa_ratio: FastDiv,
    /// Tokens of a page.
    pub page_size: FastDiv,
    /// Work items that this launch has CTAs for, one for each KV head.
    pub launch_items: FastDiv,
    /// Which of the launches that are counted this one is.
    pub group: u32,
    /// The numbers of the mask, and the scale of the logits.
    pub mask: MaskArguments,
    /// 0, which the compiler of the kernels does not know: where an instruction has to wait for registers that it does not read, its address depends on
    /// them by this.
    pub zero: u32,
    /// Page stride over head stride. This and what follows is read by kernels with TMA producers only.
    pub heads_a_page: u32,
    /// Tensor map of K, boxes of [`GRANULE`] tokens.
    pub key_maps: TensorMap,
    /// Boxes of V, of [`BOX_TOKENS`] tokens; the last of [`CLIPPED_TOKENS`], whose tensor has as many tokens that begin anywhere in a page as a
    /// dimension of their own: a box that begins further on in it has zeros behind its last token.
    pub value_maps: [TensorMap; VALUE_MAPS],
}

/// States that one launch of [`super::Kernel::merge_states`] merges at most.
pub const MAX_STATES: usize = 8;

/// The argument of a merge of states, as `cuda/merge_states.cuh` declares it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatesArguments {
    /// Elements `[rows, head_dim]` of each state, each aligned to 16 bytes.
    pub outputs: [u64; MAX_STATES],
    /// f32 `[rows]` of each state, natural logarithm; -inf where nothing was attended.
    pub lses: [u64; MAX_STATES],
    /// Elements `[rows, head_dim]`, aligned to 16 bytes; may be the first of `outputs`.
    pub output: u64,
    /// f32 `[rows]`; 0 if not wanted; may be the first of `lses`.
    pub lse: u64,
    /// Rows (request, query head).
    pub rows: u32,
    /// States, 1 to [`MAX_STATES`].
    pub count: u32,
}

const _: () = assert!(size_of::<WorkItem>() == 48, "as in cuda/abi.cuh");
const _: () = assert!(size_of::<KvSegment>() == 16, "as in cuda/abi.cuh");
const _: () = assert!(size_of::<OutputTarget>() == 8, "as in cuda/abi.cuh");
const _: () = assert!(size_of::<MergeItem>() == 16, "as in cuda/abi.cuh");
const _: () = assert!(size_of::<TimelineEntry>() == 40, "as in cuda/abi.cuh");
const _: () = assert!(
    size_of::<Arguments>()
        == (20 * 8 + 8 * 8 + 12 * 4 + size_of::<MaskArguments>()).next_multiple_of(64) + 7 * 128,
    "as in cuda/abi.cuh"
);
const _: () = assert!(
    size_of::<StatesArguments>() == 2 * MAX_STATES * 8 + 2 * 8 + 2 * 4,
    "as in cuda/merge_states.cuh"
);

#[cfg(test)]
mod tests {
    use super::FastDiv;
    use proptest::prelude::*;

    /// As `cuda/fastdiv.cuh` has it.
    fn quotient(value: u32, divisor: FastDiv) -> u32 {
        let estimated = ((u64::from(value) * u64::from(divisor.reciprocal)) >> 32) as u32;
        if value - estimated * divisor.by >= divisor.by { estimated + 1 } else { estimated }
    }

    proptest! {
        #[test]
        fn quotients_are_exact(value: u32, by in 1..=u32::MAX, small in 1..300_u32, near in 0..3_u32) {
            for by in [by, small] {
                for value in [value, u32::MAX - near, (value / by * by).saturating_sub(1), value / by * by] {
                    prop_assert_eq!(quotient(value, FastDiv::new(by)), value / by);
                }
            }
        }
    }
}
