//! A plan as the kernels read it: one block of 32-bit words, so that it goes up in one copy.

use crate::{Plan, plan};
use std::ops::Range;
use tilewright_heuristics::{Geometry, Tile};
use tilewright_kernel_templates::cuda::{Arguments, GRANULE, MergeItem, Run, Slot, WorkItem};

/// Sections begin at multiples of 16 bytes.
const ALIGNMENT: usize = 4;

/// Where the work items of one tile lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemGroup {
    pub(crate) tile: Tile,
    pub(crate) begin: u32,
    pub(crate) count: u32,
}

/// A plan's words and where its sections begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanImage {
    words: Vec<u32>,
    items: usize,
    merges: usize,
    runs: usize,
    requests: usize,
    page_ids: usize,
    slots: usize,
    lengths: usize,
    pub(crate) groups: Vec<ItemGroup>,
    pub(crate) merge_count: u32,
    /// Most partials of one request.
    pub(crate) longest_merge: u32,
    pub(crate) partials: u32,
    pub(crate) batch: usize,
    /// The largest page id; -1 without pages.
    pub(crate) largest_page: i32,
}

impl PlanImage {
    /// The image of a plan.
    pub fn of(plan: &Plan) -> Self {
        let mut image = Self::default();
        image.fill(plan);
        image
    }

    /// Becomes the image of another plan, in the same memory where that is large enough.
    pub fn fill(&mut self, plan: &Plan) {
        self.words.clear();
        self.groups.clear();
        self.groups.extend(plan.tile_groups().iter().map(|group| ItemGroup {
            tile: group.tile,
            begin: group.items.start,
            count: group.items.end - group.items.start,
        }));
        self.words.push(plan.merges().len() as u32);
        self.words.extend(self.groups.iter().map(|group| group.count));
        self.items = self.align();
        for (index, group) in plan.tile_groups().iter().enumerate() {
            for item in &plan.work_items()[group.items.start as usize..group.items.end as usize] {
                self.words.extend(words_of_item(&device_item(plan, item, index as u16)));
            }
        }
        self.merges = self.align();
        // One more, which may be read and is never used.
        for merge in plan.merges().iter().chain([&MergeItem::default()]) {
            self.words.extend([merge.request, merge.partial_begin, merge.partial_end, merge.arrivals]);
        }
        self.runs = self.align();
        for run in plan.runs() {
            let Run { begin, pages, position, members } = device_run(run);
            self.words.extend([begin, pages, position, members]);
        }
        self.requests = self.align();
        self.words.extend_from_slice(plan.requests());
        self.page_ids = self.align();
        self.words.extend(plan.pages().iter().map(|&page| page as u32));
        self.slots = self.align();
        for &Slot { partial, merge } in plan.slots() {
            self.words.extend([partial, merge]);
        }
        self.lengths = self.align();
        self.words.extend_from_slice(plan.seq_lens());
        self.align();
        self.merge_count = plan.merges().len() as u32;
        self.longest_merge =
            plan.merges().iter().map(|merge| merge.partial_end - merge.partial_begin).max().unwrap_or(0);
        self.partials = plan.partials();
        self.batch = plan.batch();
        self.largest_page = plan.pages().iter().copied().max().unwrap_or(-1);
    }

    /// The words, as they are copied.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Bytes of the partials of a batch: (O, m, l) of every query head.
    pub const fn workspace_bytes(&self, geometry: &Geometry) -> usize {
        self.partials as usize * geometry.q_heads as usize * (geometry.head_dim as usize + 2) * 4
    }

    /// The arguments that depend on the plan alone: its sections at `base`, partials in `workspace`.
    pub fn arguments(&self, geometry: &Geometry, base: u64, workspace: u64) -> Arguments {
        let at = |word: usize| base + 4 * word as u64;
        let rows = u64::from(self.partials) * u64::from(geometry.q_heads);
        Arguments {
            counts: at(0),
            items: at(self.items),
            merges: at(self.merges),
            runs: at(self.runs),
            requests: at(self.requests),
            page_ids: at(self.page_ids),
            slots: at(self.slots),
            lengths: at(self.lengths),
            partial_output: workspace,
            partial_softmax: workspace + rows * u64::from(geometry.head_dim) * 4,
            q_heads: geometry.q_heads,
            kv_heads: geometry.kv_heads,
            gqa_ratio: geometry.gqa_ratio(),
            page_size: geometry.page_size,
            window: i32::MAX as u32,
            ..Arguments::default()
        }
    }

    /// Writes the requests' lengths; where their words are. As many as there are requests.
    pub(crate) fn set_lengths(&mut self, lengths: &[u32]) -> Range<usize> {
        let range = self.lengths..self.lengths + self.batch.min(lengths.len());
        self.words[range.clone()].copy_from_slice(&lengths[..range.len()]);
        range
    }

    /// Gives all items another tile of the same m.
    pub(crate) fn retile(&mut self, tile: &Tile) {
        for group in self.groups.iter_mut().filter(|group| group.tile.m == tile.m) {
            group.tile = *tile;
        }
    }

    fn align(&mut self) -> usize {
        self.words.resize(self.words.len().next_multiple_of(ALIGNMENT), 0);
        self.words.len()
    }
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

fn words_of_item(item: &WorkItem) -> [u32; 12] {
    let WorkItem { requests, row_begin, row_end, runs, run_count, tile, .. } = *item;
    let WorkItem { walk_begin, walk_end, slots, unused, first, .. } = *item;
    let Run { begin, pages, position, members } = first;
    let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    let (rows, counts) = (pair(row_begin, row_end), pair(run_count, tile));
    [requests, rows, runs, counts, walk_begin, walk_end, slots, unused, begin, pages, position, members]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageTable, PlanOptions};
    use tilewright_heuristics::Dtype;

    #[test]
    fn an_image_holds_whole_pages_and_aligned_sections() {
        let geometry = Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
        let table = PageTable::new(&[5, 6, 7, 5, 6, 9], 3, &[40, 35], 16).unwrap();
        let tile = Tile { m: 16, n: 32, warps: 1, stages: 2 };
        let plan = Plan::build(&geometry, &table, &PlanOptions::default(), |_| tile).unwrap();
        let image = PlanImage::of(&plan);
        assert_eq!(image.words.len() % ALIGNMENT, 0);
        assert_eq!(image.largest_page, 9);
        assert_eq!(image.words[..2], [plan.merges().len() as u32, plan.work_items().len() as u32]);
        let items = &image.words[image.items..][..12 * plan.work_items().len()];
        assert!(items.chunks(12).all(|item| item[5].is_multiple_of(16)), "{items:?}");
        let arguments = image.arguments(&geometry, 1 << 40, 0);
        for address in
            [arguments.items, arguments.merges, arguments.runs, arguments.requests, arguments.page_ids]
        {
            assert!(address >= 1 << 40 && address.is_multiple_of(16), "{address:x}");
        }
        assert_eq!(&image.words[image.lengths..image.lengths + 2], [40, 35]);
    }
}
