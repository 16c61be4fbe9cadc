//! What PAT's packs of a small forest cost. Where a child takes pages along and others do not, no joins make the same.

use super::super::cost::Lane;
use super::super::pat::takes_along;
use super::{CostModel, Small};

/// What PAT's packs make of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// The item whose pages are the first of its pack.
    first: usize,
    /// Requests of its pack: those that end with it, and those of children that do not take its pages along.
    requests: u32,
    /// How many packs the requests that end with it are in.
    packs: u64,
    /// No pack before has read its pages.
    unread: bool,
}

impl Small {
    /// What the packs of [`crate::Packing::Pat`] cost: what [`CostModel::of_packs`] says of them. The time is linear in the nodes that
    /// the packs read.
    pub(in super::super) fn cost_of_pats(&mut self, model: &CostModel) -> u64 {
        let Self { items, pats, .. } = self;
        pats.clear();
        let mut cost = 0u64;
        for (at, item) in items.iter().enumerate() {
            let mut node = Node { first: at, requests: item.ending, packs: 1, unread: true };
            if let Some(above) = pats.get_mut(item.parent) {
                let length = u64::from(items[item.parent].pages).saturating_mul(model.page_size);
                if takes_along(item.size, length) {
                    (node.first, node.packs) = (above.first, above.packs);
                } else {
                    node.packs += above.packs;
                    above.requests += item.size;
                }
            }
            pats.push(node);
            if node.packs > 1 {
                let partials = u64::from(item.ending).wrapping_mul(model.partials(1, node.packs));
                cost = cost.wrapping_add(partials);
            }
        }
        for at in 0..items.len() {
            let Node { first, requests, .. } = pats[at];
            if requests == 0 {
                continue;
            }
            let path = || std::iter::successors(Some(at), |&at| (at != first).then(|| items[at].parent));
            let of_lane = |lane| {
                let q_tiles = Lane::q_tiles(lane, requests);
                path().fold(CostModel::ctas(lane, q_tiles), |cost, at| {
                    cost.wrapping_add(model.segment(
                        lane,
                        items[at].pages,
                        requests,
                        q_tiles,
                        pats[at].unread,
                    ))
                })
            };
            cost = cost.wrapping_add(model.distinct_lanes().iter().map(of_lane).min().unwrap_or(0));
            path().for_each(|at| pats[at].unread = false);
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::priced_tests::layout;
    use super::super::super::sketch_tree::SketchTree;
    use super::*;
    use crate::{Packing, Packs, Prices};
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    proptest! {
        #[test]
        fn pats_packs_cost_what_the_packs_themselves_do(seed: u64, requests in 1u32..100, pages in 1u32..256) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let tree = SketchTree::random(&mut rng, 40, pages, requests);
            let model = CostModel::new(&layout(&mut rng), &Prices::default());
            let mut small = Small::default();
            tree.with_table(16, |forest, table| {
                // Twice, in used memory.
                for _ in 0..2 {
                    small.list(forest);
                    let packs = Packs::build(forest, table, Packing::Pat).expect("packs of one segment");
                    prop_assert_eq!(small.cost_of_pats(&model), model.of_packs(forest, &packs));
                }
                Ok(())
            })?;
        }
    }
}
