//! Which nodes join the packs of their parents: least modelled cost, by dynamic programming over the trees.

use crate::packing::cost::{CostModel, LANES};
use crate::{PackLayout, PrefixTree, Prices};

/// What a node can find above it: the tile rows of the pack that it may join, times whether a node on the way to the root is apart.
const STATES: usize = 2 * LANES;
const NONE: u32 = u32::MAX;

/// Joins or cuts the nodes of prefix trees so that the modelled cost is least, and follows trees as they change.
///
/// A node that is *joined* is in the pack of its parent, one that is *apart* is the top of another pack; see [`crate::Blocks`].
/// A join saves the partials of all the node's requests, which one CTA then keeps in registers. It costs reading the nodes above
/// again for each block of rows, or a tile too tall for the node.
///
/// How many blocks a joined node is in depends on all requests before it in the pack, which are not known from below. It is taken for as
/// many as its own requests need, and an allowance for lying across two blocks that one would hold.
///
/// Each node keeps the least cost of all that is below it, for each height of the tile that walks it and for whether its requests
/// have a cut above already. A parent's numbers are sums over its children, exact ones, so that after a change only the changed
/// nodes and those above them are reckoned again. The time is linear in the nodes reckoned. In used memory nothing is allocated.
#[derive(Clone, Debug, Default)]
pub struct Priced {
    model: Option<(PackLayout, Prices, CostModel)>,
    nodes: Vec<Summary>,
    /// By node: least cost below it, by state of the pack that it is in. Not in the summaries, so that the way down, which needs
    /// no costs, stays in the first-level cache.
    below: Vec<Costs>,
    /// By node: what the parent counts for it, by state of the parent's pack.
    given: Vec<Costs>,
    /// Nodes in the order in which they are reckoned, or the other way round.
    order: Vec<u32>,
    stack: Vec<u32>,
    flipped: Vec<u32>,
    /// The leaf of one request, or root of one, that was reckoned last: its pages, what is known of it, and what it gave.
    leaf: Option<(u32, Summary, Costs)>,
}

/// By state of a pack.
type Costs = [u64; STATES];

/// What is known of a node and everything below it.
#[derive(Clone, Copy, Debug)]
struct Summary {
    /// The parent that counts it.
    given_to: u32,
    /// While changes are followed: children that come first.
    pending: u32,
    /// One bit a state of the parent's pack: whether joining it is cheapest.
    joins: u8,
    /// The tile that is cheapest if the node is a top.
    top_lane: u8,
    /// Its rows.
    top_rows: u32,
    /// The state of the pack that the node is in.
    state: u8,
    choice: Choice,
    touched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Unknown,
    Joined,
    /// The top of a pack, with a tile of so many rows.
    Top(u32),
}

impl Summary {
    const EMPTY: Self = Self {
        given_to: NONE,
        pending: 0,
        joins: 0,
        top_lane: 0,
        top_rows: 0,
        state: 0,
        choice: Choice::Unknown,
        touched: false,
    };
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

    /// What [`Self::update`] returned last.
    pub(crate) fn flipped(&self) -> &[u32] {
        &self.flipped
    }

    /// Decides for all nodes, from nothing.
    pub fn decide(&mut self, tree: &impl PrefixTree, layout: &PackLayout, prices: &Prices) {
        let model = CostModel::new(layout, prices);
        self.model = Some((*layout, *prices, model));
        self.leaf = None;
        self.nodes.clear();
        self.below.clear();
        self.given.clear();
        self.grow(tree.capacity());
        self.order.clear();
        self.stack.clear();
        self.stack.extend(tree.roots());
        while let Some(node) = self.stack.pop() {
            self.order.push(node);
            self.stack.extend(tree.children(node));
        }
        for index in (0..self.order.len()).rev() {
            self.reckon(&model, tree, self.order[index]);
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
        self.model = None;
        self.nodes.clear();
        self.nodes.resize(tree.capacity(), Summary::EMPTY);
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

    /// Decides again after changes, and returns the nodes that have another decision than before: joined or apart, or the tile of a
    /// pack's top. The result is that of [`Self::decide`].
    ///
    /// `changed`: every node in the trees that is new, has another parent or other columns, lost a child, or that requests end with
    /// which came or went; one whose requests changed only below it need not be named. `freed`: numbers that nodes had which are no
    /// more, also if a changed node has the number now. With another layout or other prices, everything is decided anew, in new
    /// memory.
    pub fn update(
        &mut self,
        tree: &impl PrefixTree,
        changed: &[u32],
        freed: &[u32],
        layout: &PackLayout,
        prices: &Prices,
    ) -> &[u32] {
        self.flipped.clear();
        for &node in freed {
            if let Some(summary) = self.nodes.get_mut(node as usize) {
                summary.choice = Choice::Unknown;
            }
        }
        let model = match self.model {
            Some((old_layout, old_prices, model)) if old_layout == *layout && old_prices == *prices => model,
            _ => {
                self.decide_anew(tree, layout, prices);
                return &self.flipped;
            }
        };
        if self.nodes.len() < tree.capacity() {
            self.grow(tree.capacity());
        }

        // Whoever left is no longer counted where it was; then each sum holds exactly the children that stayed.
        freed.iter().for_each(|&node| self.take_back(node));
        let in_tree = |node: &&u32| (**node as usize) < tree.capacity();
        for &node in changed.iter().filter(in_tree) {
            if self.nodes[node as usize].given_to != tree.parent(node).unwrap_or(NONE) {
                self.take_back(node);
            }
        }

        // Changed nodes and those above them, children first.
        self.stack.clear();
        for &node in changed.iter().filter(in_tree) {
            let mut next = Some(node);
            while let Some(node) = next {
                let summary = &mut self.nodes[node as usize];
                if std::mem::replace(&mut summary.touched, true) {
                    break;
                }
                self.stack.push(node);
                next = tree.parent(node);
                if let Some(parent) = next {
                    self.nodes[parent as usize].pending += 1;
                }
            }
        }
        self.order.clear();
        let ready = |node: &u32| self.nodes[*node as usize].pending == 0;
        self.order.extend(self.stack.iter().copied().filter(ready));
        let mut done = 0;
        while let Some(&node) = self.order.get(done) {
            done += 1;
            self.nodes[node as usize].touched = false;
            self.reckon(&model, tree, node);
            if let Some(parent) = tree.parent(node) {
                let pending = &mut self.nodes[parent as usize].pending;
                *pending -= 1;
                if *pending == 0 {
                    self.order.push(parent);
                }
            }
        }

        // Parents first again; where the state of a pack changed, down to where it no longer matters.
        for index in (0..self.order.len()).rev() {
            self.stack.clear();
            self.stack.push(self.order[index]);
            while let Some(node) = self.stack.pop() {
                let above = self.state_above(node);
                let summary = &mut self.nodes[node as usize];
                let (choice, state) = summary.choose(above);
                if std::mem::replace(&mut summary.choice, choice) != choice {
                    self.flipped.push(node);
                }
                if std::mem::replace(&mut summary.state, state) != state {
                    self.stack.extend(tree.children(node));
                }
            }
        }
        &self.flipped
    }

    fn grow(&mut self, capacity: usize) {
        self.nodes.resize(capacity, Summary::EMPTY);
        self.below.resize(capacity, [0; STATES]);
        self.given.resize(capacity, [0; STATES]);
    }

    /// As [`Self::decide`], noting whose decision is another one than before.
    fn decide_anew(&mut self, tree: &impl PrefixTree, layout: &PackLayout, prices: &Prices) {
        let before = std::mem::take(&mut self.nodes);
        self.decide(tree, layout, prices);
        let differs = |node: &u32| {
            let choice =
                |nodes: &[Summary]| nodes.get(*node as usize).map_or(Choice::Unknown, |node| node.choice);
            choice(&self.nodes) != choice(&before)
        };
        self.flipped.extend(self.order.iter().copied().filter(differs));
    }

    /// Takes what a node gave to its parent back.
    fn take_back(&mut self, node: u32) {
        let Some(summary) = self.nodes.get_mut(node as usize) else { return };
        let given = std::mem::replace(&mut self.given[node as usize], [0; STATES]);
        let parent = std::mem::replace(&mut summary.given_to, NONE);
        if let Some(below) = self.below.get_mut(parent as usize) {
            below.iter_mut().zip(given).for_each(|(sum, given)| *sum = sum.wrapping_sub(given));
        }
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
        if size == 1
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
            let blocks = tile.blocks(size);
            let own = model.run(tile, pages, size, blocks, true);
            ctas[lane] = CostModel::ctas(tile, blocks);
            straddling[lane] = tile.straddling(&columns, size, blocks);
            inside[lane] = inside[lane].wrapping_add(own);
            inside[LANES + lane] = inside[LANES + lane].wrapping_add(own);
        }
        let ctas = &ctas[..lanes.len()];
        let Some(parent) = parent else {
            (summary.top_lane, _) = cheapest_top(ctas, &inside[..LANES]);
            summary.top_rows = model.lanes[usize::from(summary.top_lane)].m;
            summary.given_to = NONE;
            if size == 1 {
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
        if size == 1 {
            self.leaf = Some((pages, *summary, given));
        }
        self.give(node, given);
    }

    /// Replaces what its parent, if it has one, counts for a node.
    #[inline]
    fn give(&mut self, node: u32, given: Costs) {
        let before = std::mem::replace(&mut self.given[node as usize], given);
        let parent = self.nodes[node as usize].given_to;
        if let Some(below) = self.below.get_mut(parent as usize) {
            for ((sum, before), given) in below.iter_mut().zip(before).zip(given) {
                *sum = sum.wrapping_sub(before).wrapping_add(given);
            }
        }
    }
}

impl Summary {
    /// The decision, and the state of the pack that the node is in then.
    #[inline]
    fn choose(&self, above: Option<u8>) -> (Choice, u8) {
        match above {
            Some(state) if self.joins >> state & 1 == 1 => (Choice::Joined, state),
            Some(_) => (Choice::Top(self.top_rows), self.top_lane + LANES as u8),
            None => (Choice::Top(self.top_rows), self.top_lane),
        }
    }
}

#[inline]
fn cheapest_top(ctas: &[u64], inside: &[u64]) -> (u8, u64) {
    let mut best = (0, u64::MAX);
    for (lane, (&ctas, &inside)) in (0u8..).zip(ctas.iter().zip(inside)) {
        let cost = ctas.wrapping_add(inside);
        if cost < best.1 {
            best = (lane, cost);
        }
    }
    best
}
