//! Which of a few ways to cut trees into Q tiles, and these into items, ends first: by the prices that packs are weighed with.

use super::{InvariantScratch, Span, Steps, Tiles, spans_of, windows};
use crate::plan::list_schedule::{elapsed_from, running, schedule};
use crate::plan::{GRANULE, Plan, PlanOptions};
use crate::{DeviceProfile, InvariantProfile, Occupancy, PrefixTree};
use std::ops::Range;
use tilewright_heuristics::chunk::{Chunks, SHORTEST, part_tokens, shared_tokens};
use tilewright_heuristics::{Geometry, PackShape, Prices, Tile, TileSet};

/// Q tiles hold as many requests as the tile has room for, or half, or only one.
const LEVELS: [u32; 3] = [0, 1, u32::MAX];

/// Shared memory is about this many times as fast as L2.
const SHARED_MEMORY_OVER_L2: u64 = 3;

/// Where a Q tile is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Nowhere.
    Whole,
    /// Where a chunk begins, and at each that begins later.
    After(u32),
}

/// A way to plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// See [`LEVELS`].
    pub(super) level: u32,
    /// Time of the longest item, in attoseconds of the whole device.
    most: u64,
}

impl Candidate {
    /// Every request alone, and not cut.
    pub(super) const PER_REQUEST: Self = Self { level: u32::MAX, most: u64::MAX };

    /// Where a Q tile is cut so that its first item, of which `time` knows how long it takes, is no longer than it may be.
    pub(super) fn cut_of(
        self,
        requests: usize,
        spans: &[Span],
        steps: Steps,
        time: impl Fn(Cut) -> u64,
    ) -> Cut {
        let end = spans.iter().map(|span| span.positions.end).max().unwrap_or(0);
        // Those of one request are a segment that may be cut anywhere.
        let cuts = requests == 1 || spans.len() <= 1 || steps.cuts_several();
        if !cuts || end <= SHORTEST || self.most == u64::MAX || time(Cut::Whole) <= self.most {
            return Cut::Whole;
        }
        // The last chunk that begins early enough. Times grow with the position.
        let (mut low, mut high) = (SHORTEST, end);
        while steps.chunks.next_behind(low) < high {
            let middle = steps.chunks.begin_of(low + (high - low) / 2).max(steps.chunks.next_behind(low));
            if time(Cut::After(middle)) <= self.most { low = middle } else { high = middle }
        }
        Cut::After(low)
    }

    /// How many requests of a window share an item: all, or half, a quarter ... so that none takes longer than it may. All in the first one,
    /// and where a part of them takes about as long, as what they share is most of it.
    pub(super) fn requests_an_item(self, requests: u32, begin: u32, time: impl Fn(Range<u32>) -> u64) -> u32 {
        let all = if begin == 0 || requests == 1 { 0 } else { time(0..requests) };
        let (mut size, mut longest) = (requests, all);
        while size > 1 && longest > self.most {
            size = size.div_ceil(2);
            let items = (0..requests).step_by(size as usize);
            longest = items.map(|at| time(at..requests.min(at + size))).max().unwrap_or(0);
        }
        if longest > all / 8 * 7 { requests } else { size }
    }
}

/// The Q tiles of all trees at a level: what ways that differ in the length of their items have in common.
#[derive(Clone, Debug, Default)]
struct Layout {
    packs: Vec<LaidPack>,
    q_tiles: Vec<LaidQTile>,
    spans: Vec<Span>,
    /// By node: the first Q tile that reads it.
    first_readers: Vec<u32>,
}

/// The Q tiles of a tree.
#[derive(Clone, Debug)]
struct LaidPack {
    tile: Tile,
    steps: Steps,
    prices: StepPrices,
    q_tiles: Range<usize>,
}

/// A Q tile, and what it takes where it is not cut.
#[derive(Clone, Debug)]
struct LaidQTile {
    requests: u32,
    spans: Range<usize>,
    /// One past its last token.
    end: u32,
    /// An item of all its tokens, with its start, if no other had read any of them: what decides whether it is cut.
    unread: u64,
    /// The tokens alone, those that Q tiles before have read from L2.
    whole: u64,
}

/// The way to plan whose items end first, of those that were weighed, and its tile, where that is one of a family.
#[derive(Clone, Copy, Debug)]
struct Best {
    end: u64,
    candidate: Candidate,
    tile: Option<Tile>,
}

/// Memory that the choice needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sketches {
    layout: Layout,
    times: Vec<u64>,
    classes: Vec<(u64, u64)>,
    cta_slots: Vec<(u64, u64)>,
}

/// The tiles before the last is repeated.
fn distinct(tiles: &[Tile; TileSet::MOST]) -> &[Tile] {
    let others = tiles.windows(2).take_while(|pair| pair[0] != pair[1]).count();
    &tiles[..=others]
}

/// What tokens cost, in attoseconds of the whole device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepPrices {
    /// Reading a token that no item has read before, and one that is in L2.
    first: u64,
    again: u64,
    /// Computing a step: whole, however few of its tokens there are, and of all rows.
    compute: u64,
    /// Adding a chunk to those before it.
    add: u64,
    cta: u64,
    /// A row of a partial.
    row: u64,
}

impl StepPrices {
    pub(super) fn of(plan: &Plan, tile: &Tile, options: &PlanOptions) -> Self {
        let (device, geometry) = (&options.device, &plan.geometry);
        let (prices, head_dim) = (&device.prices, u64::from(geometry.head_dim));
        let bytes = 2 * head_dim * geometry.dtype.kv_bytes() as u64;
        Self {
            first: bytes.saturating_mul(prices.hbm_byte),
            again: bytes.saturating_mul(prices.l2_byte),
            compute: compute_price(tile, geometry, options, u32::from(tile.m)),
            add: add_price(tile, head_dim, prices),
            cta: start_price(tile, device),
            row: ((head_dim + 2) * 4).saturating_mul(prices.partial_byte),
        }
    }
}

/// Whether a tile has several warps along Q.
const fn is_tall(tile: &Tile) -> bool {
    tile.m as u32 >= DeviceProfile::TALL
}

/// What a CTA takes until its first step.
pub(in crate::plan) const fn start_price(tile: &Tile, device: &DeviceProfile) -> u64 {
    let start = device.prices.cta;
    if is_tall(tile) { start } else { start.saturating_mul(device.start_in_low_tiles) / 64 }
}

/// What plans of a tile take, in 64ths of what prices say.
pub(in crate::plan) const fn pace(tile: &Tile, geometry: &Geometry, device: &DeviceProfile) -> u64 {
    let fp8 = geometry.dtype.has_fp8_kv();
    if is_tall(tile) && (fp8 || geometry.head_dim <= 64) {
        device.invariant.tall_tiles
    } else if tile.n as u32 > part_tokens(tile, geometry.head_dim) && !fp8 {
        device.invariant.long_steps
    } else {
        InvariantProfile::AS_PRICED
    }
}

/// What computing `rows` rows of a step costs. A warp has the tensor cores of one part of an SM: where an SM's CTAs of the tile have fewer warps than it
/// has parts, as many as there are.
fn compute_price(tile: &Tile, geometry: &Geometry, options: &PlanOptions, rows: u32) -> u64 {
    let device = &options.device;
    let flops =
        u64::from(rows) * u64::from(part_tokens(tile, geometry.head_dim)) * 4 * u64::from(geometry.head_dim);
    let warps = device.occupancy.of(tile, geometry, true) * u32::from(tile.warps.max(1));
    let idle_parts = u64::from(Occupancy::SM_PARTS.max(warps)) * flops / u64::from(warps.max(1));
    idle_parts.saturating_mul(device.prices.flop)
}

/// Tokens of a segment that are computed. Where steps begin at multiples of their length, they are whole, and what is left of one others fill if they have no
/// more; elsewhere the next segment does.
fn computed_tokens(tokens: u32, step: u32, shared: u32) -> u64 {
    let step = step.max(1);
    let rest = if shared <= GRANULE { 0 } else { tokens % step };
    let of_rest = step.checked_div(rest).map_or(0, |alike| step / alike);
    u64::from(tokens - rest + of_rest)
}

/// What computing a segment of an item costs, of which some requests' rows see something.
pub(in crate::plan) fn compute_segment(
    tile: &Tile,
    (geometry, options): (&Geometry, &PlanOptions),
    (tokens, rows): (u32, u32),
) -> u64 {
    let part = part_tokens(tile, geometry.head_dim);
    let shared = shared_tokens(tile, geometry.head_dim);
    let step = compute_price(tile, geometry, options, rows);
    (computed_tokens(tokens.next_multiple_of(GRANULE), part, shared) * step) / u64::from(part)
}

/// What adding a chunk to those before it costs a CTA: its rows' totals are read from shared memory, and written.
fn add_price(tile: &Tile, head_dim: u64, prices: &Prices) -> u64 {
    (u64::from(tile.m) * head_dim * 8).saturating_mul(prices.l2_byte) / SHARED_MEMORY_OVER_L2
}

/// What adding up the chunks that begin within these positions costs.
pub(in crate::plan) fn add_chunks(
    positions: &Range<u32>,
    tile: &Tile,
    geometry: &Geometry,
    prices: &Prices,
) -> u64 {
    let begins = Chunks::of(geometry.kv_heads).begins_within(positions);
    u64::from(begins) * add_price(tile, geometry.head_dim.into(), prices)
}

/// What the first item of a Q tile takes, cut so.
pub(super) fn time_of_first(prices: &StepPrices, spans: &[Span], cut: Cut, steps: Steps) -> u64 {
    let end = match cut {
        Cut::Whole => u32::MAX,
        Cut::After(position) => position,
    };
    prices.cta + tokens_time(prices, spans, 0..u32::MAX, 0..end, steps, |_| true)
}

/// What an item of these requests takes in a window.
pub(super) fn time_of_window(
    plan: &Plan,
    prices: &StepPrices,
    spans: &[Span],
    (members, window): (Range<u32>, Range<u32>),
    steps: Steps,
) -> u64 {
    let rows = u64::from(members.end - members.start) * u64::from(plan.geometry.gqa_ratio());
    prices.cta + tokens_time(prices, spans, members, window, steps, |_| true) + rows * prices.row
}

/// What the tokens of some requests' spans in a window take.
fn tokens_time(
    prices: &StepPrices,
    spans: &[Span],
    members: Range<u32>,
    window: Range<u32>,
    steps: Steps,
    first: impl Fn(&Span) -> bool,
) -> u64 {
    let of_span = |span: &Span| {
        let begin = span.positions.start.max(window.start);
        let end = span.positions.end.min(window.end);
        let others = span.members.start >= members.end || span.members.end <= members.start;
        if begin >= end || others {
            return 0;
        }
        let tokens = (end - begin).next_multiple_of(GRANULE);
        let read = u64::from(tokens) * if first(span) { prices.first } else { prices.again };
        let adds = u64::from(steps.chunks.begins_within(&(begin..end)));
        let computed = computed_tokens(tokens, steps.part, steps.shared);
        read.max(computed * prices.compute / u64::from(steps.part.max(1))) + adds * prices.add
    };
    spans.iter().map(of_span).sum()
}

impl Plan {
    /// The candidate whose items end first. Leaves the packs with its tile, where it is one of a family.
    pub(super) fn choose_candidate(
        &self,
        tree: &impl PrefixTree,
        packs: &mut [(u32, PackShape, Tile)],
        tiles: Tiles,
        options: &PlanOptions,
        scratch: &mut InvariantScratch,
    ) -> Candidate {
        let candidate = Candidate { level: 0, most: u64::MAX };
        let mut best = Best { end: u64::MAX, candidate, tile: None };
        // Tiles of as many rows that cost as much have the same items.
        let costs = |tile: &Tile| (Steps::of(&self.geometry, tile), StepPrices::of(self, tile, options));
        let family = tiles.as_ref().map_or(&[][..], distinct);
        let mut groups = family.chunk_by(|a, b| a.m == b.m && costs(a) == costs(b));
        let first = groups.next().unwrap_or_default();
        let mut last: Option<Tile> = None;
        let mut fewer = 0;
        for alike in std::iter::once(first).chain(groups) {
            if let Some(&tile) = alike.first() {
                // Requests of a Q tile that a lower tile has room for as well.
                if let Some(lower) = last.filter(|last| last.m < tile.m) {
                    let holds_one = u32::from(lower.m) >= self.geometry.gqa_ratio();
                    fewer = if holds_one { self.capacity(&lower) } else { 0 };
                }
                last = Some(tile);
                packs.iter_mut().for_each(|pack| pack.2 = tile);
            }
            let largest =
                packs.iter().map(|&(root, _, tile)| self.capacity(&tile).min(tree.size(root))).max();
            let largest = largest.unwrap_or(1);
            let slots = self.slots_of(alike, packs, options);
            let requests = |level: u32| largest.checked_shr(level).unwrap_or(0).max(1);
            let mut before = u32::MAX;
            for level in LEVELS {
                if requests(level) >= before || requests(level) <= fewer {
                    continue;
                }
                before = requests(level);
                self.lay_out(tree, packs, options, level, scratch);
                let sketches = &mut scratch.sketches;
                let whole = Candidate { level, most: u64::MAX };
                let total = self.sketch(options, whole, alike, sketches, &mut best);
                for quarters in options.device.invariant.quarters {
                    // Shorter than a CTA's start no item is worth it.
                    let most = (total / slots / 4 * quarters).max(2 * options.device.prices.cta);
                    self.sketch(options, Candidate { level, most }, alike, sketches, &mut best);
                }
            }
        }
        if let Some(tile) = best.tile {
            packs.iter_mut().for_each(|pack| pack.2 = tile);
        }
        best.candidate
    }

    /// CTAs that run at once of these tiles, or of the packs' where there are none: of those of which there are fewest.
    fn slots_of(&self, alike: &[Tile], packs: &[(u32, PackShape, Tile)], options: &PlanOptions) -> u64 {
        let DeviceProfile { max_concurrent_ctas, ref occupancy, .. } = options.device;
        let held = |tile: &Tile| occupancy.of(tile, &self.geometry, true);
        let of_packs = || packs.iter().map(|(_, _, tile)| held(tile)).min();
        let fewest = alike.iter().map(held).min().or_else(of_packs).unwrap_or(1);
        running(max_concurrent_ctas, occupancy, fewest)
    }

    /// Lays out the Q tiles of all trees at a level.
    fn lay_out(
        &self,
        tree: &impl PrefixTree,
        packs: &[(u32, PackShape, Tile)],
        options: &PlanOptions,
        level: u32,
        scratch: &mut InvariantScratch,
    ) {
        let InvariantScratch { q_tiles, spans, sketches, .. } = scratch;
        let layout = &mut sketches.layout;
        layout.packs.clear();
        layout.q_tiles.clear();
        layout.spans.clear();
        layout.first_readers.clear();
        layout.first_readers.resize(tree.capacity(), u32::MAX);
        for &(root, _, tile) in packs {
            let (steps, prices) = (Steps::of(&self.geometry, &tile), StepPrices::of(self, &tile, options));
            let capacity = self.fitting(tree, root, &tile, level, q_tiles, spans);
            q_tiles.clear();
            q_tiles.push_pack(tree, root, |_| true, capacity);
            let first_q_tile = layout.q_tiles.len();
            for q_tile in q_tiles.q_tiles() {
                let (index, first_span) = (layout.q_tiles.len() as u32, layout.spans.len());
                for segment in q_tiles.segments_of(q_tile) {
                    let first_reader = &mut layout.first_readers[segment.node as usize];
                    *first_reader = index.min(*first_reader);
                }
                spans_of(tree, q_tiles, q_tile, steps, spans);
                let first = |span: &Span| layout.first_readers[span.node as usize] == index;
                let whole = tokens_time(&prices, spans, 0..u32::MAX, 0..u32::MAX, steps, first);
                layout.q_tiles.push(LaidQTile {
                    requests: q_tile.requests.len() as u32,
                    spans: first_span..first_span + spans.len(),
                    end: spans.iter().map(|span| span.positions.end).max().unwrap_or(0),
                    unread: time_of_first(&prices, spans, Cut::Whole, steps),
                    whole,
                });
                layout.spans.append(spans);
            }
            let q_tiles = first_q_tile..layout.q_tiles.len();
            layout.packs.push(LaidPack { tile, steps, prices, q_tiles });
        }
    }

    /// Weighs a candidate with each of these tiles, or with those of the packs where there are none: keeps it if its last item ends sooner than the best one's. The
    /// Q tiles of its level are laid out. The time of all items, in attoseconds of the whole device.
    fn sketch(
        &self,
        options: &PlanOptions,
        candidate: Candidate,
        alike: &[Tile],
        sketches: &mut Sketches,
        best: &mut Best,
    ) -> u64 {
        let Sketches { layout, times, classes, cta_slots } = sketches;
        times.clear();
        let mut merges = false;
        let ratio = self.geometry.gqa_ratio();
        for LaidPack { tile, steps, prices, q_tiles } in &layout.packs {
            let (steps, m) = (*steps, u64::from(tile.m.max(1)));
            for index in q_tiles.clone() {
                let LaidQTile { requests, ref spans, end, unread, whole } = layout.q_tiles[index];
                let spans = &layout.spans[spans.clone()];
                let cut = candidate.cut_of(requests as usize, spans, steps, |cut| match cut {
                    Cut::Whole => unread,
                    Cut::After(_) => time_of_first(prices, spans, cut, steps),
                });
                let mut push = |rows: u64, tokens: u64, partial: u64| {
                    if tokens > 0 {
                        let time = prices.cta + tokens + partial;
                        times.extend(std::iter::repeat_n(time, rows.div_ceil(m) as usize));
                    }
                };
                if cut == Cut::Whole {
                    push(u64::from(requests) * u64::from(ratio), whole, 0);
                    continue;
                }
                merges = true;
                for window in windows(steps.chunks, cut, end) {
                    let size = candidate.requests_an_item(requests, window.start, |members| {
                        time_of_window(self, prices, spans, (members, window.clone()), steps)
                    });
                    for at in (0..requests).step_by(size as usize) {
                        let members = at..requests.min(at + size);
                        let rows = u64::from(members.end - at) * u64::from(ratio);
                        // What another item has read is in L2.
                        let first = |span: &Span| {
                            let first_reader = layout.first_readers[span.node as usize];
                            span.members.start >= at && first_reader == index as u32
                        };
                        let tokens = tokens_time(prices, spans, members, window.clone(), steps, first);
                        push(rows, tokens, rows * prices.row);
                    }
                }
            }
        }
        // Items of about the same time are scheduled together.
        times.sort_unstable_by(|a, b| b.cmp(a));
        classes.clear();
        let heads = u64::from(self.geometry.kv_heads);
        for &time in times.iter() {
            match classes.last_mut() {
                Some((longest, count)) if *longest - time <= *longest / 32 => *count += heads,
                _ => classes.push((time, heads)),
            }
        }
        let total = times.iter().sum::<u64>().saturating_mul(heads);
        let slots = u64::from(options.device.max_concurrent_ctas.max(1));
        let of = (options.device.max_concurrent_ctas, &options.device.occupancy);
        let merge = if merges { options.device.prices.merge } else { 0 };
        let mut weigh = |ctas_per_sm: u32, pace: u64, tile: Option<Tile>| {
            let running = running(of.0, of.1, ctas_per_sm);
            schedule(classes, running, cta_slots);
            let end = elapsed_from(options.device.prices.cta, of, running, cta_slots).saturating_mul(slots);
            let end = (end.saturating_mul(pace) / InvariantProfile::AS_PRICED).saturating_add(merge);
            if end < best.end {
                *best = Best { end, candidate, tile };
            }
        };
        let held = |tile: &Tile| of.1.of(tile, &self.geometry, true);
        let pace = |tile: &Tile| pace(tile, &self.geometry, &options.device);
        for tile in alike {
            weigh(held(tile), pace(tile), Some(*tile));
        }
        if alike.is_empty() {
            let tiles = || layout.packs.iter().map(|pack| &pack.tile);
            weigh(
                tiles().map(held).max().unwrap_or(1),
                tiles().map(pace).max().unwrap_or(InvariantProfile::AS_PRICED),
                None,
            );
        }
        total
    }
}
