//! The plan of a decode step: every work item, grouped by tile, and what has to be merged. Flat, plain data.
//!
//! What a plan calls a request is a query: the request itself as long as it brings one query token, and each of its query tokens where the
//! page table has several ([`PageTable::with_queries`]).

mod build;
mod granularity;
mod idle;
mod items;
mod joined;
mod live;
mod options;
mod output;
mod prediction;
mod split;
#[cfg(test)]
mod tests;
mod waves;

use crate::{ChooseTiles, PageTable, PlanError, Planner};
pub(crate) use build::Scratch;
pub use granularity::{GRANULE, WARP_ROWS, max_runs};
pub(crate) use live::{Changes, LivePlan};
pub use options::CTAS_PER_SM;
pub use options::{PlanOptions, SHORTEST_PART, Split};
pub use output::{DIRECT, MergeItem, Slot, UNTOUCHED};
pub use prediction::Prediction;
use std::ops::Range;
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};

/// A pack with its tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPack {
    /// Its rows in portions that one tile holds, as a range of [`Plan::blocks`].
    pub blocks: Range<u32>,
    /// What the selector was asked.
    pub shape: PackShape,
    /// What it answered.
    pub tile: Tile,
}

/// Requests of a pack whose rows fill a tile, or one request with more rows than that, and the runs of pages that they read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The pack.
    pub pack: u32,
    /// Its requests, as a range of [`Plan::requests`].
    pub requests: Range<u32>,
    /// Its runs, as a range of [`Plan::runs`].
    pub runs: Range<u32>,
    /// Tokens of its walk: one past the last token of its last run.
    pub walk: u32,
}

/// Consecutive pages that neighbouring requests of a block share. A block's runs, one behind the other, are its walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its tokens, counted along the walk: whole pages. Begins at a multiple of [`GRANULE`].
    pub walk: Range<u32>,
    /// Where its first page stands in [`Plan::pages`].
    pub pages: u32,
    /// Which token of its requests the first one is.
    pub position: u32,
    /// The requests that share it, counted from the block's first.
    pub members: Range<u32>,
}

impl Run {
    /// Requests of a block: the kernels count them in 12 bits.
    pub(crate) const MOST_MEMBERS: u32 = 4095;
}

/// What one CTA, or team of threads, of each KV head takes from the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkItem {
    /// Index into [`Plan::blocks`].
    pub block: u32,
    /// Its rows: request in the block x GQA ratio + query head of the KV head. At most m.
    pub rows: Range<u32>,
    /// Its tokens, counted along the block's walk.
    pub walk: Range<u32>,
    /// The runs that these tokens lie in, as a range of [`Plan::runs`].
    pub runs: Range<u32>,
    /// Where in [`Plan::slots`] the destinations of this part's requests begin.
    pub slots: u32,
}

/// The work items of one tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileGroup {
    /// The tile.
    pub tile: Tile,
    /// Its items, as a range of [`Plan::work_items`].
    pub items: Range<u32>,
}

/// All work items of a batch, grouped by tile, and the merge list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    geometry: Geometry,
    seq_lens: Vec<u32>,
    several_queries: bool,
    packs: Vec<PlannedPack>,
    blocks: Vec<Block>,
    runs: Vec<Run>,
    requests: Vec<u32>,
    pages: Vec<i32>,
    items: Vec<WorkItem>,
    groups: Vec<TileGroup>,
    slots: Vec<Slot>,
    merges: Vec<MergeItem>,
    partials: u32,
}

impl Default for Plan {
    /// The plan of an empty batch.
    fn default() -> Self {
        Self {
            geometry: Geometry { q_heads: 1, kv_heads: 1, head_dim: 64, page_size: 1, dtype: Dtype::F16 },
            seq_lens: Vec::new(),
            several_queries: false,
            packs: Vec::new(),
            blocks: Vec::new(),
            runs: Vec::new(),
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
    /// Plans a batch: forest, packs, a tile for each, splits, work items, merge list. `choose` is asked about the batch, then once a pack.
    ///
    /// # Errors
    /// A layout that makes no sense, or a batch beyond 32-bit counts.
    pub fn build(
        geometry: &Geometry,
        table: &PageTable<'_>,
        options: &PlanOptions,
        choose: impl ChooseTiles,
    ) -> Result<Self, PlanError> {
        let mut planner = Planner::new(*options);
        planner.plan(geometry, table, choose)?;
        Ok(planner.into_plan())
    }

    /// The layout that it was made for.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Queries of the batch: as many as requests, unless the page table has several for one.
    pub const fn batch(&self) -> usize {
        self.seq_lens.len()
    }

    /// Tokens that each query sees.
    pub fn seq_lens(&self) -> &[u32] {
        &self.seq_lens
    }

    /// How many tokens a query sees at least, whatever the lengths are as long as the plan holds: all but its request's last page. Nothing is
    /// known where requests have several queries, as an early one may see less than its pages hold.
    pub fn least_tokens(&self, query: u32) -> u32 {
        let page_size = self.geometry.page_size;
        let pages = self.seq_lens[query as usize].div_ceil(page_size);
        if self.several_queries { 0 } else { pages.saturating_sub(1) * page_size }
    }

    /// The packs, in no order that matters. Requests without tokens are in one of their own, which has no runs.
    pub fn packs(&self) -> &[PlannedPack] {
        &self.packs
    }

    /// The blocks of all packs. Here, and among the runs, requests and pages, a plan of [`LivePlanner`](crate::LivePlanner) also has
    /// what it no longer needs, always less than half: go by the ranges of the packs, blocks and work items.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The runs of all blocks, one block behind the other.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The requests of all blocks, one block behind the other.
    pub fn requests(&self) -> &[u32] {
        &self.requests
    }

    /// The blocks of a pack of this plan.
    pub fn blocks_of(&self, pack: &PlannedPack) -> &[Block] {
        &self.blocks[pack.blocks.start as usize..pack.blocks.end as usize]
    }

    /// The requests of a block.
    pub fn requests_of(&self, block: u32) -> &[u32] {
        let requests = &self.blocks[block as usize].requests;
        &self.requests[requests.start as usize..requests.end as usize]
    }

    /// The pages of all runs; runs may share them. Entries that no run reads are 0.
    pub fn pages(&self) -> &[i32] {
        &self.pages
    }

    /// The largest page that is read; `None` without pages. Linear in [`Self::pages`].
    pub fn largest_page(&self) -> Option<i32> {
        // Entries without a run are 0 and do not matter, for where they are, there are others.
        self.pages.iter().copied().max()
    }

    /// The work items, those of one tile together, long ones first, but for what has grown since a [`LivePlanner`](crate::LivePlanner)
    /// sorted them. Each is computed for every KV head.
    pub fn work_items(&self) -> &[WorkItem] {
        &self.items
    }

    /// The tiles in use with their work items.
    pub fn tile_groups(&self) -> &[TileGroup] {
        &self.groups
    }

    /// For each part of a block, where each of its requests goes.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// What has to be merged.
    pub fn merges(&self) -> &[MergeItem] {
        &self.merges
    }

    /// Partials; each holds (O, m, l) of all query heads of one request over one part of its tokens.
    pub const fn partials(&self) -> u32 {
        self.partials
    }
}

/// Counts and places have 31 bits: of where pages stand, kernels take the last one for [`STREAMED`].
#[inline]
fn count(count: usize, what: &'static str) -> Result<u32, PlanError> {
    i32::try_from(count).map_or(Err(PlanError::TooLarge(what)), |count| Ok(count.unsigned_abs()))
}
