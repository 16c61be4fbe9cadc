//! Which of a few ways to cut trees into Q tiles, and these into items, ends first: by the prices that packs are weighed with.

use super::{InvariantScratch, Span, Steps, Tiles, spans_of};
use crate::plan::waves::{self, Waves};
use crate::plan::{GRANULE, Plan, PlanOptions};
use crate::{DeviceProfile, PrefixTree};
use std::ops::Range;
use tilewright_heuristics::{Geometry, PackShape, Prices, Tile, chunk};

/// Q tiles hold as many requests as the tile has room for, or half, or only one.
const LEVELS: [u32; 3] = [0, 1, u32::MAX];
/// Where Q tiles are cut, their first items take this many eighths of a CTA slot's time at most.
const SHARE: u64 = 8;
/// Items behind the first one are so many times as short: they fill what CTA slots have left at the end.
const SHORTER: u64 = 12;
/// Where hardly anything is shared, all items of a Q tile may be as long: of fewer partials, merges are shorter. Times over the selector's on an H100,
/// long windows and short ones against equal ones: conversations, whose tokens have 1.1 to 1.4 readers on average, 1.15 and 1.09; tenants, most of
/// them with 2 to 5, 1.13 and 1.17. Prices take the two for alike, so readers decide: in halves, how many are hardly any.
const FEW_READERS: u64 = 3;
/// The most chunks that an item leaves apart: what an output target can count, whatever the length of later ones.
const MOST_CHUNKS: u32 = 128;

/// Adding a chunk to those before it takes this many thirds of reading as many bytes from L2: shared memory is about three times as fast, but a
/// step whose accumulators begin anew is not computed beside others.
const ADD_IN_THIRDS: u64 = 2;

/// A way to plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// See [`LEVELS`].
    pub(super) level: u32,
    /// Time of the longest item, in attoseconds of the whole device.
    most: u64,
    /// How many times as short the items of a Q tile behind the first one are.
    shorter: u64,
}

impl Candidate {
    /// Every request alone, and not cut.
    pub(super) const PER_REQUEST: Self = Self { level: u32::MAX, most: u64::MAX, shorter: SHORTER };

    /// Every request alone, and how its items would be cut in a batch whose requests see `seen` tokens, of which `tokens` are different ones.
    pub(super) const fn of_readers(seen: u64, tokens: u64) -> Self {
        let few = seen.saturating_mul(2) < tokens.saturating_mul(FEW_READERS);
        Self { shorter: if few { 1 } else { SHORTER }, ..Self::PER_REQUEST }
    }

    /// What first items take at most, in eighths of a CTA slot's time, besides [`SHARE`]: tried with the best tile and level.
    const fn other_shares(self) -> &'static [u64] {
        if self.shorter == 1 { &[12, 10, 6, 4, 3] } else { &[12, 6, 4] }
    }

    /// The windows that a Q tile's positions are cut into, between chunks: the first one as long as an item may take, the others shorter or as
    /// long. `time` knows what the items of one take.
    pub(super) fn cut(
        self,
        requests: usize,
        spans: &[Span],
        steps: Steps,
        windows: &mut Vec<Range<u32>>,
        time: impl Fn(Range<u32>) -> u64,
    ) {
        let end = spans.iter().map(|span| span.positions.end).max().unwrap_or(0);
        windows.clear();
        // Those of one request are a segment that may be cut anywhere.
        let cuts = requests == 1 || spans.len() <= 1 || steps.cuts_several();
        if !cuts || end <= chunk::SHORTEST || self.most == u64::MAX {
            return windows.push(0..end);
        }
        if time(0..end) <= self.most {
            return windows.push(0..end);
        }
        let mut begin = 0;
        while begin < end {
            let most = if begin == 0 { self.most } else { self.most / self.shorter };
            // The last chunk that begins early enough. Times grow with the position.
            let (mut low, mut high) = (chunk::next_behind(begin).min(end), end);
            let furthest = chunk::length_at(begin).saturating_mul(MOST_CHUNKS);
            if end - begin <= furthest && time(begin..end) <= most {
                low = end;
            }
            high = high.min(begin.saturating_add(furthest));
            while chunk::next_behind(low) < high {
                let middle = chunk::begin_of(low + (high - low) / 2).max(chunk::next_behind(low));
                if time(begin..middle) <= most { low = middle } else { high = middle }
            }
            windows.push(begin..low);
            begin = low;
        }
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

/// Memory that the choice needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sketches {
    times: Vec<u64>,
    classes: Vec<(u64, u64)>,
    cta_slots: Vec<(u64, u64)>,
}

/// What tokens cost, in attoseconds of the whole device.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepPrices {
    /// Reading a token from memory, and from L2.
    first: u64,
    again: u64,
    /// Computing a step of all rows. In the private KV phase warps share it: each has tokens of its own.
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
        let low = u32::from(tile.m) < DeviceProfile::TALL;
        Self {
            first: bytes.saturating_mul(prices.hbm_byte),
            again: bytes.saturating_mul(prices.l2_byte),
            compute: compute_price(tile, head_dim, options, u32::from(tile.m)),
            add: add_price(tile, head_dim, prices),
            cta: if low { prices.cta.saturating_mul(device.start_in_low_tiles) / 64 } else { prices.cta },
            row: ((head_dim + 2) * 4).saturating_mul(prices.partial_byte),
        }
    }
}

/// What computing `rows` rows of a step costs. A warp has the tensor cores of one part of an SM: where an SM's CTAs of the tile have fewer warps than it
/// has parts, as many as there are.
fn compute_price(tile: &Tile, head_dim: u64, options: &PlanOptions, rows: u32) -> u64 {
    let device = &options.device;
    let flops = u64::from(rows) * u64::from(tile.n) * 4 * head_dim;
    let warps = device.occupancy.of(tile) * u32::from(tile.warps.max(1));
    let idle_parts = u64::from(device.sm_parts.max(warps)) * flops / u64::from(warps.max(1));
    idle_parts.saturating_mul(device.prices.flop)
}

/// What computing a segment of an item costs, of which some requests' rows see something.
pub(in crate::plan) fn compute_segment(
    tile: &Tile,
    (geometry, options): (&Geometry, &PlanOptions),
    (tokens, rows): (u32, u32),
) -> u64 {
    let step = compute_price(tile, geometry.head_dim.into(), options, rows);
    u64::from(tokens.next_multiple_of(options.device.invariant_granule.max(GRANULE))) * step
        / u64::from(tile.n.max(1))
}

/// What adding a chunk to those before it costs a CTA: its rows' totals are read from shared memory, and written.
fn add_price(tile: &Tile, head_dim: u64, prices: &Prices) -> u64 {
    (u64::from(tile.m) * head_dim * 8).saturating_mul(prices.l2_byte) * ADD_IN_THIRDS / 3
}

/// What adding up the chunks that begin in `tokens` tokens behind `begin` costs.
pub(in crate::plan) fn add_chunks(
    begin: u32,
    tokens: u32,
    tile: &Tile,
    head_dim: u64,
    prices: &Prices,
) -> u64 {
    let end = begin.saturating_add(tokens);
    let begins =
        std::iter::successors(Some(chunk::next_behind(begin)), |&next| Some(chunk::next_behind(next)));
    begins.take_while(|&next| next < end).count() as u64 * add_price(tile, head_dim, prices)
}

/// What an item of these requests takes in a window.
pub(super) fn time_of_window(
    plan: &Plan,
    prices: &StepPrices,
    spans: &[Span],
    (members, window): (Range<u32>, Range<u32>),
    steps: Steps,
) -> u64 {
    let ratio = plan.geometry.gqa_ratio();
    let rows = u64::from(members.end - members.start) * u64::from(ratio);
    let partials = u64::from(chunk::beginnings(window.clone()).max(1));
    prices.cta + tokens_time(prices, spans, members, window, steps) + rows * partials * prices.row
}

/// What the tokens of some requests' spans in a window take.
fn tokens_time(
    prices: &StepPrices,
    spans: &[Span],
    members: Range<u32>,
    window: Range<u32>,
    steps: Steps,
) -> u64 {
    let of_span = |span: &Span| {
        let begin = span.positions.start.max(window.start);
        let end = span.positions.end.min(window.end);
        let others = span.members.start >= members.end || span.members.end <= members.start;
        if begin >= end || others {
            return 0;
        }
        let tokens = (end - begin).next_multiple_of(GRANULE);
        // Q tiles read what they share at about the same time: once from memory, for all of them.
        let further = prices.first.saturating_sub(prices.again) / u64::from(span.readers.max(1));
        let read = u64::from(tokens) * (prices.again + further);
        let adds = u64::from((end - 1) / chunk::length_at(end) - begin / chunk::length_at(end));
        let computed = u64::from(tokens.next_multiple_of(steps.granule));
        read.max(computed * prices.compute / u64::from(steps.n)) + adds * prices.add
    };
    spans.iter().map(of_span).sum()
}

impl Plan {
    /// The candidate whose items end first. Leaves the packs with its tile, where it is one of a family.
    pub(super) fn choose_candidate(
        &self,
        tree: &impl PrefixTree,
        packs: &mut [(u32, PackShape, Tile)],
        (tiles, per_request): (Tiles, Candidate),
        options: &PlanOptions,
        scratch: &mut InvariantScratch,
    ) -> Candidate {
        let mut best = (u64::MAX, Candidate { level: 0, ..per_request }, None);
        // A slot's share of all work; shorter than a chunk's beginning no item is worth it.
        let slots = u64::from(options.device.max_concurrent_ctas.max(1));
        let most = |total: u64, share: u64| (total / slots * share / 8).max(2 * options.device.prices.cta);
        let (mut lower, mut of_best): (Option<Tile>, u64) = (None, 0);
        let family = tiles.iter().flatten().map(|tile| Some(*tile));
        for tile in family.chain(tiles.is_none().then_some(None)) {
            if tile.is_some() && tile == lower {
                break; // the last is repeated
            }
            if let Some(tile) = tile {
                packs.iter_mut().for_each(|pack| pack.2 = tile);
            }
            // Requests of a Q tile that a lower tile has room for as well.
            let fewer = lower.map_or(0, |lower| self.capacity(&lower));
            let fewer =
                lower.filter(|lower| u32::from(lower.m) >= self.geometry.gqa_ratio()).map_or(0, |_| fewer);
            lower = tile;
            let largest =
                packs.iter().map(|&(root, _, tile)| self.capacity(&tile).min(tree.size(root))).max();
            let largest = largest.unwrap_or(1);
            let requests = |level: u32| largest.checked_shr(level).unwrap_or(0).max(1);
            let mut before = u32::MAX;
            for level in LEVELS {
                if requests(level) >= before || requests(level) <= fewer {
                    continue;
                }
                before = requests(level);
                let whole = Candidate { level, ..per_request };
                let (end, total) = self.sketch(tree, packs, options, whole, scratch);
                if end < best.0 {
                    best = (end, whole, tile);
                }
                let candidate = Candidate { most: most(total, SHARE), ..whole };
                let (end, _) = self.sketch(tree, packs, options, candidate, scratch);
                if end < best.0 {
                    best = (end, candidate, tile);
                }
                if best.1.level == level && best.2 == tile {
                    of_best = total;
                }
            }
        }
        if let Some(tile) = best.2 {
            packs.iter_mut().for_each(|pack| pack.2 = tile);
        }
        for &share in per_request.other_shares() {
            let candidate = Candidate { most: most(of_best, share), ..best.1 };
            let (end, _) = self.sketch(tree, packs, options, candidate, scratch);
            if end < best.0 {
                best = (end, candidate, best.2);
            }
        }
        best.1
    }

    /// When the last item of a candidate ends, in attoseconds, and the time of all items, in attoseconds of the whole device.
    fn sketch(
        &self,
        tree: &impl PrefixTree,
        packs: &[(u32, PackShape, Tile)],
        options: &PlanOptions,
        candidate: Candidate,
        scratch: &mut InvariantScratch,
    ) -> (u64, u64) {
        let InvariantScratch { q_tiles, spans, windows, sketches, .. } = scratch;
        let Sketches { times, classes, cta_slots } = sketches;
        times.clear();
        let (mut merges, mut ctas_per_sm, mut pace) = (false, 1, 0);
        let ratio = self.geometry.gqa_ratio();
        for &(root, _, tile) in packs {
            let prices = StepPrices::of(self, &tile, options);
            let steps = Steps::of(self.geometry.page_size, &tile, &options.device);
            ctas_per_sm = ctas_per_sm.max(options.device.occupancy.of(&tile));
            pace = pace.max(options.device.invariant_in(&tile, self.geometry.dtype));
            let capacity = self.fitting(tree, root, (&tile, steps), candidate.level, q_tiles, spans);
            q_tiles.clear();
            q_tiles.push_pack(tree, root, |_| true, capacity);
            for q_tile in q_tiles.q_tiles() {
                spans_of(tree, (q_tiles, capacity), q_tile, steps, spans);
                let requests = q_tile.requests.len() as u32;
                candidate.cut(q_tile.requests.len(), spans, steps, windows, |window| {
                    time_of_window(self, &prices, spans, (0..requests, window), steps)
                });
                for window in windows.iter() {
                    let size = candidate.requests_an_item(requests, window.start, |members| {
                        time_of_window(self, &prices, spans, (members, window.clone()), steps)
                    });
                    for at in (0..requests).step_by(size as usize) {
                        let members = at..requests.min(at + size);
                        let rows = u64::from(members.end - at) * u64::from(ratio);
                        let tokens = tokens_time(&prices, spans, members, window.clone(), steps);
                        if tokens == 0 {
                            continue;
                        }
                        let partials = match window.start {
                            0 => u64::from(windows.len() > 1),
                            _ => u64::from(chunk::beginnings(window.clone())),
                        };
                        let partial = rows * partials * prices.row;
                        let slices = rows.div_ceil(u64::from(tile.m.max(1)));
                        let time = prices.cta + tokens + partial;
                        times.extend(std::iter::repeat_n(time, slices as usize));
                    }
                }
                merges |= windows.len() > 1;
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
        let waves = Waves {
            max_concurrent_ctas: options.device.max_concurrent_ctas,
            occupancy: options.device.occupancy,
            shortest: 1,
            cta: 0,
            row: 0,
            merge: 0,
        };
        let slots = u64::from(options.device.max_concurrent_ctas.max(1));
        waves::schedule(classes, waves.running(ctas_per_sm), cta_slots);
        let start = options.device.prices.cta;
        let end = waves.elapsed_from(start, waves.running(ctas_per_sm), cta_slots).saturating_mul(slots);
        let merge = if merges { options.device.prices.merge } else { 0 };
        ((end.saturating_mul(pace) / 64).saturating_add(merge), total)
    }
}
