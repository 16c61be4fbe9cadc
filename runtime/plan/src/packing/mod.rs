//! From nodes to packs: which requests read which pages together.

mod cost;
mod pat;
mod priced;
mod q_tiles;
mod small;
mod summary;

#[cfg(test)]
mod priced_tests;
#[cfg(test)]
mod q_tiles_tests;
#[cfg(test)]
mod sketch_tree;

pub use cost::{CostModel, PackLayout};
pub use priced::Priced;
pub use q_tiles::{NodeSegment, QTileNodes, QTiles};
pub use tilewright_heuristics::Prices;

use crate::{Forest, LiveForest, PageTable, PrefixTree};
use std::ops::Range;

/// How nodes become packs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Ours: least modelled time, from the prices of bytes, operations and CTAs; see [`Priced`]. A pack is a part of a tree, walked
    /// with the rows masked that do not share a segment. Of a small forest, the packs of [`Packing::Pat`] where they cost less.
    #[default]
    Priced,
    /// Every tree is a pack: no partials but those of cuts, and rows masked wherever requests differ. What tiles are measured with on trees.
    PerTree,
    /// PAT's TreeHeuristic (PAT, Algorithm 1): a child takes its parent's pages along where keeping partials costs more than
    /// reading those pages again.
    Pat,
    /// Every node is a pack (PAT calls it naive): each page is read once, and each level leaves a partial.
    PerNode,
    /// Every request is a pack (query-centric), with all of its queries: no partials, shared pages are read for each request.
    PerRequest,
}

/// Requests and consecutive pages that are computed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pack {
    /// The requests, as a range of [`Packs::requests`].
    pub requests: Range<u32>,
    /// Columns of the page table, equal in the rows of all its requests.
    pub columns: Range<u32>,
}

/// All packs of a batch: each request's pages are covered exactly once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packs {
    packs: Vec<Pack>,
    requests: Vec<u32>,
}

impl Packs {
    /// Packs a forest. `None` for [`Packing::Priced`] and [`Packing::PerTree`], whose packs are of several segments: [`Priced`] and [`QTiles`]
    /// make those.
    pub fn build(forest: &Forest, table: &PageTable<'_>, packing: Packing) -> Option<Self> {
        let mut packs = Self::default();
        packs.rebuild(forest, table, packing, &mut Vec::new()).then_some(packs)
    }

    /// Becomes the packs of another forest, in the same memory; says whether packing so makes packs of one segment each.
    pub(crate) fn rebuild(
        &mut self,
        forest: &Forest,
        table: &PageTable<'_>,
        packing: Packing,
        stack: &mut Vec<(u32, u32)>,
    ) -> bool {
        self.packs.clear();
        self.requests.clear();
        match packing {
            Packing::Priced | Packing::PerTree => return false,
            Packing::Pat => self.push_pats(forest, table.page_size(), stack, |forest, node, requests| {
                requests.extend_from_slice(forest.requests(&forest.nodes()[node as usize]));
            }),
            Packing::PerNode => {
                for node in forest.nodes() {
                    self.push(forest.requests(node).iter().copied(), node.columns.clone());
                }
            }
            Packing::PerRequest => {
                // A request's queries follow each other.
                let mut begin = 0;
                while begin < table.batch() {
                    let request = table.request_of(begin);
                    let of_request =
                        (begin..table.batch()).take_while(|&query| table.request_of(query) == request);
                    let end = begin + of_request.count();
                    let pages = table.pages(begin).len() as u32;
                    if pages > 0 {
                        self.push(begin as u32..end as u32, 0..pages);
                    }
                    begin = end;
                }
            }
        }
        true
    }

    /// Becomes PAT's packs of a forest that follows its batch, in the same memory.
    pub(crate) fn rebuild_live(
        &mut self,
        forest: &LiveForest,
        page_size: u32,
        stack: &mut Vec<(u32, u32)>,
        below: &mut Vec<u32>,
    ) {
        self.packs.clear();
        self.requests.clear();
        self.push_pats(forest, page_size, stack, |forest, node, requests| {
            below.clear();
            below.push(node);
            while let Some(node) = below.pop() {
                requests.extend_from_slice(forest.ending(node));
                below.extend(forest.children(node).rev());
            }
        });
    }

    /// The packs.
    pub fn packs(&self) -> &[Pack] {
        &self.packs
    }

    /// The requests of all packs, one pack behind the other.
    pub fn requests(&self) -> &[u32] {
        &self.requests
    }

    /// The requests of one pack.
    pub fn requests_of(&self, pack: &Pack) -> &[u32] {
        &self.requests[pack.requests.start as usize..pack.requests.end as usize]
    }

    fn push(&mut self, requests: impl Iterator<Item = u32>, columns: Range<u32>) {
        let first = self.requests.len();
        self.requests.extend(requests);
        self.close_pack(first, columns);
    }

    /// Makes a pack of the requests from `first` on, if there are any.
    fn close_pack(&mut self, first: usize, columns: Range<u32>) {
        let requests = first as u32..self.requests.len() as u32;
        if !requests.is_empty() {
            self.packs.push(Pack { requests, columns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with_table<T>(rows: &[Vec<i32>], page_size: u32, use_it: impl FnOnce(&PageTable<'_>) -> T) -> T {
        let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0);
        let entries: Vec<i32> = rows
            .iter()
            .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(-1, max_pages - row.len())))
            .collect();
        let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * page_size).collect();
        use_it(&PageTable::new(&entries, max_pages, &seq_lens, page_size).unwrap())
    }

    fn packed(rows: &[Vec<i32>], page_size: u32, packing: Packing) -> Vec<(Vec<u32>, Range<u32>)> {
        with_table(rows, page_size, |table| {
            let packs = Packs::build(&Forest::build(table), table, packing).unwrap();
            packs
                .packs()
                .iter()
                .map(|pack| (packs.requests_of(pack).to_vec(), pack.columns.clone()))
                .collect()
        })
    }

    #[test]
    fn pat_keeps_a_long_prefix_apart_and_takes_a_short_one_along() {
        let rows = [vec![1, 2, 3], vec![1, 2, 4]];
        // Two pages of 16 are 32 tokens; 4 x 1 request < 32: the prefix is a pack of its own.
        let apart = [(vec![0, 1], 0..2), (vec![0], 2..3), (vec![1], 2..3)];
        assert_eq!(packed(&rows, 16, Packing::Pat), apart);
        assert_eq!(packed(&rows, 16, Packing::PerNode), apart);
        // Two pages of one token: 4 x 1 request >= 2, so each child reads the prefix itself.
        let along = [(vec![0], 0..3), (vec![1], 0..3)];
        assert_eq!(packed(&rows, 1, Packing::Pat), along);
        assert_eq!(packed(&rows, 16, Packing::PerRequest), along);
    }

    #[test]
    fn pat_decides_per_child_and_keeps_the_rest_with_the_prefix() {
        // Eight tokens of prefix: the child of two requests merges (4 x 2 >= 8), that of one does not (4 x 1 < 8).
        let rows = [vec![0, 10], vec![0, 10], vec![0, 11], vec![0]];
        let expected = [(vec![3, 2], 0..1), (vec![0, 1], 0..2), (vec![2], 1..2)];
        assert_eq!(packed(&rows, 8, Packing::Pat), expected);
    }

    proptest! {
        #[test]
        fn every_page_of_every_request_is_in_exactly_one_of_its_packs(
            rows in prop::collection::vec(prop::collection::vec(0i32..3, 0..6), 0..12),
            page_size in 1u32..20,
        ) {
            for packing in [Packing::Pat, Packing::PerNode, Packing::PerRequest] {
                let mut covered: Vec<Vec<u32>> = rows.iter().map(|row| vec![0; row.len()]).collect();
                for (requests, columns) in packed(&rows, page_size, packing) {
                    prop_assert!(!requests.is_empty() && !columns.is_empty());
                    let pages = |request: u32| &rows[request as usize][columns.start as usize..columns.end as usize];
                    for &request in &requests {
                        prop_assert_eq!(pages(request), pages(requests[0]));
                        for column in columns.clone() {
                            covered[request as usize][column as usize] += 1;
                        }
                    }
                }
                prop_assert!(covered.iter().flatten().all(|&count| count == 1), "{:?}: {:?}", packing, covered);
            }
        }
    }
}
