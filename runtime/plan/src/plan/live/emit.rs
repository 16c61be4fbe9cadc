//! Packs that come into the plan and go out of it.

use super::super::{Plan, PlannedPack, QTile, count};
use super::garbage::Arenas;
use super::{Changes, LivePlan, NONE, PackState, Place};
use crate::{PlanError, PrefixTree};
use tilewright_heuristics::{PackShape, PackSums, Tile};

impl LivePlan {
    /// Emits all packs anew, without garbage.
    pub(super) fn emit_all(
        &mut self,
        changes: &Changes<'_>,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        let Changes { forest, priced, .. } = *changes;
        self.start();
        self.nodes.resize(forest.capacity(), Place::NOWHERE);
        let mut tops = std::mem::take(&mut self.fresh);
        tops.clear();
        tops.extend(
            (0..forest.capacity() as u32).filter(|&node| forest.size(node) > 0 && !priced.joined(node)),
        );
        self.packs_asked = count(tops.len(), "packs")?;
        let result = self.emit_tops(changes, &mut tops, select);
        self.fresh = tops;
        result
    }

    /// Removes the packs that were given up, and emits those that take their place; or all packs, and says so, if those that stay are
    /// few.
    pub(super) fn emit_stale(
        &mut self,
        changes: &Changes<'_>,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<bool, PlanError> {
        let gone = self.stale.iter().map(|&top| &self.packs[self.nodes[top as usize].pack as usize].requests);
        let stay = self.arenas.requests - gone.map(|requests| requests.len()).sum::<usize>();
        if 2 * stay < self.plan.requests.len() {
            return self.emit_all(changes, select).map(|()| true);
        }
        self.emit_what_stays(changes);
        for index in 0..self.stale.len() {
            let top = self.stale[index];
            self.unlink(top);
            self.remove(self.nodes[top as usize].pack);
        }
        for &node in changes.forest.touched().freed {
            if let Some(place) = self.nodes.get_mut(node as usize) {
                *place = Place::NOWHERE;
            }
        }
        let mut tops = std::mem::take(&mut self.fresh);
        let result = self.emit_tops(changes, &mut tops, select);
        self.fresh = tops;
        result.map(|()| false)
    }

    /// Emits packs that are not in the plan, the upper ones first.
    fn emit_tops(
        &mut self,
        changes: &Changes<'_>,
        tops: &mut [u32],
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        tops.sort_unstable_by_key(|&top| changes.forest.columns(top).start);
        tops.iter().try_for_each(|&top| self.emit(changes, top, select))
    }

    fn emit(
        &mut self,
        changes: &Changes<'_>,
        top: u32,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        let Changes { forest, priced, .. } = *changes;
        let above = forest.parent(top).map(|parent| self.nodes[parent as usize].top);
        self.link(top, above);
        let sums = self.place_nodes(changes, top);
        let shape = self.plan.shape_of(&sums, self.packs_asked)?;
        let tile = select(&shape);
        let Self { plan, nodes, scratch, .. } = self;
        let first = (plan.q_tiles.len(), plan.segments.len(), plan.requests.len());
        let pack = count(plan.packs.len(), "packs")?;
        let q_tiles = &mut scratch.q_tiles;
        q_tiles.clear();
        q_tiles.push_pack(forest, top, |node| priced.joined(node), plan.capacity(&tile));
        let mut room = 0;
        plan.push_q_tiles(forest, q_tiles, |plan, node| {
            let place = &mut nodes[node as usize];
            if place.pages == NONE {
                push_pages(plan, place, forest.pages(node), forest.size(node) == 1)?;
                place.q_tile = count(plan.q_tiles.len(), "Q tiles")? - 1;
                room += place.room as usize;
            }
            Ok(place.pages)
        })?;
        nodes[top as usize].pack = pack;
        self.arenas.pages += room;
        self.push_pack(first, PlannedPack { q_tiles: 0..0, shape, tile }, top, sums);
        self.packs[pack as usize].pages = room;
        Ok(())
    }

    /// Notes a pack whose Q tiles, segments and requests are those from `first` on.
    fn push_pack(
        &mut self,
        (q_tile, segment, request): (usize, usize, usize),
        planned: PlannedPack,
        top: u32,
        sums: PackSums,
    ) {
        let plan = &mut self.plan;
        let (q_tiles, segments, requests) = (plan.q_tiles.len(), plan.segments.len(), plan.requests.len());
        self.arenas.q_tiles += q_tiles - q_tile;
        self.arenas.segments += segments - segment;
        self.arenas.requests += requests - request;
        self.q_tile_chunks.resize(q_tiles, (0, 0));
        let ratio = plan.geometry.gqa_ratio();
        // A Q tile has more rows than its tile only if those of one request are more.
        let slices = if plan.capacity(&planned.tile) > 1 {
            1
        } else {
            ratio.div_ceil(u32::from(planned.tile.m.max(1))).max(1)
        };
        let ctas = slices.saturating_mul(plan.geometry.kv_heads);
        let walked: u64 = plan.q_tiles[q_tile..].iter().map(|q_tile| u64::from(q_tile.kv_len)).sum();
        self.work = self.work.wrapping_add(walked.wrapping_mul(u64::from(ctas)));
        self.packs.push(PackState {
            top,
            sums,
            ctas,
            seen_in: 0,
            requests: request as u32..requests as u32,
            segments: segment as u32..segments as u32,
            pages: 0,
        });
        plan.packs.push(PlannedPack { q_tiles: q_tile as u32..q_tiles as u32, ..planned });
    }

    /// Gives the nodes of a pack to its top, and sums them up.
    fn place_nodes(&mut self, changes: &Changes<'_>, top: u32) -> PackSums {
        let Changes { forest, priced, .. } = *changes;
        let page_size = u64::from(self.plan.geometry.page_size);
        let stack = &mut self.scratch.tops;
        stack.clear();
        stack.push(top);
        let mut sums = PackSums::of_requests(forest.size(top));
        while let Some(node) = stack.pop() {
            let place = &mut self.nodes[node as usize];
            (place.top, place.pages) = (top, NONE);
            sums.add_node(page_size * forest.columns(node).len() as u64, forest.size(node));
            stack.extend(forest.children(node).filter(|&child| priced.joined(child)));
        }
        sums
    }

    /// Takes a pack out of the plan. Its entries become garbage, its pages 0.
    fn remove(&mut self, pack: u32) {
        let plan = &mut self.plan;
        let planned = plan.packs.swap_remove(pack as usize);
        let state = self.packs.swap_remove(pack as usize);
        let page_size = plan.geometry.page_size;
        for segment in &plan.segments[state.segments.start as usize..state.segments.end as usize] {
            let pages =
                segment.pages as usize..(segment.pages + segment.kv_range.len() as u32 / page_size) as usize;
            plan.pages[pages].fill(0);
        }
        let q_tiles = planned.q_tiles.start as usize..planned.q_tiles.end as usize;
        let walked: u64 = plan.q_tiles[q_tiles.clone()].iter().map(|q_tile| u64::from(q_tile.kv_len)).sum();
        self.work = self.work.wrapping_sub(walked.wrapping_mul(u64::from(state.ctas)));
        let Arenas { q_tiles: used_q_tiles, segments, requests, pages } = &mut self.arenas;
        *used_q_tiles -= q_tiles.len();
        *segments -= state.segments.len();
        *requests -= state.requests.len();
        *pages -= state.pages;
        // The last pack has its place now.
        if let (Some(moved), Some(state)) = (plan.packs.get(pack as usize), self.packs.get(pack as usize)) {
            let q_tiles = moved.q_tiles.start as usize..moved.q_tiles.end as usize;
            plan.q_tiles[q_tiles].iter_mut().for_each(|q_tile| q_tile.pack = pack);
            match self.nodes.get_mut(state.top as usize) {
                Some(top) => top.pack = pack,
                None => self.empty = Some(pack),
            }
        }
    }

    /// Requests without tokens, if they are others than before or their tile is: rows of zeros, which the tile of the first tree's top
    /// writes as well as any. Says whether anything is another than before.
    pub(super) fn emit_empty(
        &mut self,
        changes: &Changes<'_>,
        others: bool,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<bool, PlanError> {
        let root = changes.forest.roots().next();
        let root_tile = root.map(|root| self.plan.packs[self.nodes[root as usize].pack as usize].tile);
        if !others {
            let Some(pack) = self.empty else { return Ok(false) };
            let planned = &self.plan.packs[pack as usize];
            let tile = root_tile.unwrap_or(planned.tile);
            if tile == planned.tile {
                return Ok(false);
            }
        }
        if let Some(pack) = self.empty.take() {
            self.remove(pack);
        }
        let plan = &mut self.plan;
        let first = (plan.q_tiles.len(), plan.segments.len(), plan.requests.len());
        let begin = count(plan.requests.len(), "requests of all packs")?;
        let empty = plan.seq_lens.iter().enumerate().filter(|(_, tokens)| **tokens == 0);
        plan.requests.extend(empty.map(|(request, _)| request as u32));
        let end = count(plan.requests.len(), "requests of all packs")?;
        if begin == end {
            return Ok(true);
        }
        let shape = PackShape::of_pack(&plan.geometry, end - begin, 1, 1);
        let tile = root_tile.unwrap_or_else(|| select(&shape));
        let (pack, capacity) = (count(plan.packs.len(), "packs")?, plan.capacity(&tile));
        let segments = count(plan.segments.len(), "KV segments")?;
        for begin in (begin..end).step_by(capacity as usize) {
            let requests = begin..end.min(begin + capacity);
            plan.q_tiles.push(QTile { pack, requests, segments: segments..segments, kv_len: 0 });
        }
        count(plan.q_tiles.len(), "Q tiles")?;
        self.push_pack(first, PlannedPack { q_tiles: 0..0, shape, tile }, NONE, PackSums::default());
        self.empty = Some(pack);
        Ok(true)
    }
}

/// Puts a node's pages into the plan; behind those of a leaf of one request, room for more.
pub(super) fn push_pages(
    plan: &mut Plan,
    place: &mut Place,
    pages: &[i32],
    own: bool,
) -> Result<(), PlanError> {
    place.pages = count(plan.pages.len(), "pages of all packs")?;
    place.len = count(pages.len(), "pages of all packs")?;
    plan.pages.extend_from_slice(pages);
    if own {
        plan.pages.resize(plan.pages.len() + spare(pages.len(), plan.geometry.page_size), 0);
    }
    place.room = count(plan.pages.len(), "pages of all packs")? - place.pages;
    Ok(())
}

/// Pages that a leaf of one request has room for behind its own: some steps' worth, and more where moving it is more work.
fn spare(pages: usize, page_size: u32) -> usize {
    const TOKENS: u32 = 128;
    ((TOKENS / page_size) as usize).clamp(2, 16).max(pages / 8)
}
