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

/// f32 elements of the scaled queries: `[m, head_dim]`.
pub const fn query_elements(tile: &Tile, class: &Class) -> usize {
    tile.m as usize * class.head_dim as usize
}

/// f32 elements of the scores: `[m, n]`.
pub const fn score_elements(tile: &Tile) -> usize {
    tile.m as usize * tile.n as usize
}

/// f32 elements of the accumulated output with its maximum and sum: `[m, head_dim + 2]`.
pub const fn accumulator_elements(tile: &Tile, class: &Class) -> usize {
    tile.m as usize * (class.head_dim as usize + 2)
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

/// Bytes of K and V that are on their way from memory while one tile is computed.
pub const fn prefetched_bytes(tile: &Tile, class: &Class) -> usize {
    2 * (tile.stages as usize - 1) * tile.n as usize * class.head_dim as usize * class.dtype.kv_bytes()
}
