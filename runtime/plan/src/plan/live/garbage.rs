//! How much of a plan's lists is still needed.

use crate::Plan;

/// Entries in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arenas {
    pub(super) q_tiles: usize,
    pub(super) segments: usize,
    pub(super) requests: usize,
    /// With room for more.
    pub(super) pages: usize,
}

impl Arenas {
    /// Whether more than half of a list is garbage. So it is where nothing is in use: lists of garbage alone are not kept.
    pub(super) fn mostly_garbage(&self, plan: &Plan) -> bool {
        let lists = [
            (self.q_tiles, plan.q_tiles.len()),
            (self.segments, plan.segments.len()),
            (self.requests, plan.requests.len()),
            (self.pages, plan.pages.len()),
        ];
        lists.iter().any(|(used, all)| 2 * used < *all)
    }
}
