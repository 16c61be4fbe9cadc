//! Batch-invariant attention: where the chunks of a request begin, and which tiles sum them alike.
//!
//! A request's tokens are cut at positions that only the position decides. Each chunk is summed from nothing, in steps of the tile's n tokens
//! that begin at multiples of n, and the chunks are added up in their order. `docs/invariance.md` says why no bit depends on more.

use crate::{Backend, Dtype, Tile, TileSet};

/// Tokens of the first chunks, and of the shortest. `cuda/chunk.cuh` has the same numbers.
pub const SHORTEST: u32 = 512;

/// Chunks from a position to twice it, once they are longer than [`SHORTEST`]: few enough for long requests, and short enough that one alone
/// fills a GPU.
pub const AN_OCTAVE: u32 = 16;

/// Tokens of the chunk that a position is in: a power of two, of which the chunk begins at a multiple.
pub const fn length_at(position: u32) -> u32 {
    let share = position / AN_OCTAVE;
    if share < 2 * SHORTEST { SHORTEST } else { 1 << (share.ilog2()) }
}

/// Where the chunk of a position begins.
pub const fn begin_of(position: u32) -> u32 {
    position / length_at(position) * length_at(position)
}

/// Where the next chunk begins behind a position.
pub const fn next_behind(position: u32) -> u32 {
    begin_of(position).saturating_add(length_at(position))
}

/// Families of tiles, best first: a device gets the first whose tiles all run there. A plan takes one of its family, whichever ends first by the
/// planner's prices: all of them give a row the same bits.
///
/// They have the same number of tokens a step, under one softmax a row. A tile with a warp for each 16 rows has all tokens of a step in it; of 16 rows more
/// warps share out a step, each of whose numbers is made as one of them alone would make it (`cuda/split_step.cuh`). Of heads of more than 256 elements the
/// warps of a row have logits of a part each. That `mma.sync` and `wgmma` then give the same bits, no document says: `docs/invariance.md` says what shows it.
pub const fn families(backend: Backend, head_dim: u32, dtype: Dtype) -> &'static [TileSet<'static>] {
    const fn of(tiles: &'static [Tile]) -> TileSet<'static> {
        TileSet::new(tiles)
    }
    const CPU: &[TileSet<'static>] =
        &[of(&[Tile::new(16, 64, 1, 1)]), of(&[Tile::new(4, 64, 1, 1)]), of(&[Tile::new(1, 64, 1, 1)])];
    const UP_TO_64: &[TileSet<'static>] = &[
        of(&[Tile::new(16, 128, 4, 1), Tile::new(64, 128, 4, 2)]),
        of(&[Tile::new(16, 128, 4, 1), Tile::new(64, 128, 4, 1)]),
        of(&[Tile::new(16, 128, 4, 1)]),
    ];
    // A warp writes pairs of eight elements, of which 96 have six.
    const UP_TO_96: &[TileSet<'static>] = &[
        of(&[Tile::new(16, 64, 2, 1), Tile::new(64, 64, 4, 2)]),
        of(&[Tile::new(16, 64, 2, 1), Tile::new(64, 64, 4, 1)]),
        of(&[Tile::new(16, 64, 2, 1)]),
    ];
    const UP_TO_128: &[TileSet<'static>] = &[
        of(&[Tile::new(16, 64, 4, 2), Tile::new(64, 64, 4, 2)]),
        of(&[Tile::new(16, 64, 4, 2), Tile::new(64, 64, 4, 1)]),
        of(&[Tile::new(16, 64, 4, 2)]),
        of(&[Tile::new(64, 64, 4, 2)]),
        of(&[Tile::new(16, 64, 4, 1)]),
    ];
    // Longer heads: an SM holds one CTA of 64 rows, whose totals take as much shared memory as steps of K and V.
    const UP_TO_192: &[TileSet<'static>] = &[
        of(&[Tile::new(16, 64, 4, 1), Tile::new(64, 64, 4, 2)]),
        of(&[Tile::new(16, 64, 4, 1)]),
        of(&[Tile::new(16, 32, 2, 1)]),
    ];
    // Steps of 32 tokens leave room for three stages of them. In FP8 steps of 64 tokens are faster for 16 rows, and no taller tile of such steps is.
    const UP_TO_256: &[TileSet<'static>] =
        &[of(&[Tile::new(16, 32, 2, 1), Tile::new(64, 32, 4, 3)]), of(&[Tile::new(16, 32, 2, 1)])];
    const UP_TO_256_FP8: &[TileSet<'static>] =
        &[of(&[Tile::new(16, 64, 4, 1)]), of(&[Tile::new(16, 32, 2, 1)])];
    const SPLIT: &[TileSet<'static>] = &[of(&[Tile::new(16, 32, 4, 1)]), of(&[Tile::new(16, 16, 4, 1)])];
    match (backend, head_dim) {
        (Backend::Cpu, _) => CPU,
        (Backend::Cuda, ..=64) => UP_TO_64,
        (Backend::Cuda, ..=96) => UP_TO_96,
        (Backend::Cuda, ..=128) => UP_TO_128,
        (Backend::Cuda, ..=192) => UP_TO_192,
        (Backend::Cuda, ..=256) if dtype.has_fp8_kv() => UP_TO_256_FP8,
        (Backend::Cuda, ..=256) => UP_TO_256,
        (Backend::Cuda, _) => SPLIT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_follow_each_other_and_grow_with_the_position() {
        let mut begin = 0;
        let mut count = 0;
        while begin < 1 << 20 {
            let end = next_behind(begin);
            assert_eq!((begin_of(begin), begin_of(end - 1), begin_of(end)), (begin, begin, end));
            assert!((end - begin).is_power_of_two() && begin.is_multiple_of(end - begin));
            assert!(
                end - begin >= SHORTEST && (end - begin == SHORTEST || (end - begin) * AN_OCTAVE <= begin)
            );
            (begin, count) = (end, count + 1);
        }
        assert_eq!(count, 32 + 16 * 6, "32 up to 16384, then sixteen an octave");
        assert_eq!(begin_of(u32::MAX), u32::MAX / (1 << 27) * (1 << 27));
        assert_eq!(next_behind(u32::MAX), u32::MAX);
    }

    #[test]
    fn tiles_of_a_family_multiply_alike() {
        for (head_dim, dtype) in
            [64, 96, 128, 192, 256, 512].map(|dim| [(dim, Dtype::F16), (dim, Dtype::Fp8F16)]).concat()
        {
            for family in families(Backend::Cuda, head_dim, dtype) {
                let steps = family.tiles()[0].n;
                for tile in family.tiles() {
                    assert_eq!(tile.n, steps, "{tile}");
                    let of_16_rows = tile.warps / (tile.m / 16);
                    let alike = if head_dim > 256 { 4 } else { 1 };
                    assert!(
                        of_16_rows == alike || (tile.m == 16 && head_dim <= 256),
                        "{tile}: {of_16_rows} warps for 16 rows"
                    );
                    assert!(u32::from(tile.n) <= SHORTEST && SHORTEST.is_multiple_of(tile.n.into()));
                }
            }
        }
    }
}
