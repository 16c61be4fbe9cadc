//! What the CPU kernel needs in memory for a tile: known before it runs, used by the rules and by the kernel itself.

use crate::Class;
use tilewright_heuristics::Tile;

/// Bytes of f32 scratch that one thread works in: queries, scores, accumulators and a widened block of K or V.
///
/// The kernel in `runtime` allocates by these sizes, so that a rule about scratch is a rule about what really happens.
pub const fn scratch_bytes(tile: &Tile, class: &Class) -> usize {
    4 * (query_elements(tile, class)
        + score_elements(tile)
        + accumulator_elements(tile, class)
        + kv_elements(class))
}

/// f32 elements of the queries of KV heads that a thread computes together, and as many of their output: 32 KB, so that both stay in L2 beside
/// the K and V that are fetched ahead.
const HEAD_GROUP_ELEMENTS: usize = 8192;

/// KV heads that a thread computes together, a step of tokens after another, for an item of `rows` rows. Where pages hold the heads of a token
/// side by side, memory is then read in order, and each of its pages is found once instead of once a head.
pub const fn heads_at_once(rows: usize, head_dim: usize) -> usize {
    let heads = HEAD_GROUP_ELEMENTS / (rows * head_dim);
    if heads == 0 { 1 } else { heads }
}

/// Rows of a thread's scratch: those of a tile, or of several heads with fewer.
pub const fn rows_at_once(tile: &Tile, class: &Class) -> usize {
    let (m, rows) = (tile.m as usize, HEAD_GROUP_ELEMENTS / class.head_dim as usize);
    if rows > m { rows } else { m }
}

/// f32 elements of the scaled queries: `[rows, head_dim]`.
pub const fn query_elements(tile: &Tile, class: &Class) -> usize {
    rows_at_once(tile, class) * class.head_dim as usize
}

/// f32 elements of the scores: `[m, n]`.
pub const fn score_elements(tile: &Tile) -> usize {
    tile.m as usize * tile.n as usize
}

/// f32 elements of the accumulated output with its maximum and sum: `[rows, head_dim + 2]`.
pub const fn accumulator_elements(tile: &Tile, class: &Class) -> usize {
    rows_at_once(tile, class) * (class.head_dim as usize + 2)
}

/// Tokens of K or V that are taken up at once: few enough to stay in the L1 cache while all rows use them, enough to
/// pay for loading and storing the accumulators.
pub const KV_BLOCK: usize = 16;

/// f32 elements of a block of K or V after widening, `[KV_BLOCK, head_dim]`; f32 pages are read in place and need none.
pub const fn kv_elements(class: &Class) -> usize {
    match class.dtype {
        tilewright_heuristics::Dtype::F32 => 0,
        _ => KV_BLOCK * class.head_dim as usize,
    }
}

/// Bytes of K and V of a KV head that are on their way from memory while a step is computed: one step a stage. A thread fetches as many of all
/// heads that it computes together, which for most rows are one or two.
pub const fn prefetched_bytes(tile: &Tile, class: &Class) -> usize {
    2 * tile.stages as usize * tile.n as usize * class.head_dim as usize * class.dtype.kv_bytes()
}
