//! Plans that are cut at absolute positions: made anew at each change but of lengths. What they share and where they are cut hangs together.

use super::{Changes, LivePlan, PlanOptions};
use crate::PlanError;
use tilewright_heuristics::{PackShape, Tile};

impl LivePlan {
    /// [`Self::rebuild`] with [`Split::Invariant`](crate::Split::Invariant).
    pub(super) fn rebuild_invariant(
        &mut self,
        changes: &Changes<'_>,
        options: &PlanOptions,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        self.start();
        self.take_lengths(changes);
        let forest = changes.forest;
        let choice = (changes.tiles, select);
        self.plan.push_invariant(forest, |node| forest.pages(node), options, choice, &mut self.scratch)
    }

    /// [`Self::update`] with it.
    pub(super) fn update_invariant(
        &mut self,
        changes: &Changes<'_>,
        options: &PlanOptions,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        if changes.forest.touched().is_empty() && !changes.others_have_tokens {
            self.take_lengths(changes);
            return Ok(());
        }
        self.rebuild_invariant(changes, options, select)
    }
}
