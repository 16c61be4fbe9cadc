//! From parts to work items: where each part's rows go, and in which order CTAs take them.

use super::{Block, DIRECT, MergeItem, Plan, Scratch, Slot, TileGroup, UNTOUCHED, WorkItem, count};
use crate::PlanError;
use std::cmp::Reverse;
use tilewright_heuristics::Tile;

/// A part in the order of its items: tile, work of an item, index among the parts, where its destinations begin.
pub(super) type OrderedPart = (Tile, Reverse<u64>, u32, u32);

/// What a request has, and then what is left to hand out to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touched {
    /// Parts with tokens of it; then its next partial.
    parts: u32,
    /// CTAs of one KV head that compute them; then its merge.
    ctas: u32,
}

impl Touched {
    /// Counts a part.
    #[inline]
    const fn add(&mut self, ctas: u32) {
        self.parts += 1;
        self.ctas += ctas;
    }
}

impl Plan {
    /// Says where each part's requests go: numbers the partials of each request in the order of the parts, and lists its merge.
    pub(super) fn assign_slots(&mut self, scratch: &mut Scratch) -> Result<(), PlanError> {
        self.mark_slots(scratch)?;
        let Scratch { parts, touched, .. } = scratch;
        self.merges.clear();
        let mut partials = 0u32;
        for (request, touched) in touched.iter_mut().enumerate() {
            let Touched { parts, ctas } = *touched;
            if parts > 1 {
                let end = partials.checked_add(parts).filter(|&end| end < UNTOUCHED);
                let end = end.ok_or(PlanError::TooLarge("partials"))?;
                *touched = Touched { parts: partials, ctas: self.merges.len() as u32 };
                self.merges.push(MergeItem {
                    request: request as u32,
                    partial_begin: partials,
                    partial_end: end,
                    arrivals: ctas,
                });
                partials = end;
            } else {
                touched.parts = DIRECT;
            }
        }
        // A merge counts its rows in 32 bits.
        count(self.merges.len().saturating_mul(self.geometry.q_heads as usize), "rows to merge")?;
        self.partials = partials;
        if partials == 0 {
            return Ok(());
        }
        let Self { blocks, requests, slots, .. } = self;
        let mut slots = slots.iter_mut();
        for part in parts.iter() {
            for (&request, slot) in requests_of(blocks, requests, part.block).iter().zip(&mut slots) {
                let Touched { parts: next, ctas: merge } = &mut touched[request as usize];
                if slot.partial == DIRECT && *next != DIRECT {
                    *slot = Slot { partial: *next, merge: *merge };
                    *next += 1;
                }
            }
        }
        Ok(())
    }

    /// Makes a slot for each request of each part, direct where the part has tokens of it, and counts these.
    fn mark_slots(&mut self, scratch: &mut Scratch) -> Result<(), PlanError> {
        let Scratch { parts, touched, .. } = scratch;
        touched.clear();
        touched.resize(self.batch(), Touched::default());
        self.slots.clear();
        for part in parts.iter() {
            let slices = self.slices(&self.blocks[part.block as usize]);
            let members = requests_of(&self.blocks, &self.requests, part.block);
            if let &[request] = members {
                // All runs of its block are its own.
                self.slots.push(Slot { partial: DIRECT, merge: 0 });
                touched[request as usize].add(slices);
                continue;
            }
            let first = self.slots.len();
            // Requests without tokens are in a part without runs, and written there.
            let partial = if part.runs.is_empty() { DIRECT } else { UNTOUCHED };
            self.slots.resize(first + members.len(), Slot { partial, merge: 0 });
            let slots = &mut self.slots[first..];
            for run in &self.runs[part.runs.start as usize..part.runs.end as usize] {
                for slot in &mut slots[run.members.start as usize..run.members.end as usize] {
                    slot.partial = DIRECT;
                }
            }
            for (&request, slot) in members.iter().zip(slots) {
                if slot.partial == DIRECT {
                    touched[request as usize].add(slices);
                }
            }
        }
        count(self.slots.len(), "destinations").map(drop)
    }

    /// Lists the items of all parts: those of one tile together, long parts first, so that what is left for the end of the step is short.
    pub(super) fn emit_items(&mut self, scratch: &mut Scratch) -> Result<(), PlanError> {
        let Scratch { parts, order, .. } = scratch;
        order.clear();
        let (mut slots, mut items) = (0, 0u64);
        for (index, part) in parts.iter().enumerate() {
            let block = &self.blocks[part.block as usize];
            let tile = self.packs[block.pack as usize].tile;
            items += u64::from(self.slices(block)) * u64::from(self.geometry.kv_heads);
            let rows = u64::from(self.rows(block)).min(u64::from(tile.m));
            let work = rows * part.walk.len() as u64;
            // The index keeps the order of equal parts fixed.
            order.push((tile, Reverse(work), index as u32, slots));
            slots += block.requests.len() as u32;
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
            for &(_, _, index, slots) in group {
                let part = &mut parts[index as usize];
                part.item = self.items.len() as u32;
                let rows = self.rows(&self.blocks[part.block as usize]);
                let mut begin = 0;
                while begin < rows {
                    let end = rows.min(begin.saturating_add(m));
                    let (walk, runs) = (part.walk.clone(), part.runs.clone());
                    self.items.push(WorkItem { block: part.block, rows: begin..end, walk, runs, slots });
                    begin = end;
                }
            }
            self.groups.push(TileGroup { tile, items: begin..self.items.len() as u32 });
        }
        Ok(())
    }
}

/// [`Plan::requests_of`] where the plan is being changed.
fn requests_of<'a>(blocks: &[Block], requests: &'a [u32], block: u32) -> &'a [u32] {
    let range = &blocks[block as usize].requests;
    &requests[range.start as usize..range.end as usize]
}
