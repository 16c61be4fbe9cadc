//! What small forests cost exactly, and the decision that costs least of a few.
//!
//! [`super::Priced`] decides by sums over children, with an allowance for what is not known from below: where Q tiles begin and end.
//! Over many nodes its errors average out. In a forest of a few dozen nodes a single one is a good part of the whole; but there, the
//! Q tiles of several decisions can be counted in a few microseconds, and PAT's packs priced beside them, which are no set of joins.

mod pat;

use super::cost::CostModel;
use super::q_tiles::fits_without;
use crate::PrefixTree;

/// Forests of up to this many nodes are decided by their exact cost.
///
/// Single errors show where nodes are few. Of some thousand random forests of 24 nodes and more, with up to 64 requests a leaf, no decision by
/// sums alone cost more than 7 % over the cheapest one that was found; of 24 000 forests of up to 11 nodes, the worst cost 22 % over
/// the best. On two cores of an AMD EPYC the comparison takes about 13 us with 31 nodes and one height of tiles, 40 with four, and twice as
/// long with 48 nodes.
pub(super) const SMALL: usize = 32;

/// What the allowance is multiplied by for the decisions that are compared; where they cost the same, the first.
///
/// Of factors from 0 to 8 none alone has better worst cases than 1, and 3 errs elsewhere. Over 24 000 forests of up to 10 nodes, the cost over
/// that of the best decision of all was 0.25 % on average and 16 % at worst with 1 alone, 0.19 % and 12 % with both, and 0.004 % and
/// 5 % once nodes were tried one by one ([`Small::improve`]). More factors changed little then.
pub(super) const ALLOWANCES: [u64; 2] = [1, 3];

/// A forest in pre-order, the cheapest decision known for each of its trees, and memory for the next forest.
#[derive(Clone, Debug, Default)]
pub(super) struct Small {
    items: Vec<Item>,
    /// By item: whether it is in the pack of its parent, in the cheapest decision so far.
    best: Vec<bool>,
    /// The same of the decision that is looked at.
    joined: Vec<bool>,
    /// By item, if it is the top of a pack in the cheapest decision: what the pack costs.
    packs: Vec<PackCost>,
    /// By item, if it is the root of a tree: what the tree costs.
    costs: Vec<u64>,
    /// By item: whether a request of it has a cut above it, or it is one itself.
    cut: Vec<bool>,
    /// By item: Q tiles of its pack that read it.
    reads: Vec<u32>,
    /// The pack's items from the top to the current one, and the requests of the pack before each.
    path: Vec<(usize, u32)>,
    stack: Vec<(u32, usize)>,
    /// By item: what PAT's packs make of it.
    pats: Vec<pat::Node>,
}

/// A node.
#[derive(Clone, Copy, Debug)]
struct Item {
    node: u32,
    /// The item of its parent; [`NO_ITEM`] for a root.
    parent: usize,
    /// Where the items below it end.
    end: usize,
    pages: u32,
    size: u32,
    /// Requests that end with it.
    ending: u32,
}

const NO_ITEM: usize = usize::MAX;

/// What a pack costs with the tile that is cheapest for it, and the rows of that.
#[derive(Clone, Copy, Debug, Default)]
struct PackCost {
    cost: u64,
    rows: u32,
}

impl Small {
    /// Becomes a forest of which no decision is known.
    pub(super) fn list(&mut self, tree: &impl PrefixTree) {
        self.items.clear();
        self.stack.clear();
        for root in tree.roots() {
            self.stack.push((root, NO_ITEM));
            while let Some((node, parent)) = self.stack.pop() {
                let (columns, at) = (tree.columns(node), self.items.len());
                self.items.push(Item {
                    node,
                    parent,
                    end: at + 1,
                    pages: columns.end.saturating_sub(columns.start),
                    size: tree.size(node),
                    ending: tree.ending(node).len() as u32,
                });
                self.stack.extend(tree.children(node).rev().map(|child| (child, at)));
            }
        }
        let count = self.items.len();
        for at in (0..count).rev() {
            let Item { parent, end, .. } = self.items[at];
            if let Some(parent) = self.items.get_mut(parent) {
                parent.end = parent.end.max(end);
            }
        }
        self.best.clear();
        self.best.resize(count, false);
        self.joined.clear();
        self.joined.resize(count, false);
        self.packs.clear();
        self.packs.resize(count, PackCost::default());
        self.costs.clear();
        self.costs.resize(count, u64::MAX);
        self.cut.resize(count, false);
        self.reads.resize(count, 0);
    }

    /// Its nodes, parents before children.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.items.iter().map(|item| item.node)
    }

    /// Whether there is anything to decide: a node below a root.
    pub(super) fn has_choices(&self) -> bool {
        self.items.iter().any(|item| item.parent != NO_ITEM)
    }

    /// Of each tree, keeps this decision if it is cheaper than those that were offered before.
    pub(super) fn offer(&mut self, model: &CostModel, joined: impl Fn(u32) -> bool) {
        for (item, flag) in self.items.iter().zip(&mut self.joined) {
            *flag = item.parent != NO_ITEM && joined(item.node);
        }
        let mut root = 0;
        while let Some(&Item { end, .. }) = self.items.get(root) {
            if self.costs[root] == u64::MAX || self.joined[root..end] != self.best[root..end] {
                let cost = self.cost(model, root);
                if cost < self.costs[root] {
                    self.costs[root] = cost;
                    self.best[root..end].copy_from_slice(&self.joined[root..end]);
                }
            }
            root = end;
        }
    }

    /// Joins or cuts single nodes of the cheapest decision, in pre-order, each time that makes it cheaper yet. Leaves of one request are
    /// left as they are: they never lie across Q tiles, so that little can be wrong with them, and most nodes are such. Afterwards, the
    /// tiles of the packs are known. Returns what all trees cost then.
    pub(super) fn improve(&mut self, model: &CostModel) -> u64 {
        self.joined.copy_from_slice(&self.best);
        for at in 0..self.items.len() {
            if !self.joined[at] {
                self.packs[at] = self.pack(model, at);
            }
        }
        let (mut root, mut cost) = (0, 0u64);
        while let Some(&Item { end, .. }) = self.items.get(root) {
            let mut partials = self.partials(model, root);
            for at in root + 1..end {
                if self.items[at].size == 1 {
                    continue;
                }
                let mut top = self.items[at].parent;
                while self.joined[top] {
                    top = self.items[top].parent;
                }
                // Only the packs above and below change, and which cuts are the first on a path.
                let was_joined = self.joined[at];
                self.joined[at] = !was_joined;
                let (above, own) = (self.packs[top], self.packs[at]);
                let new_above = self.pack(model, top);
                let new_own = if was_joined { self.pack(model, at) } else { own };
                let new_partials = self.partials(model, root);
                let (own_before, own_after) = if was_joined { (0, new_own.cost) } else { (own.cost, 0) };
                let before = above.cost.wrapping_add(own_before).wrapping_add(partials);
                let after = new_above.cost.wrapping_add(own_after).wrapping_add(new_partials);
                if after < before {
                    (self.packs[top], self.packs[at], partials) = (new_above, new_own, new_partials);
                } else {
                    self.joined[at] = was_joined;
                }
            }
            cost = cost.wrapping_add(partials);
            root = end;
        }
        let tops = self.joined.iter().zip(&self.packs).filter(|(joined, _)| !**joined);
        tops.fold(cost, |cost, (_, pack)| cost.wrapping_add(pack.cost))
    }

    /// Each node, and the rows of its tile if it is the top of a pack, `None` if it is joined; once the decision is improved.
    pub(super) fn decisions(&self) -> impl Iterator<Item = (u32, Option<u32>)> + '_ {
        let flags = self.joined.iter().zip(&self.packs);
        self.items.iter().zip(flags).map(|(item, (joined, pack))| (item.node, (!joined).then_some(pack.rows)))
    }

    /// What a tree costs with the decision that is looked at: what [`CostModel::of_joined`] says of it.
    fn cost(&mut self, model: &CostModel, root: usize) -> u64 {
        let mut cost = self.partials(model, root);
        for top in root..self.items[root].end {
            if !self.joined[top] {
                cost = cost.wrapping_add(self.pack(model, top).cost);
            }
        }
        cost
    }

    /// What the partials of a tree cost that cuts leave: two for the first on a path, and one for each below.
    fn partials(&mut self, model: &CostModel, root: usize) -> u64 {
        let mut sum = 0u64;
        self.cut[root] = false;
        for at in root + 1..self.items[root].end {
            let Item { parent, size, .. } = self.items[at];
            let (above, apart) = (self.cut[parent], !self.joined[at]);
            if apart {
                sum = sum.wrapping_add(model.partials(size, if above { 1 } else { 2 }));
            }
            self.cut[at] = above || apart;
        }
        sum
    }

    /// What the pack of `top` costs.
    fn pack(&mut self, model: &CostModel, top: usize) -> PackCost {
        let mut best = PackCost { cost: u64::MAX, rows: 0 };
        for lane in model.distinct_lanes() {
            let mut cost = CostModel::ctas(lane, self.count(top, lane.capacity));
            let mut at = top;
            while at < self.items[top].end {
                let item = &self.items[at];
                let in_pack = at == top || self.joined[at];
                if in_pack && self.reads[at] > 0 {
                    cost =
                        cost.wrapping_add(model.segment(lane, item.pages, item.size, self.reads[at], true));
                }
                at = if in_pack { at + 1 } else { item.end };
            }
            if cost < best.cost || best.rows == 0 {
                best = PackCost { cost, rows: lane.m };
            }
        }
        best
    }

    /// Counts the Q tiles that [`crate::QTiles::push_pack`] would cut the pack of `top` into, and those that read each of its items. The time
    /// is linear in the items of the pack and their depth: it does not depend on how many requests there are.
    fn count(&mut self, top: usize, capacity: u32) -> u32 {
        let Self { items, joined, reads, path, .. } = self;
        path.clear();
        let (mut q_tiles, mut room, mut placed) = (0, 0, 0);
        // How many of the first of the path have begun in the current Q tile.
        let mut begun = 0;
        let mut at = top;
        while at < items[top].end {
            let item = &items[at];
            while path.last().is_some_and(|&(above, _)| items[above].end <= at) {
                path.pop();
            }
            begun = begun.min(path.len());
            let in_pack = at == top || joined[at];
            if in_pack {
                if room > 0 && fits_without(room, item.size, capacity) {
                    // It starts the next Q tile if its pages are more than those above that will be in one Q tile more.
                    let once_more = path.iter().filter(|&&(above, before)| {
                        let left = items[above].size.saturating_sub(placed - before);
                        !fits_without(room, left, capacity)
                    });
                    let pages: u64 = once_more.map(|&(above, _)| u64::from(items[above].pages)).sum();
                    if pages < u64::from(item.pages) {
                        room = 0;
                    }
                }
                path.push((at, placed));
                reads[at] = 0;
            }
            // Those of a node that is apart follow each other, whichever nodes below it they end with.
            let requests = if in_pack { item.ending } else { item.size };
            let (taken, left) = (requests.min(room), requests.saturating_sub(room));
            if taken > 0 {
                path[begun..].iter().for_each(|&(above, _)| reads[above] += 1);
                begun = path.len();
                room -= taken;
            }
            if left > 0 {
                let more = left.div_ceil(capacity);
                path.iter().for_each(|&(above, _)| reads[above] += more);
                begun = path.len();
                q_tiles += more;
                room = (capacity - left % capacity) % capacity;
            }
            placed += requests;
            at = if in_pack { at + 1 } else { item.end };
        }
        q_tiles
    }
}

#[cfg(test)]
mod tests {
    use super::super::priced_tests::layout;
    use super::super::sketch_tree::SketchTree;
    use super::*;
    use crate::Prices;
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    proptest! {
        #[test]
        fn what_is_counted_is_what_real_q_tiles_cost(seed: u64, requests in 1u32..100) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let tree = SketchTree::random(&mut rng, 40, 256, requests);
            let model = CostModel::new(&layout(&mut rng), &Prices::default());
            let joins = rng.random_range(0.3..1.0);
            let joined: Vec<bool> = (0..tree.capacity()).map(|_| rng.random_bool(joins)).collect();
            let mut small = Small::default();
            small.list(&tree);
            prop_assert_eq!(small.nodes().count(), tree.node_count());
            small.offer(&model, |node| joined[node as usize]);
            let roots = small.items.iter().zip(&small.costs).filter(|(item, _)| item.parent == NO_ITEM);
            let before: u64 = roots.map(|(_, cost)| cost).sum();
            prop_assert_eq!(before, model.of_joined(&tree, |node| joined[node as usize]));

            // A worse one changes nothing, and what single nodes change is counted from what is around them alone.
            small.offer(&model, |node| joined[node as usize]);
            let improved = small.improve(&model);
            let better: Vec<bool> = {
                let mut better = vec![false; tree.capacity()];
                small.decisions().for_each(|(node, rows)| better[node as usize] = rows.is_none());
                better
            };
            let after = model.of_joined(&tree, |node| better[node as usize]);
            prop_assert_eq!(improved, after);
            prop_assert!(after <= before);
            prop_assert_eq!(after < before, small.joined != small.best);
        }
    }
}
