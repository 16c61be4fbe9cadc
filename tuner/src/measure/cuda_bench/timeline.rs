//! The timeline of a plan on a GPU: the same launches, of kernels that note what their CTAs do.
#![allow(unsafe_code)]

use super::{CudaBench, failure_of};
use crate::measure::{Failure, Planning};
use crate::store::{Status, TilePlaces, Timeline, TimelineEntry};
use tilewright_cuda::{self as cuda, DevicePlan, RawArgs};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::KernelOptions;
use tilewright_plan::Plan;

/// Launches a plan twice, each time on a cold L2; what the CTAs of the second launch noted. The first one loads the kernels.
///
/// # Safety
/// As for [`cuda::profiling::Timeline::record`].
pub(super) unsafe fn record(
    bench: &mut CudaBench,
    plan: &Plan,
    planning: Planning,
    uploaded: &DevicePlan,
    args: &RawArgs,
) -> Result<Timeline, Failure> {
    let class = Class::of(plan.geometry());
    let options = KernelOptions { timeline: true, ..args.options(uploaded) };
    let tiles: Vec<_> = plan.tile_groups().iter().map(|group| group.tile).collect();
    bench.compile(&tiles, &class, options);
    let sms = bench.cuda_limits().sms;
    let places = tiles.iter().map(|&tile| match bench.compiled.get(&(class, options, tile)) {
        Some(Ok(compiled)) => Ok(TilePlaces { tile, places: sms * compiled.ctas_per_sm }),
        Some(Err(failure)) => Err(failure.clone()),
        None => Err(Failure { status: Status::Runtime, message: format!("{tile} was not compiled") }),
    });
    let tiles = places.collect::<Result<Vec<_>, Failure>>()?;
    let mut recorded = cuda::profiling::Timeline::default();
    for _ in 0..2 {
        bench.flush.queue(&bench.stream).map_err(failure_of)?;
        // SAFETY: the caller's promises.
        recorded =
            unsafe { cuda::profiling::Timeline::record(&bench.backend, &bench.stream, uploaded, args) }
                .map_err(failure_of)?;
    }
    let of_tile = |tile: &_| tiles.iter().find(|known| known.tile == *tile).map_or(1, |known| known.places);
    Ok(Timeline {
        processors: sms,
        predicted_idle: plan.predicted_idle_launched(&planning.options(bench.plan_options()), of_tile),
        entries: entries(plan, &recorded),
        tiles,
    })
}

/// What CTAs noted, with the work items that they had.
fn entries(plan: &Plan, recorded: &cuda::profiling::Timeline) -> Vec<TimelineEntry> {
    let (groups, kv_heads) = (plan.tile_groups(), plan.geometry().kv_heads.max(1));
    let each = recorded.indices.iter().zip(&recorded.ctas).filter_map(|(&index, cta)| {
        let (item, kv_head) = (index / kv_heads, index % kv_heads);
        let tile = groups.iter().position(|group| group.items.contains(&item))?;
        let entry = TimelineEntry {
            tile: tile as u32,
            item,
            kv_head,
            share: 0,
            processor: cta.multiprocessor,
            begin_ns: cta.begin,
            // One without tokens waits for none, and notes nothing.
            ready_ns: (cta.ready > cta.begin).then_some(cta.ready),
            computed_ns: cta.computed,
            end_ns: cta.end,
        };
        Some(entry.in_order())
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
    use tilewright_kernel_templates::cuda::TimelineEntry as Noted;
    use tilewright_plan::{PageTable, PlanOptions, Split};

    #[test]
    fn what_ctas_noted_is_told_with_their_tiles_items_and_heads() {
        let geometry = Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
        let table_entries: Vec<i32> = (0..16).collect();
        let table = PageTable::new(&table_entries, 8, &[64, 128], 16).unwrap();
        let tile = |m| Tile::new(m, 32, 1, 2);
        let select = |shape: &PackShape| if shape.kv_len > 64 { tile(32) } else { tile(16) };
        let options = PlanOptions { split: Split::None, ..PlanOptions::default() };
        let plan = Plan::build(&geometry, &table, &options, select).unwrap();
        assert_eq!(plan.work_items().len(), 2);

        let noted = |begin, multiprocessor| Noted {
            begin,
            ready: begin + 1,
            computed: begin + 5,
            end: begin + 6,
            multiprocessor,
            unused: 0,
        };
        let unready = Noted { ready: 0, ..noted(7, 3) };
        let recorded = cuda::profiling::Timeline {
            ctas: vec![noted(0, 2), unready, noted(9, 0)],
            indices: vec![1, 2, 3],
        };
        let found = entries(&plan, &recorded);
        let told: Vec<_> = found.iter().map(|e| (e.tile, e.item, e.kv_head, e.processor)).collect();
        assert_eq!(told, [(0, 0, 1, 2), (1, 1, 0, 3), (1, 1, 1, 0)]);
        let times: Vec<_> = found.iter().map(|e| (e.begin_ns, e.ready_ns, e.computed_ns, e.end_ns)).collect();
        assert_eq!(times, [(0, Some(1), 5, 6), (7, None, 12, 13), (9, Some(10), 14, 15)]);
        // Entries of no work item are ignored.
        let beyond = cuda::profiling::Timeline { ctas: vec![noted(0, 0)], indices: vec![4] };
        assert!(entries(&plan, &beyond).is_empty());
    }
}
