//! From chunks to work items: where each chunk's rows go, and in which order CTAs take them.

use super::split::Chunk;
use super::{
    DIRECT, KvSegment, MergeItem, OutputTarget, Plan, QTile, Scratch, TileGroup, UNTOUCHED, WorkItem, count,
};
use crate::PlanError;
use std::cmp::Reverse;
use tilewright_heuristics::Tile;
use tilewright_heuristics::chunk::beginnings;

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
    /// Counts a chunk, and those that its items leave apart.
    #[inline]
    const fn add(&mut self, further: u8, ctas: u32) {
        self.chunks += 1 + further as u32;
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
        if self.invariant && self.merges.len() > OutputTarget::MOST_MERGES {
            return Err(PlanError::TooLarge("merges"));
        }
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
                    *target = OutputTarget { partial: *next, merge: *merge, ..*target };
                    *next += 1 + u32::from(target.further);
                }
            }
        }
        Ok(())
    }

    /// Whether a CTA's tokens are not the first of its requests: then it leaves their chunks apart.
    fn begins_behind_others(&self, chunk: &Chunk) -> bool {
        let first = self.segments[chunk.segments.start as usize..chunk.segments.end as usize].first();
        first.is_some_and(|first| first.position + (chunk.kv_range.start - first.kv_range.start) > 0)
    }

    /// Makes a target for each request of each chunk, direct where the chunk has tokens of it, and counts these.
    fn mark_targets(&mut self, scratch: &mut Scratch) -> Result<(), PlanError> {
        let Scratch { chunks, touched, .. } = scratch;
        touched.clear();
        touched.resize(self.batch(), Touched::default());
        self.targets.clear();
        for chunk in chunks.iter() {
            let slices = self.slices(&self.q_tiles[chunk.q_tile as usize]);
            let apart = self.invariant && self.begins_behind_others(chunk);
            let members = requests_of(&self.q_tiles, &self.requests, chunk.q_tile);
            if let &[request] = members {
                // All segments of its Q tile are its own.
                let mut target = OutputTarget { partial: DIRECT, ..OutputTarget::default() };
                if apart {
                    let segments = chunk.segments.start as usize..chunk.segments.end as usize;
                    let chunks = self.segments[segments].iter().map(|segment| beginnings_in(chunk, segment));
                    target.further = chunks.sum::<u32>().saturating_sub(1) as u8;
                }
                self.targets.push(target);
                touched[request as usize].add(target.further, slices);
                continue;
            }
            let first = self.targets.len();
            // Requests without tokens are in a chunk without segments, and written there.
            let partial = if chunk.segments.is_empty() { DIRECT } else { UNTOUCHED };
            self.targets.resize(first + members.len(), OutputTarget { partial, ..OutputTarget::default() });
            let targets = &mut self.targets[first..];
            for segment in &self.segments[chunk.segments.start as usize..chunk.segments.end as usize] {
                let chunks = if apart { beginnings_in(chunk, segment) } else { 0 };
                for target in &mut targets[segment.members.start as usize..segment.members.end as usize] {
                    // The first one is the partial itself.
                    let first = u32::from(chunks > 0 && target.partial == UNTOUCHED);
                    target.further += (chunks - first) as u8;
                    target.partial = DIRECT;
                }
            }
            for (&request, target) in members.iter().zip(targets) {
                if target.partial == DIRECT {
                    touched[request as usize].add(target.further, slices);
                }
            }
        }
        count(self.targets.len(), "destinations").map(drop)
    }

    /// Lists the items of all chunks: those of one tile together, long chunks first, so that what is left for the end of the step is short.
    pub(super) fn emit_items(&mut self, scratch: &mut Scratch) -> Result<(), PlanError> {
        let Scratch { chunks, order, .. } = scratch;
        order.clear();
        let (mut targets, mut items) = (0, 0u64);
        for (index, chunk) in chunks.iter().enumerate() {
            let q_tile = &self.q_tiles[chunk.q_tile as usize];
            let tile = self.packs[q_tile.pack as usize].tile;
            items += u64::from(self.slices(q_tile)) * u64::from(self.geometry.kv_heads);
            let rows = u64::from(self.rows(q_tile)).min(u64::from(tile.m));
            let work = rows * chunk.kv_range.len() as u64;
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

/// Where chunks of absolute positions begin in what a CTA has of a segment.
fn beginnings_in(chunk: &Chunk, segment: &KvSegment) -> u32 {
    let begin = segment.kv_range.start.max(chunk.kv_range.start);
    let end = segment.kv_range.end.min(chunk.kv_range.end);
    if begin >= end {
        return 0;
    }
    let place = |token| segment.position + (token - segment.kv_range.start);
    beginnings(place(begin)..place(end))
}

/// [`Plan::requests_of`] where the plan is being changed.
fn requests_of<'a>(q_tiles: &[QTile], requests: &'a [u32], q_tile: u32) -> &'a [u32] {
    let range = &q_tiles[q_tile as usize].requests;
    &requests[range.start as usize..range.end as usize]
}
