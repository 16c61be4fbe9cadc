//! From packs to Q tiles: which rows a tile holds at once, and along which segments of pages it reads.

use super::invariant::{InvariantScratch, Tiles};
use super::items::{OrderedChunk, Touched};
use super::joined::NodeState;
use super::split::Chunk;
use super::waves::WavesScratch;
use super::{KvSegment, Plan, PlanOptions, PlannedPack, QTile, count};
use crate::forest::Neighbours;
use crate::{Forest, Packs, PageTable, PlanError, Priced, QTiles};
use std::ops::Range;
use tilewright_heuristics::{Geometry, PackShape, Tile};

/// Memory that planning needs and no plan keeps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) neighbours: Neighbours,
    pub(crate) stack: Vec<(u32, u32)>,
    pub(super) nodes: Vec<NodeState>,
    pub(super) tops: Vec<u32>,
    pub(super) q_tiles: QTiles,
    pub(super) chunks: Vec<Chunk>,
    pub(super) waves: WavesScratch,
    pub(super) touched: Vec<Touched>,
    pub(super) order: Vec<OrderedChunk>,
    pub(super) invariant: InvariantScratch,
}

impl Plan {
    /// Becomes the plan of other packs of one segment each, in the same memory.
    pub(crate) fn rebuild(
        &mut self,
        geometry: &Geometry,
        table: &PageTable<'_>,
        packs: &Packs,
        options: &PlanOptions,
        mut select: impl FnMut(&PackShape) -> Tile,
        scratch: &mut Scratch,
    ) -> Result<(), PlanError> {
        self.start(geometry, table)?;
        let push_pages = |request: u32, columns, pages: &mut Vec<i32>| {
            pages.extend_from_slice(table.columns(request as usize, columns));
        };
        self.push_packs(packs, push_pages, &mut select)?;
        self.finish(options, scratch)
    }

    /// Packs of one segment each, and that of the requests without tokens. `push_pages` appends a request's pages in some columns.
    pub(super) fn push_packs(
        &mut self,
        packs: &Packs,
        mut push_pages: impl FnMut(u32, Range<u32>, &mut Vec<i32>),
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        let total = count(packs.packs().len(), "packs")?;
        for pack in packs.packs() {
            self.push_pack(packs.requests_of(pack), &pack.columns, total, &mut push_pages, select)?;
        }
        self.push_empty(select)
    }

    /// Becomes the plan of a forest whose nodes were joined, in the same memory.
    pub(crate) fn rebuild_joined(
        &mut self,
        geometry: &Geometry,
        table: &PageTable<'_>,
        (forest, priced): (&Forest, &Priced),
        options: &PlanOptions,
        mut select: impl FnMut(&PackShape) -> Tile,
        scratch: &mut Scratch,
    ) -> Result<(), PlanError> {
        self.start(geometry, table)?;
        let pages = |node: u32| {
            let node = &forest.nodes()[node as usize];
            table.columns(forest.order()[node.requests.start as usize] as usize, node.columns.clone())
        };
        self.push_joined(forest, pages, priced, &mut select, scratch)?;
        self.push_empty(&mut select)?;
        self.finish(options, scratch)
    }

    /// Becomes the plan of a forest whose requests are cut at absolute positions, in the same memory.
    pub(crate) fn rebuild_invariant(
        &mut self,
        geometry: &Geometry,
        table: &PageTable<'_>,
        forest: &Forest,
        options: &PlanOptions,
        (tiles, mut select): (Tiles, impl FnMut(&PackShape) -> Tile),
        scratch: &mut Scratch,
    ) -> Result<(), PlanError> {
        self.start(geometry, table)?;
        let pages = |node: u32| {
            let node = &forest.nodes()[node as usize];
            table.columns(forest.order()[node.requests.start as usize] as usize, node.columns.clone())
        };
        self.push_invariant(forest, pages, options, (tiles, &mut select), scratch)
    }

    fn start(&mut self, geometry: &Geometry, table: &PageTable<'_>) -> Result<(), PlanError> {
        // The kernels count rows in 16 bits.
        if geometry.gqa_ratio() > u32::from(u16::MAX) {
            return Err(PlanError::GqaRatio(geometry.gqa_ratio()));
        }
        self.geometry = *geometry;
        self.seq_lens.clear();
        self.seq_lens.extend(table.seq_lens());
        self.several_queries = table.has_several_queries();
        self.invariant = false;
        self.packs.clear();
        self.q_tiles.clear();
        self.segments.clear();
        self.requests.clear();
        self.pages.clear();
        Ok(())
    }

    /// What follows from Q tiles: chunks, destinations, work items.
    pub(super) fn finish(&mut self, options: &PlanOptions, scratch: &mut Scratch) -> Result<(), PlanError> {
        self.split(options, &mut scratch.chunks, &mut scratch.waves);
        self.assign_targets(scratch)?;
        self.emit_items(options, scratch)
    }

    /// A pack whose requests all share all of its pages.
    fn push_pack(
        &mut self,
        members: &[u32],
        columns: &Range<u32>,
        packs: u32,
        push_pages: &mut impl FnMut(u32, Range<u32>, &mut Vec<i32>),
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        let (position, kv_range) = self.tokens_of(columns)?;
        let pages = count(self.pages.len(), "pages of all packs")?;
        push_pages(members[0], columns.clone(), &mut self.pages);
        let shape = PackShape::of_pack(&self.geometry, members.len() as u32, kv_range, packs);
        let tile = select(&shape);
        let first_q_tile = count(self.q_tiles.len(), "Q tiles")?;
        for members in members.chunks(self.capacity(&tile) as usize) {
            let segment = count(self.segments.len(), "KV segments")?;
            self.segments.push(KvSegment {
                kv_range: 0..kv_range,
                pages,
                position,
                members: 0..members.len() as u32,
            });
            self.push_q_tile(members, segment..segment + 1, kv_range)?;
        }
        self.packs.push(PlannedPack { q_tiles: first_q_tile..self.q_tiles.len() as u32, shape, tile });
        Ok(())
    }

    /// Requests without tokens: rows of zeros, which the first pack's tile writes as well as any.
    pub(super) fn push_empty(
        &mut self,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        let requests = self.requests.len();
        let empty = self.seq_lens.iter().enumerate().filter(|(_, tokens)| **tokens == 0);
        self.requests.extend(empty.map(|(request, _)| request as u32));
        let rest = self.requests.len() - requests;
        if rest == 0 {
            return Ok(());
        }
        let shape = PackShape::of_pack(&self.geometry, rest as u32, 1, 1);
        let tile = self.packs.first().map_or_else(|| select(&shape), |pack| pack.tile);
        let (first_q_tile, capacity) = (count(self.q_tiles.len(), "Q tiles")?, self.capacity(&tile) as usize);
        let segments = count(self.segments.len(), "KV segments")?;
        let end = count(self.requests.len(), "requests of all packs")?;
        for begin in (requests as u32..end).step_by(capacity) {
            let requests = begin..end.min(begin + capacity as u32);
            self.q_tiles.push(QTile {
                pack: self.packs.len() as u32,
                requests,
                segments: segments..segments,
                kv_len: 0,
            });
        }
        self.packs.push(PlannedPack { q_tiles: first_q_tile..self.q_tiles.len() as u32, shape, tile });
        Ok(())
    }

    #[inline]
    pub(super) fn push_q_tile(
        &mut self,
        members: &[u32],
        segments: Range<u32>,
        kv_len: u32,
    ) -> Result<(), PlanError> {
        let begin = count(self.requests.len(), "requests of all packs")?;
        self.requests.extend_from_slice(members);
        let requests = begin..count(self.requests.len(), "requests of all packs")?;
        self.q_tiles.push(QTile { pack: self.packs.len() as u32, requests, segments, kv_len });
        Ok(())
    }

    /// Requests whose rows a tile holds at once; 1 if it holds not even those of one.
    #[inline]
    pub(super) fn capacity(&self, tile: &Tile) -> u32 {
        (u32::from(tile.m) / self.geometry.gqa_ratio()).clamp(1, KvSegment::MOST_MEMBERS)
    }
}
