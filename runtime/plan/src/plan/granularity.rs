//! Granularity that every backend's kernels share.

/// Tokens of the smallest step of a kernel. KV segments and KV chunks begin at multiples of it along a KV range.
pub const GRANULE: u32 = tilewright_heuristics::chunk::GRANULE;

/// Rows of one warp. Segments that only the rows of one warp read come last in a KV range.
pub const WARP_ROWS: u32 = 16;

/// KV segments that a work item of a tile of m rows may have: the kernels keep them in shared memory.
pub const fn max_segments(m: u32) -> u32 {
    m + 32
}
