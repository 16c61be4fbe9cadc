//! What a launch reads and writes, as `cuda/arguments.cuh` declares it.
//!
//! Distances are in elements and 64 bits wide, so a cache may hold more than 2^31 elements. Pointers are plain addresses: of a
//! device's memory for a GPU, of the host's for the emulation.

/// What one CTA computes: rows of a pack over a range of its tokens, for one KV head.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkItem {
    /// The KV head.
    pub kv_head: u32,
    /// First row of the pack: request in the pack x GQA ratio + query head of the KV head.
    pub row_begin: u32,
    /// One past the last row; at most m rows.
    pub row_end: u32,
    /// First token: a multiple of the page size.
    pub kv_begin: u32,
    /// One past the last token; the lengths on the device cut it further.
    pub kv_end: u32,
    /// Where the page of `kv_begin` stands among the page ids.
    pub pages: u32,
    /// Where the pack's first request stands among the requests.
    pub requests: u32,
    /// Where the destination of the pack's first request stands among the slots.
    pub slots: u32,
}

/// Partials of one request that have to be merged; none at all if it has no tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeItem {
    /// The request.
    pub request: u32,
    /// Its first partial.
    pub partial_begin: u32,
    /// One past its last partial.
    pub partial_end: u32,
}

/// The argument of every launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arguments {
    /// Elements `[batch, q_heads, head_dim]`.
    pub query: u64,
    /// Pages of K.
    pub keys: u64,
    /// Pages of V, laid out like K.
    pub values: u64,
    /// Elements `[batch, q_heads, head_dim]`.
    pub output: u64,
    /// f32 `[batch, q_heads]`, natural logarithm; 0 if nobody wants it.
    pub lse: u64,
    /// f32 `[q_heads]`: a logit that every row has beside its tokens; 0 without the option.
    pub sinks: u64,
    /// f32 `[partials, q_heads, head_dim]`, not normalised.
    pub partial_output: u64,
    /// f32 `[partials, q_heads, 2]`: maximum (base 2) and sum.
    pub partial_softmax: u64,
    /// [`WorkItem`]s of this launch, one a CTA.
    pub items: u64,
    /// [`MergeItem`]s.
    pub merges: u64,
    /// u32: the requests of all packs.
    pub requests: u64,
    /// i32: the pages of all packs.
    pub page_ids: u64,
    /// u32: for each part of a pack, the partial of each of its requests, or all ones.
    pub slots: u64,
    /// i32 `[batch]`: tokens of each request.
    pub lengths: u64,
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
    /// Query heads.
    pub q_heads: u32,
    /// Query heads of one KV head.
    pub gqa_ratio: u32,
    /// Tokens of a page.
    pub page_size: u32,
    /// A row sees its last so many tokens; read only by variants with a window. At most `i32::MAX`.
    pub window: u32,
    /// Factor of the logits times log2(e).
    pub scale_log2: f32,
    /// Bound of the logits; read only by variants with a soft-cap.
    pub softcap: f32,
}

const _: () = assert!(size_of::<WorkItem>() == 32, "as in cuda/arguments.cuh");
const _: () = assert!(size_of::<MergeItem>() == 12, "as in cuda/arguments.cuh");
const _: () = assert!(size_of::<Arguments>() == 14 * 8 + 7 * 8 + 6 * 4, "as in cuda/arguments.cuh");
