//! Entries of a plan as words that the kernels read.

use crate::{Plan, plan};
use tilewright_kernel_templates::cuda::{GRANULE, MergeItem, Run, Slot, WorkItem};

/// Writes entries one behind the other.
pub(super) fn put<const N: usize>(words: &mut [u32], at: usize, entries: impl Iterator<Item = [u32; N]>) {
    for (place, entry) in words[at..].chunks_exact_mut(N).zip(entries) {
        place.copy_from_slice(&entry);
    }
}

pub(super) fn words_of_merge(merge: &MergeItem) -> [u32; 4] {
    [merge.request, merge.partial_begin, merge.partial_end, merge.arrivals]
}

pub(super) fn words_of_slot(slot: &Slot) -> [u32; 2] {
    [slot.partial, slot.merge]
}

pub(super) fn words_of_run(run: &plan::Run) -> [u32; 4] {
    let Run { begin, pages, position, members } = device_run(run);
    [begin, pages, position, members]
}

/// An item of a launch's `tile`-th tile.
pub(super) fn words_of_item(plan: &Plan, item: &plan::WorkItem, tile: u16) -> [u32; 12] {
    let item = device_item(plan, item, tile);
    let WorkItem { requests, row_begin, row_end, runs, run_count, tile, .. } = item;
    let WorkItem { walk_begin, walk_end, slots, unused, first, .. } = item;
    let Run { begin, pages, position, members } = first;
    let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    let (rows, counts) = (pair(row_begin, row_end), pair(run_count, tile));
    [requests, rows, runs, counts, walk_begin, walk_end, slots, unused, begin, pages, position, members]
}

/// Resolves what an item needs of its block, so that the kernel finds its runs in one step instead of two.
fn device_item(plan: &Plan, item: &plan::WorkItem, tile: u16) -> WorkItem {
    WorkItem {
        requests: plan.blocks()[item.block as usize].requests.start,
        row_begin: item.rows.start as u16,
        row_end: item.rows.end as u16,
        runs: item.runs.start,
        run_count: item.runs.len() as u16,
        tile,
        walk_begin: item.walk.start,
        walk_end: item.walk.end,
        slots: item.slots,
        unused: 0,
        first: plan.runs().get(item.runs.start as usize).map_or(Run::default(), device_run),
    }
}

fn device_run(run: &plan::Run) -> Run {
    let padding = run.walk.end.next_multiple_of(GRANULE) - run.walk.end;
    Run {
        begin: run.walk.start,
        pages: run.pages,
        position: run.position,
        members: Run::members(run.members.start, run.members.end, padding),
    }
}
