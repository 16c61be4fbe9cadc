//! The plan of a decode step: every work item, grouped by tile, and what has to be merged. Flat, plain data.
//!
//! What a plan calls a request is a query: the request itself as long as it brings one query token, and each of its query tokens where the
//! page table has several ([`PageTable::with_queries`]).

mod build;
mod granularity;
mod idle;
mod invariant;
mod items;
mod joined;
mod lengths;
mod list_schedule;
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
pub use granularity::{GRANULE, WARP_ROWS, max_segments};
pub use lengths::LengthsError;
pub(crate) use live::{Changes, LivePlan};
pub use options::{PlanOptions, SHORTEST_CHUNK, Split};
pub use output::{DIRECT, MergeItem, OutputTarget, UNTOUCHED};
pub use prediction::Prediction;
use std::ops::Range;
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};

/// A pack with its tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPack {
    /// Its rows in portions that one tile holds, as a range of [`Plan::q_tiles`].
    pub q_tiles: Range<u32>,
    /// What the selector was asked.
    pub shape: PackShape,
    /// What it answered.
    pub tile: Tile,
}

/// Requests of a pack whose rows fill a tile, or one request with more rows than that, and the segments of pages that they read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QTile {
    /// The pack.
    pub pack: u32,
    /// Its requests, as a range of [`Plan::requests`].
    pub requests: Range<u32>,
    /// Its segments, as a range of [`Plan::segments`].
    pub segments: Range<u32>,
    /// Tokens of its KV range: one past the last token of its last segment.
    pub kv_len: u32,
}

/// Consecutive pages that neighbouring requests of a Q tile share. A Q tile's segments, one behind the other, are its KV range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSegment {
    /// Its tokens, counted along the KV range: whole pages. Begins at a multiple of [`GRANULE`].
    pub kv_range: Range<u32>,
    /// Where its first page stands in [`Plan::pages`].
    pub pages: u32,
    /// Which token of its requests the first one is.
    pub position: u32,
    /// The requests that share it, counted from the Q tile's first.
    pub members: Range<u32>,
}

impl KvSegment {
    /// Requests of a Q tile: the kernels count them in 12 bits.
    pub(crate) const MOST_MEMBERS: u32 = 4095;
}

/// What one CTA, or team of threads, of each KV head takes from the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkItem {
    /// Index into [`Plan::q_tiles`].
    pub q_tile: u32,
    /// Its rows: request in the Q tile x GQA ratio + query head of the KV head. At most m.
    pub rows: Range<u32>,
    /// Its tokens, counted along the Q tile's KV range.
    pub kv_range: Range<u32>,
    /// The segments that these tokens lie in, as a range of [`Plan::segments`].
    pub segments: Range<u32>,
    /// Where in [`Plan::targets`] the destinations of this chunk's requests begin.
    pub targets: u32,
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
    q_tiles: Vec<QTile>,
    segments: Vec<KvSegment>,
    requests: Vec<u32>,
    pages: Vec<i32>,
    items: Vec<WorkItem>,
    groups: Vec<TileGroup>,
    targets: Vec<OutputTarget>,
    merges: Vec<MergeItem>,
    partials: u32,
    invariant: bool,
}

impl Default for Plan {
    /// The plan of an empty batch.
    fn default() -> Self {
        Self {
            geometry: Geometry { q_heads: 1, kv_heads: 1, head_dim: 64, page_size: 1, dtype: Dtype::F16 },
            seq_lens: Vec::new(),
            several_queries: false,
            packs: Vec::new(),
            q_tiles: Vec::new(),
            segments: Vec::new(),
            requests: Vec::new(),
            pages: Vec::new(),
            items: Vec::new(),
            groups: Vec::new(),
            targets: Vec::new(),
            merges: Vec::new(),
            partials: 0,
            invariant: false,
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

    /// Becomes another plan whose requests have other numbers, and as many tokens as is said of these, in the same memory.
    pub(crate) fn clone_renamed(&mut self, from: &Self, number_of: &[u32], seq_lens: &[u32]) {
        let Self { geometry, several_queries, partials, invariant, .. } = *from;
        (self.geometry, self.several_queries) = (geometry, several_queries);
        (self.partials, self.invariant) = (partials, invariant);
        self.seq_lens.clear();
        self.seq_lens.extend_from_slice(seq_lens);
        self.packs.clone_from(&from.packs);
        self.q_tiles.clone_from(&from.q_tiles);
        self.segments.clone_from(&from.segments);
        self.pages.clone_from(&from.pages);
        self.items.clone_from(&from.items);
        self.groups.clone_from(&from.groups);
        self.targets.clone_from(&from.targets);
        self.requests.clear();
        // What a plan no longer needs may name requests that are gone with the rows behind them.
        let number_of = |request: u32| number_of.get(request as usize).copied().unwrap_or(request);
        self.requests.extend(from.requests.iter().map(|&request| number_of(request)));
        self.merges.clear();
        self.merges.extend(
            from.merges.iter().map(|merge| MergeItem { request: number_of(merge.request), ..*merge }),
        );
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

    /// The packs, in no order that matters. Requests without tokens are in one of their own, which has no segments.
    pub fn packs(&self) -> &[PlannedPack] {
        &self.packs
    }

    /// The Q tiles of all packs. Here, and among the segments, requests and pages, a plan of [`LivePlanner`](crate::LivePlanner) also has
    /// what it no longer needs, always less than half: go by the ranges of the packs, Q tiles and work items.
    pub fn q_tiles(&self) -> &[QTile] {
        &self.q_tiles
    }

    /// The segments of all Q tiles, one Q tile behind the other.
    pub fn segments(&self) -> &[KvSegment] {
        &self.segments
    }

    /// The requests of all Q tiles, one Q tile behind the other.
    pub fn requests(&self) -> &[u32] {
        &self.requests
    }

    /// The Q tiles of a pack of this plan.
    pub fn q_tiles_of(&self, pack: &PlannedPack) -> &[QTile] {
        &self.q_tiles[pack.q_tiles.start as usize..pack.q_tiles.end as usize]
    }

    /// The requests of a Q tile.
    pub fn requests_of(&self, q_tile: u32) -> &[u32] {
        let requests = &self.q_tiles[q_tile as usize].requests;
        &self.requests[requests.start as usize..requests.end as usize]
    }

    /// The pages of all segments; segments may share them. Entries that no segment reads are 0.
    pub fn pages(&self) -> &[i32] {
        &self.pages
    }

    /// The largest page that is read; `None` without pages. Linear in [`Self::pages`].
    pub fn largest_page(&self) -> Option<i32> {
        // Entries without a segment are 0 and do not matter, for where they are, there are others.
        // No branch: the compiler looks at several pages at once.
        Some(self.pages.iter().fold(-1, |largest, &page| page.max(largest))).filter(|&page| page >= 0)
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

    /// For each KV chunk of a Q tile, where each of its requests goes.
    pub fn targets(&self) -> &[OutputTarget] {
        &self.targets
    }

    /// What has to be merged.
    pub fn merges(&self) -> &[MergeItem] {
        &self.merges
    }

    /// Whether a request's bits depend on nothing else of the batch ([`Split::Invariant`]): its kernels are others, too.
    pub const fn is_invariant(&self) -> bool {
        self.invariant
    }

    /// Partials; each holds (O, m, l) of all query heads of one request over one part of its tokens.
    pub const fn partials(&self) -> u32 {
        self.partials
    }
}

/// Counts and places have 31 bits: of where pages stand, kernels take the last one for [`EVICT_FIRST`].
#[inline]
fn count(count: usize, what: &'static str) -> Result<u32, PlanError> {
    i32::try_from(count).map_or(Err(PlanError::TooLarge(what)), |count| Ok(count.unsigned_abs()))
}
