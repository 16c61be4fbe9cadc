//! Which nodes join the packs of their parents: least modelled cost, by dynamic programming over the trees.

mod update;

use super::cost::{CostModel, LANES};
use super::small::{ALLOWANCES, SMALL, Small};
use super::summary::{Choice, Costs, NONE, STATES, Summary, cheapest_top};
use crate::{PackLayout, PrefixTree, Prices};

/// Joins or cuts the nodes of prefix trees so that the modelled cost is least, and follows trees as they change.
///
/// A node that is *joined* is in the pack of its parent, one that is *apart* is the top of another pack; see [`crate::QTiles`].
/// A join saves the partials of all the node's requests, which one CTA then keeps in registers. It costs reading the nodes above
/// again for each Q tile of rows, or a tile too tall for the node.
///
/// How many Q tiles a joined node is in depends on all requests before it in the pack, which are not known from below. It is taken for as
/// many as its own requests need, and an allowance for lying across two Q tiles that one would hold. The errors of that average out over
/// many nodes. A forest of few nodes can afford to be exact: up to 32 of them, decisions with several allowances are compared by
/// what their real Q tiles cost, tree by tree, and the cheapest is improved node by node. Then the whole is compared with PAT's packs
/// ([`crate::Packing::Pat`]), some of which no joins express: requests of a node leave the pack above and read its pages again, with a
/// tile of another height. One in 270 random forests costs less so; see [`Self::prefers_pat`].
///
/// Each node keeps the least cost of all that is below it, for each height of the tile that reads it and for whether its requests
/// have a cut above already. A parent's numbers are sums over its children, exact ones, so that after a change only the changed
/// nodes and those above them are reckoned again. The time is linear in the nodes reckoned; a small forest is always reckoned whole. In
/// used memory nothing is allocated.
#[derive(Clone, Debug, Default)]
pub struct Priced {
    model: Option<(PackLayout, Prices, CostModel)>,
    nodes: Vec<Summary>,
    /// By node: least cost below it, by state of the pack that it is in. Not in the summaries, so that the way down, which needs
    /// no costs, stays in the L1 cache.
    below: Vec<Costs>,
    /// By node: what the parent counts for it, by state of the parent's pack.
    given: Vec<Costs>,
    /// Nodes in the order in which they are reckoned, or the other way round.
    order: Vec<u32>,
    stack: Vec<u32>,
    flipped: Vec<u32>,
    /// The leaf of one request, or root of one, that was reckoned last: its pages, what is known of it, and what it gave.
    leaf: Option<(u32, Summary, Costs)>,
    /// The forest that was decided last, if it was a small one.
    small: Small,
    /// Whether it was.
    was_small: bool,
    /// Whether PAT's packs cost less than what was decided.
    prefers_pat: bool,
    /// While everything is decided anew: what was decided before, in the order of the nodes.
    before: Vec<Choice>,
}

impl Priced {
    /// Nothing decided yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a node is in the pack of its parent. Never so for a root, nor for a node that no decision was made for.
    pub fn joined(&self, node: u32) -> bool {
        self.nodes.get(node as usize).is_some_and(|node| node.choice == Choice::Joined)
    }

    /// The rows of the tile that the decision reckoned with, if the node is the top of a pack.
    pub fn tile_rows(&self, node: u32) -> Option<u32> {
        match self.nodes.get(node as usize)?.choice {
            Choice::Top(rows) => Some(rows),
            Choice::Unknown | Choice::Joined => None,
        }
    }

    /// Whether PAT's packs of the forest that was decided last cost less than those of the joined nodes, by the same model, so that
    /// [`crate::Packing::Priced`] takes them. Never so for a forest of more than 32 nodes, of which they are not priced. What is said of
    /// single nodes is the best of the joins that were compared, even then.
    pub const fn prefers_pat(&self) -> bool {
        self.prefers_pat
    }

    /// What [`Self::update`] returned last.
    pub(crate) fn flipped(&self) -> &[u32] {
        &self.flipped
    }

    /// Decides for all nodes, from nothing.
    pub fn decide(&mut self, tree: &impl PrefixTree, layout: &PackLayout, prices: &Prices) {
        let model = self.start(tree, layout, prices);
        self.list(tree);
        self.decide_listed(&model, tree);
    }

    /// Forgets all nodes, and keeps the memory.
    fn start(&mut self, tree: &impl PrefixTree, layout: &PackLayout, prices: &Prices) -> CostModel {
        let model = self.known_model(layout, prices).unwrap_or_else(|| CostModel::new(layout, prices));
        self.model = Some((*layout, *prices, model));
        self.leaf = None;
        self.nodes.clear();
        self.below.clear();
        self.given.clear();
        self.grow(tree.capacity());
        model
    }

    /// The last model, if it was made of these: making one takes as long as deciding for thirty requests that share nothing.
    fn known_model(&self, layout: &PackLayout, prices: &Prices) -> Option<CostModel> {
        let (old_layout, old_prices, model) = self.model?;
        (old_layout == *layout && old_prices == *prices).then_some(model)
    }

    /// Lists all nodes, parents before children.
    fn list(&mut self, tree: &impl PrefixTree) {
        self.was_small = tree.node_count() <= SMALL;
        self.order.clear();
        if self.was_small {
            self.small.list(tree);
            self.order.extend(self.small.nodes());
            return;
        }
        self.stack.clear();
        self.stack.extend(tree.roots());
        while let Some(node) = self.stack.pop() {
            self.order.push(node);
            self.stack.extend(tree.children(node));
        }
    }

    /// Decides for all nodes that are listed; nothing is known of them.
    fn decide_listed(&mut self, model: &CostModel, tree: &impl PrefixTree) {
        self.prefers_pat = false;
        if !self.was_small || !self.small.has_choices() {
            return self.sweep(model, tree);
        }
        for factor in ALLOWANCES {
            self.sweep(&model.with_allowance(factor), tree);
            self.small.offer(model, |node| self.nodes[node as usize].choice == Choice::Joined);
        }
        let cost = self.small.improve(model);
        self.prefers_pat = self.small.cost_of_pats(model) < cost;
        for (node, rows) in self.small.decisions() {
            self.nodes[node as usize].choice = rows.map_or(Choice::Joined, Choice::Top);
        }
    }

    /// Reckons all nodes that are listed, children first, and decides for them, parents first.
    fn sweep(&mut self, model: &CostModel, tree: &impl PrefixTree) {
        for index in (0..self.order.len()).rev() {
            self.reckon(model, tree, self.order[index]);
        }
        for index in 0..self.order.len() {
            let node = self.order[index];
            let summary = &self.nodes[node as usize];
            let (choice, state) = summary.choose(self.state_above(node));
            let summary = &mut self.nodes[node as usize];
            (summary.choice, summary.state) = (choice, state);
        }
    }

    /// Joins all nodes, whatever that costs: every tree is one pack.
    pub fn join_all(&mut self, tree: &impl PrefixTree) {
        self.prefers_pat = false;
        self.model = None;
        self.nodes.clear();
        self.below.clear();
        self.given.clear();
        self.grow(tree.capacity());
        self.stack.clear();
        self.stack.extend(tree.roots());
        while let Some(node) = self.stack.pop() {
            let children = self.stack.len();
            self.stack.extend(tree.children(node));
            for &child in &self.stack[children..] {
                self.nodes[child as usize].choice = Choice::Joined;
            }
        }
    }

    fn grow(&mut self, capacity: usize) {
        self.nodes.resize(capacity, Summary::EMPTY);
        self.below.resize(capacity, [0; STATES]);
        self.given.resize(capacity, [0; STATES]);
    }

    /// The state of the pack that a node's parent is in; `None` for a root.
    #[inline]
    fn state_above(&self, node: u32) -> Option<u8> {
        let parent = self.nodes[node as usize].given_to;
        self.nodes.get(parent as usize).map(|parent| parent.state)
    }

    /// Reckons a node from what its children gave, and gives it to its parent.
    fn reckon(&mut self, model: &CostModel, tree: &impl PrefixTree, node: u32) {
        let columns = tree.columns(node);
        let (pages, size) = (columns.end.saturating_sub(columns.start), tree.size(node));
        let parent = tree.parent(node);
        // A chain of nodes can lead to one request: a node of one request is a leaf only if nothing is below it.
        let is_lone_leaf = size == 1 && tree.children(node).next().is_none();
        if is_lone_leaf
            && let Some((_, leaf, given)) = self.leaf.as_ref().filter(|(leaf_pages, leaf, _)| {
                *leaf_pages == pages && (leaf.given_to == NONE) == parent.is_none()
            })
        {
            // A leaf of one request, as most are: all of the same length are alike, and so are all such roots.
            let Summary { joins, top_lane, top_rows, .. } = *leaf;
            let given = *given;
            let summary = &mut self.nodes[node as usize];
            (summary.joins, summary.top_lane, summary.top_rows) = (joins, top_lane, top_rows);
            summary.given_to = parent.unwrap_or(NONE);
            return self.give(node, given);
        }
        let summary = &mut self.nodes[node as usize];
        let mut inside = self.below[node as usize];
        let (mut ctas, mut straddling) = ([0; LANES], [0; LANES]);
        // No pack is ever in the states of the lanes beyond: their costs may be anything.
        let lanes = model.distinct_lanes();
        for (lane, tile) in lanes.iter().enumerate() {
            let q_tiles = tile.q_tiles(size);
            let own = model.segment(tile, pages, size, q_tiles, true);
            ctas[lane] = CostModel::ctas(tile, q_tiles);
            straddling[lane] = tile.straddling(&columns, size, q_tiles);
            inside[lane] = inside[lane].wrapping_add(own);
            inside[LANES + lane] = inside[LANES + lane].wrapping_add(own);
        }
        let ctas = &ctas[..lanes.len()];
        let Some(parent) = parent else {
            (summary.top_lane, _) = cheapest_top(ctas, &inside[..LANES]);
            summary.top_rows = model.lanes[usize::from(summary.top_lane)].m;
            summary.given_to = NONE;
            if is_lone_leaf {
                self.leaf = Some((pages, *summary, [0; STATES]));
            }
            return;
        };
        let (lane, top) = cheapest_top(ctas, &inside[LANES..]);
        summary.top_lane = lane;
        summary.top_rows = model.lanes[usize::from(lane)].m;
        // The first cut on a path leaves a partial of the pack above as well.
        let apart = [2, 1].map(|each| top.wrapping_add(model.partials(size, each)));
        let mut given = [0; STATES];
        let mut joins = 0u8;
        for state in 0..STATES {
            let joined = inside[state].wrapping_add(straddling[state % LANES]);
            joins |= u8::from(joined <= apart[state / LANES]) << state;
            given[state] = joined.min(apart[state / LANES]);
        }
        summary.joins = joins;
        summary.given_to = parent;
        if is_lone_leaf {
            self.leaf = Some((pages, *summary, given));
        }
        self.give(node, given);
    }

    /// Replaces what its parent, if it has one, counts for a node.
    #[inline]
    fn give(&mut self, node: u32, given: Costs) {
        let parent = self.nodes[node as usize].given_to;
        if let Some(below) = self.below.get_mut(parent as usize) {
            let before = std::mem::replace(&mut self.given[node as usize], given);
            for ((sum, before), given) in below.iter_mut().zip(before).zip(given) {
                *sum = sum.wrapping_sub(before).wrapping_add(given);
            }
        }
    }
}
