//! What the decision which nodes are joined knows of each node.

use super::cost::LANES;

/// What a node can find above it: the tile rows of the pack that it may join, times whether a node on the way to the root is apart.
pub(super) const STATES: usize = 2 * LANES;
pub(super) const NONE: u32 = u32::MAX;

/// By state of a pack.
pub(super) type Costs = [u64; STATES];

/// What is known of a node and everything below it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    /// The parent that counts it.
    pub(super) given_to: u32,
    /// While changes are followed: children that come first.
    pub(super) pending: u32,
    /// One bit a state of the parent's pack: whether joining it is cheapest.
    pub(super) joins: u8,
    /// The tile that is cheapest if the node is a top.
    pub(super) top_lane: u8,
    /// Its rows.
    pub(super) top_rows: u32,
    /// The state of the pack that the node is in.
    pub(super) state: u8,
    pub(super) choice: Choice,
    pub(super) touched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Unknown,
    Joined,
    /// The top of a pack, with a tile of `m` rows.
    Top(u32),
}

impl Summary {
    pub(super) const EMPTY: Self = Self {
        given_to: NONE,
        pending: 0,
        joins: 0,
        top_lane: 0,
        top_rows: 0,
        state: 0,
        choice: Choice::Unknown,
        touched: false,
    };

    /// The decision, and the state of the pack that the node is in then.
    #[inline]
    pub(super) fn choose(&self, above: Option<u8>) -> (Choice, u8) {
        match above {
            Some(state) if self.joins >> state & 1 == 1 => (Choice::Joined, state),
            Some(_) => (Choice::Top(self.top_rows), self.top_lane + LANES as u8),
            None => (Choice::Top(self.top_rows), self.top_lane),
        }
    }
}

/// The tile with which a top is cheapest, and what it costs then.
#[inline]
pub(super) fn cheapest_top(ctas: &[u64], inside: &[u64]) -> (u8, u64) {
    let mut best = (0, u64::MAX);
    for (lane, (&ctas, &inside)) in (0u8..).zip(ctas.iter().zip(inside)) {
        let cost = ctas.wrapping_add(inside);
        if cost < best.1 {
            best = (lane, cost);
        }
    }
    best
}
