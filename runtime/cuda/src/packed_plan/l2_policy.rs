//! What stays in L2, and which CTAs run side by side: both by how many work items read the same pages.
//!
//! KV that one item reads alone is evicted first. L2 keeps what several items read, and dirty lines that need not be written back meanwhile.
//! Streams much longer than L2 evict those lines anyway, between reads.
//!
//! CTAs of one item side by side read whole pages together, which DRAM favours. CTAs of one KV head side by side read what they share while it
//! is in L2, and less of a page at a time. (`docs/tried.md` has the measurements.)

use tilewright_plan::{self as plan, Plan};

/// L2 of an H200, in bytes.
const L2_OF_H200: u64 = 60 << 20;

/// Up to this many times L2, KV that items read alone is evicted first, as a fraction. Measured on an H200 (60 MiB of L2) behind a cache full of
/// dirty lines: 134 MB are up to 7 % faster for it; 268 to 1 070 MB are 1 to 4 % slower where little else is read.
const EVICT_FIRST_OVER_L2: (u64, u64) = (10, 3);

/// Tokens that items read over distinct tokens, in percent, from which on CTAs of a KV head run side by side. Measured on an H200: from 110 on
/// it is up to 14 % faster; at 105 it is 5 % slower, and where nothing is shared 3 %.
const HEAD_MAJOR_FROM_PERCENT: u64 = 108;

/// How many times the tokens of the shortest item the longest may read for that, as a fraction. Measured on an H200, where the longest was compared with the
/// mean: held-out tenants in FP8 take 0.98 of their time with 3/2 (`docs/tried.md`).
const EVEN: (u64, u64) = (11, 10);

/// How the CTAs of a plan use L2.
#[derive(Clone, Debug)]
pub(super) struct L2Policy {
    /// Most bytes of KV that items read alone and that are evicted first.
    evict_first_bytes: u64,
    /// By a segment's first page: items of a KV head that read the segment, at most 2.
    readers: Vec<u8>,
    evicts_first: bool,
    head_major: bool,
}

impl Default for L2Policy {
    fn default() -> Self {
        Self::new(L2_OF_H200)
    }
}

impl L2Policy {
    /// The policy for a device with this much L2.
    pub(super) const fn new(l2_bytes: u64) -> Self {
        let (times, over) = EVICT_FIRST_OVER_L2;
        let evict_first_bytes = l2_bytes.saturating_mul(times) / over;
        Self { evict_first_bytes, readers: Vec::new(), evicts_first: false, head_major: false }
    }

    /// Decides for a plan.
    pub(super) fn decide(&mut self, plan: &Plan) {
        self.readers.clear();
        self.readers.resize(plan.pages().len(), 0);
        // Tokens that items read, distinct ones, and those that a second item reads.
        let (mut read, mut distinct, mut again) = (0, 0, 0);
        for item in plan.work_items() {
            read += item.kv_range.len() as u64;
            for segment in &plan.segments()[item.segments.start as usize..item.segments.end as usize] {
                // Of a segment that is cut, the first chunk counts.
                let readers = self
                    .readers
                    .get_mut(segment.pages as usize)
                    .filter(|_| item.kv_range.start <= segment.kv_range.start);
                let Some(readers) = readers else { continue };
                let tokens = segment.kv_range.len() as u64;
                distinct += tokens * u64::from(*readers == 0);
                again += tokens * u64::from(*readers == 1);
                *readers = (*readers + 1).min(2);
            }
        }
        let alone = distinct.saturating_sub(again);
        self.evicts_first = alone * plan.geometry().kv_bytes_per_token() as u64 <= self.evict_first_bytes;
        self.head_major = read * 100 > distinct * HEAD_MAJOR_FROM_PERCENT && are_even(plan);
    }

    /// Whether one item alone, or the chunks of one, reads a segment, so that it is evicted first.
    pub(super) fn evicts_first(&self, segment: &plan::KvSegment) -> bool {
        self.evicts_first && self.readers.get(segment.pages as usize) == Some(&1)
    }

    /// Whether CTAs of a KV head run side by side, instead of those of an item.
    pub(super) const fn head_major(&self) -> bool {
        self.head_major
    }
}

/// Whether all items with tokens read about as many. Where some read more, those of all KV heads have to begin first, so that they do not end last.
fn are_even(plan: &Plan) -> bool {
    let tokens = plan.work_items().iter().map(|item| item.kv_range.len() as u64).filter(|&tokens| tokens > 0);
    let (shortest, longest) =
        tokens.fold((u64::MAX, 0), |(shortest, longest), tokens| (shortest.min(tokens), longest.max(tokens)));
    longest * EVEN.1 <= shortest.saturating_mul(EVEN.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PackedPlan;
    use tilewright_heuristics::{Dtype, Geometry, Tile};
    use tilewright_kernel_templates::cuda::EVICT_FIRST;
    use tilewright_plan::{Packing, PageTable, PlanOptions, Split};

    /// Requests of a trunk of pages that all share and pages of their own, eight rows each, packed as a tree into tiles of `m` rows.
    fn plan(requests: usize, trunk: usize, own: usize, m: u16) -> Plan {
        let columns = trunk + own;
        let page = |request: usize, column: usize| {
            if column < trunk { column } else { trunk + request * own + column - trunk }
        };
        let entries: Vec<i32> =
            (0..requests * columns).map(|at| page(at / columns, at % columns) as i32).collect();
        let geometry = Geometry { q_heads: 32, kv_heads: 4, head_dim: 128, page_size: 16, dtype: Dtype::F16 };
        let lens = vec![16 * columns as u32; requests];
        let table = PageTable::new(&entries, columns, &lens, 16).unwrap();
        let options = PlanOptions { packing: Packing::PerTree, split: Split::None, ..PlanOptions::default() };
        Plan::build(&geometry, &table, &options, Tile::new(m, 32, 1, 2)).unwrap()
    }

    /// Which segments are streamed, by whether all requests have them; and the order of CTAs.
    fn counted(plan: &Plan, trunk: usize) -> (Vec<bool>, Vec<bool>, bool) {
        let mut l2_policy = L2Policy::default();
        l2_policy.decide(plan);
        let (shared, own): (Vec<_>, Vec<_>) =
            plan.segments().iter().partition(|segment| (segment.position as usize) < 16 * trunk);
        let streamed = |segments: Vec<&plan::KvSegment>| {
            segments.into_iter().map(|segment| l2_policy.evicts_first(segment)).collect()
        };
        (streamed(shared), streamed(own), l2_policy.head_major())
    }

    #[test]
    fn private_kv_evicts_first_and_shared_kv_is_head_major() {
        // Two requests a tile: three Q tiles read the trunk.
        assert_eq!(counted(&plan(6, 4, 2, 16), 4), (vec![false; 3], vec![true; 6], true));
        // All requests in one.
        assert_eq!(counted(&plan(6, 4, 2, 64), 4), (vec![true], vec![true; 6], false));
        // 41 pages, each read once, but for one that two Q tiles read: 2 % more.
        assert_eq!(counted(&plan(4, 1, 10, 16), 1), (vec![false; 2], vec![true; 4], false));
    }

    #[test]
    fn one_request_in_several_items_reads_its_pages_again() {
        assert_eq!(counted(&plan(2, 0, 3, 4), 0), (vec![], vec![false; 2], true));
    }

    #[test]
    fn items_of_all_heads_side_by_side_begin_with_the_longest() {
        // Six requests of four pages that they share, and one alone with 64.
        let entries = (0..6).flat_map(|_| 0..64).chain(64..128).collect::<Vec<i32>>();
        let geometry = Geometry { q_heads: 32, kv_heads: 4, head_dim: 128, page_size: 16, dtype: Dtype::F16 };
        let order = |alone: u32| {
            let lens = [64, 64, 64, 64, 64, 64, 16 * alone];
            let table = PageTable::new(&entries, 64, &lens, 16).unwrap();
            let options =
                PlanOptions { packing: Packing::PerTree, split: Split::None, ..PlanOptions::default() };
            let tile = Tile::of("m16n32w1s2");
            let plan = Plan::build(&geometry, &table, &options, tile).unwrap();
            let mut l2_policy = L2Policy::default();
            l2_policy.decide(&plan);
            l2_policy.head_major()
        };
        assert!(order(4));
        assert!(!order(64));
    }

    #[test]
    fn an_image_says_both_to_the_kernels() {
        // What follows the number of merges and that of the items, and where the first item's first page stands.
        let said = |plan: &Plan| {
            let packed = PackedPlan::of(plan);
            (packed.words[2], packed.words[packed.layout.items + 9] & EVICT_FIRST != 0)
        };
        assert_eq!(said(&plan(6, 4, 2, 16)), (1, false), "the trunk of three Q tiles");
        assert_eq!(said(&plan(6, 4, 2, 64)), (0, true), "the trunk of one Q tile");
    }

    #[test]
    fn long_streams_are_read_like_all_else() {
        // 2 KiB a token, all heads: 200 MiB are 102 400 tokens.
        assert_eq!(counted(&plan(2, 0, 3200, 16), 0).1, [true; 2]);
        assert_eq!(counted(&plan(2, 0, 3201, 16), 0).1, [false; 2]);
    }
}
