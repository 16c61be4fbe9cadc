//! The CUDA kernels, run on the host by an emulation of the machine, against the f64 reference: numerics, tails, the order of the
//! pipeline, splits and merges.

mod emulation;

use emulation::{EARLY_READ, Emulator, FP8_CONVERSION, WARPGROUPS, plain, with_warpgroups};
use half::{bf16, f16};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::sync::Mutex;
use tilewright_heuristics::{Backend, Dtype, Geometry, Tile};
use tilewright_kernel_templates::cuda::{
    Arguments, AttentionOptions, CudaLimits, Kernel, MERGE_WARPS, WorkItem, sources,
};
use tilewright_kernel_templates::{Class, Limits, Space, check};
use tilewright_runtime::awkward::{CaseCache, tolerance};
use tilewright_runtime::cpu::{Element, Fp8KvCache, KvCache, Number};
use tilewright_runtime::cuda::PlanImage;
use tilewright_runtime::reference::{self, Attention};
use tilewright_runtime::{
    E4m3, KvScales, KvStrides, Packing, PageTable, Plan, PlanOptions, Queries, Split, TileGroup,
};

const WINDOW: u32 = 45;
const SOFTCAP: f32 = 2.0;

/// What one launch is checked with.
#[derive(Clone, Copy, Debug)]
struct Case {
    tile: Tile,
    class: Class,
    options: AttentionOptions,
    gqa_ratio: u32,
    kv_heads: u32,
    page_size: u32,
    packing: Packing,
    /// The plan is made when requests have one token in their last page.
    grown: bool,
    hnd: bool,
    /// Tokens by which the requests that fill a tile have more of their own.
    own: u32,
    /// Query tokens of a request: from 1 to so many, as far as it has tokens; 0 stands for one each, of requests without tokens too.
    queries: u32,
    seed: u64,
    /// On a device where four warps multiply together.
    warpgroups: bool,
}

impl Case {
    fn kernel(&self) -> Kernel {
        let arch = if self.warpgroups { with_warpgroups() } else { plain() };
        Kernel::decode(&self.tile, &self.class, self.options, arch)
    }

    fn merges(&self) -> [Kernel; 2] {
        MERGE_WARPS.map(|warps| Kernel::merge(warps, &self.class, self.options))
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            q_heads: self.gqa_ratio * self.kv_heads,
            kv_heads: self.kv_heads,
            head_dim: self.class.head_dim,
            page_size: self.page_size,
            dtype: self.class.dtype,
        }
    }

    /// Requests as (pages of a prefix taken from the previous one, own tokens): lengths around every edge of pages and steps, and enough
    /// requests on one prefix that its rows fill a tile.
    fn requests(&self) -> Vec<(usize, u32)> {
        let (n, page) = (u32::from(self.tile.n), self.page_size);
        let trunk = 3 * n + 5;
        let shared = (trunk / page) as usize;
        let mut requests = vec![(0, trunk)];
        requests.extend([1, 0, page, n - 1, n, n + 1].map(|own| (shared, own)));
        let fill = (u32::from(self.tile.m) / self.gqa_ratio).min(20) as usize;
        requests.extend((requests.len()..fill).map(|own| (shared, own as u32 + self.own)));
        let stages = u32::from(self.tile.stages);
        let alone = [0, 1, page - 1, page, page + 1, n - 1, n, n + 1, 2 * n, stages * n + 1];
        requests.extend(alone.map(|own| (0, own)));
        requests
    }

    fn check(&self, emulator: &Emulator) -> Result<(), String> {
        match self.class.dtype {
            Dtype::F16 | Dtype::Fp8F16 => Batch::<f16>::new(self).check(self, emulator),
            Dtype::Bf16 | Dtype::Fp8Bf16 => Batch::<bf16>::new(self).check(self, emulator),
            Dtype::F32 | Dtype::Fp8F32 => Err("no kernel computes in f32".to_owned()),
        }
        .map_err(|error| format!("{error}: {self:?}"))
    }
}

/// A batch with K, V and queries; NaN wherever no request has a token, garbage in the table past each length.
struct Batch<E> {
    geometry: Geometry,
    entries: Vec<i32>,
    max_pages: usize,
    seq_lens: Vec<u32>,
    query_lens: Option<Vec<u32>>,
    strides: KvStrides,
    cache: CaseCache<E>,
    query: Vec<E>,
    sinks: Vec<f32>,
    scale: f32,
}

/// What a launch leaves.
struct Outcome<E> {
    output: Vec<E>,
    lse: Vec<f32>,
}

impl<E: Element> Batch<E> {
    fn new(case: &Case) -> Self {
        let geometry = case.geometry();
        let page_size = geometry.page_size;
        let mut rng = ChaCha8Rng::seed_from_u64(case.seed);
        let (mut rows, mut seq_lens, mut pages) = (Vec::<Vec<usize>>::new(), Vec::new(), 0);
        for (shared, own) in case.requests() {
            let mut row: Vec<usize> =
                rows.last().map_or(Vec::new(), |row: &Vec<usize>| row[..shared.min(row.len())].to_vec());
            let tokens = row.len() as u32 * page_size + own;
            while (row.len() as u32) < tokens.div_ceil(page_size) {
                row.push(pages);
                pages += 1;
            }
            rows.push(row);
            seq_lens.push(tokens);
        }
        pages += 2;
        let mut physical: Vec<i32> = (0..pages as i32).collect();
        physical.shuffle(&mut rng);
        let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0) + 1;
        let mut entries = Vec::new();
        let mut filled = vec![0u32; pages];
        for (row, &seq_len) in rows.iter().zip(&seq_lens) {
            for (column, &page) in row.iter().enumerate() {
                let page = physical[page];
                entries.push(page);
                let tokens = (seq_len - column as u32 * page_size).min(page_size);
                filled[page as usize] = filled[page as usize].max(tokens);
            }
            entries.extend((row.len()..max_pages).map(|column| if column % 2 == 0 { -1 } else { i32::MAX }));
        }
        let strides = if case.hnd { KvStrides::hnd(&geometry) } else { KvStrides::nhd(&geometry) };
        let mut random = random_numbers(case.seed);
        let cache = if geometry.dtype.has_fp8_kv() {
            // As large as those of the query's type, nearly: their scales are from 1/8 to 1/2.
            let heads = if case.seed.is_multiple_of(2) { 1 } else { geometry.kv_heads };
            let mut scales = || (0..heads).map(|_| 0.3125 + 0.1875 * random()).collect();
            let (key_scales, value_scales) = (scales(), scales());
            CaseCache::Fp8 {
                keys: pages_of(&geometry, &strides, &filled, || 10.0 * random()),
                values: pages_of(&geometry, &strides, &filled, || 4.0 * random()),
                key_scales,
                value_scales,
            }
        } else {
            CaseCache::Plain {
                keys: pages_of(&geometry, &strides, &filled, || 3.0 * random()),
                values: pages_of(&geometry, &strides, &filled, &mut random),
            }
        };
        let query_lens: Option<Vec<u32>> = (case.queries > 0).then(|| {
            let planned = planned_lens(&seq_lens, page_size, case.grown);
            (0u32..).zip(planned).map(|(request, len)| (request * 5 % case.queries + 1).min(len)).collect()
        });
        let queries = query_lens.as_ref().map_or(seq_lens.len(), |lens| lens.iter().sum::<u32>() as usize);
        let elements = queries * (geometry.q_heads * geometry.head_dim) as usize;
        let query = (0..elements).map(|_| E::from_f32(3.0 * random())).collect();
        let sinks = (0..geometry.q_heads).map(|_| 1.5 + 3.5 * random()).collect();
        let scale = 1.0 / (geometry.head_dim as f32).sqrt();
        Self { geometry, entries, max_pages, seq_lens, query_lens, strides, cache, query, sinks, scale }
    }

    fn table<'a>(&'a self, seq_lens: &'a [u32], memory: &'a mut Queries) -> PageTable<'a> {
        let table = PageTable::new(&self.entries, self.max_pages, seq_lens, self.geometry.page_size).unwrap();
        match &self.query_lens {
            None => table,
            Some(query_lens) => table.with_queries(query_lens, memory).unwrap(),
        }
    }

    /// What the reference says.
    fn expected(&self, attention: &Attention<'_>) -> (Vec<f64>, Vec<f64>) {
        let mut memory = Queries::default();
        let (table, strides) = (self.table(&self.seq_lens, &mut memory), self.strides);
        match &self.cache {
            CaseCache::Plain { keys, values } => {
                let cache = KvCache { keys: &keys[..], values: &values[..], strides };
                reference::decode(&self.geometry, &table, &self.query, &cache, attention)
            }
            CaseCache::Fp8 { keys, values, key_scales, value_scales } => {
                let scales = match (&key_scales[..], &value_scales[..]) {
                    (&[keys], &[values]) => KvScales::new(keys, values),
                    (keys, values) => KvScales::new(keys, values),
                };
                let cache = Fp8KvCache { keys, values, strides, scales };
                reference::decode(&self.geometry, &table, &self.query, &cache, attention)
            }
        }
    }

    /// Where K and V and their scales lie.
    fn cache_arguments(&self) -> Arguments {
        match &self.cache {
            CaseCache::Plain { keys, values } => Arguments {
                keys: keys.as_ptr() as u64,
                values: values.as_ptr() as u64,
                ..Arguments::default()
            },
            CaseCache::Fp8 { keys, values, key_scales, value_scales } => Arguments {
                keys: keys.as_ptr() as u64,
                values: values.as_ptr() as u64,
                key_scales: key_scales.as_ptr() as u64,
                value_scales: value_scales.as_ptr() as u64,
                scale_head: i64::from(key_scales.len() > 1),
                ..Arguments::default()
            },
        }
    }

    /// Rows (query, query head).
    fn rows(&self) -> usize {
        self.query.len() / self.geometry.head_dim as usize
    }

    /// Runs the case's kernel and each of the merges; one outcome a merge. `seed` is the order of warps.
    fn launch(
        &self,
        case: &Case,
        split: Split,
        emulator: &Emulator,
        seed: u64,
    ) -> Result<Vec<Outcome<E>>, String> {
        let planned = planned_lens(&self.seq_lens, self.geometry.page_size, case.grown);
        let options = PlanOptions { packing: case.packing, split, slots: 64, ..PlanOptions::default() };
        let (mut memory, mut grown) = (Queries::default(), Queries::default());
        let plan =
            Plan::build(&self.geometry, &self.table(&planned, &mut memory), &options, |_| case.tile).unwrap();
        let image = PlanImage::of(&plan);
        let words = Aligned::of(image.words());
        let q_heads = self.geometry.q_heads;
        let lengths: Vec<i32> =
            self.table(&self.seq_lens, &mut grown).seq_lens().iter().map(|&len| len as i32).collect();
        let mut output = vec![E::from_f32(f32::NAN); self.query.len()];
        let mut lse = vec![f32::NAN; self.rows()];
        let mut workspace = vec![f32::NAN; image.workspace_bytes(&self.geometry) / 4];
        let planned = image.arguments(&self.geometry, words.address(), workspace.as_mut_ptr() as u64);
        let cache = self.cache_arguments();
        let mut args = Arguments {
            query: self.query.as_ptr() as u64,
            keys: cache.keys,
            values: cache.values,
            key_scales: cache.key_scales,
            value_scales: cache.value_scales,
            scale_head: cache.scale_head,
            sinks: if case.options.sinks { self.sinks.as_ptr() as u64 } else { 0 },
            // What the requests have grown to since they were planned.
            lengths: lengths.as_ptr() as u64,
            query_request: i64::from(q_heads * self.geometry.head_dim),
            query_head: i64::from(self.geometry.head_dim),
            output_request: i64::from(q_heads * self.geometry.head_dim),
            output_head: i64::from(self.geometry.head_dim),
            page: self.strides.page as i64,
            token: self.strides.token as i64,
            head: self.strides.head as i64,
            window: WINDOW,
            scale_log2: self.scale * std::f32::consts::LOG2_E,
            softcap: SOFTCAP,
            ..planned
        };
        (args.output, args.lse) = (output.as_mut_ptr() as u64, lse.as_mut_ptr() as u64);
        let ctas = |group: &TileGroup| group.items.len() as u32 * self.geometry.kv_heads;
        for (index, group) in plan.tile_groups().iter().enumerate() {
            args.items = planned.items + u64::from(group.items.start) * size_of::<WorkItem>() as u64;
            args.group = index as u32;
            // More CTAs than there are items: a captured grid is as large as its bucket.
            emulator.run_decode(&case.kernel(), &args, ctas(group) + 3, seed)?;
        }
        let mut outcomes = Vec::new();
        for merge in case.merges() {
            let mut outcome = Outcome { output: output.clone(), lse: lse.clone() };
            (args.output, args.lse) = (outcome.output.as_mut_ptr() as u64, outcome.lse.as_mut_ptr() as u64);
            emulator.run_merge(&merge, &args, plan.merges().len() as u32 * q_heads, seed)?;
            outcomes.push(outcome);
        }
        outcomes.push(self.launch_fused(case, &plan, &args, emulator, seed)?);
        Ok(outcomes)
    }

    /// The same where the last CTA of a row merges it; twice over, for a graph is launched again and again.
    fn launch_fused(
        &self,
        case: &Case,
        plan: &Plan,
        args: &Arguments,
        emulator: &Emulator,
        seed: u64,
    ) -> Result<Outcome<E>, String> {
        let mut arrivals = vec![0u32; plan.merges().len() * self.geometry.kv_heads as usize + 1];
        let items = args.items - u64::from(last_group(plan)) * size_of::<WorkItem>() as u64;
        let mut outcome = None;
        for _ in 0..2 {
            let mut output = vec![E::from_f32(f32::NAN); self.query.len()];
            let mut lse = vec![f32::NAN; self.rows()];
            let mut args = Arguments {
                arrivals: arrivals.as_mut_ptr() as u64,
                output: output.as_mut_ptr() as u64,
                lse: lse.as_mut_ptr() as u64,
                ..*args
            };
            for (index, group) in plan.tile_groups().iter().enumerate() {
                args.items = items + u64::from(group.items.start) * size_of::<WorkItem>() as u64;
                args.group = index as u32;
                let ctas = group.items.len() as u32 * self.geometry.kv_heads;
                emulator.run_decode(&case.kernel(), &args, ctas, seed)?;
            }
            outcome = Some(Outcome { output, lse });
        }
        if arrivals.iter().any(|&count| count != 0) {
            return Err("the counters of arrivals are not as they were before the launch".to_owned());
        }
        outcome.ok_or_else(|| "nothing was launched".to_owned())
    }

    fn check(&self, case: &Case, emulator: &Emulator) -> Result<(), String> {
        let attention = Attention {
            scale: self.scale,
            window: case.options.window.then_some(WINDOW),
            softcap: case.options.softcap.then_some(SOFTCAP),
            sinks: case.options.sinks.then_some(self.sinks.as_slice()),
        };
        let (expected, expected_lse) = self.expected(&attention);
        let tolerance = tolerance(E::DTYPE);
        // Whole packs take many steps, cut ones are merged.
        let mut outcomes = self.launch(case, Split::None, emulator, case.seed)?;
        let split = if case.seed.is_multiple_of(2) { Split::Mean } else { Split::Fill };
        outcomes.extend(self.launch(case, split, emulator, case.seed + 1)?);
        for outcome in outcomes {
            let output: Vec<f64> = outcome.output.iter().map(|x| f64::from(x.to_f32())).collect();
            let lse: Vec<f64> = outcome.lse.iter().map(|&x| f64::from(x)).collect();
            // Rows without tokens first: where -inf is expected, nothing else may be found.
            if let Some(row) = (0..lse.len())
                .find(|&row| lse[row].is_nan() || lse[row].is_infinite() != expected_lse[row].is_infinite())
            {
                return Err(format!("LSE {} for {} in row {row}", lse[row], expected_lse[row]));
            }
            let head_dim = self.geometry.head_dim as usize;
            let typical = norm(expected.iter().copied()) / (lse.len() as f64).sqrt();
            for (row, (found, expected)) in output.chunks(head_dim).zip(expected.chunks(head_dim)).enumerate()
            {
                let difference = norm(found.iter().zip(expected).map(|(a, b)| a - b));
                // Where V cancels or a sink takes nearly all weight, a row's norm says little about the size of what was summed.
                let error = difference / norm(expected.iter().copied()).max(0.1 * typical);
                if error.is_nan() || error >= 8.0 * tolerance {
                    return Err(format!("the output's error is {error:.1e} in row {row}"));
                }
            }
            let error = relative_error(&output, &expected);
            if error >= tolerance {
                return Err(format!("the output's error is {error:.1e}"));
            }
            let finite =
                |values: &[f64]| values.iter().copied().filter(|x| x.is_finite()).collect::<Vec<_>>();
            let error = relative_error(&finite(&lse), &finite(&expected_lse));
            if error >= tolerance {
                return Err(format!("the LSE's error is {error:.1e}"));
            }
        }
        Ok(())
    }
}

/// Pages whose first tokens, so many a page, hold numbers; all else is NaN.
fn pages_of<K: Number>(
    geometry: &Geometry,
    strides: &KvStrides,
    filled: &[u32],
    mut number: impl FnMut() -> f32,
) -> Vec<K> {
    let mut elements = vec![K::from_f32(f32::NAN); filled.len() * strides.page];
    for (page, &tokens) in filled.iter().enumerate() {
        for token in 0..tokens as usize {
            for head in 0..geometry.kv_heads as usize {
                let at = page * strides.page + token * strides.token + head * strides.head;
                let vector = &mut elements[at..at + geometry.head_dim as usize];
                vector.iter_mut().for_each(|element| *element = K::from_f32(number()));
            }
        }
    }
    elements
}

/// The lengths that a case plans for: those of requests that grow afterwards end with the first token of their last page.
fn planned_lens(seq_lens: &[u32], page_size: u32, grown: bool) -> Vec<u32> {
    let planned = |&len: &u32| if grown { len - (len.max(1) - 1) % page_size } else { len };
    seq_lens.iter().map(planned).collect()
}

/// Numbers from -1 to 1 (xorshift). Millions are drawn, and in tests the crate's generators are not optimised.
fn random_numbers(seed: u64) -> impl FnMut() -> f32 {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// A plan's words where the kernels may load 16 bytes at once, as in device memory.
#[repr(align(16))]
#[derive(Clone, Copy)]
struct Quad(#[expect(dead_code, reason = "read through its address")] [u32; 4]);

struct Aligned(Vec<Quad>);

impl Aligned {
    fn of(words: &[u32]) -> Self {
        let quad = |words: &[u32]| Quad(std::array::from_fn(|i| words.get(i).copied().unwrap_or(0)));
        Self(words.chunks(4).map(quad).collect())
    }

    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}

/// Where the items of the last group begin.
fn last_group(plan: &Plan) -> u32 {
    plan.tile_groups().last().map_or(0, |group| group.items.start)
}

fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    let difference = norm(found.iter().zip(expected).map(|(a, b)| a - b));
    if difference == 0.0 { 0.0 } else { difference / norm(expected.iter().copied()) }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

/// Every tile of the space that some class can run on the largest device. The other dimensions go round.
fn cases() -> Vec<Case> {
    let largest = Limits::Cuda(CudaLimits::named("h200").unwrap());
    let mut cases = Vec::new();
    let options: Vec<AttentionOptions> = AttentionOptions::all().collect();
    for &tile in Space::of(Backend::Cuda).tiles() {
        let i = cases.len();
        let dtype = [Dtype::F16, Dtype::Bf16][(i / 3) % 2];
        let class = (0..3)
            .map(|more| Class { head_dim: [256, 128, 64][(i + more) % 3], dtype })
            .find(|class| check(&tile, class, &largest).is_ok());
        let Some(class) = class else { continue };
        cases.push(Case {
            tile,
            class,
            options: if i % 3 == 0 { options[0] } else { options[i / 3 * 3 % 8] },
            gqa_ratio: [4, 1, 8, 3][(i + i / 4) % 4],
            kv_heads: [2, 1, 1][i % 3],
            page_size: [16, 1, 64, 32][(i + i / 16) % 4],
            packing: [Packing::Pat, Packing::PerNode, Packing::Pat, Packing::PerRequest][i / 2 % 4],
            grown: i % 4 < 2,
            hnd: i % 7 < 3,
            own: 0,
            queries: 0,
            seed: i as u64 % 5 + i as u64 / 5,
            warpgroups: false,
        });
    }
    cases
}

fn kernels_of(cases: &[Case]) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for kernel in cases.iter().flat_map(|case| std::iter::once(case.kernel()).chain(case.merges())) {
        if !kernels.contains(&kernel) {
            kernels.push(kernel);
        }
    }
    kernels
}

/// Checks all cases, on all processors; panics with what went wrong.
fn check_all(emulator: &Emulator, cases: &[Case]) {
    let (next, failures) = (Mutex::new(cases.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(case) = next.lock().unwrap().next() else { break };
                    if let Err(error) = case.check(emulator) {
                        failures.lock().unwrap().push(error);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

const CASE: Case = Case {
    tile: Tile { m: 16, n: 32, warps: 2, stages: 2 },
    class: Class { head_dim: 64, dtype: Dtype::F16 },
    options: AttentionOptions { window: false, softcap: false, sinks: false },
    gqa_ratio: 4,
    kv_heads: 2,
    page_size: 16,
    packing: Packing::Pat,
    grown: false,
    hnd: false,
    own: 0,
    queries: 0,
    seed: 0,
    warpgroups: false,
};

#[test]
fn the_cases_have_every_value_of_every_dimension() {
    fn assert_all<T: PartialEq + std::fmt::Debug>(wanted: &[T], of: impl Fn(&Case) -> T) {
        let found: Vec<T> = cases().iter().map(of).collect();
        for value in wanted {
            assert!(found.contains(value), "no case has {value:?}");
        }
    }
    assert_all(&[1, 2, 3, 4, 6], |case| case.tile.stages);
    assert_all(&[16, 32, 64, 128], |case| case.tile.m);
    assert!(cases().len() >= 200);
    assert_all(&Class::HEAD_DIMS.map(|dim| (dim, Dtype::F16)), |case| {
        (case.class.head_dim, case.class.dtype)
    });
    assert_all(&Class::HEAD_DIMS.map(|dim| (dim, Dtype::Bf16)), |case| {
        (case.class.head_dim, case.class.dtype)
    });
    assert_all(&[1, 3, 4, 8], |case| case.gqa_ratio);
    assert_all(&[1, 16, 32, 64], |case| case.page_size);
    assert_all(&[(true, true), (true, false), (false, true), (false, false)], |case| (case.grown, case.hnd));
    assert_all(&AttentionOptions::all().collect::<Vec<_>>(), |case| case.options);
    assert_all(&[Packing::Pat, Packing::PerNode, Packing::PerRequest], |case| case.packing);
    for head_dim in Class::HEAD_DIMS {
        for stages in 1..=4 {
            assert_all(&[(head_dim, stages)], |case| (case.class.head_dim, case.tile.stages));
        }
    }
}

#[test]
fn every_variant_agrees_with_the_reference() {
    let cases = cases();
    let started = std::time::Instant::now();
    let emulator = Emulator::build(&kernels_of(&cases), &[]);
    let built = started.elapsed();
    check_all(&emulator, &cases);
    println!("{} cases: {built:.1?} to compile, {:.1?} to run", cases.len(), started.elapsed() - built);
}

#[test]
fn one_variant_agrees_for_every_ratio_page_size_and_packing() {
    let mut cases = Vec::new();
    for gqa_ratio in [1, 3, 4, 5, 7, 8, 16] {
        for page_size in [1, 16, 32, 48, 64, 128, 256] {
            for packing in [Packing::Pat, Packing::PerNode, Packing::PerRequest] {
                let seed = cases.len() as u64;
                let (grown, hnd) = (seed.is_multiple_of(2), seed.is_multiple_of(3));
                cases.push(Case { gqa_ratio, page_size, packing, grown, hnd, seed, ..CASE });
            }
        }
    }
    check_all(&Emulator::build(&kernels_of(&[CASE]), &[]), &cases);
}

/// Tiles of FP8: one warp, warps that share rows, many rows; every head dimension; with and without options.
fn fp8_cases() -> Vec<Case> {
    let all = AttentionOptions { window: true, softcap: true, sinks: true };
    let variants = [
        ((16, 32, 1, 1), 64, CASE.options),
        ((16, 64, 4, 3), 64, all),
        ((16, 32, 2, 2), 128, CASE.options),
        ((32, 64, 8, 2), 128, all),
        ((64, 48, 4, 4), 128, CASE.options),
        ((16, 96, 2, 2), 256, all),
        ((64, 64, 8, 3), 256, CASE.options),
        ((128, 32, 8, 2), 64, AttentionOptions { window: true, ..CASE.options }),
    ];
    let mut cases = Vec::new();
    for ((m, n, warps, stages), head_dim, options) in variants {
        for dtype in [Dtype::Fp8F16, Dtype::Fp8Bf16] {
            let seed = cases.len() as u64 * 3;
            let (tile, class) = (Tile { m, n, warps, stages }, Class { head_dim, dtype });
            let packing = [Packing::Pat, Packing::PerNode][cases.len() / 2 % 2];
            let (gqa_ratio, page_size) = ([4, 1, 8][cases.len() % 3], [16, 1, 64][cases.len() / 3 % 3]);
            let (grown, hnd) = (cases.len() % 4 < 2, cases.len() % 3 == 0);
            cases.push(Case {
                tile,
                class,
                options,
                gqa_ratio,
                page_size,
                packing,
                grown,
                hnd,
                seed,
                kv_heads: 3,
                own: 0,
                queries: (seed % 4) as u32,
                warpgroups: false,
            });
        }
    }
    cases
}

#[test]
fn fp8_agrees_with_the_reference() {
    let cases = fp8_cases();
    check_all(&Emulator::build(&kernels_of(&cases), &[]), &cases);
}

#[test]
fn fp8_agrees_with_the_reference_where_the_device_converts() {
    let cases: Vec<Case> =
        fp8_cases().into_iter().filter(|case| case.class.dtype == Dtype::Fp8F16).step_by(2).collect();
    check_all(&Emulator::build(&kernels_of(&cases), &[FP8_CONVERSION]), &cases);
}

/// One request a byte, each of one token: its output is V, and its LSE the one element of K that the query picks. Exactly.
fn assert_every_byte<E: Element>(dtype: Dtype, flags: &[&str]) {
    let head_dim = 128;
    let case = Case {
        class: Class { head_dim, dtype },
        gqa_ratio: 1,
        kv_heads: 1,
        page_size: 1,
        packing: Packing::PerRequest,
        ..CASE
    };
    let dim = head_dim as usize;
    // Every byte at every place, but for NaN.
    let byte = |request: usize, d: usize, by: usize| match (request + d * by) as u8 {
        0x7f | 0xff => E4m3::from_bits(0),
        bits => E4m3::from_bits(bits),
    };
    let pages = |by| (0..256 * dim).map(|i| byte(i / dim, i % dim, by)).collect();
    let mut query = vec![E::from_f32(0.0); 256 * dim];
    (0..256).for_each(|request| query[request * dim + request % dim] = E::from_f32(1.0));
    let geometry = case.geometry();
    let (key_scales, value_scales) = (vec![0.25], vec![2.0]);
    let batch = Batch {
        geometry,
        entries: (0..256).collect(),
        max_pages: 1,
        seq_lens: vec![1; 256],
        query_lens: None,
        strides: KvStrides::nhd(&geometry),
        cache: CaseCache::Fp8 { keys: pages(1), values: pages(3), key_scales, value_scales },
        query,
        sinks: Vec::new(),
        scale: 1.0,
    };
    let emulator = Emulator::build(&kernels_of(&[case]), flags);
    for outcome in batch.launch(&case, Split::None, &emulator, 0).unwrap() {
        for request in 0..256 {
            for (d, found) in outcome.output[request * dim..][..dim].iter().enumerate() {
                let expected = 2.0 * byte(request, d, 3).to_f32();
                assert_eq!(found.to_f32(), expected, "{dtype}: element {d} of V in request {request}");
            }
            let expected = 0.25 * byte(request, request % dim, 1).to_f32();
            let error = (outcome.lse[request] - expected).abs();
            assert!(error <= 1e-6 * expected.abs(), "{dtype}: {} for {expected}", outcome.lse[request]);
        }
    }
}

#[test]
fn every_byte_of_fp8_is_read_as_what_it_is() {
    assert_every_byte::<f16>(Dtype::Fp8F16, &[]);
    assert_every_byte::<f16>(Dtype::Fp8F16, &[FP8_CONVERSION]);
    assert_every_byte::<bf16>(Dtype::Fp8Bf16, &[]);
}

#[test]
fn several_queries_a_request_agree_with_the_reference() {
    let mut cases = Vec::new();
    let packings = [Packing::Priced, Packing::PerTree, Packing::Pat, Packing::PerNode, Packing::PerRequest];
    for (index, packing) in (0u64..).zip(packings) {
        for (gqa_ratio, page_size, queries) in
            [(1, 16, 4), (4, 1, 16), (8, 64, 5), (5, 48, 16), (1, 16, 40), (2, 1, 40)]
        {
            let (grown, hnd) = (page_size > 1 && queries < 40, index % 2 == 1);
            let options = AttentionOptions { window: cases.len() % 3 == 2, ..CASE.options };
            let tile = Tile { m: if queries == 40 { 32 } else { 16 }, ..CASE.tile };
            let seed = cases.len() as u64;
            cases.push(Case {
                tile,
                options,
                gqa_ratio,
                page_size,
                packing,
                grown,
                hnd,
                queries,
                seed,
                ..CASE
            });
        }
    }
    check_all(&Emulator::build(&kernels_of(&cases), &[]), &cases);
}

/// Trees whose warps take turns: as many granules for a warp's turn as one and two, one and two warps for the same rows, parts of walks that
/// begin among the turns, and walks where one warp has nearly all and they do not.
#[test]
fn warps_that_take_turns_agree_with_the_reference() {
    let cases = turning_cases();
    check_all(&Emulator::build(&kernels_of(&cases), &[]), &cases);
}

fn turning_cases() -> Vec<Case> {
    let tiles = [(32, 64, 2, 2), (32, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 1), (128, 128, 8, 2)];
    let mut cases = Vec::new();
    for (m, n, warps, stages) in tiles {
        for (gqa_ratio, page_size, own) in [(4, 16, 70), (1, 1, 24), (8, 32, 3)] {
            let (tile, seed) = (Tile { m, n, warps, stages }, cases.len() as u64);
            let options = AttentionOptions { softcap: seed % 3 == 1, ..CASE.options };
            let (packing, grown) = (Packing::PerTree, seed.is_multiple_of(2));
            cases.push(Case { tile, options, gqa_ratio, page_size, packing, own, grown, seed, ..CASE });
        }
    }
    cases
}

/// Every second tile whose warps can multiply together: before turns and without them, whole granules and windows, each width of a product.
#[test]
fn warps_that_multiply_together_agree_with_the_reference() {
    let together = |case: &Case| case.tile.m.is_multiple_of(64) && case.class.head_dim <= 128;
    let mut cases: Vec<Case> = cases()
        .into_iter()
        .filter(together)
        .step_by(2)
        .chain(turning_cases().into_iter().filter(together))
        .collect();
    assert!(cases.len() >= 35, "{}", cases.len());
    cases.iter_mut().for_each(|case| case.warpgroups = true);
    let walks = |case: &Case| Case { packing: Packing::PerTree, own: 3, ..*case };
    cases.extend(cases.iter().step_by(3).map(walks).collect::<Vec<_>>());
    check_all(&Emulator::build(&kernels_of(&cases), &[WARPGROUPS]), &cases);
}

/// The kernels give a negative scale's sign to the query, and take none for a very small one.
#[test]
fn every_sign_of_the_scale_agrees_with_the_reference() {
    let classes = [(64, Dtype::F16), (64, Dtype::Fp8F16), (256, Dtype::F16)];
    let options = [CASE.options, AttentionOptions { softcap: true, ..CASE.options }];
    let cases: Vec<Case> = classes
        .iter()
        .flat_map(|&(head_dim, dtype)| {
            options.map(|options| Case { class: Class { head_dim, dtype }, options, ..CASE })
        })
        .collect();
    let emulator = Emulator::build(&kernels_of(&cases), &[]);
    for case in &cases {
        for scale in [-0.125, 0.0] {
            let mut batch = Batch::<f16>::new(case);
            batch.scale = scale;
            if let Err(error) = batch.check(case, &emulator) {
                panic!("scale {scale}: {error}: {case:?}");
            }
        }
    }
}

#[test]
fn the_order_of_warps_changes_no_bit() {
    let tile = Tile { m: 32, n: 64, warps: 8, stages: 3 };
    let case = Case { tile, options: AttentionOptions { window: true, softcap: true, sinks: true }, ..CASE };
    let emulator = Emulator::build(&kernels_of(&[case]), &[]);
    let batch = Batch::<f16>::new(&case);
    let bits = |seed| -> Vec<(Vec<u16>, Vec<u32>)> {
        let outcomes = batch.launch(&case, Split::Mean, &emulator, seed).unwrap();
        let bits = |outcome: &Outcome<f16>| {
            let output = outcome.output.iter().map(|x| x.to_bits()).collect();
            (output, outcome.lse.iter().map(|x| x.to_bits()).collect())
        };
        outcomes.iter().map(bits).collect()
    };
    let first = bits(0);
    for seed in 1..7 {
        assert_eq!(bits(seed), first, "seed {seed}");
    }
}

#[test]
fn a_pipeline_that_reads_too_early_is_caught() {
    for stages in 1..=4 {
        let case = Case { tile: Tile { stages, ..CASE.tile }, ..CASE };
        let error = case.check(&Emulator::build(&kernels_of(&[case]), &[EARLY_READ])).unwrap_err();
        let named = ["nothing had been copied to yet", "which a copy filled since the last barrier"];
        assert!(named.iter().any(|part| error.contains(part)), "{stages} stages: {error}");
    }
}

/// Barriers of every source, of warps that only copy too.
#[test]
fn a_missing_barrier_is_caught() {
    let cases: Vec<Case> = (1..=4)
        .flat_map(|stages| {
            let tile = Tile { m: 32, n: 64, warps: 8, stages };
            let head_dim = if stages % 2 == 0 { 64 } else { 256 };
            let class = Class { head_dim, ..CASE.class };
            let options = AttentionOptions { window: stages == 3, ..CASE.options };
            // Packs of one run, and walks along several.
            let packing = |seed| if seed == 2 { Packing::Pat } else { Packing::Priced };
            (0..3).map(move |seed| Case { tile, class, options, packing: packing(seed), seed, ..CASE })
        })
        .collect();
    let beside_loaders: Vec<Case> = (1..=3)
        .flat_map(|stages| {
            let tile = Tile { m: 64, n: 64, warps: 4, stages };
            (0..2).map(move |seed| Case { tile, seed, warpgroups: true, ..CASE })
        })
        .collect();
    let devices: [(&[Case], &[&str]); 2] = [(&cases, &[]), (&beside_loaders, &[WARPGROUPS])];
    for (cases, flags) in devices {
        check_all(&Emulator::build(&kernels_of(cases), flags), cases);
    }
    let mut barriers = 0;
    for &(file, text) in sources() {
        for (place, found) in text.match_indices("barrier();") {
            // The semicolon stays: it may be all that a condition is about.
            let changed = format!("{};{}", &text[..place], &text[place + found.len()..]);
            let change = |name: &str, text: &str| if name == file { &changed } else { text }.to_owned();
            let is_noticed = |(cases, flags): &(&[Case], &[&str])| {
                let emulator = Emulator::build_changed(&kernels_of(cases), flags, change);
                cases.iter().any(|case| case.check(&emulator).is_err())
            };
            let line = text[..place].lines().count();
            assert!(
                devices.iter().any(is_noticed),
                "nothing shows that the barrier in line {line} of {file} is missing: is it superfluous?"
            );
            barriers += 1;
        }
    }
    assert!(barriers >= 15, "only {barriers} of the sources' barriers were found");
}
