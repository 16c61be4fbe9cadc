//! How many items of a plan read the same pages. That decides what need not stay in the second-level cache, and which CTAs lie side by side.
//!
//! What one item reads alone leaves the cache first. So the cache keeps what several read, and what lay there before: lines that somebody has
//! written need not go to memory meanwhile. Longer streams would drive those out anyway, a few at a time, between reads.
//!
//! CTAs of an item side by side read whole pages together, as memory likes it. Those of a KV head read what they share when it has just come
//! in, and less of it at a time. (`kernel-templates/NOTES.md` has the measurements.)

use tilewright_plan::{self as plan, Plan};

/// Bytes up to which what items read alone is streamed: more than three times the second-level cache of an H200. Behind a cache full of lines
/// that have to be written back, 134 MB are up to 7 % faster for it, and 268 to 1 070 MB 1 to 4 % slower where little else is read.
const MOST_STREAMED: u64 = 200 << 20;

/// Tokens that items read over tokens that there are, in percent, from which on CTAs of a KV head lie side by side. From 110 on it is
/// up to 14 % faster; at 105 it is 5 % slower, and where nothing is shared 3 %.
const LEAST_REREAD_PERCENT: u64 = 108;

/// Who reads the pages of a plan.
#[derive(Clone, Debug, Default)]
pub(super) struct L2Policy {
    /// By the place of a segment's first page: items of a KV head that read along the segment, at most 2.
    of_page: Vec<u8>,
    streams: bool,
    by_head: bool,
}

impl L2Policy {
    /// Counts them for a plan.
    pub(super) fn count(&mut self, plan: &Plan) {
        self.of_page.clear();
        self.of_page.resize(plan.pages().len(), 0);
        // Tokens that items read, that there are, and that a second item reads.
        let (mut walked, mut all, mut again) = (0, 0, 0);
        for item in plan.work_items() {
            walked += item.kv_range.len() as u64;
            for segment in &plan.segments()[item.segments.start as usize..item.segments.end as usize] {
                // Of a segment that is cut, the first chunk counts.
                let l2_policy = self
                    .of_page
                    .get_mut(segment.pages as usize)
                    .filter(|_| item.kv_range.start <= segment.kv_range.start);
                let Some(l2_policy) = l2_policy else { continue };
                let tokens = segment.kv_range.len() as u64;
                all += tokens * u64::from(*l2_policy == 0);
                again += tokens * u64::from(*l2_policy == 1);
                *l2_policy = (*l2_policy + 1).min(2);
            }
        }
        let alone = all.saturating_sub(again);
        self.streams = alone * plan.geometry().kv_bytes_per_token() as u64 <= MOST_STREAMED;
        self.by_head = walked * 100 > all * LEAST_REREAD_PERCENT && are_even(plan);
    }

    /// Whether nobody but one item, or the chunks of one, reads a segment, and it shall leave the cache first.
    pub(super) fn is_streamed(&self, segment: &plan::KvSegment) -> bool {
        self.streams && self.of_page.get(segment.pages as usize) == Some(&1)
    }

    /// Whether CTAs of a KV head lie side by side, instead of those of an item.
    pub(super) const fn by_head(&self) -> bool {
        self.by_head
    }
}

/// Whether no item reads more than twice as many tokens as the mean. Where some do, those of all KV heads have to begin first, so that
/// they do not end last.
fn are_even(plan: &Plan) -> bool {
    let tokens = || plan.work_items().iter().map(|item| item.kv_range.len() as u64);
    tokens().max().unwrap_or(0) * plan.work_items().len() as u64 <= 2 * tokens().sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PackedPlan;
    use tilewright_heuristics::{Dtype, Geometry, Tile};
    use tilewright_kernel_templates::cuda::STREAMED;
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
        Plan::build(&geometry, &table, &options, Tile { m, n: 32, warps: 1, stages: 2 }).unwrap()
    }

    /// Which segments are streamed, by whether all requests have them; and the order of CTAs.
    fn counted(plan: &Plan, trunk: usize) -> (Vec<bool>, Vec<bool>, bool) {
        let mut l2_policy = L2Policy::default();
        l2_policy.count(plan);
        let (shared, own): (Vec<_>, Vec<_>) =
            plan.segments().iter().partition(|segment| (segment.position as usize) < 16 * trunk);
        let streamed = |segments: Vec<&plan::KvSegment>| {
            segments.into_iter().map(|segment| l2_policy.is_streamed(segment)).collect()
        };
        (streamed(shared), streamed(own), l2_policy.by_head())
    }

    #[test]
    fn what_one_item_reads_is_streamed_and_what_several_read_brings_their_ctas_together() {
        // Two requests a tile: three Q tiles read the trunk.
        assert_eq!(counted(&plan(6, 4, 2, 16), 4), (vec![false; 3], vec![true; 6], true));
        // All requests in one.
        assert_eq!(counted(&plan(6, 4, 2, 64), 4), (vec![true], vec![true; 6], false));
        // 41 pages, each read once, but for one that two Q tiles read: 2 % more.
        assert_eq!(counted(&plan(4, 1, 10, 16), 1), (vec![false; 2], vec![true; 4], false));
    }

    #[test]
    fn rows_of_one_request_in_several_items_read_its_pages_several_times() {
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
            let tile = Tile { m: 16, n: 32, warps: 1, stages: 2 };
            let plan = Plan::build(&geometry, &table, &options, tile).unwrap();
            let mut l2_policy = L2Policy::default();
            l2_policy.count(&plan);
            l2_policy.by_head()
        };
        assert!(order(4));
        assert!(!order(64));
    }

    #[test]
    fn an_image_says_both_to_the_kernels() {
        // What follows the number of merges and that of the items, and where the first item's first page stands.
        let said = |plan: &Plan| {
            let image = PackedPlan::of(plan);
            (image.words[2], image.words[image.layout.items + 9] & STREAMED != 0)
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
