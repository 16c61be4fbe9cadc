//! The plan of a decode step: every work item, grouped by tile, and what has to be merged. Flat, plain data.

use crate::{Packing, Packs, PageTable, PlanError, Planner};
use std::cmp::Reverse;
use std::ops::Range;
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};

/// How long packs are cut along the KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Split {
    /// Not at all.
    None,
    /// PAT's rule (PAT, section 6): packs longer than the mean are cut into equal parts of at most the mean, in whole pages.
    #[default]
    Mean,
    /// Packs longer than an equal share of all CTAs' tokens over so many slots are cut, so that few long packs fill a GPU; where there are
    /// more CTAs than slots already, nothing is cut and no partial is written. Never shorter than [`SHORTEST_PART`] tokens.
    Fill {
        /// CTAs that run at once.
        slots: u32,
    },
}

/// Tokens that are worth a CTA of their own: shorter parts take less time than finding their pages and merging what they leave.
pub const SHORTEST_PART: u32 = 128;

/// How a plan is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlanOptions {
    /// How nodes become packs.
    pub packing: Packing,
    /// How long packs are cut.
    pub split: Split,
}

/// What one CTA, or team of threads, takes from the plan.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkItem {
    /// Index into [`Plan::packs`].
    pub pack: u32,
    /// The KV head.
    pub kv_head: u32,
    /// First row of the pack: request in the pack x GQA ratio + query head of the KV head.
    pub row_begin: u32,
    /// One past the last row; at most m rows.
    pub row_end: u32,
    /// First token.
    pub kv_begin: u32,
    /// One past the last token.
    pub kv_end: u32,
    /// Where in [`Plan::slots`] the destinations of this part's requests begin.
    pub slots: u32,
}

/// Partials of one request that have to be merged. No partials at all: the request has no tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeItem {
    /// The request.
    pub request: u32,
    /// Its first partial.
    pub partial_begin: u32,
    /// One past its last partial. They are merged in this order.
    pub partial_end: u32,
}

/// The destination of a request that has a single partial: its row of the output.
pub const DIRECT: u32 = u32::MAX;

/// The work items of one tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileGroup {
    /// The tile.
    pub tile: Tile,
    /// Its items, as a range of [`Plan::work_items`].
    pub items: Range<u32>,
}

/// A pack with its tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPack {
    /// Its requests, as a range of [`Plan::requests`].
    pub requests: Range<u32>,
    /// Its pages, as a range of [`Plan::pages`].
    pub pages: Range<u32>,
    /// The token that its first page begins with.
    pub kv_begin: u32,
    /// One past the last token that any of its requests has there.
    pub kv_end: u32,
    /// What the selector was asked.
    pub shape: PackShape,
    /// What it answered.
    pub tile: Tile,
}

/// A part of a pack: its index, its first token, and one past its last.
type Part = (u32, u32, u32);

/// A part in the order of its items: tile, work of an item, index among the parts, rows, where its destinations begin.
type OrderedPart = (Tile, Reverse<u64>, u32, u32, u32);

/// Memory that planning needs and no plan keeps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) keys: Vec<(i32, u32)>,
    pub(crate) stack: Vec<(u32, u32)>,
    parts: Vec<Part>,
    next: Vec<u32>,
    order: Vec<OrderedPart>,
}

/// All work items of a batch, grouped by tile, and the merge list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    geometry: Geometry,
    seq_lens: Vec<u32>,
    packs: Vec<PlannedPack>,
    requests: Vec<u32>,
    pages: Vec<i32>,
    items: Vec<WorkItem>,
    groups: Vec<TileGroup>,
    slots: Vec<u32>,
    merges: Vec<MergeItem>,
    partials: u32,
}

impl Default for Plan {
    /// The plan of an empty batch.
    fn default() -> Self {
        Self {
            geometry: Geometry { q_heads: 1, kv_heads: 1, head_dim: 64, page_size: 1, dtype: Dtype::F16 },
            seq_lens: Vec::new(),
            packs: Vec::new(),
            requests: Vec::new(),
            pages: Vec::new(),
            items: Vec::new(),
            groups: Vec::new(),
            slots: Vec::new(),
            merges: Vec::new(),
            partials: 0,
        }
    }
}

impl Plan {
    /// Plans a batch: forest, packs, a tile for each, splits, work items, merge list. `select` is asked once a pack.
    ///
    /// # Errors
    /// A layout that makes no sense, or a batch beyond 32-bit counts.
    pub fn build(
        geometry: &Geometry,
        table: &PageTable<'_>,
        options: &PlanOptions,
        select: impl FnMut(&PackShape) -> Tile,
    ) -> Result<Self, PlanError> {
        let mut planner = Planner::new(*options);
        planner.plan(geometry, table, select)?;
        Ok(planner.into_plan())
    }

    /// Becomes the plan of other packs, in the same memory.
    pub(crate) fn rebuild(
        &mut self,
        geometry: &Geometry,
        table: &PageTable<'_>,
        packs: &Packs,
        split: Split,
        mut select: impl FnMut(&PackShape) -> Tile,
        scratch: &mut Scratch,
    ) -> Result<(), PlanError> {
        self.geometry = *geometry;
        refill(&mut self.seq_lens, table.seq_lens());
        refill(&mut self.requests, packs.requests());
        self.packs.clear();
        self.pages.clear();
        let count = count(packs.packs().len(), "packs")?;
        self.packs.reserve(packs.packs().len());
        for pack in packs.packs() {
            let requests = packs.requests_of(pack);
            let planned =
                self.place(table, requests, pack.requests.clone(), pack.columns.clone(), count, &mut select)?;
            self.packs.push(planned);
        }
        self.split(split, &mut scratch.parts);
        self.assign_partials(scratch)?;
        self.emit_items(scratch)
    }

    /// The layout that it was made for.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Requests of the batch.
    pub const fn batch(&self) -> usize {
        self.seq_lens.len()
    }

    /// Tokens of each request.
    pub fn seq_lens(&self) -> &[u32] {
        &self.seq_lens
    }

    /// The packs.
    pub fn packs(&self) -> &[PlannedPack] {
        &self.packs
    }

    /// The requests of all packs, one pack behind the other.
    pub fn requests(&self) -> &[u32] {
        &self.requests
    }

    /// The pages of all packs, one pack behind the other.
    pub fn pages(&self) -> &[i32] {
        &self.pages
    }

    /// The work items, those of one tile together, long ones first.
    pub fn work_items(&self) -> &[WorkItem] {
        &self.items
    }

    /// The tiles in use with their work items.
    pub fn tile_groups(&self) -> &[TileGroup] {
        &self.groups
    }

    /// For each part of a pack, the partial of each of its requests, or [`DIRECT`].
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// What has to be merged.
    pub fn merges(&self) -> &[MergeItem] {
        &self.merges
    }

    /// Partials; each holds (O, m, l) of all query heads of one request over one KV range.
    pub const fn partials(&self) -> u32 {
        self.partials
    }

    fn place(
        &mut self,
        table: &PageTable<'_>,
        members: &[u32],
        requests: Range<u32>,
        columns: Range<u32>,
        packs: u32,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<PlannedPack, PlanError> {
        let page_size = self.geometry.page_size;
        let pages_begin = count(self.pages.len(), "pages of all packs")?;
        let row = table.pages(members[0] as usize);
        self.pages.extend_from_slice(&row[columns.start as usize..columns.end as usize]);
        let pages_end = count(self.pages.len(), "pages of all packs")?;
        let kv_begin = columns.start * page_size;
        let longest = members.iter().map(|&request| self.seq_lens[request as usize]).max().unwrap_or(0);
        // The last page may reach beyond 32 bits of tokens, a length never does.
        let kv_end = u64::from(longest).min(u64::from(columns.end) * u64::from(page_size)) as u32;
        let shape =
            PackShape::of_pack(&self.geometry, requests.end - requests.start, kv_end - kv_begin, packs);
        let tile = select(&shape);
        Ok(PlannedPack { requests, pages: pages_begin..pages_end, kv_begin, kv_end, shape, tile })
    }

    /// The KV ranges that each pack is cut into.
    fn split(&self, split: Split, parts: &mut Vec<Part>) {
        let page_size = u64::from(self.geometry.page_size);
        let length = |pack: &PlannedPack| u64::from(pack.kv_end - pack.kv_begin);
        let total: u64 = self.packs.iter().map(length).sum();
        let row_blocks = |pack: &PlannedPack| {
            let rows =
                u64::from(pack.requests.end - pack.requests.start) * u64::from(self.geometry.gqa_ratio());
            rows.div_ceil(u64::from(pack.tile.m.max(1))) * u64::from(self.geometry.kv_heads)
        };
        let limit = match split {
            Split::None => u64::MAX,
            Split::Mean => total.div_ceil(self.packs.len().max(1) as u64),
            Split::Fill { slots } => {
                let all: u64 = self.packs.iter().map(|pack| row_blocks(pack) * length(pack)).sum();
                all.div_ceil(u64::from(slots.max(1))).max(u64::from(SHORTEST_PART))
            }
        };
        parts.clear();
        for (index, pack) in self.packs.iter().enumerate() {
            let pages = length(pack).div_ceil(page_size);
            let part_pages = pages.div_ceil(length(pack).div_ceil(limit).max(1)).max(1) * page_size;
            let mut begin = pack.kv_begin;
            while begin < pack.kv_end {
                let end = (u64::from(begin) + part_pages).min(u64::from(pack.kv_end)) as u32;
                parts.push((index as u32, begin, end));
                begin = end;
            }
        }
    }

    /// Numbers the partials of each request in the order of the parts, and lists the requests that need a merge.
    fn assign_partials(&mut self, scratch: &mut Scratch) -> Result<(), PlanError> {
        // How many parts each request has, and then its next partial.
        let Scratch { parts, next, .. } = scratch;
        next.clear();
        next.resize(self.batch(), 0);
        for &(pack, ..) in parts.iter() {
            for &request in self.members(pack) {
                next[request as usize] += 1;
            }
        }
        self.merges.clear();
        let mut partials = 0u32;
        for (request, next) in next.iter_mut().enumerate() {
            let count = std::mem::replace(next, partials);
            if count == 1 {
                *next = DIRECT;
                continue;
            }
            let end = partials
                .checked_add(count)
                .filter(|&end| end < DIRECT)
                .ok_or(PlanError::TooLarge("partials"))?;
            self.merges.push(MergeItem {
                request: request as u32,
                partial_begin: partials,
                partial_end: end,
            });
            partials = end;
        }
        self.slots.clear();
        for &(pack, ..) in parts.iter() {
            let requests = &self.packs[pack as usize].requests;
            for &request in &self.requests[requests.start as usize..requests.end as usize] {
                let slot = &mut next[request as usize];
                self.slots.push(*slot);
                if *slot != DIRECT {
                    *slot += 1;
                }
            }
        }
        count(self.slots.len(), "destinations")?;
        // A merge counts its rows in 32 bits.
        count(self.merges.len().saturating_mul(self.geometry.q_heads as usize), "rows to merge")?;
        self.partials = partials;
        Ok(())
    }

    fn members(&self, pack: u32) -> &[u32] {
        let requests = &self.packs[pack as usize].requests;
        &self.requests[requests.start as usize..requests.end as usize]
    }

    /// Lists the items of all parts: those of one tile together, long parts first, so that what is left for the end of the step is short.
    fn emit_items(&mut self, scratch: &mut Scratch) -> Result<(), PlanError> {
        let Scratch { parts, order, .. } = scratch;
        order.clear();
        self.items.clear();
        self.groups.clear();
        let (mut slots, mut items) = (0, 0u64);
        for (index, &(pack, kv_begin, kv_end)) in parts.iter().enumerate() {
            let pack = &self.packs[pack as usize];
            let requests = pack.requests.end - pack.requests.start;
            let rows = requests
                .checked_mul(self.geometry.gqa_ratio())
                .ok_or(PlanError::TooLarge("rows of a pack"))?;
            let m = u32::from(pack.tile.m.max(1));
            items += u64::from(rows.div_ceil(m)) * u64::from(self.geometry.kv_heads);
            let work = u64::from(rows.min(m)) * u64::from(kv_end - kv_begin);
            // The index keeps the order of equal parts fixed.
            order.push((pack.tile, Reverse(work), index as u32, rows, slots));
            slots += requests;
        }
        let items = usize::try_from(items).ok().filter(|&items| items < DIRECT as usize);
        self.items.reserve(items.ok_or(PlanError::TooLarge("work items"))?);
        order.sort_unstable();
        for group in order.chunk_by(|a, b| a.0 == b.0) {
            let (tile, begin) = (group[0].0, self.items.len() as u32);
            let m = u32::from(tile.m.max(1));
            for &(_, _, index, rows, slots) in group {
                let (pack, kv_begin, kv_end) = parts[index as usize];
                for kv_head in 0..self.geometry.kv_heads {
                    for row_begin in (0..rows).step_by(m as usize) {
                        let row_end = (row_begin + m).min(rows);
                        let item = WorkItem { pack, kv_head, row_begin, row_end, kv_begin, kv_end, slots };
                        self.items.push(item);
                    }
                }
            }
            self.groups.push(TileGroup { tile, items: begin..self.items.len() as u32 });
        }
        Ok(())
    }
}

fn refill<T: Copy>(memory: &mut Vec<T>, from: &[T]) {
    memory.clear();
    memory.extend_from_slice(from);
}

fn count(count: usize, what: &'static str) -> Result<u32, PlanError> {
    u32::try_from(count).ok().filter(|&count| count < u32::MAX).ok_or(PlanError::TooLarge(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn geometry(page_size: u32) -> Geometry {
        Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size, dtype: Dtype::F32 }
    }

    const TILE: Tile = Tile { m: 4, n: 16, warps: 1, stages: 1 };

    fn plan(rows: &[Vec<i32>], seq_lens: &[u32], page_size: u32, options: &PlanOptions) -> Plan {
        let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0);
        let entries: Vec<i32> = rows
            .iter()
            .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(-1, max_pages - row.len())))
            .collect();
        let table = PageTable::new(&entries, max_pages, seq_lens, page_size).unwrap();
        Plan::build(&geometry(page_size), &table, options, |_| TILE).unwrap()
    }

    #[test]
    fn a_request_alone_is_written_directly_and_an_empty_one_merged_from_nothing() {
        let plan = plan(&[vec![1, 2], vec![]], &[20, 0], 16, &PlanOptions::default());
        assert_eq!(plan.slots(), [DIRECT]);
        assert_eq!(plan.merges(), [MergeItem { request: 1, partial_begin: 0, partial_end: 0 }]);
        assert_eq!(plan.work_items().len(), 2, "one a KV head");
        assert_eq!((plan.work_items()[0].kv_end, plan.packs()[0].shape.kv_len), (20, 32));
    }

    #[test]
    fn the_mean_rule_cuts_long_packs_into_equal_parts_of_whole_pages() {
        let rows = [(0..10).collect(), vec![20], vec![21]];
        let plan = plan(&rows, &[160, 16, 16], 16, &PlanOptions::default());
        // The mean is 64 tokens: 160 are cut into three parts of at most 4 pages.
        let mut parts: Vec<_> = plan.work_items().iter().filter(|i| i.pack == 0 && i.kv_head == 0).collect();
        parts.sort_by_key(|item| item.kv_begin);
        let ranges: Vec<_> = parts.iter().map(|item| item.kv_begin..item.kv_end).collect();
        assert_eq!(ranges, [0..64, 64..128, 128..160]);
        assert_eq!(plan.partials(), 3);
    }

    #[test]
    fn one_long_pack_fills_the_slots_and_many_packs_are_left_whole() {
        let options = PlanOptions { split: Split::Fill { slots: 16 }, ..PlanOptions::default() };
        // Two KV heads over 16 slots: eight parts each.
        let alone = plan(&[(0..128).collect()], &[2048], 16, &options);
        assert_eq!(alone.work_items().len(), 16);
        assert!(alone.work_items().iter().all(|item| item.kv_end - item.kv_begin == 256));
        let rows: Vec<Vec<i32>> = (0..16).map(|request| (request * 8..request * 8 + 8).collect()).collect();
        let many = plan(&rows, &[128; 16], 16, &options);
        assert_eq!((many.work_items().len(), many.partials()), (32, 0));
        let short = plan(&[(0..8).collect()], &[128], 16, &options);
        assert_eq!(short.partials(), 0, "128 tokens are not worth cutting");
    }

    #[test]
    fn tables_and_geometries_of_different_page_sizes_are_refused() {
        let table = PageTable::new(&[1], 1, &[3], 16).unwrap();
        let error = Plan::build(&geometry(32), &table, &PlanOptions::default(), |_| TILE).unwrap_err();
        assert_eq!(error, PlanError::PageSize { table: 16, geometry: 32 });
    }

    fn rows() -> impl Strategy<Value = Vec<Vec<i32>>> {
        prop::collection::vec(prop::collection::vec(0i32..3, 0..7), 0..12)
    }

    proptest! {
        #[test]
        fn every_token_of_every_row_is_computed_exactly_once(rows in rows(), cut in 0u32..16, m in 1u16..9) {
            let page_size = 16;
            let seq_lens: Vec<u32> = rows.iter().map(|row| (row.len() as u32 * page_size).saturating_sub(cut)).collect();
            for packing in [Packing::Pat, Packing::PerNode, Packing::PerRequest] {
                for split in [Split::None, Split::Mean, Split::Fill { slots: 7 }] {
                    let tile = Tile { m, ..TILE };
                    let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0);
                    let entries: Vec<i32> = rows.iter()
                        .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(-1, max_pages - row.len())))
                        .collect();
                    let table = PageTable::new(&entries, max_pages, &seq_lens, page_size).unwrap();
                    let plan = Plan::build(&geometry(page_size), &table, &PlanOptions { packing, split }, |_| tile).unwrap();
                    let mut computed: Vec<Vec<u32>> =
                        seq_lens.iter().flat_map(|&len| vec![vec![0; len as usize]; 4]).collect();
                    let mut written = std::collections::BTreeMap::new();
                    for item in plan.work_items() {
                        prop_assert!(item.row_end - item.row_begin <= u32::from(m) && item.kv_begin < item.kv_end);
                        let pack = &plan.packs()[item.pack as usize];
                        for row in item.row_begin..item.row_end {
                            let member = row / 2;
                            let request = plan.requests()[(pack.requests.start + member) as usize] as usize;
                            let head = item.kv_head * 2 + row % 2;
                            for token in item.kv_begin..item.kv_end.min(seq_lens[request]) {
                                let page = plan.pages()[(pack.pages.start + (token - pack.kv_begin) / page_size) as usize];
                                prop_assert_eq!(page, rows[request][(token / page_size) as usize]);
                                computed[request * 4 + head as usize][token as usize] += 1;
                            }
                            let slot = plan.slots()[(item.slots + member) as usize];
                            let key = if slot == DIRECT { (true, request as u32, head) } else { (false, slot, head) };
                            prop_assert!(written.insert(key, request).is_none(), "written twice");
                        }
                    }
                    prop_assert!(computed.iter().flatten().all(|&count| count == 1));
                    for merge in plan.merges() {
                        for partial in merge.partial_begin..merge.partial_end {
                            for head in 0..4 {
                                prop_assert_eq!(written.get(&(false, partial, head)), Some(&(merge.request as usize)));
                            }
                        }
                    }
                    let merged: u32 = plan.merges().iter().map(|merge| merge.partial_end - merge.partial_begin).sum();
                    prop_assert_eq!(merged, plan.partials());
                    let direct = written.keys().filter(|key| key.0).count();
                    prop_assert_eq!(direct + 4 * plan.merges().len(), 4 * rows.len(), "every row of the output is written once");
                }
            }
        }

        #[test]
        fn the_same_batch_gives_the_same_plan(rows in rows()) {
            let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * 16).collect();
            let options = PlanOptions::default();
            prop_assert_eq!(plan(&rows, &seq_lens, 16, &options), plan(&rows, &seq_lens, 16, &options));
        }
    }
}
