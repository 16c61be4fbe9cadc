//! The plan of a decode step: every work item, grouped by tile, and what has to be merged. Flat, plain data.

use crate::{Forest, Packing, Packs, PageTable, PlanError};
use std::ops::Range;
use tilewright_heuristics::{Geometry, PackShape, Tile};

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

impl Plan {
    /// Plans a batch: forest, packs, a tile for each, splits, work items, merge list. `select` is asked once a pack.
    ///
    /// # Errors
    /// A layout that makes no sense, or a batch beyond 32-bit counts.
    pub fn build(
        geometry: &Geometry,
        table: &PageTable<'_>,
        options: &PlanOptions,
        mut select: impl FnMut(&PackShape) -> Tile,
    ) -> Result<Self, PlanError> {
        geometry.validate()?;
        if table.page_size() != geometry.page_size {
            return Err(PlanError::PageSize { table: table.page_size(), geometry: geometry.page_size });
        }
        let forest = Forest::build(table);
        let packs = Packs::build(&forest, table, options.packing);
        let mut plan = Self {
            geometry: *geometry,
            seq_lens: table.seq_lens().to_vec(),
            packs: Vec::with_capacity(packs.packs().len()),
            requests: packs.requests().to_vec(),
            pages: Vec::new(),
            items: Vec::new(),
            groups: Vec::new(),
            slots: Vec::new(),
            merges: Vec::new(),
            partials: 0,
        };
        let count = count(packs.packs().len(), "packs")?;
        for pack in packs.packs() {
            let requests = packs.requests_of(pack);
            let planned =
                plan.place(table, requests, pack.requests.clone(), pack.columns.clone(), count, &mut select)?;
            plan.packs.push(planned);
        }
        let parts = plan.split(options.split);
        plan.assign_partials(&parts)?;
        plan.emit_items(&parts)?;
        Ok(plan)
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

    /// The KV ranges that each pack is cut into: (pack, first token, one past the last).
    fn split(&self, split: Split) -> Vec<(u32, u32, u32)> {
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
        let mut parts = Vec::with_capacity(self.packs.len());
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
        parts
    }

    /// Numbers the partials of each request in the order of the parts, and lists the requests that need a merge.
    fn assign_partials(&mut self, parts: &[(u32, u32, u32)]) -> Result<(), PlanError> {
        let mut counts = vec![0u32; self.batch()];
        for &(pack, ..) in parts {
            for request in self.members(pack) {
                counts[*request as usize] += 1;
            }
        }
        let mut next = vec![DIRECT; self.batch()];
        let mut partials = 0u32;
        for (request, &count) in counts.iter().enumerate() {
            if count == 1 {
                continue;
            }
            next[request] = partials;
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
        let mut slots = Vec::with_capacity(parts.len());
        for &(pack, ..) in parts {
            for &request in self.members(pack) {
                let slot = &mut next[request as usize];
                slots.push(*slot);
                if *slot != DIRECT {
                    *slot += 1;
                }
            }
        }
        count(slots.len(), "destinations")?;
        self.slots = slots;
        self.partials = partials;
        Ok(())
    }

    fn members(&self, pack: u32) -> &[u32] {
        let requests = &self.packs[pack as usize].requests;
        &self.requests[requests.start as usize..requests.end as usize]
    }

    fn emit_items(&mut self, parts: &[(u32, u32, u32)]) -> Result<(), PlanError> {
        let mut items: Vec<(Tile, WorkItem)> = Vec::new();
        let mut slots = 0;
        for &(index, kv_begin, kv_end) in parts {
            let pack = &self.packs[index as usize];
            let requests = pack.requests.end - pack.requests.start;
            let rows = requests
                .checked_mul(self.geometry.gqa_ratio())
                .ok_or(PlanError::TooLarge("rows of a pack"))?;
            let m = u32::from(pack.tile.m.max(1));
            for kv_head in 0..self.geometry.kv_heads {
                for row_begin in (0..rows).step_by(m as usize) {
                    let row_end = (row_begin + m).min(rows);
                    items.push((
                        pack.tile,
                        WorkItem { pack: index, kv_head, row_begin, row_end, kv_begin, kv_end, slots },
                    ));
                }
            }
            slots += requests;
        }
        count(items.len(), "work items")?;
        // Long items first: what is left for the end of the step is short. The sort is stable, so the order is fixed.
        let work = |item: &WorkItem| {
            u64::from(item.row_end - item.row_begin) * u64::from(item.kv_end - item.kv_begin)
        };
        items.sort_by_key(|(tile, item)| (*tile, std::cmp::Reverse(work(item))));
        for group in items.chunk_by(|a, b| a.0 == b.0) {
            let begin = self.items.len() as u32;
            self.items.extend(group.iter().map(|(_, item)| item));
            self.groups.push(TileGroup { tile: group[0].0, items: begin..self.items.len() as u32 });
        }
        Ok(())
    }
}

fn count(count: usize, what: &'static str) -> Result<u32, PlanError> {
    u32::try_from(count).ok().filter(|&count| count < u32::MAX).ok_or(PlanError::TooLarge(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tilewright_heuristics::Dtype;

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
