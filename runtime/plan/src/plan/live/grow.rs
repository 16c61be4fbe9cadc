//! Leaves of one request that gain or lose pages, patched where they stand.

use super::super::GRANULE;
use super::super::count;
use super::emit::push_pages;
use super::{Changes, LivePlan};
use crate::{PlanError, PrefixTree};
use tilewright_heuristics::{PackShape, Tile};

impl LivePlan {
    /// Counts what the packs of grown leaves see, and asks the selector again about those that look different to it.
    pub(super) fn grown_packs(
        &mut self,
        changes: &Changes<'_>,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        let page_size = i64::from(self.plan.geometry.page_size);
        for &leaf in changes.forest.touched().grown {
            let place = &self.nodes[leaf as usize];
            let top = &self.nodes[place.top as usize];
            if top.stale_in == self.step {
                continue;
            }
            let more = changes.forest.columns(leaf).len() as i64 - i64::from(place.len);
            let pack = &mut self.packs[top.pack as usize];
            pack.sums.seen = pack.sums.seen.wrapping_add_signed(more * page_size);
            pack.sums.tokens = pack.sums.tokens.wrapping_add_signed(more * page_size);
            if std::mem::replace(&mut pack.seen_in, self.step) != self.step {
                self.reshaped.push(top.pack);
            }
        }
        for index in 0..self.reshaped.len() {
            self.reshape(self.reshaped[index], select)?;
        }
        Ok(())
    }

    /// Patches the grown leaves of packs that stay. A pack whose leaf has no room is given up.
    pub(super) fn grow_leaves(&mut self, changes: &Changes<'_>) -> Result<(), PlanError> {
        for &leaf in changes.forest.touched().grown {
            let top = self.nodes[leaf as usize].top;
            if self.nodes[top as usize].stale_in != self.step && !self.grow(changes, leaf)? {
                self.give_up(leaf);
            }
        }
        Ok(())
    }

    /// Patches a leaf of one request, unless its pages need another place and stand in a segment with those of its parent.
    fn grow(&mut self, changes: &Changes<'_>, leaf: u32) -> Result<bool, PlanError> {
        let too_long = || PlanError::TooLarge("tokens that a Q tile reads");
        let Changes { forest, columns, .. } = *changes;
        let Self { plan, nodes, packs, arenas, .. } = self;
        let page_size = plan.geometry.page_size;
        let pages = forest.pages(leaf);
        let len = count(pages.len(), "pages of all packs")?;
        let pack = nodes[nodes[leaf as usize].top as usize].pack;
        let state = &mut packs[pack as usize];
        let place = &mut nodes[leaf as usize];
        let before = place.len;

        let q_tile = &mut plan.q_tiles[place.q_tile as usize];
        let segments = q_tile.segments.start as usize..q_tile.segments.end as usize;
        let has = |segment: &super::super::KvSegment| {
            let offset = place.pages.checked_sub(segment.pages);
            offset.is_some_and(|offset| {
                u64::from(offset) * u64::from(page_size) < segment.kv_range.len() as u64
            })
        };
        let Some(at) = plan.segments[segments.clone()].iter().position(has) else { return Ok(false) };
        let segment = &mut plan.segments[segments.start + at];
        let moves = len > place.room;
        if moves && segment.pages != place.pages {
            return Ok(false);
        }
        let tokens = (i64::from(len) - i64::from(before)) * i64::from(page_size);
        let end = (i64::from(segment.kv_range.end) + tokens)
            .try_into()
            .ok()
            .filter(|&end| i32::try_from(end).is_ok());
        segment.kv_range.end = end.ok_or_else(too_long)?;
        let mut end: u32 = segment.kv_range.end;
        for segment in &mut plan.segments[segments.start + at + 1..segments.end] {
            let begin = end.next_multiple_of(GRANULE);
            end = begin.checked_add(segment.kv_range.len() as u32).ok_or_else(too_long)?;
            segment.kv_range = begin..end;
        }
        i32::try_from(end).map_err(|_| too_long())?;
        let more = i64::from(end) - i64::from(std::mem::replace(&mut q_tile.kv_len, end));
        self.work = self.work.wrapping_add_signed(more * i64::from(state.ctas));
        self.unsorted = self.unsorted.wrapping_add(more.unsigned_abs() * u64::from(state.ctas));
        self.patched.push(place.q_tile);

        let first = place.pages as usize;
        if moves {
            let room = place.room as usize;
            plan.pages[first..first + before as usize].fill(0);
            push_pages(plan, place, pages, true)?;
            plan.segments[segments.start + at].pages = place.pages;
            arenas.pages = arenas.pages - room + place.room as usize;
            state.pages = state.pages - room + place.room as usize;
        } else {
            // The columns before this one are as they were.
            let request = forest.ending(leaf).first().and_then(|&request| columns.get(request as usize));
            let kept = request.map_or(0, |column| column.saturating_sub(forest.columns(leaf).start)).min(len);
            plan.pages[first + kept as usize..first + len as usize].copy_from_slice(&pages[kept as usize..]);
            if len < before {
                plan.pages[first + len as usize..first + before as usize].fill(0);
            }
            place.len = len;
        }
        Ok(true)
    }
}
