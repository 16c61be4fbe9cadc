//! Chunks, destinations and work items of a patched plan.

use super::super::PlanOptions;
use super::LivePlan;
use crate::PlanError;

/// Items are sorted again when one part in this many of all work has come or gone.
const SORTED: u64 = 4;

impl LivePlan {
    /// Lists all chunks, where they go, and the work items.
    pub(super) fn finish(&mut self, options: &PlanOptions) -> Result<(), PlanError> {
        let Self { plan, scratch, q_tile_chunks, .. } = self;
        self.limit = plan.chunk_limit(options, &mut scratch.waves);
        self.unsorted = 0;
        let chunks = &mut scratch.chunks;
        chunks.clear();
        let mut next = self.first;
        let mut empty = self.empty;
        // The pack without tokens comes last.
        loop {
            let pack = match self.nodes.get(next as usize) {
                Some(top) => {
                    next = top.behind;
                    top.pack
                }
                None => match empty.take() {
                    Some(pack) => pack,
                    None => break,
                },
            };
            for q_tile in plan.packs[pack as usize].q_tiles.clone() {
                let first = chunks.len() as u32;
                plan.cut_q_tile(q_tile, self.limit, chunks);
                q_tile_chunks[q_tile as usize] = (first, chunks.len() as u32 - first);
            }
        }
        plan.assign_targets(scratch)?;
        plan.emit_items(options, scratch)
    }

    /// Gives the chunks and items of patched Q tiles their new tokens, and leaves all else as it is. That is not enough, and `false`, where
    /// chunks would be others, or read other segments, or where the order of the items is far from that of their work.
    pub(super) fn patch_chunks(&mut self, options: &PlanOptions) -> bool {
        let Self { plan, scratch, packs, chunks: cut, .. } = self;
        if self.unsorted.saturating_mul(SORTED) > self.work {
            return false;
        }
        let limit = plan.chunk_limit(options, &mut scratch.waves);
        if limit != self.limit {
            let before = std::mem::replace(&mut self.limit, limit);
            let (low, high) = (limit.work.min(before.work), limit.work.max(before.work));
            // Longer KV ranges are cut into as many equal chunks as before, or all have to be cut again.
            let moves = |q_tile: u32| {
                let work = plan.work_of(&plan.q_tiles[q_tile as usize], limit.row);
                work > low && (!limit.equal || !before.equal || work.div_ceil(low) != work.div_ceil(high))
            };
            if plan.packs.iter().flat_map(|pack| pack.q_tiles.clone()).any(moves) {
                return false;
            }
        }
        for &q_tile in &self.patched {
            let (first, count) = self.q_tile_chunks[q_tile as usize];
            let old = &mut scratch.chunks[first as usize..(first + count) as usize];
            cut.clear();
            plan.cut_q_tile(q_tile, limit, cut);
            if cut.len() != old.len() || cut.iter().zip(&*old).any(|(cut, old)| cut.segments != old.segments)
            {
                return false;
            }
            let pack = plan.q_tiles[q_tile as usize].pack;
            let slices = packs[pack as usize].ctas / plan.geometry.kv_heads;
            for (chunk, cut) in old.iter_mut().zip(&*cut) {
                chunk.kv_range = cut.kv_range.clone();
                for item in &mut plan.items[chunk.item as usize..(chunk.item + slices) as usize] {
                    item.kv_range = cut.kv_range.clone();
                }
            }
        }
        true
    }
}
