//! Plans from packs of joined nodes: each Q tile reads the segments of all nodes that its requests have.

use super::build::Scratch;
use super::{GRANULE, WARP_ROWS};
use super::{KvSegment, Plan, PlannedPack, QTile, count};
use crate::{PlanError, PrefixTree, Priced, QTiles};
use std::ops::Range;
use tilewright_heuristics::{PackShape, PackSums, Tile};

/// What is known of a node while its pack is planned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeState {
    /// Of a top: what its pack is to the selector.
    sums: PackSums,
    /// Where its pages stand in the plan.
    pages: u32,
}

const TOO_LONG: PlanError = PlanError::TooLarge("tokens that a Q tile reads");

/// No pages of the node stand in the plan yet.
const ABSENT: u32 = u32::MAX;

impl Plan {
    /// The packs of trees whose nodes were joined. `pages` gives a node's pages.
    pub(super) fn push_joined<'p>(
        &mut self,
        tree: &impl PrefixTree,
        pages: impl Fn(u32) -> &'p [i32],
        priced: &Priced,
        select: &mut impl FnMut(&PackShape) -> Tile,
        scratch: &mut Scratch,
    ) -> Result<(), PlanError> {
        let Scratch { nodes, stack, q_tiles, tops, .. } = scratch;
        self.find_tops(tree, priced, nodes, stack, tops);
        let total = count(tops.len(), "packs")?;
        let mut last: Option<(PackSums, PackShape)> = None;
        for &top in tops.iter() {
            let sums = nodes[top as usize].sums;
            // Most leaves are as long as the one before; then nothing is divided.
            let shape = match last {
                Some((last, shape)) if last == sums => shape,
                _ => self.shape_of(&sums, total)?,
            };
            last = Some((sums, shape));
            let tile = select(&shape);
            let first_q_tile = count(self.q_tiles.len(), "Q tiles")?;
            if let &[request] = tree.ending(top)
                && tree.size(top) == 1
            {
                self.push_leaf(tree.columns(top), pages(top), request)?;
                self.packs.push(PlannedPack { q_tiles: first_q_tile..first_q_tile + 1, shape, tile });
                continue;
            }
            q_tiles.clear();
            q_tiles.push_pack(tree, top, |node| priced.joined(node), self.capacity(&tile));
            self.push_q_tiles(tree, q_tiles, |plan, node| {
                let place = &mut nodes[node as usize].pages;
                if *place == ABSENT {
                    *place = count(plan.pages.len(), "pages of all packs")?;
                    plan.pages.extend_from_slice(pages(node));
                }
                Ok(*place)
            })?;
            self.packs.push(PlannedPack { q_tiles: first_q_tile..self.q_tiles.len() as u32, shape, tile });
        }
        Ok(())
    }

    /// The Q tile of a pack that is one leaf of one request, as most packs are where little is shared: what [`Self::push_q_tiles`] makes of it.
    fn push_leaf(&mut self, columns: Range<u32>, pages: &[i32], request: u32) -> Result<(), PlanError> {
        let (position, kv_len) = self.tokens_of(&columns)?;
        let segment = count(self.segments.len(), "KV segments")?;
        let first_page = count(self.pages.len(), "pages of all packs")?;
        self.pages.extend_from_slice(pages);
        self.segments.push(KvSegment { kv_range: 0..kv_len, pages: first_page, position, members: 0..1 });
        self.push_q_tile(&[request], segment..segment + 1, kv_len)
    }

    /// Where a node's tokens begin among those of its requests, and how many they are.
    #[inline]
    pub(super) fn tokens_of(&self, columns: &Range<u32>) -> Result<(u32, u32), PlanError> {
        let page_size = self.geometry.page_size;
        let tokens = (columns.end - columns.start).checked_mul(page_size);
        let tokens = tokens.filter(|&tokens| i32::try_from(tokens).is_ok()).ok_or(TOO_LONG)?;
        Ok((columns.start.checked_mul(page_size).ok_or(TOO_LONG)?, tokens))
    }

    /// What the selector is asked about a pack.
    pub(super) fn shape_of(&self, sums: &PackSums, packs: u32) -> Result<PackShape, PlanError> {
        i32::try_from(sums.mean_seen()).map_err(|_| PlanError::TooLarge("tokens of a pack"))?;
        Ok(PackShape::of_tree(&self.geometry, sums, packs))
    }

    /// The tops of all packs, parents before children, and what each pack's rows see.
    fn find_tops(
        &self,
        tree: &impl PrefixTree,
        priced: &Priced,
        nodes: &mut Vec<NodeState>,
        stack: &mut Vec<(u32, u32)>,
        tops: &mut Vec<u32>,
    ) {
        tops.clear();
        nodes.resize(nodes.len().max(tree.capacity()), NodeState::default());
        // A node, and the top that is above it.
        stack.clear();
        stack.extend(tree.roots().map(|root| (root, root)));
        stack.reverse();
        while let Some((node, above)) = stack.pop() {
            let top = if priced.joined(node) { above } else { node };
            let sums = PackSums::of_requests(tree.size(node));
            nodes[node as usize] = NodeState { sums, pages: ABSENT };
            if top == node {
                tops.push(node);
            }
            let tokens = u64::from(self.geometry.page_size) * tree.columns(node).len() as u64;
            nodes[top as usize].sums.add_node(tokens, tree.size(node));
            stack.extend(tree.children(node).rev().map(|child| (child, top)));
        }
    }

    /// Appends a pack's Q tiles. `place` says where a node's pages stand in the plan, and puts them there when it is first asked; the Q tile
    /// that asks is the last one then.
    #[inline]
    pub(super) fn push_q_tiles(
        &mut self,
        tree: &impl PrefixTree,
        q_tiles: &QTiles,
        mut place: impl FnMut(&mut Self, u32) -> Result<u32, PlanError>,
    ) -> Result<(), PlanError> {
        let ratio = self.geometry.gqa_ratio();
        for q_tile in q_tiles.q_tiles() {
            let first_segment = count(self.segments.len(), "KV segments")?;
            let begin = count(self.requests.len(), "requests of all packs")?;
            self.requests.extend_from_slice(q_tiles.requests_of(q_tile));
            let requests = begin..count(self.requests.len(), "requests of all packs")?;
            let segments = first_segment..first_segment;
            self.q_tiles.push(QTile { pack: self.packs.len() as u32, requests, segments, kv_len: 0 });
            let mut kv_len = 0u32;
            // Where the pages of the last segment end in the plan, and in the requests' tokens.
            let (mut pages_end, mut position_end) = (0, 0);
            // Segments private to one warp come last: the kernels' private KV phase.
            for alone in [false, true] {
                for segment in q_tiles.segments_of(q_tile) {
                    let Range { start, end } = segment.members;
                    if (start * ratio / WARP_ROWS == (end * ratio - 1) / WARP_ROWS) != alone {
                        continue;
                    }
                    let columns = tree.columns(segment.node);
                    let segment_pages = columns.end - columns.start;
                    let pages = place(self, segment.node)?;
                    let (position, tokens) = self.tokens_of(&columns)?;
                    let follows = (pages_end, position_end) == (pages, position);
                    (pages_end, position_end) = (pages + segment_pages, position.saturating_add(tokens));
                    if let Some(last) = self.segments[first_segment as usize..].last_mut()
                        && last.members == segment.members
                        && follows
                    {
                        // A node and its first child, shared by the same rows of this Q tile, are one segment.
                        last.kv_range.end = last.kv_range.end.checked_add(tokens).ok_or(TOO_LONG)?;
                        kv_len = last.kv_range.end;
                        continue;
                    }
                    let begin = kv_len.next_multiple_of(GRANULE);
                    let end = begin.checked_add(tokens).filter(|&end| i32::try_from(end).is_ok());
                    kv_len = end.ok_or(TOO_LONG)?;
                    let members = segment.members.clone();
                    self.segments.push(KvSegment { kv_range: begin..kv_len, pages, position, members });
                }
            }
            let segments = first_segment..count(self.segments.len(), "KV segments")?;
            if let Some(q_tile) = self.q_tiles.last_mut() {
                (q_tile.segments, q_tile.kv_len) = (segments, kv_len);
            }
        }
        Ok(())
    }
}
