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
    /// 0.15 % of the best of 40 batches (geometric mean), the 12 best within 0.5 %; of other head dimensions the six best hold the best tile of all their
    /// batches.
    pub(super) const AT: [Self; 2] = [Self { shapes: 20 }, Self { shapes: 6 }];

    /// The tiles that are tried first.
    pub(super) fn first(&self, tiles: &[Tile]) -> Vec<Tile> {
        self.ones(tiles).unwrap_or_else(|| tiles.to_vec())
    }

    /// One tile of each shape. `None` where a look leaves all of them.
    pub(super) fn ones(&self, tiles: &[Tile]) -> Option<Vec<Tile>> {
        let shapes = of_each_shape(tiles);
        let useless = shapes.len() <= self.shapes || shapes.len() == tiles.len();
        (!useless).then(|| shapes.into_values().collect())
    }

    /// What is left by the tiles from `best` on: those of the best shapes that passed; and of the others of these shapes those that are near. One that does
    /// not pass mostly spills registers, as all tiles of its shape do.
    pub(super) fn left(&self, tiles: &[Tile], ones: &[Tile], passed: &[Tile], best: &[Tile]) -> Looked {
        let kept: Vec<Tile> =
            best.iter().copied().filter(|tile| passed.contains(tile)).take(self.shapes).collect();
        let shapes: BTreeSet<Tile> = kept.iter().map(shape).collect();
        let others = tiles.iter().filter(|tile| shapes.contains(&shape(tile)) && !ones.contains(tile));
        let left = others.filter(|tile| is_near(tile, ones)).copied().collect();
        Looked { left, passed: kept }
    }

    /// About how many of these tiles are tried.
    pub(super) fn tried(&self, tiles: &[Tile]) -> usize {
        let Some(ones) = self.ones(tiles) else { return tiles.len() };
        let others = tiles.iter().filter(|tile| !ones.contains(tile));
        let others = others.filter(|tile| is_near(tile, &ones)).count();
        ones.len() + others * self.shapes / ones.len()
    }
}

/// One tile of each shape: that with two stages, or nearest to two.
fn of_each_shape(tiles: &[Tile]) -> BTreeMap<Tile, Tile> {
    let mut shapes: BTreeMap<Tile, Tile> = BTreeMap::new();
    let distance = |tile: &Tile| (tile.stages.abs_diff(2), tile.stages);
    for tile in tiles {
        let chosen = shapes.entry(shape(tile)).or_insert(*tile);
        if distance(tile) < distance(chosen) {
            *chosen = *tile;
        }
    }
    shapes
}

/// Whether a tile has one stage more or less than that of its shape among these. Without all others, the best tiles of 1152 batches take 0.02 % more on an H200 and
/// 0.03 % on an H100 (3.4 % at worst), and a run compiles a tenth fewer kernels.
pub(super) fn is_near(tile: &Tile, ones: &[Tile]) -> bool {
    ones.iter().any(|one| same_shape(one, tile) && one.stages.abs_diff(tile.stages) <= 1)
}

/// What a first look leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Looked {
    /// Tiles that passed their trial.
    pub passed: Vec<Tile>,
    /// Tiles that are to be tried.
    pub left: Vec<Tile>,
}

impl Looked {
    /// Without a look.
    pub(super) fn all(tiles: &[Tile]) -> Self {
        Self { passed: Vec::new(), left: tiles.to_vec() }
    }

    /// Whether it leaves a tile of that shape.
    pub(super) fn has_shape_of(&self, tile: &Tile) -> bool {
        self.passed.iter().chain(&self.left).any(|left| same_shape(left, tile))
    }
}

/// Whether two tiles differ by their stages at most.
pub(super) fn same_shape(one: &Tile, other: &Tile) -> bool {
    shape(one) == shape(other)
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
            "m16n64w4s1",
            "m16n64w4s2",
            "m16n64w4s3",
            "m32n64w4s3",
            "m32n64w4s4",
            "m64n64w4s1",
            "m64n64w4s2",
            "m64n96w4s1",
            "m64n96w4s3",
        ]
        .map(tile);
        let ones = look.ones(&tiles).unwrap();
        assert_eq!(ones, ["m16n64w4s2", "m32n64w4s3", "m64n64w4s2", "m64n96w4s1"].map(tile));
        // One of 64 rows was best, one of 16 second; that of 32 failed, and the other one of 64 lost.
        let best = ["m64n64w4s2", "m16n64w4s2", "m64n96w4s1"].map(tile);
        let looked = look.left(&tiles, &ones, &best, &best);
        assert_eq!(looked.passed, ["m64n64w4s2", "m16n64w4s2"].map(tile));
        assert_eq!(looked.left, ["m16n64w4s1", "m16n64w4s3", "m64n64w4s1"].map(tile));
        assert!(looked.has_shape_of(&tile("m64n64w4s3")));
        assert!(!looked.has_shape_of(&tile("m32n64w4s3")) && !looked.has_shape_of(&tile("m64n96w4s3")));
    }

    #[test]
    fn a_look_leaves_tiles_with_one_stage_more_or_less() {
        let (tile, look) = (Tile::of, Look { shapes: 1 });
        let tiles = [
            "m16n64w4s1",
            "m16n64w4s2",
            "m16n64w4s3",
            "m16n64w4s4",
            "m16n64w4s6",
            "m32n64w4s3",
            "m32n64w4s4",
            "m64n64w4s2",
        ]
        .map(tile);
        let ones = look.ones(&tiles).unwrap();
        let best = ["m16n64w4s2", "m64n64w4s2"].map(tile);
        let looked = look.left(&tiles, &ones, &best, &best);
        assert_eq!(looked.passed, best[..1]);
        assert_eq!(looked.left, ["m16n64w4s1", "m16n64w4s3"].map(tile));
        assert_eq!(look.tried(&tiles), 3 + 1);
    }

    #[test]
    fn a_look_that_leaves_everything_is_none() {
        let tiles = ["m16n64w4s1", "m16n64w4s2", "m64n64w4s2"].map(Tile::of);
        let look = |shapes: usize| Look { shapes };
        assert!(look(2).ones(&tiles).is_none());
        assert!(look(1).ones(&tiles[1..]).is_none());
        assert_eq!(look(2).tried(&tiles), 3);
        assert_eq!(look(1).tried(&tiles), 2);
    }
}
