//! Where the rows of a work item go: the output, or a partial that is merged.

/// Where a request of a work item goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputTarget {
    /// The partial, or [`DIRECT`], or [`UNTOUCHED`].
    pub partial: u32,
    /// Index into [`Plan::merges`](super::Plan::merges): the merge that reads the partial.
    pub merge: u32,
}

/// The target of a request that has no other KV chunk: its row of the output.
pub const DIRECT: u32 = u32::MAX;

/// The target of a request that reads nothing in a work item: none.
pub const UNTOUCHED: u32 = u32::MAX - 1;

/// Partials of one request that have to be merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeItem {
    /// The request.
    pub request: u32,
    /// Its first partial.
    pub partial_begin: u32,
    /// One past its last partial.
    pub partial_end: u32,
    /// CTAs of one KV head that write these partials.
    pub arrivals: u32,
}
