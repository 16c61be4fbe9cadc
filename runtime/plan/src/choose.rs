//! Who chooses tiles: once a batch, which tiles its packs may get; then, for each pack, which of them.

use crate::PrefixTree;
use tilewright_heuristics::{BatchShape, BatchSums, Geometry, PackShape, Selection, Tile, TileSet};

/// Chooses the tiles of a plan. Closures from a pack to a tile decide pack by pack, and know nothing of the batch.
pub trait ChooseTiles {
    /// Decides on a batch: the packs that are asked about next are of it. The tiles that they may get, ascending by rows, the last
    /// repeated; `None` if they are not known before the packs are.
    fn batch(&mut self, batch: &BatchShape) -> Option<[Tile; TileSet::MOST]>;

    /// The tile of a pack of that batch: the same for the same shape.
    fn pack(&mut self, pack: &PackShape) -> Tile;

    /// Whether its choice depends on the batch's numbers: if not, they are not counted, and [`ChooseTiles::batch`] is told zeros.
    fn decides_batches(&self) -> bool {
        true
    }
}

impl<F: FnMut(&PackShape) -> Tile> ChooseTiles for F {
    fn batch(&mut self, _: &BatchShape) -> Option<[Tile; TileSet::MOST]> {
        None
    }

    fn pack(&mut self, pack: &PackShape) -> Tile {
        self(pack)
    }

    fn decides_batches(&self) -> bool {
        false
    }
}

/// Chooses by a device's [`Selection`]: the set of the batch, and of it the lowest tile that holds a pack's rows.
#[derive(Clone, Copy, Debug)]
pub struct BySelection<'a> {
    selection: &'a Selection,
    set: TileSet<'a>,
}

impl<'a> BySelection<'a> {
    /// What the selection says of any batch. Before the first, of an empty one.
    pub fn new(selection: &'a Selection) -> Self {
        Self { selection, set: selection.select(&BatchShape::UNKNOWN) }
    }

    /// The set of the last batch.
    pub const fn set(&self) -> TileSet<'a> {
        self.set
    }
}

impl ChooseTiles for BySelection<'_> {
    fn batch(&mut self, batch: &BatchShape) -> Option<[Tile; TileSet::MOST]> {
        self.set = self.selection.select(batch);
        Some(self.set.repeated())
    }

    fn pack(&mut self, pack: &PackShape) -> Tile {
        self.set.tile(pack)
    }
}

/// Chooses as a device does.
#[derive(Clone, Copy, Debug)]
pub enum Choose<'a> {
    /// By its selection.
    Selection(BySelection<'a>),
    /// The family of its batch-invariant plans.
    Set(TileSet<'a>),
}

impl ChooseTiles for Choose<'_> {
    fn batch(&mut self, batch: &BatchShape) -> Option<[Tile; TileSet::MOST]> {
        match self {
            Self::Selection(selection) => selection.batch(batch),
            Self::Set(set) => set.batch(batch),
        }
    }

    fn pack(&mut self, pack: &PackShape) -> Tile {
        match self {
            Self::Selection(selection) => selection.pack(pack),
            Self::Set(set) => set.tile(pack),
        }
    }

    fn decides_batches(&self) -> bool {
        matches!(self, Self::Selection(_))
    }
}

/// The same set for every batch.
impl ChooseTiles for TileSet<'_> {
    fn batch(&mut self, _: &BatchShape) -> Option<[Tile; TileSet::MOST]> {
        Some(self.repeated())
    }

    fn pack(&mut self, pack: &PackShape) -> Tile {
        self.tile(pack)
    }

    fn decides_batches(&self) -> bool {
        false
    }
}

/// The same tile for every pack.
impl ChooseTiles for Tile {
    fn batch(&mut self, _: &BatchShape) -> Option<[Tile; TileSet::MOST]> {
        Some([*self; TileSet::MOST])
    }

    fn pack(&mut self, _: &PackShape) -> Tile {
        *self
    }

    fn decides_batches(&self) -> bool {
        false
    }
}

/// What a selector is told of the batch whose prefix trees these are. Linear in the nodes.
pub fn batch_shape(geometry: &Geometry, tree: &impl PrefixTree) -> BatchShape {
    let page_size = u64::from(geometry.page_size);
    let mut sums = BatchSums::default();
    tree.roots().for_each(|root| sums.add_tree(tree.size(root).into()));
    let mut pages = 0;
    for node in 0..tree.capacity() as u32 {
        let requests = tree.size(node);
        if requests > 0 {
            let columns = tree.columns(node);
            pages = columns.end.max(pages);
            sums.add_node(u64::from(columns.end - columns.start) * page_size, requests.into());
        }
    }
    sums.longest = u64::from(pages) * page_size;
    BatchShape::of(geometry, &sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Forest, LiveForest, PageTable};
    use proptest::prelude::*;
    use tilewright_heuristics::Dtype;

    const GEOMETRY: Geometry =
        Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };

    #[test]
    fn a_batch_is_counted_in_whole_pages() {
        // Two requests share two pages and have one each; a third has three to itself, the last with one token.
        let entries = [[0, 1, 2], [0, 1, 3], [4, 5, 6]].concat();
        let table = PageTable::new(&entries, 3, &[48, 40, 33], 16).unwrap();
        let shape = batch_shape(&GEOMETRY, &Forest::build(&table));
        assert_eq!((shape.requests, shape.trees, shape.lone), (3, 2, 1));
        assert_eq!((shape.unique_tokens, shape.longest, shape.private_percent), (112, 48, 71));
        assert_eq!((shape.shared_rows, shape.all_rows), (8, 24));
    }

    proptest! {
        #[test]
        fn a_forest_that_followed_the_batch_counts_the_same(rows in prop::collection::vec(prop::collection::vec(0i32..3, 0..7), 0..12)) {
            let seq_lens: Vec<u32> = rows.iter().map(|row| (row.len() as u32 * 16).saturating_sub(3)).collect();
            let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0);
            let padded = |row: &Vec<i32>| row.iter().copied().chain(std::iter::repeat_n(-1, max_pages - row.len())).collect::<Vec<_>>();
            let entries: Vec<i32> = rows.iter().flat_map(padded).collect();
            let table = PageTable::new(&entries, max_pages, &seq_lens, 16).unwrap();
            let mut live = LiveForest::default();
            for (request, row) in (0..).zip(&rows) {
                live.add(request, row).unwrap();
            }
            prop_assert_eq!(batch_shape(&GEOMETRY, &live), batch_shape(&GEOMETRY, &Forest::build(&table)));
        }
    }
}
