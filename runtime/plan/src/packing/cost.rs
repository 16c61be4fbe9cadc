//! What a packing costs: time on the device, modelled from a few prices, a KV head at a time.

use crate::{DeviceProfile, Packs, PrefixTree, QTiles};
use std::ops::Range;
use tilewright_heuristics::{Geometry, Prices, Tile, TileSet};

/// What the cost of a packing depends on besides the trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackLayout {
    /// KV heads.
    pub kv_heads: u32,
    /// Query heads / KV heads: the rows of a request.
    pub gqa_ratio: u32,
    /// Elements of one head's vector.
    pub head_dim: u32,
    /// Tokens of one page.
    pub page_size: u32,
    /// Bytes of K and V of one token and KV head.
    pub token_bytes: u32,
    /// Rows that tiles may have, ascending. Repeat one where there are fewer than four.
    pub tile_rows: [u32; LANES],
    /// Taller tiles are not used, though the lowest always is.
    pub m_cap: u32,
    /// See [`DeviceProfile::private_kv_in_tall_tiles`].
    pub private_kv_in_tall_tiles: u64,
}

impl PackLayout {
    /// The layout of an attention layer, with tiles of 16 to 128 rows.
    pub fn new(geometry: &Geometry) -> Self {
        let tile_rows = [16, 32, 64, 128];
        let element = geometry.dtype.kv_bytes() as u32;
        Self {
            kv_heads: geometry.kv_heads,
            gqa_ratio: geometry.q_heads / geometry.kv_heads.max(1),
            head_dim: geometry.head_dim,
            page_size: geometry.page_size,
            token_bytes: geometry.head_dim.saturating_mul(2).saturating_mul(element),
            tile_rows,
            m_cap: tile_rows[3],
            private_kv_in_tall_tiles: DeviceProfile::H200.private_kv_in_tall_tiles,
        }
    }

    /// The layout for packs that get one of these tiles, ascending by rows; where they are not known, as it was.
    #[must_use]
    pub fn with_tiles(self, tiles: Option<[Tile; LANES]>) -> Self {
        tiles.map_or(self, |tiles| {
            let tile_rows = tiles.map(|tile| tile.m.into());
            Self { tile_rows, m_cap: tile_rows[LANES - 1], ..self }
        })
    }

    /// The layout for a batch of `requests` requests on a device: tiles no taller than leaves each
    /// of its CTAs something to do.
    #[must_use]
    pub fn for_batch(self, requests: usize, device: &DeviceProfile) -> Self {
        let rows = (requests as u64).saturating_mul(u64::from(self.gqa_ratio) * u64::from(self.kv_heads));
        let fills = |&m: &u32| rows / u64::from(m.max(1)) >= u64::from(device.max_concurrent_ctas);
        let m_cap = self.tile_rows.into_iter().rev().find(fills).unwrap_or(self.tile_rows[0]);
        Self { m_cap, private_kv_in_tall_tiles: device.private_kv_in_tall_tiles, ..self }
    }
}

/// Prices multiplied out for a layout. Costs are in attoseconds and for one KV head. Costs of a node or a pack stop at a quarter of
/// a second, far beyond any decode step; sums of many such wrap around rather than fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// By tile rows; those above the cap repeat the one at the cap.
    pub(crate) lanes: [Lane; LANES],
    /// The lanes beyond these repeat the last of them.
    distinct: usize,
    gqa_ratio: u64,
    pub(crate) page_size: u64,
    first_page: u64,
    again_page: u64,
    /// The operations of one row with one page.
    row_page: u64,
    /// One partial of all rows of a request.
    pub(crate) partial: u64,
}

/// How many heights of tiles are weighed against each other.
pub(crate) const LANES: usize = TileSet::MOST;

const MOST: u64 = 1 << 58;

/// Reading the KV of a single request in a low tile, in the unit of [`DeviceProfile::private_kv_in_tall_tiles`].
const PRIVATE_KV_IN_LOW_TILES: u64 = 64;

/// Tiles of one height.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) m: u32,
    /// Requests that fit into a Q tile.
    pub(crate) capacity: u32,
    /// CTAs of a Q tile: more than one only where the rows of one request are more than m.
    slices: u32,
    /// What one more Q tile costs for each page, / (2 x capacity^2).
    straddle: u64,
    /// What a page costs in one Q tile, the first that reads it, with all rows busy.
    once: u64,
    /// The same of a page of one request alone.
    private: u64,
    /// What starting the CTAs of one Q tile costs.
    cta: u64,
    /// Rows that a segment of 1 to 32 tokens keeps busy at least: several such segments fit into a step of 64 tokens.
    least_rows: [u32; 32],
}

impl Lane {
    fn new(m: u32, gqa_ratio: u32) -> Self {
        let (m, gqa_ratio) = (m.max(1), gqa_ratio.max(1));
        let mut least_rows = [0; 32];
        least_rows.iter_mut().zip(1u32..).for_each(|(rows, tokens)| *rows = m / (64 / tokens));
        Self {
            m,
            capacity: (m / gqa_ratio).max(1),
            slices: gqa_ratio.div_ceil(m),
            least_rows,
            ..Self::default()
        }
    }

    /// Q tiles that `requests` requests need at least.
    #[inline]
    pub(crate) fn q_tiles(&self, requests: u32) -> u32 {
        if requests <= self.capacity { 1 } else { requests.div_ceil(self.capacity) }
    }

    /// What a node costs on average because it begins anywhere in a Q tile: it may be in one Q tile more than the `q_tiles` that its
    /// requests need, with a chance of (last - 1) / capacity, where `last` is how many are in the last of them. Then either its own pages
    /// are read once more, or room of up to `last` is left empty, a share of a Q tile that reads all pages above. Half of that was
    /// closest to an exhaustive search over small forests: where it is costly, Q tiles are cut the other way.
    #[inline]
    pub(crate) fn straddling(&self, columns: &Range<u32>, requests: u32, q_tiles: u32) -> u64 {
        let last = u64::from(requests.saturating_sub((q_tiles - 1) * self.capacity));
        if last <= 1 {
            return 0;
        }
        let own = u64::from(columns.end.saturating_sub(columns.start)) * u64::from(self.capacity);
        let above = u64::from(columns.start) * last;
        own.min(above).saturating_mul(last - 1).saturating_mul(self.straddle).min(MOST)
    }
}

impl CostModel {
    /// The model for a layout.
    pub fn new(layout: &PackLayout, prices: &Prices) -> Self {
        let product = |factors: &[u64]| factors.iter().fold(1u64, |a, &b| a.saturating_mul(b));
        let page_bytes = product(&[layout.page_size.into(), layout.token_bytes.into()]);
        let partial_bytes = product(&[layout.gqa_ratio.into(), u64::from(layout.head_dim) + 2, 4]);
        let row_page = product(&[layout.page_size.into(), layout.head_dim.into(), 4, prices.flop]);
        let cap = layout.m_cap.max(layout.tile_rows[0]);
        let mut m = layout.tile_rows[0];
        let lanes = layout.tile_rows.map(|rows| {
            m = if rows <= cap { rows } else { m };
            Lane::new(m, layout.gqa_ratio)
        });
        let repeated = lanes.iter().rev().take_while(|lane| lane.m == m).count();
        let mut model = Self {
            lanes,
            distinct: LANES + 1 - repeated,
            gqa_ratio: layout.gqa_ratio.max(1).into(),
            page_size: layout.page_size.max(1).into(),
            first_page: product(&[page_bytes, prices.hbm_byte]),
            again_page: product(&[page_bytes, prices.l2_byte]),
            row_page,
            partial: product(&[partial_bytes, prices.partial_byte]),
        };
        model.lanes = lanes.map(|lane| {
            let slices = u64::from(lane.slices);
            let again = model.again_page.max(model.row_page.saturating_mul(lane.m.into()));
            Lane {
                straddle: again.saturating_mul(slices) / (2 * u64::from(lane.capacity).pow(2)).max(1),
                once: model.page(slices, lane.m.into(), true),
                private: model.page(slices, lane.m.into(), true).saturating_mul(
                    if lane.m < DeviceProfile::TALL {
                        PRIVATE_KV_IN_LOW_TILES
                    } else {
                        layout.private_kv_in_tall_tiles
                    },
                ) / PRIVATE_KV_IN_LOW_TILES,
                cta: slices.saturating_mul(prices.cta),
                ..lane
            }
        });
        model
    }

    /// The model with another allowance for nodes that lie across Q tiles: a multiple of this one.
    pub(crate) fn with_allowance(mut self, factor: u64) -> Self {
        self.lanes.iter_mut().for_each(|lane| lane.straddle = lane.straddle.saturating_mul(factor));
        self
    }

    /// The lanes up to where they only repeat themselves. An earlier lane wins where costs are equal, so that the others never do.
    #[inline]
    pub(crate) fn distinct_lanes(&self) -> &[Lane] {
        &self.lanes[..self.distinct]
    }

    /// What `q_tiles` Q tiles cost that read a segment of pages for `requests` requests of their pack: reading or computing, whichever
    /// takes longer. `first`: no Q tile has read the pages before.
    #[inline]
    pub(crate) fn segment(&self, lane: &Lane, pages: u32, requests: u32, q_tiles: u32, first: bool) -> u64 {
        let pages = u64::from(pages);
        let page = if q_tiles == 1 && first && pages.saturating_mul(self.page_size) > 32 {
            if requests == 1 { lane.private } else { lane.once }
        } else {
            let reads = u64::from(q_tiles) * u64::from(lane.slices);
            self.page(reads, self.busy_rows(lane, pages, requests), first)
        };
        pages.saturating_mul(page).min(MOST)
    }

    /// What a page costs that CTAs read `reads` times.
    #[inline]
    fn page(&self, reads: u64, busy_rows: u64, first: bool) -> u64 {
        let first_read = if first { self.first_page } else { self.again_page };
        let read = self.again_page.saturating_mul(reads.saturating_sub(1)).saturating_add(first_read);
        read.max(self.row_page.saturating_mul(reads.saturating_mul(busy_rows)))
    }

    /// Rows of the tile that are busy with a segment. Rows come in sixteens. A segment of few rows keeps the whole CTA busy all the same,
    /// unless it is so short that a step over 64 tokens takes several of them.
    #[inline]
    fn busy_rows(&self, lane: &Lane, pages: u64, requests: u32) -> u64 {
        let m = u64::from(lane.m);
        let last = pages.saturating_mul(self.page_size).saturating_sub(1);
        let least = usize::try_from(last).ok().and_then(|last| lane.least_rows.get(last));
        let rows = || (u64::from(requests) * self.gqa_ratio).next_multiple_of(16).min(m);
        least.map_or(m, |&least| rows().max(least.into()))
    }

    /// What starting the CTAs of `q_tiles` Q tiles costs.
    #[inline]
    pub(crate) fn ctas(lane: &Lane, q_tiles: u32) -> u64 {
        u64::from(q_tiles).saturating_mul(lane.cta).min(MOST)
    }

    /// The cost of a pack in `q_tiles`, already cut for `lane`. `reads` has a zero for each node, and has them again afterwards.
    fn of_q_tiles(&self, lane: &Lane, tree: &impl PrefixTree, q_tiles: &QTiles, reads: &mut [u32]) -> u64 {
        q_tiles.segments().iter().for_each(|segment| reads[segment.node as usize] += 1);
        let mut cost = Self::ctas(lane, q_tiles.q_tiles().len() as u32);
        for segment in q_tiles.segments() {
            let count = std::mem::take(&mut reads[segment.node as usize]);
            if count > 0 {
                let columns = tree.columns(segment.node);
                let pages = columns.end - columns.start;
                cost = cost.wrapping_add(self.segment(lane, pages, tree.size(segment.node), count, true));
            }
        }
        cost
    }

    /// The cost of a packing by joined nodes (see [`QTiles`]), each pack with the tile that is cheapest for it.
    pub fn of_joined(&self, tree: &impl PrefixTree, joined: impl Fn(u32) -> bool) -> u64 {
        let mut reads = vec![0; tree.capacity()];
        let mut q_tiles = QTiles::default();
        let mut cost = 0u64;
        // A node, and whether some request of its pack leaves partials elsewhere for sure: there is a cut above.
        let mut stack: Vec<(u32, bool)> = tree.roots().map(|root| (root, false)).collect();
        while let Some((node, cut)) = stack.pop() {
            let is_root = tree.parent(node).is_none();
            let apart = is_root || !joined(node);
            if apart {
                let of_lane = |lane: &Lane| {
                    q_tiles.clear();
                    q_tiles.push_pack(tree, node, &joined, lane.capacity);
                    self.of_q_tiles(lane, tree, &q_tiles, &mut reads)
                };
                cost = cost.wrapping_add(self.lanes.iter().map(of_lane).min().unwrap_or(0));
            }
            let partials = match (is_root, apart, cut) {
                (true, ..) | (_, false, _) => 0,
                // The first cut on a path: the packs above and below leave a partial each.
                (_, true, false) => 2,
                (_, true, true) => 1,
            };
            cost = cost.wrapping_add(self.partials(tree.size(node), partials));
            stack.extend(tree.children(node).map(|child| (child, cut || (apart && !is_root))));
        }
        cost
    }

    /// What a number of partials of each of these requests costs.
    #[inline]
    pub(crate) fn partials(&self, requests: u32, each: u64) -> u64 {
        self.partial.saturating_mul(u64::from(requests) * each).min(MOST)
    }

    /// The cost of the packs of one of the packings [`crate::Packing`] names: their columns begin and end where nodes do. The same
    /// pages read by several packs are read again by all but the first.
    pub fn of_packs(&self, tree: &impl PrefixTree, packs: &Packs) -> u64 {
        let batch = packs.requests().iter().max().map_or(0, |&request| request as usize + 1);
        let mut packs_of = vec![0u64; batch];
        packs.requests().iter().for_each(|&request| packs_of[request as usize] += 1);
        let mut last_node = vec![None; batch];
        let mut stack: Vec<u32> = tree.roots().collect();
        while let Some(node) = stack.pop() {
            for &request in tree.ending(node) {
                if let Some(last) = last_node.get_mut(request as usize) {
                    *last = Some(node);
                }
            }
            stack.extend(tree.children(node));
        }

        let mut seen = vec![false; tree.capacity()];
        let several = packs_of.iter().filter(|&&count| count > 1);
        let mut cost = several.fold(0u64, |sum, &count| sum.wrapping_add(self.partials(1, count)));
        let mut path = Vec::new();
        for pack in packs.packs() {
            let requests = packs.requests_of(pack);
            let size = requests.len() as u32;
            path.clear();
            let mut next = requests.first().and_then(|&request| last_node[request as usize]);
            while let Some(node) = next {
                let columns = tree.columns(node);
                let from = columns.start.max(pack.columns.start);
                let end = columns.end.min(pack.columns.end);
                if from < end {
                    path.push((node, end - from));
                }
                next = tree.parent(node);
            }
            let of_lane = |lane: &Lane| {
                let q_tiles = lane.q_tiles(size);
                let segments = path
                    .iter()
                    .map(|&(node, pages)| self.segment(lane, pages, size, q_tiles, !seen[node as usize]));
                segments.fold(Self::ctas(lane, q_tiles), u64::wrapping_add)
            };
            cost = cost.wrapping_add(self.lanes.iter().map(of_lane).min().unwrap_or(0));
            path.iter().for_each(|&(node, _)| seen[node as usize] = true);
        }
        cost
    }
}
