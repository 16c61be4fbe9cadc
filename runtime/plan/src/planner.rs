//! Plans step after step in the same memory.

use crate::plan::Scratch;
use crate::{
    ChooseTiles, Forest, PackLayout, Packing, Packs, PageTable, Plan, PlanError, PlanOptions, Priced, Split,
    batch_shape,
};
use tilewright_heuristics::{BatchShape, Geometry};

/// Makes plans one after the other. Once it has seen the largest batch, making one allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    options: PlanOptions,
    forest: Forest,
    packs: Packs,
    priced: Priced,
    plan: Plan,
    scratch: Scratch,
}

impl Planner {
    /// A planner with these options.
    pub fn new(options: PlanOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Plans a batch: forest, packs, a tile for each, splits, work items, merge list. `choose` is asked about the batch, then once a pack.
    ///
    /// # Errors
    /// A layout that makes no sense, or a batch beyond 32-bit counts. The plan before is lost then.
    pub fn plan(
        &mut self,
        geometry: &Geometry,
        table: &PageTable<'_>,
        mut choose: impl ChooseTiles,
    ) -> Result<&Plan, PlanError> {
        geometry.validate()?;
        if table.page_size() != geometry.page_size {
            return Err(PlanError::PageSize { table: table.page_size(), geometry: geometry.page_size });
        }
        let Self { options, forest, packs, priced, plan, scratch } = self;
        forest.rebuild(table, &mut scratch.neighbours);
        let batch =
            if choose.decides_batches() { batch_shape(geometry, forest) } else { BatchShape::UNKNOWN };
        let tiles = choose.batch(&batch);
        let select = |pack: &_| choose.pack(pack);
        if options.split == Split::Invariant {
            plan.rebuild_invariant(geometry, table, forest, options, (tiles, select), scratch)?;
            return Ok(plan);
        }
        let mut of_one_segment = packs.rebuild(forest, table, options.packing, &mut scratch.stack);
        if options.packing == Packing::PerTree {
            priced.join_all(forest);
        } else if options.packing == Packing::Priced {
            let layout =
                PackLayout::new(geometry).with_tiles(tiles).for_batch(table.batch(), &options.device);
            priced.decide(forest, &layout, &options.device.prices);
            of_one_segment =
                priced.prefers_pat() && packs.rebuild(forest, table, Packing::Pat, &mut scratch.stack);
        }
        if of_one_segment {
            plan.rebuild(geometry, table, packs, options, select, scratch)?;
        } else {
            plan.rebuild_joined(geometry, table, (forest, priced), options, select, scratch)?;
        }
        Ok(plan)
    }

    /// The last plan that was made; one of an empty batch before the first.
    pub const fn last(&self) -> &Plan {
        &self.plan
    }

    /// Gives the last plan lengths that are known to end in the last pages of those before.
    pub(crate) fn take_lengths(&mut self, seq_lens: &[u32]) {
        self.plan.take_lengths(seq_lens);
    }

    /// The last plan, to keep.
    pub(crate) fn into_plan(self) -> Plan {
        self.plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tilewright_heuristics::{Dtype, PackShape, Tile};

    const GEOMETRY: Geometry =
        Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };

    proptest! {
        #[test]
        fn a_plan_in_used_memory_is_the_plan_in_new_memory(
            steps in prop::collection::vec(prop::collection::vec(prop::collection::vec(0i32..3, 0..7), 0..12), 1..5),
            split in prop::sample::select(vec![Split::None, Split::Mean, Split::Fill, Split::Waves]),
            packing in prop::sample::select(vec![Packing::Priced, Packing::PerTree, Packing::Pat, Packing::PerNode, Packing::PerRequest]),
        ) {
            let options = PlanOptions { packing, split, ..PlanOptions::default() }.with_max_concurrent_ctas(5);
            let tile = |shape: &PackShape| Tile::new(if shape.rows > 4 { 16 } else { 4 }, 16, 1, 1);
            let mut planner = Planner::new(options);
            for rows in steps {
                let seq_lens: Vec<u32> = rows.iter().map(|row| (row.len() as u32 * 16).saturating_sub(3)).collect();
                let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0);
                let entries: Vec<i32> = rows
                    .iter()
                    .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(-1, max_pages - row.len())))
                    .collect();
                let table = PageTable::new(&entries, max_pages, &seq_lens, 16).unwrap();
                let again = planner.plan(&GEOMETRY, &table, tile).unwrap();
                prop_assert_eq!(again, &Plan::build(&GEOMETRY, &table, &options, tile).unwrap());
            }
        }
    }
}
