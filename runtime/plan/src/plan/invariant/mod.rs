//! Plans whose chunks begin at absolute positions, so that no bit of a request depends on the batch ([`Split::Invariant`]).
//!
//! All packs get one tile, of a family whose tiles give the same bits: the one whose items end first. A pack is a tree. Its requests are cut into
//! Q tiles, and each Q tile reads the segments of all nodes that they have, from their first token on. Nodes are shared up to a multiple of the
//! tokens that have one maximum; what is left of one belongs to those below it. Where too few CTAs would be busy, a Q tile is cut: one item takes
//! its first chunks, and each of the others takes one.

mod sketch;
#[cfg(test)]
mod tests;

use super::split::Chunk;
use super::{GRANULE, KvSegment, Plan, PlanOptions, PlannedPack, QTile, Scratch, count, max_segments};
use crate::{Packing, PlanError, PrefixTree, QTileNodes, QTiles};
pub(crate) use sketch::Sketches;
use sketch::{Candidate, Cut, StepPrices};
pub(super) use sketch::{add_chunks, compute_segment, pace, start_price};
use std::ops::Range;
use tilewright_heuristics::chunk::{Chunks, SHORTEST, part_tokens, shared_tokens};
use tilewright_heuristics::{Geometry, PackShape, PackSums, Tile, TileSet};

/// The family that a plan's tile is of, ascending by rows, the last repeated; `None` where packs are asked about instead.
pub(crate) type Tiles = Option<[Tile; TileSet::MOST]>;

const TOO_LONG: PlanError = PlanError::TooLarge("tokens that a Q tile reads");

/// Tokens that neighbouring requests of a Q tile share, by position.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    node: u32,
    positions: Range<u32>,
    /// Counted from the Q tile's first request.
    members: Range<u32>,
}

/// By node: where its pages stand in the plan, and which column the first of them is of.
#[derive(Clone, Copy, Debug)]
struct Placed {
    pages: u32,
    column: u32,
}

const ABSENT: u32 = u32::MAX;

/// Memory that such plans need.
#[derive(Clone, Debug, Default)]
pub(crate) struct InvariantScratch {
    q_tiles: QTiles,
    spans: Vec<Span>,
    placed: Vec<Placed>,
    path: Vec<u32>,
    pub(super) sketches: Sketches,
}

/// What tokens are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Steps {
    page_size: u32,
    /// With the last of so many tokens of the KV range a chunk may end.
    part: u32,
    /// Tokens that have one maximum.
    shared: u32,
    /// Sharing ends at multiples of this: of what has one maximum, and of a page.
    unit: u32,
    chunks: Chunks,
}

impl Steps {
    fn of(geometry: &Geometry, tile: &Tile) -> Self {
        let (page_size, part) = (geometry.page_size.max(1), part_tokens(tile, geometry.head_dim));
        let shared = shared_tokens(tile, geometry.head_dim);
        let unit = page_size.saturating_mul(shared / gcd(page_size, shared));
        Self { page_size, part, shared, unit, chunks: Chunks::of(geometry.kv_heads) }
    }

    const fn down(self, position: u32) -> u32 {
        position / self.unit * self.unit
    }

    /// Where a segment of these positions begins behind others. What has one maximum is of one step, which it need not begin if it is all of the segment. Chunks end with
    /// a part of a step.
    const fn begin_behind(self, kv_len: u32, positions: &Range<u32>) -> u32 {
        let begin = kv_len.next_multiple_of(GRANULE);
        let (tokens, at) = (positions.end - positions.start, begin % self.part);
        if self.chunks.next_behind(positions.start) <= positions.end {
            // As far beyond a multiple of a part as its position is.
            return begin + (positions.start % self.part + self.part - at) % self.part;
        }
        let fits = self.shared <= GRANULE || at + tokens <= self.part;
        if fits { begin } else { begin.next_multiple_of(self.part) }
    }

    /// Whether several segments of a Q tile can be cut: chunks begin where pages do.
    const fn cuts_several(self) -> bool {
        SHORTEST.is_multiple_of(self.page_size)
    }
}

const fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Ends of the windows of a KV range that is cut: where its first item ends, then where each chunk does.
fn windows(chunks: Chunks, cut: Cut, end: u32) -> impl Iterator<Item = Range<u32>> {
    let first = match cut {
        Cut::Whole => end,
        Cut::After(position) => position.min(end),
    };
    std::iter::successors(Some(0..first), move |before| {
        (before.end < end).then(|| before.end..chunks.next_behind(before.end).min(end))
    })
}

impl Plan {
    /// Adds the packs, segments and chunks of trees to a plan that has none, and the items of all. `pages` gives a node's pages.
    pub(super) fn push_invariant<'p>(
        &mut self,
        tree: &impl PrefixTree,
        pages: impl Fn(u32) -> &'p [i32],
        options: &PlanOptions,
        (tiles, select): (Tiles, &mut impl FnMut(&PackShape) -> Tile),
        scratch: &mut Scratch,
    ) -> Result<(), PlanError> {
        scratch.chunks.clear();
        let mut invariant = std::mem::take(&mut scratch.invariant);
        let choice = (tiles, &mut *select);
        let options = &PlanOptions { device: options.device.to_weigh_invariant_plans(), ..*options };
        let result = self.push_trees(tree, pages, options, choice, &mut invariant, &mut scratch.chunks);
        scratch.invariant = invariant;
        result?;
        let with_tokens = self.q_tiles.len() as u32;
        self.push_empty(select)?;
        scratch.chunks.extend((with_tokens..self.q_tiles.len() as u32).map(|q_tile| Chunk {
            q_tile,
            kv_range: 0..0,
            segments: self.q_tiles[q_tile as usize].segments.clone(),
            item: 0,
        }));
        self.assign_targets(scratch)?;
        self.emit_items(options, scratch)
    }

    fn push_trees<'p>(
        &mut self,
        tree: &impl PrefixTree,
        pages: impl Fn(u32) -> &'p [i32],
        options: &PlanOptions,
        (tiles, select): (Tiles, &mut impl FnMut(&PackShape) -> Tile),
        scratch: &mut InvariantScratch,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), PlanError> {
        let total = count(tree.roots().count(), "packs")?;
        let mut packs = Vec::with_capacity(total as usize);
        for root in tree.roots() {
            let shape = self.shape_of(&self.sums_of(tree, root, &mut scratch.path), total)?;
            packs.push((root, shape, select(&shape)));
        }
        self.invariant = true;
        let mut candidate = Candidate::PER_REQUEST;
        if options.packing != Packing::PerRequest {
            candidate = self.choose_candidate(tree, &mut packs, tiles, options, scratch);
        } else if let Some(tiles) = tiles {
            let tile = self.tile_of_one(&tiles);
            packs.iter_mut().for_each(|pack| pack.2 = tile);
        }
        let InvariantScratch { q_tiles, spans, placed, path, .. } = scratch;
        placed.clear();
        placed.resize(tree.capacity(), Placed { pages: ABSENT, column: 0 });
        for (root, shape, tile) in packs {
            let steps = Steps::of(&self.geometry, &tile);
            let prices = StepPrices::of(self, &tile, options);
            let first_q_tile = count(self.q_tiles.len(), "Q tiles")?;
            let capacity = self.fitting(tree, root, &tile, candidate.level, q_tiles, spans);
            q_tiles.clear();
            q_tiles.push_pack(tree, root, |_| true, capacity);
            for q_tile in q_tiles.q_tiles() {
                spans_of(tree, q_tiles, q_tile, steps, spans);
                let time = |cut| sketch::time_of_first(&prices, spans, cut, steps);
                let requests = q_tiles.requests_of(q_tile);
                let cut = candidate.cut_of(requests.len(), spans, steps, time);
                join_span_of_one(requests.len(), spans);
                let mut place = |plan: &mut Self, span: &Span| {
                    plan.place_pages(tree, &pages, span, steps, &mut placed[span.node as usize], path)
                };
                let time = |plan: &Self, members, window: &Range<u32>| {
                    sketch::time_of_window(plan, &prices, spans, (members, window.clone()), steps)
                };
                let size = |plan: &Self, window: &Range<u32>| {
                    let requests = requests.len() as u32;
                    candidate.requests_an_item(requests, window.start, |members| time(plan, members, window))
                };
                self.push_spans(requests, spans, (cut, steps), size, &mut place, chunks)?;
            }
            let q_tiles = first_q_tile..count(self.q_tiles.len(), "Q tiles")?;
            self.packs.push(PlannedPack { q_tiles, shape, tile });
        }
        Ok(())
    }

    /// The tile of requests that share nothing: the lowest that holds the rows of one.
    fn tile_of_one(&self, tiles: &[Tile; TileSet::MOST]) -> Tile {
        let holds = |tile: &&Tile| u32::from(tile.m) >= self.geometry.gqa_ratio();
        *tiles.iter().find(holds).unwrap_or(&tiles[TileSet::MOST - 1])
    }

    /// The most requests of a Q tile, of those at a level and below, with which no Q tile has more segments than kernels take.
    fn fitting(
        &self,
        tree: &impl PrefixTree,
        root: u32,
        tile: &Tile,
        level: u32,
        q_tiles: &mut QTiles,
        spans: &mut Vec<Span>,
    ) -> u32 {
        let steps = Steps::of(&self.geometry, tile);
        let mut capacity = self.capacity(tile).checked_shr(level).unwrap_or(0).max(1).min(tree.size(root));
        let room = max_segments(u32::from(tile.m)) as usize;
        while capacity > 1 {
            q_tiles.clear();
            q_tiles.push_pack(tree, root, |_| true, capacity);
            let fits = q_tiles.q_tiles().iter().all(|q_tile| {
                // A node has two spans at most: most Q tiles need no closer look.
                2 * q_tiles.segments_of(q_tile).len() <= room || {
                    spans_of(tree, q_tiles, q_tile, steps, spans);
                    spans.len() <= room
                }
            });
            if fits {
                break;
            }
            capacity /= 2;
        }
        capacity
    }

    /// What the selector is told of a tree.
    fn sums_of(&self, tree: &impl PrefixTree, root: u32, stack: &mut Vec<u32>) -> PackSums {
        let page_size = u64::from(self.geometry.page_size);
        let mut sums = PackSums::of_requests(tree.size(root));
        stack.clear();
        stack.push(root);
        while let Some(node) = stack.pop() {
            sums.add_node(page_size * tree.columns(node).len() as u64, tree.size(node));
            stack.extend(tree.children(node));
        }
        sums
    }

    /// Where the pages of a span stand in the plan: those of its node, and before them some of those above.
    fn place_pages<'p>(
        &mut self,
        tree: &impl PrefixTree,
        pages: &impl Fn(u32) -> &'p [i32],
        span: &Span,
        steps: Steps,
        placed: &mut Placed,
        path: &mut Vec<u32>,
    ) -> Result<u32, PlanError> {
        let column = span.positions.start / steps.page_size;
        if placed.pages == ABSENT || column < placed.column {
            path.clear();
            path.extend(std::iter::successors(Some(span.node), |&node| {
                tree.parent(node).filter(|_| tree.columns(node).start > column)
            }));
            *placed = Placed { pages: count(self.pages.len(), "pages of all packs")?, column };
            for &node in path.iter().rev() {
                let skipped = column.saturating_sub(tree.columns(node).start) as usize;
                self.pages.extend_from_slice(&pages(node)[skipped..]);
            }
            count(self.pages.len(), "pages of all packs")?;
        }
        Ok(placed.pages + (column - placed.column))
    }

    /// Appends a Q tile for each window of its KV range, or several: `size` says of how many requests.
    fn push_spans(
        &mut self,
        requests: &[u32],
        spans: &[Span],
        (cut, steps): (Cut, Steps),
        size: impl Fn(&Self, &Range<u32>) -> u32,
        place: &mut impl FnMut(&mut Self, &Span) -> Result<u32, PlanError>,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), PlanError> {
        let begin = count(self.requests.len(), "requests of all packs")?;
        self.requests.extend_from_slice(requests);
        count(self.requests.len(), "requests of all packs")?;
        let requests = requests.len() as u32;
        let end = spans.iter().map(|span| span.positions.end).max().unwrap_or(0);
        if let [span] = spans {
            // One segment may be cut anywhere.
            let index = count(self.q_tiles.len(), "Q tiles")?;
            let segments = count(self.segments.len(), "KV segments")?;
            let (pages, members) = (place(self, span)?, span.members.clone());
            self.segments.push(KvSegment { kv_range: 0..end, pages, position: 0, members });
            let segments = segments..segments + 1;
            self.push_window(begin..begin + requests, segments.clone(), end)?;
            let chunk = |kv_range| Chunk { q_tile: index, kv_range, segments: segments.clone(), item: 0 };
            chunks.extend(windows(steps.chunks, cut, end).map(chunk));
            return Ok(());
        }
        for window in windows(steps.chunks, cut, end) {
            let size = size(self, &window);
            for at in (0..requests).step_by(size as usize) {
                let members = at..requests.min(at + size);
                let first = count(self.segments.len(), "KV segments")?;
                let mut kv_len = 0u32;
                for span in spans {
                    let positions =
                        span.positions.start.max(window.start)..span.positions.end.min(window.end);
                    let of =
                        span.members.start.max(at) - at..span.members.end.min(members.end).saturating_sub(at);
                    if positions.is_empty() || of.is_empty() {
                        continue;
                    }
                    let begin = steps.begin_behind(kv_len, &positions);
                    let end = begin.checked_add(positions.end - positions.start);
                    kv_len = end.filter(|&end| i32::try_from(end).is_ok()).ok_or(TOO_LONG)?;
                    let pages =
                        place(self, span)? + (positions.start - span.positions.start) / steps.page_size;
                    let (kv_range, position) = (begin..kv_len, positions.start);
                    self.segments.push(KvSegment { kv_range, pages, position, members: of });
                }
                if kv_len > 0 {
                    let q_tile = count(self.q_tiles.len(), "Q tiles")?;
                    let segments = first..count(self.segments.len(), "KV segments")?;
                    self.push_window(begin + members.start..begin + members.end, segments.clone(), kv_len)?;
                    chunks.push(Chunk { q_tile, kv_range: 0..kv_len, segments, item: 0 });
                }
            }
        }
        Ok(())
    }

    fn push_window(
        &mut self,
        requests: Range<u32>,
        segments: Range<u32>,
        kv_len: u32,
    ) -> Result<(), PlanError> {
        i32::try_from(kv_len).map_err(|_| TOO_LONG)?;
        self.q_tiles.push(QTile { pack: self.packs.len() as u32, requests, segments, kv_len });
        Ok(())
    }
}

/// Makes the spans of one request one: its last node's, with the pages of all above.
fn join_span_of_one(requests: usize, spans: &mut Vec<Span>) {
    if requests == 1
        && let Some(mut last) = spans.pop()
    {
        last.positions.start = 0;
        spans.clear();
        spans.push(last);
    }
}

/// The spans of a Q tile, parents before children.
fn spans_of(
    tree: &impl PrefixTree,
    q_tiles: &QTiles,
    q_tile: &QTileNodes,
    steps: Steps,
    spans: &mut Vec<Span>,
) {
    spans.clear();
    let segments = q_tiles.segments_of(q_tile);
    let tokens = |column: u32| column.saturating_mul(steps.page_size);
    for (index, segment) in segments.iter().enumerate() {
        let (node, columns) = (segment.node, tree.columns(segment.node));
        let (begin, end) = (steps.down(tokens(columns.start)), tokens(columns.end));
        let goes_on = tree.children(node).next().is_some();
        let shared = if goes_on { steps.down(end) } else { end };
        if begin < shared {
            spans.push(Span { node, positions: begin..shared, members: segment.members.clone() });
        }
        // Requests that end with the node come first among its members: they have the rest for themselves.
        let child = segments.get(index + 1).filter(|next| tree.parent(next.node) == Some(node));
        let ending = segment.members.start..child.map_or(segment.members.end, |child| child.members.start);
        if goes_on && shared < end && !ending.is_empty() {
            spans.push(Span { node, positions: shared.max(begin)..end, members: ending });
        }
    }
}
