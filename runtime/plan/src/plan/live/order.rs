//! The order of packs: each behind the one above it, so that the partials of a request are numbered from its first token to its last.

use super::{LivePlan, NONE};

impl LivePlan {
    /// Puts a pack right behind the one above it, or in front of all others. Those below it, and below those above it, stay behind it.
    pub(super) fn link(&mut self, top: u32, above: Option<u32>) {
        let behind = match above {
            Some(above) => std::mem::replace(&mut self.nodes[above as usize].behind, top),
            None => std::mem::replace(&mut self.first, top),
        };
        let place = &mut self.nodes[top as usize];
        (place.before, place.behind) = (above.unwrap_or(NONE), behind);
        if let Some(place) = self.nodes.get_mut(behind as usize) {
            place.before = top;
        }
    }

    /// Takes a pack out.
    pub(super) fn unlink(&mut self, top: u32) {
        let place = &mut self.nodes[top as usize];
        let (before, behind) = (place.before, place.behind);
        (place.before, place.behind) = (NONE, NONE);
        match self.nodes.get_mut(before as usize) {
            Some(place) => place.behind = behind,
            None => self.first = behind,
        }
        if let Some(place) = self.nodes.get_mut(behind as usize) {
            place.before = before;
        }
    }
}
