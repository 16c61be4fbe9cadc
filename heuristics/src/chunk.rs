//! Batch-invariant attention: where the chunks of a request begin, and which tiles sum them alike.
//!
//! A request's tokens are cut at positions that only the position and the model's KV heads decide. Each chunk is summed from nothing, [`shared_tokens`] at once,
//! from multiples of that on, and the chunks are added up in their order. `docs/invariance.md` says why no bit depends on more.

use crate::{Backend, Dtype, Tile, TileSet};
use std::ops::Range;

/// Tokens of the first chunks, and of the shortest. `cuda/chunk.cuh` has the same numbers.
pub const SHORTEST: u32 = 512;

/// Where the chunks of a request begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Chunks from a position to twice it, once they are longer than [`SHORTEST`].
    an_octave: u32,
}

impl Chunks {
    /// Those of a model, or of a rank's part of it, with so many KV heads: few enough chunks for long requests, and short enough that one request alone
    /// fills a GPU, which takes more of them where few KV heads make few CTAs of each.
    pub const fn of(kv_heads: u32) -> Self {
        Self { an_octave: if kv_heads < 8 { 32 } else { 16 } }
    }

    /// Tokens of the chunk that a position is in: a power of two, of which the chunk begins at a multiple.
    const fn length_at(self, position: u32) -> u32 {
        let share = position / self.an_octave;
        if share < 2 * SHORTEST { SHORTEST } else { 1 << share.ilog2() }
    }

    /// Where the chunk of a position begins.
    pub const fn begin_of(self, position: u32) -> u32 {
        position / self.length_at(position) * self.length_at(position)
    }

    /// Where the next chunk begins behind a position.
    pub const fn next_behind(self, position: u32) -> u32 {
        self.begin_of(position).saturating_add(self.length_at(position))
    }

    /// Which chunk a position is in, counted from a request's first one.
    const fn index_of(self, position: u32) -> u32 {
        let length = self.length_at(position);
        position / length + self.an_octave * (length / SHORTEST).ilog2()
    }

    /// How many chunks begin within these positions, behind the first of them; there is one at least.
    pub const fn begins_within(self, positions: &Range<u32>) -> u32 {
        self.index_of(positions.end - 1) - self.index_of(positions.start)
    }
}

/// Tokens that tensor cores take at once: by which segments are aligned, masked and weighed.
pub const GRANULE: u32 = 16;

/// The parts of a tile's steps with whose last tokens chunks may end, in tokens, at least 1: whole steps, or parts of long ones. `cuda/chunk.cuh` has the same numbers.
pub const fn part_tokens(tile: &Tile, head_dim: u32) -> u32 {
    let most = if head_dim > 64 && head_dim <= 192 { 64 } else { 128 };
    match tile.n as u32 {
        0 => 1,
        n if n > most => most,
        n => n,
    }
}

/// Tokens of a row that batch-invariant kernels of a tile have under one maximum, from multiples of it on: those of a request are shared up to such a multiple. Kernels
/// for a GPU decide for each 16 tokens (`cuda/softmax_step.cuh`), those for a processor, whose tiles have one warp, for a step.
pub const fn shared_tokens(tile: &Tile, head_dim: u32) -> u32 {
    let part = part_tokens(tile, head_dim);
    if tile.warps > 1 && part.is_multiple_of(GRANULE) { GRANULE } else { part }
}

/// Families of tiles, best first: a device gets the first whose tiles all run there. A plan takes one of its family, whichever ends first by the
/// planner's prices: all of them give a row the same bits.
///
/// They have the same number of tokens under one maximum of a row ([`shared_tokens`]). Of 16 rows several
/// warps share out a step, each of whose numbers is made as one of them alone would make it (`cuda/split_step.cuh`). Of
/// heads of more than 256 elements the warps of a row have logits of a part each. That `mma.sync` and `wgmma` then give the same bits, no document says: `docs/invariance.md` says what shows it.
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
    // Of 16 rows an SM holds three CTAs with steps of 64 tokens, and two with longer steps, which take less where CTAs have an SM each, or follow each other.
    const UP_TO_128: &[TileSet<'static>] = &[
        of(&[Tile::new(16, 64, 4, 2), Tile::new(16, 128, 4, 1), Tile::new(64, 64, 4, 2)]),
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
    // Steps of 32 tokens leave room for three stages of them.
    const UP_TO_256: &[TileSet<'static>] =
        &[of(&[Tile::new(16, 32, 2, 1), Tile::new(64, 32, 4, 3)]), of(&[Tile::new(16, 32, 2, 1)])];
    // In FP8 a step of 128 tokens has as many bytes as one of 64 in 16 bits.
    const FP8_UP_TO_192: &[TileSet<'static>] = &[
        of(&[Tile::new(16, 128, 4, 1), Tile::new(64, 64, 4, 2)]),
        of(&[Tile::new(16, 128, 4, 1), Tile::new(64, 64, 4, 1)]),
        of(&[Tile::new(16, 128, 4, 1)]),
        of(&[Tile::new(16, 64, 4, 1)]),
        of(&[Tile::new(16, 32, 2, 1)]),
    ];
    // Longer ones have no taller tile that is worth it.
    const FP8_UP_TO_256: &[TileSet<'static>] =
        &[of(&[Tile::new(16, 128, 4, 1)]), of(&[Tile::new(16, 64, 4, 1)]), of(&[Tile::new(16, 32, 2, 1)])];
    const SPLIT: &[TileSet<'static>] = &[of(&[Tile::new(16, 32, 4, 1)]), of(&[Tile::new(16, 16, 4, 1)])];
    match (backend, head_dim) {
        (Backend::Cpu, _) => CPU,
        (Backend::Cuda, ..=64) => UP_TO_64,
        (Backend::Cuda, ..=96) => UP_TO_96,
        (Backend::Cuda, ..=192) if dtype.has_fp8_kv() => FP8_UP_TO_192,
        (Backend::Cuda, ..=128) => UP_TO_128,
        (Backend::Cuda, ..=192) => UP_TO_192,
        (Backend::Cuda, ..=256) if dtype.has_fp8_kv() => FP8_UP_TO_256,
        (Backend::Cuda, ..=256) => UP_TO_256,
        (Backend::Cuda, _) => SPLIT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_follow_each_other_and_grow_with_the_position() {
        for (kv_heads, an_octave) in [(1, 32), (7, 32), (8, 16), (32, 16)] {
            let chunks = Chunks::of(kv_heads);
            let (mut begin, mut count, mut before) = (0, 0, SHORTEST);
            while begin < 1 << 20 {
                let end = chunks.next_behind(begin);
                assert_eq!(
                    (chunks.begin_of(begin), chunks.begin_of(end - 1), chunks.begin_of(end)),
                    (begin, begin, end)
                );
                let length = end - begin;
                assert!(length.is_power_of_two() && begin.is_multiple_of(length));
                assert!(length == before || length == 2 * before);
                assert!(length == SHORTEST || length * an_octave <= begin);
                assert_eq!([begin, end - 1].map(|position| chunks.index_of(position)), [count; 2]);
                assert_eq!(chunks.begins_within(&(0..begin + 1)), count);
                (begin, count, before) = (end, count + 1, length);
            }
            let octaves = 20 - (2 * an_octave * SHORTEST).ilog2();
            assert_eq!(
                count,
                (2 + octaves) * an_octave,
                "up to twice as many of the shortest, then an octave's"
            );
            assert_eq!(chunks.next_behind(u32::MAX), u32::MAX);
        }
    }

    #[test]
    fn tiles_of_a_family_multiply_alike() {
        for (head_dim, dtype) in
            [64, 96, 128, 192, 256, 512].map(|dim| [(dim, Dtype::F16), (dim, Dtype::Fp8F16)]).concat()
        {
            for family in families(Backend::Cuda, head_dim, dtype) {
                for tile in family.tiles() {
                    assert_eq!(shared_tokens(tile, head_dim), GRANULE, "{tile}");
                    let tokens = part_tokens(tile, head_dim);
                    assert!(u32::from(tile.n) == tokens || tile.m == 16, "{tile}: one part a step");
                    let of_16_rows = tile.warps / (tile.m / 16);
                    let alike = if head_dim > 256 { 4 } else { 1 };
                    assert!(
                        of_16_rows == alike || (tile.m == 16 && head_dim <= 256),
                        "{tile}: {of_16_rows} warps for 16 rows"
                    );
                    assert!(u32::from(tile.n).is_multiple_of(tokens) && SHORTEST.is_multiple_of(tokens));
                }
            }
        }
    }
}
