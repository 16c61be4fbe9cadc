//! What the tests of `LivePlanner` share: a batch that lives as one of an engine, and plans without regard to where things stand in
//! their lists.
#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::BTreeMap;
use tilewright_conformance::reference::{self, Attention};
use tilewright_cpu::{CpuBackend, DecodeArgs, KvCache};
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
use tilewright_plan::{
    DIRECT, KvSegment, KvStrides, LiveError, LivePlanner, PageTable, Plan, PlanOptions, Planner, UNTOUCHED,
};

/// Marsaglia's xorshift: the same steps every time.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed ^ 0x1234_5678_9abc_def1 | 1 << 63);
        // The first numbers of like seeds are alike.
        while random.below(64) != 0 {}
        random
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}

pub(crate) fn geometry(gqa_ratio: u32, page_size: u32) -> Geometry {
    Geometry { q_heads: 2 * gqa_ratio, kv_heads: 2, head_dim: 64, page_size, dtype: Dtype::F16 }
}

/// A selector that looks at all that a batch changes.
pub(crate) fn tile(shape: &PackShape) -> Tile {
    let m = if shape.rows > 16 && shape.kv_len > 64 { 32 } else { 16 };
    let n = if shape.packs > 8 { 32 } else { 64 };
    Tile::new(m, n, 1, if shape.kv_len > 256 { 3 } else { 2 })
}

/// How often what is tested happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Happened {
    pub(crate) arrivals: u64,
    pub(crate) forks: u64,
    pub(crate) pages: u64,
    pub(crate) tokens: u64,
    pub(crate) copies: u64,
    pub(crate) truncations: u64,
    pub(crate) departures: u64,
    pub(crate) renames: u64,
}

/// Requests with pages, and the planner that is told of all changes.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) planner: LivePlanner,
    pub(crate) random: Random,
    pub(crate) happened: Happened,
    page_size: u32,
    most_requests: usize,
    /// Pages and tokens of each request.
    pub(crate) rows: BTreeMap<u32, (Vec<i32>, u32)>,
    owners: Vec<u32>,
    free: Vec<i32>,
    /// The most pages that a request ever had.
    pub(crate) longest_row: usize,
}

impl Engine {
    pub(crate) fn new(geometry: &Geometry, options: PlanOptions, most_requests: usize, seed: u64) -> Self {
        Self {
            planner: LivePlanner::new(geometry, options).expect("the layout makes sense"),
            random: Random::new(seed),
            happened: Happened::default(),
            page_size: geometry.page_size,
            most_requests,
            rows: BTreeMap::new(),
            owners: Vec::new(),
            free: Vec::new(),
            longest_row: 0,
        }
    }

    pub(crate) fn step(&mut self) {
        let what = self.random.below(100);
        let target = (!self.rows.is_empty()).then(|| {
            let at = self.random.index(self.rows.len());
            *self.rows.keys().nth(at).expect("it is one of them")
        });
        match (target, what) {
            (None, _) | (_, 0..7) => self.arrive(),
            (Some(target), 7..12) => self.fork(target),
            (Some(target), 12..20) => self.truncate(target),
            (Some(target), 20..30) => self.depart(target),
            (Some(target), 30..34) => self.rename(target),
            (Some(target), _) => self.grow(target),
        }
    }

    fn fresh(&mut self) -> i32 {
        let page = self.free.pop().unwrap_or_else(|| {
            self.owners.push(0);
            self.owners.len() as i32 - 1
        });
        self.owners[page as usize] = 1;
        page
    }

    fn release(&mut self, page: i32) {
        let owners = &mut self.owners[page as usize];
        *owners -= 1;
        if *owners == 0 {
            self.free.push(page);
        }
    }

    fn target(&mut self) -> u32 {
        // Often the lowest that is free, as engines take it, and sometimes one that leaves holes.
        let holes = self.random.below(4) == 0;
        let first = if holes { self.random.below(self.most_requests as u64) as u32 } else { 0 };
        (first..).find(|target| !self.rows.contains_key(target)).expect("there are few")
    }

    fn arrive(&mut self) {
        if self.rows.len() >= self.most_requests {
            return;
        }
        // The whole pages of another request, some of them, and pages of its own.
        let mut row = Vec::new();
        if !self.rows.is_empty() && self.random.below(4) > 0 {
            let at = self.random.index(self.rows.len());
            let (pages, tokens) = self.rows.values().nth(at).expect("it is one of them");
            let whole = (tokens / self.page_size) as usize;
            let kept = self.random.index(whole + 1);
            row.extend_from_slice(&pages[..if self.random.below(3) == 0 { whole } else { kept }]);
        }
        let own = if self.random.below(8) == 0 { 0 } else { self.random.below(12) };
        let unused = if own > 0 { self.random.below(self.page_size.into()) as u32 } else { 0 };
        self.admit(row, own, unused);
    }

    /// A request comes that shares these pages and has `own` more, of which the last has room for `unused` tokens. Returns its number.
    pub(crate) fn admit(&mut self, mut row: Vec<i32>, own: u64, unused: u32) -> u32 {
        row.iter().for_each(|&page| self.owners[page as usize] += 1);
        (0..own).for_each(|_| {
            let page = self.fresh();
            row.push(page);
        });
        let tokens = row.len() as u32 * self.page_size - unused;
        self.longest_row = self.longest_row.max(row.len());
        let target = self.target();
        self.planner.add(target, &row, tokens).expect("the number is free");
        self.rows.insert(target, (row, tokens));
        self.happened.arrivals += 1;
        target
    }

    pub(crate) fn fork(&mut self, of: u32) {
        if self.rows.len() >= self.most_requests {
            return;
        }
        let (row, tokens) = self.rows[&of].clone();
        let target = self.target();
        row.iter().for_each(|&page| self.owners[page as usize] += 1);
        self.planner.add(target, &row, tokens).expect("the number is free");
        self.rows.insert(target, (row, tokens));
        self.happened.forks += 1;
    }

    /// Some tokens more; what is shared of the last page is copied first.
    pub(crate) fn grow(&mut self, target: u32) {
        let more = if self.random.below(4) == 0 {
            self.random.below(3 * u64::from(self.page_size)) as u32 + 1
        } else {
            1
        };
        self.grow_by(target, more);
    }

    pub(crate) fn grow_by(&mut self, target: u32, more: u32) {
        let page_size = self.page_size;
        let (mut row, before) = self.rows.remove(&target).expect("it is there");
        let mut tokens = before;
        if !tokens.is_multiple_of(page_size) && self.owners[row[row.len() - 1] as usize] > 1 {
            // Copy on write.
            let kept = row.len() as u32 - 1;
            self.planner.truncate(target, kept, kept * page_size).expect("it has the pages");
            let copy = self.fresh();
            let shared = row.pop().expect("it has a last page");
            self.release(shared);
            self.planner.append(target, &[copy], tokens).expect("it is there");
            row.push(copy);
            self.happened.copies += 1;
        }
        tokens += more;
        let new: Vec<i32> = (row.len() as u32..tokens.div_ceil(page_size)).map(|_| self.fresh()).collect();
        if new.is_empty() {
            self.planner.grow(target, tokens).expect("it is there");
            self.happened.tokens += 1;
        } else {
            self.planner.append(target, &new, tokens).expect("it is there");
            self.happened.pages += 1;
        }
        row.extend(new);
        self.longest_row = self.longest_row.max(row.len());
        self.rows.insert(target, (row, tokens));
    }

    fn truncate(&mut self, target: u32) {
        let (mut row, tokens) = self.rows.remove(&target).expect("it is there");
        let most = if self.random.below(4) == 0 { tokens } else { tokens.min(2 * self.page_size) };
        let tokens = tokens - self.random.below(u64::from(most) + 1) as u32;
        let kept = tokens.div_ceil(self.page_size);
        self.planner.truncate(target, kept, tokens).expect("it has the pages");
        while row.len() > kept as usize {
            let page = row.pop().expect("it has more");
            self.release(page);
        }
        self.rows.insert(target, (row, tokens));
        self.happened.truncations += 1;
    }

    pub(crate) fn depart(&mut self, target: u32) {
        let (row, _) = self.rows.remove(&target).expect("it is there");
        row.into_iter().for_each(|page| self.release(page));
        self.planner.remove(target).expect("it is there");
        self.happened.departures += 1;
    }

    fn rename(&mut self, from: u32) {
        let to = self.target();
        self.planner.rename(from, to).expect("one is there, the other free");
        let row = self.rows.remove(&from).expect("it is there");
        self.rows.insert(to, row);
        self.happened.renames += 1;
    }

    /// The page table, entries a row, and the lengths.
    pub(crate) fn entries(&self) -> (Vec<i32>, usize, Vec<u32>) {
        let batch = self.rows.keys().next_back().map_or(0, |target| *target as usize + 1);
        let max_pages = self.rows.values().map(|(row, _)| row.len()).max().unwrap_or(0);
        let (mut entries, mut seq_lens) = (vec![-1; batch * max_pages], vec![0; batch]);
        for (&target, (row, tokens)) in &self.rows {
            entries[target as usize * max_pages..][..row.len()].copy_from_slice(row);
            seq_lens[target as usize] = *tokens;
        }
        (entries, max_pages, seq_lens)
    }

    /// The plan from nothing.
    pub(crate) fn rebuild<'p>(&self, geometry: &Geometry, planner: &'p mut Planner) -> &'p Plan {
        let (entries, max_pages, seq_lens) = self.entries();
        let table = PageTable::new(&entries, max_pages, &seq_lens, self.page_size).expect("it is a table");
        planner.plan(geometry, &table, tile).expect("it can be planned")
    }

    /// What the host computes by the plan that the planner made last, against f64, for elements of `f32`.
    pub(crate) fn check_executed(&mut self, backend: &mut CpuBackend) {
        let Self { planner, random, .. } = self;
        let plan = planner.last();
        let geometry = *plan.geometry();
        let (strides, row) = (KvStrides::nhd(&geometry), (geometry.q_heads * geometry.head_dim) as usize);
        let mut random = |len: usize| -> Vec<f32> {
            (0..len).map(|_| random.below(1 << 20) as f32 / (1 << 18) as f32 - 2.0).collect()
        };
        let cache = plan.largest_page().map_or(0, |page| page as usize + 1) * strides.page;
        let (keys, values, query) = (random(cache), random(cache), random(plan.batch() * row));
        let cache = KvCache { keys: &keys, values: &values, strides };
        let mut output = vec![f32::NAN; query.len()];
        let args = DecodeArgs::new(&query, cache, &mut output);
        backend.decode(plan, args).expect("the plan fits");
        let (entries, max_pages, seq_lens) = self.entries();
        let table =
            PageTable::new(&entries, max_pages, &seq_lens, geometry.page_size).expect("it is a table");
        let (expected, _) = reference::decode(&geometry, &table, &query, &cache, &Attention::plain(0.125));
        for (found, expected) in output.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-4, "{found} for {expected}");
        }
    }

    /// Each request's tokens are read once, and what it leaves is merged once.
    pub(crate) fn check_cheaply(&self, plan: &Plan) {
        let batch = plan.batch();
        assert_eq!(batch, self.rows.keys().next_back().map_or(0, |target| *target as usize + 1));
        let (mut tokens, mut written) = (vec![0u64; batch], vec![0u32; batch]);
        let mut seen = std::collections::BTreeSet::new();
        for item in plan.work_items() {
            let members = plan.requests_of(item.q_tile);
            if !seen.insert((item.q_tile, item.kv_range.start)) {
                continue;
            }
            for segment in &plan.segments()[item.segments.start as usize..item.segments.end as usize] {
                let walked = segment.kv_range.end.min(item.kv_range.end)
                    - segment.kv_range.start.max(item.kv_range.start);
                for member in segment.members.clone() {
                    tokens[members[member as usize] as usize] += u64::from(walked);
                }
            }
            for (target, &request) in plan.targets()[item.targets as usize..].iter().zip(members) {
                written[request as usize] += u32::from(target.partial != UNTOUCHED);
                let merge = plan.merges().get(target.merge as usize);
                let merged = merge.is_some_and(|merge| {
                    merge.request == request
                        && (merge.partial_begin..merge.partial_end).contains(&target.partial)
                });
                assert!(matches!(target.partial, DIRECT | UNTOUCHED) || merged, "{target:?} of {request}");
            }
        }
        let mut partials = vec![1; batch];
        for merge in plan.merges() {
            partials[merge.request as usize] = merge.partial_end - merge.partial_begin;
        }
        assert_eq!(written, partials);
        for (request, tokens) in tokens.into_iter().enumerate() {
            let (row, len) = self.rows.get(&(request as u32)).map_or((0, 0), |(row, len)| (row.len(), *len));
            assert_eq!(tokens, row as u64 * u64::from(self.page_size), "request {request}");
            assert_eq!(plan.seq_lens()[request], len);
        }
        let largest = self.rows.values().flat_map(|(row, _)| row).max();
        assert_eq!(plan.largest_page(), largest.copied());
    }
}

/// Where rows of a request go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Untouched,
    Direct,
    /// The i-th of k partials.
    Partial(u32, u32),
}

/// Tokens along the KV range, position, members, pages.
type RunFacts = ((u32, u32), u32, (u32, u32), Vec<i32>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ItemFacts {
    tile: Tile,
    requests: Vec<u32>,
    rows: (u32, u32),
    kv_range: (u32, u32),
    segments: Vec<RunFacts>,
    targets: Vec<Target>,
}

/// A plan without regard to where things stand in its lists.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Canonical {
    geometry: Geometry,
    seq_lens: Vec<u32>,
    packs: Vec<(PackShape, Tile, usize)>,
    items: Vec<ItemFacts>,
    /// Request, partials, arrivals.
    merges: Vec<(u32, u32, u32)>,
    partials: u32,
    largest_page: Option<i32>,
}

pub(crate) fn canonical(plan: &Plan) -> Canonical {
    let page_size = plan.geometry().page_size;
    let of_segment = |segment: &KvSegment| {
        let pages = &plan.pages()[segment.pages as usize..][..segment.kv_range.len() / page_size as usize];
        let members = (segment.members.start, segment.members.end);
        ((segment.kv_range.start, segment.kv_range.end), segment.position, members, pages.to_vec())
    };
    let target = |request: u32, target: &tilewright_plan::OutputTarget| match target.partial {
        UNTOUCHED => Target::Untouched,
        DIRECT => Target::Direct,
        partial => {
            let merge = &plan.merges()[target.merge as usize];
            assert_eq!(merge.request, request);
            Target::Partial(partial - merge.partial_begin, merge.partial_end - merge.partial_begin)
        }
    };
    let mut items = Vec::new();
    for group in plan.tile_groups() {
        for item in &plan.work_items()[group.items.start as usize..group.items.end as usize] {
            let requests = plan.requests_of(item.q_tile);
            let targets = &plan.targets()[item.targets as usize..][..requests.len()];
            let q_tile = &plan.q_tiles()[item.q_tile as usize];
            assert_eq!(plan.packs()[q_tile.pack as usize].tile, group.tile);
            items.push(ItemFacts {
                tile: group.tile,
                requests: requests.to_vec(),
                rows: (item.rows.start, item.rows.end),
                kv_range: (item.kv_range.start, item.kv_range.end),
                segments: plan.segments()[item.segments.start as usize..item.segments.end as usize]
                    .iter()
                    .map(of_segment)
                    .collect(),
                targets: requests
                    .iter()
                    .zip(targets)
                    .map(|(&request, output)| target(request, output))
                    .collect(),
            });
        }
    }
    items.sort_unstable();
    let mut packs: Vec<_> =
        plan.packs().iter().map(|pack| (pack.shape, pack.tile, pack.q_tiles.len())).collect();
    packs.sort_unstable();
    let mut merges: Vec<_> = plan
        .merges()
        .iter()
        .map(|merge| (merge.request, merge.partial_end - merge.partial_begin, merge.arrivals))
        .collect();
    merges.sort_unstable();
    Canonical {
        geometry: *plan.geometry(),
        seq_lens: plan.seq_lens().to_vec(),
        packs,
        items,
        merges,
        partials: plan.partials(),
        largest_page: plan.largest_page(),
    }
}

impl Canonical {
    /// The same of requests with other numbers.
    pub(crate) fn renamed(mut self, number_of: &[u32]) -> Self {
        let number = |request: u32| number_of[request as usize];
        let mut seq_lens = vec![0; self.seq_lens.len()];
        for (&number, &tokens) in number_of.iter().zip(&self.seq_lens) {
            seq_lens[number as usize] = tokens;
        }
        self.seq_lens = seq_lens;
        for item in &mut self.items {
            item.requests.iter_mut().for_each(|request| *request = number(*request));
        }
        self.items.sort_unstable();
        self.merges.iter_mut().for_each(|merge| merge.0 = number(merge.0));
        self.merges.sort_unstable();
        self
    }
}

/// At most half of each list is garbage.
pub(crate) fn check_garbage(plan: &Plan) {
    let live = |list: &mut dyn Iterator<Item = usize>| list.sum::<usize>();
    let q_tiles = || plan.packs().iter().flat_map(|pack| pack.q_tiles.clone());
    let q_tile = |index: u32| &plan.q_tiles()[index as usize];
    assert!(plan.q_tiles().len() <= 2 * live(&mut plan.packs().iter().map(|pack| pack.q_tiles.len())));
    assert!(plan.requests().len() <= 2 * live(&mut q_tiles().map(|index| q_tile(index).requests.len())));
    assert!(plan.segments().len() <= 2 * live(&mut q_tiles().map(|index| q_tile(index).segments.len())));
}

/// Whether some KV range is cut into chunks of which one is much longer than another.
pub(crate) fn is_cut_unevenly(plan: &Plan) -> bool {
    let mut lengths: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for item in plan.work_items() {
        let length = item.kv_range.len();
        let (shortest, longest) = lengths.entry(item.q_tile).or_insert((length, length));
        (*shortest, *longest) = (length.min(*shortest), length.max(*longest));
    }
    lengths.values().any(|(shortest, longest)| longest - shortest > 2 * 64)
}

/// What an engine could say that makes no sense.
pub(crate) fn refused(result: Result<(), LiveError>) -> LiveError {
    result.expect_err("it makes no sense")
}
