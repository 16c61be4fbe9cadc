//! The timeline of a plan on the host's processor, of what its threads noted.

use crate::store::{TilePlaces, Timeline, TimelineEntry};
use tilewright_cpu::UnitTimes;
use tilewright_plan::{Plan, PlanOptions};

/// What threads noted of a plan that was made with these options. Each thread is a place, whatever the tile.
pub(super) fn timeline(plan: &Plan, options: &PlanOptions, threads: u32, units: &[UnitTimes]) -> Timeline {
    let groups = plan.tile_groups();
    let entry = |unit: &UnitTimes| TimelineEntry {
        tile: groups.iter().position(|group| group.items.contains(&unit.item)).unwrap_or(0) as u32,
        item: unit.item,
        kv_head: unit.kv_head,
        share: unit.share,
        processor: unit.thread,
        begin_ns: unit.begin,
        // A processor's loads are not waited for one by one.
        ready_ns: None,
        computed_ns: unit.computed,
        end_ns: unit.end,
    };
    Timeline {
        processors: threads,
        tiles: groups.iter().map(|group| TilePlaces { tile: group.tile, places: threads }).collect(),
        predicted_idle: plan.predicted_idle_of_threads(options, threads),
        entries: units.iter().map(entry).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
    use tilewright_plan::{PageTable, Split};

    #[test]
    fn what_threads_noted_is_told_with_their_tiles() {
        let geometry = Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
        let table_entries: Vec<i32> = (0..16).collect();
        let table = PageTable::new(&table_entries, 8, &[64, 128], 16).unwrap();
        let tile = |warps| Tile::new(4, 32, warps, 1);
        let select = |shape: &PackShape| if shape.kv_len > 64 { tile(2) } else { tile(1) };
        let options = PlanOptions { split: Split::None, ..PlanOptions::default() };
        let plan = Plan::build(&geometry, &table, &options, select).unwrap();
        let unit = UnitTimes { item: 1, kv_head: 1, share: 1, thread: 2, begin: 3, computed: 4, end: 6 };
        let told = timeline(&plan, &options, 3, &[UnitTimes { item: 0, thread: 1, ..unit }, unit]);
        assert_eq!(told.processors, 3);
        assert_eq!(told.tiles, [1, 2].map(|warps| TilePlaces { tile: tile(warps), places: 3 }));
        let entry = TimelineEntry {
            tile: 1,
            item: 1,
            kv_head: 1,
            share: 1,
            processor: 2,
            begin_ns: 3,
            ready_ns: None,
            computed_ns: 4,
            end_ns: 6,
        };
        assert_eq!(told.entries, [TimelineEntry { tile: 0, item: 0, processor: 1, ..entry }, entry]);
        assert_eq!(told.predicted_idle, plan.predicted_idle_of_threads(&options, 3));
        assert!(told.predicted_idle > 0.0, "three threads cannot share four parts and two evenly");
    }
}
