//! PAT's packs, which small forests may prefer: made anew at each change, since there is little to make.

use super::{Changes, LivePlan, PlanOptions};
use crate::PlanError;
use tilewright_heuristics::{PackShape, Tile};

impl LivePlan {
    /// [`Self::rebuild`] where PAT's packs cost less than those of joined nodes.
    pub(super) fn rebuild_pats(
        &mut self,
        changes: &Changes<'_>,
        options: &PlanOptions,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        self.start();
        self.has_pats = true;
        self.take_lengths(changes);
        let Self { plan, scratch, pats, .. } = self;
        let forest = changes.forest;
        pats.rebuild_live(forest, plan.geometry.page_size, &mut scratch.stack, &mut scratch.tops);
        let push_pages = |request, columns, pages: &mut Vec<i32>| {
            forest.extend_with_pages(request, columns, pages);
        };
        plan.push_packs(pats, push_pages, select)?;
        plan.finish(options, scratch)
    }

    /// [`Self::update`] where the plan has PAT's packs, or is to have them.
    pub(super) fn update_pats(
        &mut self,
        changes: &Changes<'_>,
        options: &PlanOptions,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        let stays = self.has_pats && changes.priced.prefers_pat();
        if stays && changes.forest.touched().is_empty() && !changes.others_have_tokens {
            self.take_lengths(changes);
            return Ok(());
        }
        let geometry = self.plan.geometry;
        self.rebuild(&geometry, changes, options, select)
    }
}
