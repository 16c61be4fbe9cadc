//! Which tiles of a space a first look has, and which it leaves.

use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::Tile;

/// A first look at a class's tiles: one of each shape, as tiles that differ by their stages alone differ least.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Shapes whose other tiles it leaves.
    pub shapes: usize,
}

impl Look {
    /// At the class with the most batches, and at each other one. Of an H200's 162 tiles of 43 shapes, the 20 best shapes of ten batches hold a tile within
    /// 0.15 % of the best of 40 batches (geometric mean), the 12 best within 0.5 %.
    pub(super) const AT: [Self; 2] = [Self { shapes: 20 }, Self { shapes: 12 }];

    /// One tile of each shape: that with two stages, or nearest to two. `None` where a look leaves all of them.
    pub(super) fn ones(&self, tiles: &[Tile]) -> Option<Vec<Tile>> {
        let mut shapes: BTreeMap<Tile, Tile> = BTreeMap::new();
        let distance = |tile: &Tile| (tile.stages.abs_diff(2), tile.stages);
        for tile in tiles {
            let chosen = shapes.entry(shape(tile)).or_insert(*tile);
            if distance(tile) < distance(chosen) {
                *chosen = *tile;
            }
        }
        let useless = shapes.len() <= self.shapes || shapes.len() == tiles.len();
        (!useless).then(|| shapes.into_values().collect())
    }

    /// Of `best`, from the best tile on, those of the best shapes that passed; and the other tiles of these shapes and of those whose tile did not pass, which
    /// says nothing of the others.
    pub(super) fn left(
        &self,
        tiles: &[Tile],
        ones: &[Tile],
        passed: &[Tile],
        best: &[Tile],
    ) -> (Vec<Tile>, Vec<Tile>) {
        let kept: Vec<Tile> =
            best.iter().copied().filter(|tile| passed.contains(tile)).take(self.shapes).collect();
        let failed = ones.iter().filter(|tile| !passed.contains(tile));
        let shapes: BTreeSet<Tile> = kept.iter().chain(failed).map(shape).collect();
        let others = tiles.iter().filter(|tile| shapes.contains(&shape(tile)) && !ones.contains(tile));
        (kept.clone(), others.copied().collect())
    }

    /// About how many of these tiles are tried.
    pub(super) fn tried(&self, tiles: &[Tile]) -> usize {
        let Some(ones) = self.ones(tiles) else { return tiles.len() };
        ones.len() + (tiles.len() - ones.len()) * self.shapes / ones.len()
    }
}

/// A tile without what those of a shape differ by.
fn shape(tile: &Tile) -> Tile {
    Tile { stages: 1, ..*tile }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_look_has_one_tile_of_each_shape_and_leaves_the_others_of_the_best() {
        let (tile, look) = (Tile::of, Look { shapes: 2 });
        let tiles = [
            "m16n64w4s1", "m16n64w4s2", "m16n64w4s3", "m32n64w4s3", "m32n64w4s4", "m64n64w4s1", "m64n64w4s2",
            "m64n96w4s1", "m64n96w4s3",
        ]
        .map(tile);
        let ones = look.ones(&tiles).unwrap();
        assert_eq!(ones, ["m16n64w4s2", "m32n64w4s3", "m64n64w4s2", "m64n96w4s1"].map(tile));
        // One of 64 rows was best, one of 16 second; that of 32 failed, and the other one of 64 lost.
        let best = ["m64n64w4s2", "m16n64w4s2", "m64n96w4s1"].map(tile);
        let (kept, others) = look.left(&tiles, &ones, &best, &best);
        assert_eq!(kept, ["m64n64w4s2", "m16n64w4s2"].map(tile));
        assert_eq!(others, ["m16n64w4s1", "m16n64w4s3", "m32n64w4s4", "m64n64w4s1"].map(tile));
    }

    #[test]
    fn a_look_that_leaves_everything_is_none() {
        let tiles = ["m16n64w4s1", "m16n64w4s2", "m64n64w4s2"].map(Tile::of);
        assert!(Look { shapes: 2 }.ones(&tiles).is_none());
        assert!(Look { shapes: 1 }.ones(&tiles[1..]).is_none());
        assert_eq!(Look { shapes: 2 }.tried(&tiles), 3);
        assert_eq!(Look { shapes: 1 }.tried(&tiles), 2);
    }
}
