//! Entries of a plan as words that the kernels read.

use super::l2_policy::L2Policy;
use tilewright_kernel_templates::cuda::{EVICT_FIRST, GRANULE, KvSegment, WARP_ROWS, WorkItem, max_segments};
use tilewright_plan::{self as plan, Plan};

/// The planner counts in what the kernels count in.
const _: () = assert!(
    GRANULE == plan::GRANULE && WARP_ROWS == plan::WARP_ROWS && max_segments(64) == plan::max_segments(64)
);

/// Writes entries one behind the other.
pub(super) fn put<const N: usize>(words: &mut [u32], at: usize, entries: impl Iterator<Item = [u32; N]>) {
    for (place, entry) in words[at..].chunks_exact_mut(N).zip(entries) {
        place.copy_from_slice(&entry);
    }
}

pub(super) fn words_of_merge(merge: &plan::MergeItem) -> [u32; 4] {
    [merge.request, merge.partial_begin, merge.partial_end, merge.arrivals]
}

pub(super) fn words_of_target(target: &plan::OutputTarget) -> [u32; 2] {
    [target.partial, target.merge]
}

/// A segment of a plan, by its place among them.
pub(super) fn words_of_segment(plan: &Plan, l2_policy: &L2Policy, segment: usize) -> [u32; 4] {
    let KvSegment { begin, pages, position, members } = device_segment(plan, l2_policy, segment);
    [begin, pages, position, members]
}

/// An item of a launch's `tile`-th tile.
pub(super) fn words_of_item(plan: &Plan, l2_policy: &L2Policy, item: &plan::WorkItem, tile: u8) -> [u32; 12] {
    let item = device_item(plan, l2_policy, item, tile);
    let WorkItem { requests, row_begin, row_end, segments, segment_count, tile, private_phase_first, .. } =
        item;
    let WorkItem { kv_begin, kv_end, output_targets, certain_end, first, .. } = item;
    let KvSegment { begin, pages, position, members } = first;
    let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    let (rows, counts) =
        (pair(row_begin, row_end), pair(segment_count, u16::from_le_bytes([tile, private_phase_first])));
    [
        requests,
        rows,
        segments,
        counts,
        kv_begin,
        kv_end,
        output_targets,
        certain_end,
        begin,
        pages,
        position,
        members,
    ]
}

/// Resolves what an item needs of its block, so that the kernel finds its runs in one step instead of two.
fn device_item(plan: &Plan, l2_policy: &L2Policy, item: &plan::WorkItem, tile: u8) -> WorkItem {
    WorkItem {
        requests: plan.q_tiles()[item.q_tile as usize].requests.start,
        row_begin: item.rows.start as u16,
        row_end: item.rows.end as u16,
        segments: item.segments.start,
        segment_count: item.segments.len() as u16,
        tile,
        private_phase_first: private_phase_first(plan, item).into(),
        kv_begin: item.kv_range.start,
        kv_end: item.kv_range.end,
        output_targets: item.targets,
        certain_end: certain_end(plan, item),
        first: if plan.segments().len() > item.segments.start as usize {
            device_segment(plan, l2_policy, item.segments.start as usize)
        } else {
            KvSegment::default()
        },
    }
}

/// Whether an item runs its private KV phase first, as about half of them do: private KV is read once, from device memory, while most of the other tokens
/// come from L2 and keep tensor cores busy, so HBM and MMA phases overlap. The item's first request decides, because an item's place in the plan must
/// change no bit.
fn private_phase_first(plan: &Plan, item: &plan::WorkItem) -> bool {
    let first = (item.rows.start / plan.geometry().gqa_ratio()) as usize;
    plan.requests_of(item.q_tile)[first].wrapping_mul(0x9e37_79b9) >> 31 == 1
}

/// See [`WorkItem::certain_end`]. Any request that shares the run will do, as some row sees what it sees.
fn certain_end(plan: &Plan, item: &plan::WorkItem) -> u32 {
    let Some(segment) = plan.segments()[..item.segments.end as usize].get(item.segments.start as usize)
    else {
        return 0;
    };
    let request = plan.requests_of(item.q_tile)[segment.members.start as usize];
    let seen = plan.least_tokens(request).saturating_sub(segment.position);
    segment.kv_range.start.saturating_add(seen).min(segment.kv_range.end).min(item.kv_range.end)
}

fn device_segment(plan: &Plan, l2_policy: &L2Policy, segment: usize) -> KvSegment {
    // The one behind it, if it is of the same Q tile: of a Q tile's last one, nobody asks for what is behind.
    let next = plan.segments().get(segment + 1).map_or(0, |next| next.kv_range.start);
    let segment = &plan.segments()[segment];
    let padding = match next.checked_sub(segment.kv_range.end) {
        Some(padding) if padding < 256 => padding,
        _ => segment.kv_range.end.next_multiple_of(GRANULE) - segment.kv_range.end,
    };
    KvSegment {
        begin: segment.kv_range.start,
        pages: if l2_policy.evicts_first(segment) { segment.pages | EVICT_FIRST } else { segment.pages },
        position: segment.position,
        members: KvSegment::members(segment.members.start, segment.members.end, padding),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tilewright_heuristics::{Dtype, Geometry, Tile};
    use tilewright_plan::{Packing, PageTable, PlanOptions, Queries, Split};

    const PAGE: u32 = 16;
    const TILE: Tile = Tile::of("m16n32w1s2");

    /// Requests that share some first pages, as (how many of eight, pages of their own, tokens in the last one).
    fn plan(
        requests: &[(usize, usize, u32)],
        options: &PlanOptions,
        queries: Option<&[u32]>,
    ) -> (Plan, Vec<u32>) {
        let (mut entries, mut lens) = (Vec::new(), Vec::new());
        for (index, &(shared, own, tokens)) in requests.iter().enumerate() {
            entries.extend(
                (0..16).map(|page| if page < shared { page } else { 16 * (index + 1) + page } as i32),
            );
            lens.push(((shared + own) as u32 * PAGE + tokens).saturating_sub(PAGE));
        }
        let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: PAGE, dtype: Dtype::F16 };
        let mut memory = Queries::default();
        let mut table = PageTable::new(&entries, 16, &lens, PAGE).unwrap();
        if let Some(queries) = queries {
            table = table.with_queries(queries, &mut memory).unwrap();
        }
        (Plan::build(&geometry, &table, options, TILE).unwrap(), lens)
    }

    proptest! {
        #[test]
        fn what_is_certain_is_seen_whatever_is_in_the_last_pages(
            requests in prop::collection::vec((0usize..8, 0usize..8, 1u32..=PAGE), 1..20),
            packing in prop::sample::select(vec![Packing::Priced, Packing::PerTree, Packing::Pat, Packing::PerRequest]),
            split in prop::sample::select(vec![Split::None, Split::Mean, Split::Fill]),
        ) {
            let (plan, lens) = plan(&requests, &PlanOptions { packing, split, ..PlanOptions::default() }.with_max_concurrent_ctas(7), None);
            // All but one token of each last page may be missing.
            let least = |request: u32| lens[request as usize].saturating_sub(1) / PAGE * PAGE + u32::from(lens[request as usize] > 0);
            for item in plan.work_items() {
                let certain = device_item(&plan, &L2Policy::default(), item, 0).certain_end;
                prop_assert!(certain <= item.kv_range.end);
                let Some(segment) = plan.segments()[..item.segments.end as usize].get(item.segments.start as usize) else { continue };
                let members = &plan.requests_of(item.q_tile)[segment.members.start as usize..segment.members.end as usize];
                let seen = members.iter().map(|&request| segment.kv_range.start + least(request).saturating_sub(segment.position)).max();
                prop_assert!(certain <= item.kv_range.start.max(seen.unwrap()).min(segment.kv_range.end.max(item.kv_range.start)));
            }
        }
    }

    #[test]
    fn about_half_of_the_items_begin_with_their_private_kv_phase() {
        let (plan, _) = plan(&[(3, 1, 16); 64], &PlanOptions::default(), None);
        let counts = |item| words_of_item(&plan, &L2Policy::default(), item, 3)[3];
        let counts: Vec<u32> = plan.work_items().iter().map(counts).collect();
        assert!(counts.iter().all(|counts| counts >> 16 & 0xff == 3), "the tile's place");
        let (items, first) = (counts.len(), counts.iter().filter(|&counts| counts >> 24 == 1).count());
        assert!(items >= 16 && (items / 4..=3 * items / 4).contains(&first), "{first} of {items}");
    }

    #[test]
    fn whole_pages_before_the_last_are_certain() {
        let options = PlanOptions { packing: Packing::PerTree, split: Split::None, ..PlanOptions::default() };
        let certain = |requests: &[(usize, usize, u32)], queries: Option<&[u32]>| {
            let (plan, _) = plan(requests, &options, queries);
            plan.work_items()
                .iter()
                .map(|item| device_item(&plan, &L2Policy::default(), item, 0).certain_end)
                .collect::<Vec<_>>()
        };
        assert_eq!(certain(&[(0, 4, 16)], None), [48], "the fourth page may have one token only");
        assert_eq!(certain(&[(3, 1, 5), (3, 2, 1)], None), [48], "the shared ones are whole");
        assert_eq!(certain(&[(3, 1, 5), (3, 2, 1)], Some(&[1, 1])), [48]);
        assert_eq!(certain(&[(3, 1, 5), (3, 2, 1)], Some(&[1, 2])), [0]);
    }
}
