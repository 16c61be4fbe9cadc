//! Parts, destinations and work items of a patched plan.

use super::super::PlanOptions;
use super::LivePlan;
use crate::PlanError;

/// Items are sorted again when so much of all work has come or gone: one part in this many.
const SORTED: u64 = 4;

impl LivePlan {
    /// Lists all parts, where they go, and the work items.
    pub(super) fn finish(&mut self, options: &PlanOptions) -> Result<(), PlanError> {
        let Self { plan, scratch, block_parts, .. } = self;
        self.limit = plan.part_limit(options, &mut scratch.waves);
        self.unsorted = 0;
        let parts = &mut scratch.parts;
        parts.clear();
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
            for block in plan.packs[pack as usize].blocks.clone() {
                let first = parts.len() as u32;
                plan.cut_block(block, self.limit, parts);
                block_parts[block as usize] = (first, parts.len() as u32 - first);
            }
        }
        plan.assign_slots(scratch)?;
        plan.emit_items(scratch)
    }

    /// Gives the parts and items of patched blocks their new tokens, and leaves all else as it is. That is not enough, and `false`, where
    /// parts would be others, or walk other runs, or where the order of the items is far from that of their work.
    pub(super) fn patch_parts(&mut self, options: &PlanOptions) -> bool {
        let Self { plan, scratch, packs, parts: cut, .. } = self;
        if self.unsorted.saturating_mul(SORTED) > self.work {
            return false;
        }
        let limit = plan.part_limit(options, &mut scratch.waves);
        if limit != self.limit {
            let before = std::mem::replace(&mut self.limit, limit);
            let (low, high) = (limit.min(before), limit.max(before));
            // Longer walks are cut into as many parts as before, or all have to be cut again.
            let moves = |block: u32| {
                let walk = u64::from(plan.blocks[block as usize].walk);
                walk > low && walk.div_ceil(low) != walk.div_ceil(high)
            };
            if plan.packs.iter().flat_map(|pack| pack.blocks.clone()).any(moves) {
                return false;
            }
        }
        for &block in &self.patched {
            let (first, count) = self.block_parts[block as usize];
            let old = &mut scratch.parts[first as usize..(first + count) as usize];
            cut.clear();
            plan.cut_block(block, limit, cut);
            if cut.len() != old.len() || cut.iter().zip(&*old).any(|(cut, old)| cut.runs != old.runs) {
                return false;
            }
            let pack = plan.blocks[block as usize].pack;
            let slices = packs[pack as usize].ctas / plan.geometry.kv_heads;
            for (part, cut) in old.iter_mut().zip(&*cut) {
                part.walk = cut.walk.clone();
                for item in &mut plan.items[part.item as usize..(part.item + slices) as usize] {
                    item.walk = cut.walk.clone();
                }
            }
        }
        true
    }
}
