//! From chunks to work items: where each chunk's rows go, and in which order CTAs take them.

use super::{
    DIRECT, MergeItem, OutputTarget, Plan, PlanOptions, QTile, Scratch, TileGroup, UNTOUCHED, WorkItem, count,
};
use crate::PlanError;
use std::cmp::Reverse;
use tilewright_heuristics::Tile;

/// A chunk in the order of its items: tile, work of an item, index among the chunks, where its destinations begin.
pub(super) type OrderedChunk = (Tile, Reverse<u64>, u32, u32);

/// What a request has, and then what is left to hand out to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touched {
    /// Chunks with tokens of it; then its next partial.
    chunks: u32,
    /// CTAs of one KV head that compute them; then its merge.
    ctas: u32,
}

impl Touched {
    /// Counts a chunk.
    #[inline]
    const fn add(&mut self, ctas: u32) {
        self.chunks += 1;
        self.ctas += ctas;
    }
}

impl Plan {
    /// Says where each chunk's requests go: numbers the partials of each request in the order of the chunks, and lists its merge.
    pub(super) fn assign_targets(&mut self, scratch: &mut Scratch) -> Result<(), PlanError> {
        self.mark_targets(scratch)?;
        let Scratch { chunks, touched, .. } = scratch;
        self.merges.clear();
        let mut partials = 0u32;
        for (request, touched) in touched.iter_mut().enumerate() {
            let Touched { chunks, ctas } = *touched;
            if chunks > 1 {
                let end = partials.checked_add(chunks).filter(|&end| end < UNTOUCHED);
                let end = end.ok_or(PlanError::TooLarge("partials"))?;
                *touched = Touched { chunks: partials, ctas: self.merges.len() as u32 };
                self.merges.push(MergeItem {
                    request: request as u32,
                    partial_begin: partials,
                    partial_end: end,
                    arrivals: ctas,
                });
                partials = end;
            } else {
                touched.chunks = DIRECT;
            }
        }
        // A merge counts its rows in 32 bits.
        count(self.merges.len().saturating_mul(self.geometry.q_heads as usize), "rows to merge")?;
        self.partials = partials;
        if partials == 0 {
            return Ok(());
        }
        let Self { q_tiles, requests, targets, .. } = self;
        let mut targets = targets.iter_mut();
        for chunk in chunks.iter() {
            for (&request, target) in requests_of(q_tiles, requests, chunk.q_tile).iter().zip(&mut targets) {
                let Touched { chunks: next, ctas: merge } = &mut touched[request as usize];
                if target.partial == DIRECT && *next != DIRECT {
                    *target = OutputTarget { partial: *next, merge: *merge };
                    *next += 1;
                }
            }
        }
        Ok(())
    }

    /// Makes a target for each request of each chunk, direct where the chunk has tokens of it, and counts these.
    fn mark_targets(&mut self, scratch: &mut Scratch) -> Result<(), PlanError> {
        let Scratch { chunks, touched, .. } = scratch;
        touched.clear();
        touched.resize(self.batch(), Touched::default());
        self.targets.clear();
        for chunk in chunks.iter() {
            let slices = self.slices(&self.q_tiles[chunk.q_tile as usize]);
            let members = requests_of(&self.q_tiles, &self.requests, chunk.q_tile);
            if let &[request] = members {
                // All segments of its Q tile are its own.
                self.targets.push(OutputTarget { partial: DIRECT, merge: 0 });
                touched[request as usize].add(slices);
                continue;
            }
            let first = self.targets.len();
            // Requests without tokens are in a chunk without segments, and written there.
            let partial = if chunk.segments.is_empty() { DIRECT } else { UNTOUCHED };
            self.targets.resize(first + members.len(), OutputTarget { partial, merge: 0 });
            let targets = &mut self.targets[first..];
            for segment in &self.segments[chunk.segments.start as usize..chunk.segments.end as usize] {
                for target in &mut targets[segment.members.start as usize..segment.members.end as usize] {
                    target.partial = DIRECT;
                }
            }
            for (&request, target) in members.iter().zip(targets) {
                if target.partial == DIRECT {
                    touched[request as usize].add(slices);
                }
            }
        }
        count(self.targets.len(), "destinations").map(drop)
    }

    /// Lists the items of all chunks: those of one tile together, long chunks first, so that what is left for the end of the step is short.
    pub(super) fn emit_items(
        &mut self,
        options: &PlanOptions,
        scratch: &mut Scratch,
    ) -> Result<(), PlanError> {
        let row = self.work_of_row(options);
        let Scratch { chunks, order, .. } = scratch;
        order.clear();
        let (mut targets, mut items) = (0, 0u64);
        for (index, chunk) in chunks.iter().enumerate() {
            let q_tile = &self.q_tiles[chunk.q_tile as usize];
            let tile = self.packs[q_tile.pack as usize].tile;
            items += u64::from(self.slices(q_tile)) * u64::from(self.geometry.kv_heads);
            let work = self.work_within(q_tile, row, &chunk.kv_range);
            // The index keeps the order of equal chunks fixed.
            order.push((tile, Reverse(work), index as u32, targets));
            targets += q_tile.requests.len() as u32;
        }
        if items >= u64::from(UNTOUCHED) {
            return Err(PlanError::TooLarge("work items"));
        }
        order.sort_unstable();
        self.items.clear();
        self.groups.clear();
        for group in order.chunk_by(|a, b| a.0 == b.0) {
            let (tile, begin) = (group[0].0, self.items.len() as u32);
            let m = u32::from(tile.m.max(1));
            for &(_, _, index, targets) in group {
                let chunk = &mut chunks[index as usize];
                chunk.item = self.items.len() as u32;
                let rows = self.rows(&self.q_tiles[chunk.q_tile as usize]);
                let mut begin = 0;
                while begin < rows {
                    let end = rows.min(begin.saturating_add(m));
                    let (kv_range, segments) = (chunk.kv_range.clone(), chunk.segments.clone());
                    self.items.push(WorkItem {
                        q_tile: chunk.q_tile,
                        rows: begin..end,
                        kv_range,
                        segments,
                        targets,
                    });
                    begin = end;
                }
            }
            self.groups.push(TileGroup { tile, items: begin..self.items.len() as u32 });
        }
        Ok(())
    }
}

/// [`Plan::requests_of`] where the plan is being changed.
fn requests_of<'a>(q_tiles: &[QTile], requests: &'a [u32], q_tile: u32) -> &'a [u32] {
    let range = &q_tiles[q_tile as usize].requests;
    &requests[range.start as usize..range.end as usize]
}
