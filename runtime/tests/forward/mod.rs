//! The suite's part about launch modes: all of them on the conformance cases, several at once, and one captured graph for many batches.

use super::{backend, device, upload};
use cudarc::driver::{CudaStream, CudaViewMut, result};
use half::{bf16, f16};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tilewright_conformance::reference::{self, Attention};
use tilewright_conformance::{self as conformance, options_of};
use tilewright_cpu::{self as cpu, Element};
use tilewright_cuda::{
    Bucket, CudaBackend, CudaDevice, CudaElement, CudaError, DecodeArgs, DecodeMemory, DevicePlan, FitError,
    GraphStep, KvCache, Launch, LaunchMode, MergeBy, Mix,
};
use tilewright_heuristics::{Dtype, Geometry, Mask, PackShape, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{KernelOptions, mix_producer_warps};
use tilewright_plan::{KvStrides, PageTable, Plan, PlanOptions, Split};

const fn tile(m: u16, n: u16, warps: u16, stages: u16) -> Tile {
    Tile::new(m, n, warps, stages)
}

/// Four consumer warps each: with TMA tiles go together only so.
pub(super) const TILES: [Tile; 4] =
    [tile(16, 64, 4, 2), tile(16, 128, 4, 1), tile(32, 64, 4, 2), tile(64, 64, 4, 2)];
/// The same with eight.
pub(super) const WIDE_TILES: [Tile; 4] =
    [tile(16, 128, 8, 2), tile(32, 64, 8, 3), tile(64, 64, 8, 3), tile(128, 64, 8, 2)];

fn select(shape: &PackShape) -> Tile {
    select_of(&TILES, shape)
}

fn select_of(tiles: &[Tile; 4], shape: &PackShape) -> Tile {
    tiles[match shape.rows {
        ..=8 if shape.kv_len < 64 => 0,
        ..=8 => 1,
        9..=32 => 2,
        _ => 3,
    }]
}

pub(super) fn plan_for(device: &CudaDevice, forward: LaunchMode, tiles: &[Tile; 4]) -> DevicePlan {
    match forward.launch {
        Launch::Single => DevicePlan::with_mix(device, &Mix::of(tiles), forward.merge),
        Launch::Serial | Launch::Streams => DevicePlan::with_launch_mode(device, forward),
    }
}

/// All kernels of these options compiled on all cores, those of several tiles, too, which take longest.
fn prepare_at_once(backend: &mut CudaBackend, class: &Class, each_options: BTreeSet<KernelOptions>) {
    let alone = each_options.iter().flat_map(|&options| TILES.map(|tile| (tile, *class, options)));
    backend.prepare_all(&alone.collect::<Vec<_>>()).unwrap();
    let mixes: Vec<_> = each_options.iter().map(|&options| (Mix::of(&TILES), *class, options)).collect();
    backend.prepare_mixes(&mixes);
}

fn prepare(backend: &mut CudaBackend, class: &Class, options: KernelOptions) {
    prepare_tiles(backend, &TILES, class, options);
}

pub(super) fn prepare_tiles(
    backend: &mut CudaBackend,
    tiles: &[Tile],
    class: &Class,
    options: KernelOptions,
) {
    let alone: Vec<u32> = backend
        .prepare(tiles, class, options, || ())
        .unwrap()
        .into_iter()
        .map(|prepared| prepared.unwrap().ctas_per_sm)
        .collect();
    let (mix, compiled) = backend.prepare_mix(tiles, class, options).unwrap();
    assert_eq!(mix.tiles().len(), tiles.len());
    assert!(compiled.ctas_per_sm > 0);
    let arch = backend.device().arch();
    if mix_producer_warps(tiles, class, options, arch) == 4 {
        assert_eq!(
            Some(&compiled.ctas_per_sm),
            alone.iter().min(),
            "{mix} costs an SM what its greediest tile costs"
        );
    }
}

#[test]
fn every_way_of_launching_is_right_on_every_case() {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let (mut checked, mut groups, mut failures) = (0, 0, Vec::new());
    for class in [Class { head_dim: 128, dtype: Dtype::F16 }, Class { head_dim: 64, dtype: Dtype::Bf16 }] {
        let mut cases = conformance::cases(&class, 11);
        cases.extend(conformance::tile_cases(&class, &TILES[3], 12));
        prepare_at_once(&mut backend, &class, cases.iter().map(options_of).collect());
        // One plan for each way serves all cases: what one leaves behind must not be seen by the next.
        let mut plans = LaunchMode::ALL.map(|forward| (forward, plan_for(&device, forward, &TILES)));
        for case in cases {
            let case = upload(case, &device);
            prepare(&mut backend, &class, case.options());
            for planned in [case.case.options, device.plan_options()] {
                let plan = Plan::build(&case.case.geometry, &case.case.table(), &planned, select).unwrap();
                groups = groups.max(plan.tile_groups().len());
                for (forward, uploaded) in &mut plans {
                    let outcome = case.run_in(&backend, &stream, uploaded, planned, select);
                    let outcome = outcome.map_err(|error| error.to_string());
                    checked += 1;
                    match outcome.and_then(|(output, lse)| case.case.check(&output, &lse)) {
                        Ok(error) if error < conformance::tolerance(class.dtype) => {}
                        Ok(error) => {
                            failures.push(format!("{class} {forward} {}: error {error:.1e}", case.case.name))
                        }
                        Err(error) => failures.push(format!("{class} {forward} {}: {error}", case.case.name)),
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {checked} fail:\n{}", failures.len(), failures.join("\n"));
    assert!(groups > 2, "some case uses at most {groups} tiles");
    println!("{checked} pairs of case and way are right, with up to {groups} tiles in one plan");
}

const PAGES: usize = 256;
const MOST_PAGES: usize = 12;
const MOST_REQUESTS: usize = 16;

/// A request: its pages, and how many tokens of them it has.
#[derive(Clone, Debug)]
struct Request {
    pages: Vec<i32>,
    tokens: u32,
}

/// A batch that changes from step to step over pages that are full of noise, so that a token is there as soon as a length says so.
struct World<E> {
    geometry: Geometry,
    keys: Vec<E>,
    values: Vec<E>,
    query: Vec<E>,
    requests: Vec<Request>,
    free: Vec<i32>,
    rng: ChaCha8Rng,
}

impl<E: Element + CudaElement> World<E> {
    fn new(head_dim: u32, seed: u64) -> Self {
        let dtype = <E as Element>::DTYPE;
        let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim, page_size: 16, dtype };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut noise = |count: usize, amplitude: f32| -> Vec<E> {
            (0..count).map(|_| E::from_f32(rng.random_range(-amplitude..amplitude))).collect()
        };
        let cache = PAGES * KvStrides::nhd(&geometry).page;
        let vector = (geometry.q_heads * head_dim) as usize;
        Self {
            keys: noise(cache, 2.0),
            values: noise(cache, 1.0),
            query: noise(MOST_REQUESTS * vector, 2.0),
            requests: Vec::new(),
            free: (0..PAGES as i32).rev().collect(),
            geometry,
            rng,
        }
    }

    fn options(&self) -> KernelOptions {
        KernelOptions::for_pages(self.geometry.page_size)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.geometry.head_dim as f32).sqrt()
    }

    fn page(&mut self) -> i32 {
        let index = self.rng.random_range(0..self.free.len());
        self.free.swap_remove(index)
    }

    fn arrive(&mut self, tokens: u32) {
        let pages = (0..tokens.div_ceil(self.geometry.page_size)).map(|_| self.page()).collect();
        self.requests.push(Request { pages, tokens });
    }

    /// A request that shares the full pages of another, and has a last page of its own.
    fn fork(&mut self) {
        let Some(of) = self.requests.choose(&mut self.rng).cloned() else { return self.arrive(40) };
        let full = (of.tokens / self.geometry.page_size) as usize;
        let mut pages = of.pages[..full].to_vec();
        let tokens = full as u32 * self.geometry.page_size + 1;
        if pages.len() < MOST_PAGES {
            pages.push(self.page());
            self.requests.push(Request { pages, tokens });
        }
    }

    fn leave(&mut self) {
        if self.requests.len() < 2 {
            return;
        }
        let index = self.rng.random_range(0..self.requests.len());
        let gone = self.requests.swap_remove(index);
        let in_use = |page: &i32| self.requests.iter().any(|request| request.pages.contains(page));
        let freed: Vec<i32> = gone.pages.into_iter().filter(|page| !in_use(page)).collect();
        self.free.extend(freed);
    }

    /// A token for each request that has room in its last page; whether there was one.
    fn grow_in_pages(&mut self) -> bool {
        let page_size = self.geometry.page_size;
        let mut grown = false;
        for request in &mut self.requests {
            if request.tokens % page_size != 0 {
                request.tokens += 1;
                grown = true;
            }
        }
        grown
    }

    /// Each request has another number of tokens in its last page.
    fn change_lengths(&mut self) {
        let page_size = self.geometry.page_size;
        for request in self.requests.iter_mut().filter(|request| request.tokens > 0) {
            let before_page = (request.tokens - 1) / page_size * page_size;
            request.tokens = before_page + self.rng.random_range(1..=page_size);
        }
    }

    /// A page more for a request.
    fn grow_by_a_page(&mut self) {
        let index = self.rng.random_range(0..self.requests.len());
        if self.requests[index].pages.len() < MOST_PAGES {
            let page = self.page();
            let request = &mut self.requests[index];
            request.tokens = request.pages.len() as u32 * self.geometry.page_size + 1;
            request.pages.push(page);
        }
    }

    /// Some step of serving; whether the page table changed.
    fn step(&mut self) -> bool {
        let room = self.requests.len() + 1 < MOST_REQUESTS;
        match self.rng.random_range(0..10) {
            0..4 if self.grow_in_pages() => return false,
            4 | 5 if room => {
                let tokens = self.rng.random_range(0..150);
                self.arrive(tokens);
            }
            6 | 7 if room => self.fork(),
            8 => self.leave(),
            _ => self.grow_by_a_page(),
        }
        true
    }

    fn lens(&self) -> Vec<u32> {
        self.requests.iter().map(|request| request.tokens).collect()
    }

    fn entries(&self) -> Vec<i32> {
        let row = |request: &Request| {
            let garbage = std::iter::repeat_n(i32::MAX, MOST_PAGES - request.pages.len());
            request.pages.iter().copied().chain(garbage).collect::<Vec<_>>()
        };
        self.requests.iter().flat_map(row).collect()
    }

    fn plan(&self, split: Split) -> Plan {
        self.plan_of(&TILES, split)
    }

    fn plan_of(&self, tiles: &[Tile; 4], split: Split) -> Plan {
        let (entries, lens) = (self.entries(), self.lens());
        let table = PageTable::new(&entries, MOST_PAGES, &lens, self.geometry.page_size).unwrap();
        let options = PlanOptions { split, ..PlanOptions::default() }.with_max_concurrent_ctas(64);
        Plan::build(&self.geometry, &table, &options, |shape: &PackShape| select_of(tiles, shape)).unwrap()
    }

    /// Compares the rows of the batch with the f64 reference.
    fn check(&self, output: &[E], lse: &[f32], what: &str) {
        let (entries, lens) = (self.entries(), self.lens());
        let table = PageTable::new(&entries, MOST_PAGES, &lens, self.geometry.page_size).unwrap();
        let cache =
            cpu::KvCache { keys: &self.keys, values: &self.values, strides: KvStrides::nhd(&self.geometry) };
        let rows = lens.len() * self.geometry.q_heads as usize;
        let elements = rows * self.geometry.head_dim as usize;
        let attention = Attention::plain(self.scale());
        let (expected, expected_lse) =
            reference::decode(&self.geometry, &table, &self.query[..elements], &cache, &attention);
        let (mut difference, mut norm) = (0.0, 0.0);
        for (found, expected) in output[..elements].iter().zip(&expected) {
            difference += (f64::from(found.to_f32()) - expected).powi(2);
            norm += expected.powi(2);
        }
        let (error, tolerance) =
            ((difference / norm.max(1e-30)).sqrt(), conformance::tolerance(self.geometry.dtype));
        assert!(error < tolerance, "{what}: the output's error is {error:.1e}");
        for (row, (&found, &expected)) in lse[..rows].iter().zip(&expected_lse).enumerate() {
            let near = (f64::from(found) - expected).abs() < tolerance * expected.abs().max(1.0);
            assert!(near || f64::from(found) == expected, "{what}: LSE {found} for {expected} in row {row}");
        }
    }

    fn memory(&self, stream: &Arc<CudaStream>, bucket: &Bucket) -> DecodeMemory<E> {
        let nan = vec![E::from_f32(f32::NAN); self.query.len()];
        let rows = MOST_REQUESTS * self.geometry.q_heads as usize;
        DecodeMemory {
            query: stream.clone_htod(&self.query).unwrap(),
            keys: stream.clone_htod(&self.keys).unwrap(),
            values: stream.clone_htod(&self.values).unwrap(),
            kv_strides: KvStrides::nhd(&self.geometry),
            output: stream.clone_htod(&nan).unwrap(),
            workspace: stream.alloc_zeros(bucket.workspace_bytes()).unwrap(),
            lse: Some(stream.alloc_zeros(rows).unwrap()),
            scale: Some(self.scale()),
            mask: Mask::NONE,
            sinks: None,
        }
    }
}

fn serve_by_one_graph<E: Element + CudaElement>(backend: &mut CudaBackend, forward: LaunchMode, seed: u64) {
    let device = backend.device().clone();
    let stream = device.context().new_stream().unwrap();
    let mut world = World::<E>::new(64, seed);
    prepare(backend, &Class::of(&world.geometry), world.options());
    let pages = (MOST_REQUESTS * MOST_PAGES) as u32;
    let bucket = Bucket::for_batch(&world.geometry, forward, &TILES, MOST_REQUESTS as u32, pages).unwrap();
    let memory = world.memory(&stream, &bucket);
    let plan = DevicePlan::with_bucket(&device, bucket).unwrap();
    let mut step = GraphStep::with_memory(backend, &stream, plan, memory).unwrap();
    let nan = vec![E::from_f32(f32::NAN); world.query.len()];
    world.arrive(70);
    world.fork();
    let (mut changed, mut kept) = (true, 0);
    for number in 0..40 {
        if changed {
            let split = if number % 2 == 0 { Split::Mean } else { Split::Fill };
            step.upload(&world.plan(split)).unwrap();
        } else {
            kept += 1;
            step.set_lengths(&world.lens()).unwrap();
        }
        let mut bits = Vec::new();
        for _ in 0..2 {
            stream.memcpy_htod(&nan, &mut step.output_mut()).unwrap();
            step.launch().unwrap();
            let output = stream.clone_dtoh(&step.output()).unwrap();
            let lse = stream.clone_dtoh(&step.lse().unwrap()).unwrap();
            world.check(&output, &lse, &format!("{forward}, step {number}"));
            let rows = world.requests.len() * world.query.len() / MOST_REQUESTS;
            assert!(output[rows..].iter().all(|x| x.to_f32().is_nan()), "rows of no request are left alone");
            bits.push(output[..rows].iter().map(|x| x.to_f32().to_bits()).collect::<Vec<_>>());
        }
        assert_eq!(bits[0], bits[1], "{forward}, step {number}: the same launch gives the same bits");
        changed = world.step();
    }
    assert!((5..35).contains(&kept), "{kept} steps changed lengths only");
    // What does not fit is refused, and what was there before goes on.
    if !changed {
        step.set_lengths(&world.lens()).unwrap();
    } else {
        step.upload(&world.plan(Split::Mean)).unwrap();
    }
    let fitting = world.requests.clone();
    for _ in 0..=MOST_REQUESTS {
        world.requests.push(fitting[0].clone());
    }
    let error = step.upload(&world.plan(Split::None)).unwrap_err();
    let is_named = matches!(&error, CudaError::Fit(FitError::Capacity { what: "requests", .. }));
    assert!(is_named, "{error}");
    world.requests = fitting;
    step.launch().unwrap();
    let output = stream.clone_dtoh(&step.output()).unwrap();
    let lse = stream.clone_dtoh(&step.lse().unwrap()).unwrap();
    world.check(&output, &lse, &format!("{forward}, after a refusal"));
}

#[test]
fn one_graph_serves_requests_that_come_grow_fork_and_leave() {
    let device = device();
    let mut backend = backend(&device);
    let serial = LaunchMode { launch: Launch::Serial, merge: MergeBy::Launch };
    let streams = LaunchMode { launch: Launch::Streams, merge: MergeBy::Launch };
    let single = LaunchMode { launch: Launch::Single, merge: MergeBy::LastCta };
    serve_by_one_graph::<f16>(&mut backend, serial, 21);
    serve_by_one_graph::<f16>(&mut backend, single, 22);
    serve_by_one_graph::<bf16>(&mut backend, single, 23);
    serve_by_one_graph::<f16>(&mut backend, streams, 24);
}

/// The bits of a batch's rows, launched plainly with a plan's way, checked against the reference.
fn bits_of<E: Element + CudaElement>(
    backend: &CudaBackend,
    stream: &Arc<CudaStream>,
    world: &World<E>,
    uploaded: &DevicePlan,
    memory: &mut DecodeMemory<E>,
) -> Vec<u32> {
    let nan = vec![E::from_f32(f32::NAN); world.query.len()];
    stream.memcpy_htod(&nan, &mut memory.output).unwrap();
    let cache = KvCache { keys: &memory.keys, values: &memory.values, strides: memory.kv_strides };
    let args = DecodeArgs {
        lse: memory.lse.as_mut(),
        scale: memory.scale,
        ..DecodeArgs::new(&memory.query, cache, &mut memory.output, &mut memory.workspace)
    };
    backend.decode(stream, uploaded, args).unwrap();
    let output = stream.clone_dtoh(&memory.output).unwrap();
    let lse = stream.clone_dtoh(memory.lse.as_ref().unwrap()).unwrap();
    rows_of(world, &output, &lse, &uploaded.launch_mode().to_string())
}

fn rows_of<E: Element + CudaElement>(world: &World<E>, output: &[E], lse: &[f32], what: &str) -> Vec<u32> {
    world.check(output, lse, what);
    let rows = world.requests.len() * world.geometry.q_heads as usize;
    let elements = rows * world.geometry.head_dim as usize;
    let output = output[..elements].iter().map(|x| x.to_f32().to_bits());
    output.chain(lse[..rows].iter().map(|x| x.to_bits())).collect()
}

/// One launch of several tiles, plain, in a bucket and captured, beside a launch for each of them. Buckets merge with four warps a row, plain
/// plans only where a row has many partials: each is compared with its like.
fn assert_equals_serial<E: Element + CudaElement>(head_dim: u32, tiles: &[Tile; 4], seed: u64) {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let mut world = World::<E>::new(head_dim, seed);
    prepare_tiles(&mut backend, tiles, &Class::of(&world.geometry), world.options());
    let forward = |launch| LaunchMode { launch, merge: MergeBy::Launch };
    let bucket = |forward| {
        let pages = (MOST_REQUESTS * MOST_PAGES) as u32;
        Bucket::for_batch(&world.geometry, forward, tiles, MOST_REQUESTS as u32, pages).unwrap()
    };
    let [serial, single] = [Launch::Serial, Launch::Single].map(forward);
    let mut memory = world.memory(&stream, &bucket(serial));
    let captured = world.memory(&stream, &bucket(single));
    let mut plain = [DevicePlan::new(&device), DevicePlan::with_mix(&device, &Mix::of(tiles), single.merge)];
    let mut bucketed =
        [serial, single].map(|forward| DevicePlan::with_bucket(&device, bucket(forward)).unwrap());
    let in_bucket = DevicePlan::with_bucket(&device, bucket(single)).unwrap();
    let mut step = GraphStep::with_memory(&backend, &stream, in_bucket, captured).unwrap();
    world.arrive(170);
    (0..9).for_each(|_| world.fork());
    world.arrive(33);
    let mut groups = 0;
    for number in 0..20 {
        let plan = world.plan_of(tiles, [Split::Mean, Split::Fill, Split::None][number % 3]);
        groups = groups.max(plan.tile_groups().len());
        let mut run = |plans: &mut [DevicePlan; 2]| {
            plans.each_mut().map(|uploaded| {
                uploaded.upload(&plan, &stream).unwrap();
                bits_of(&backend, &stream, &world, uploaded, &mut memory)
            })
        };
        let [one_by_one, together] = run(&mut plain);
        assert!(one_by_one == together, "step {number}, plain");
        let [one_by_one, together] = run(&mut bucketed);
        assert!(one_by_one == together, "step {number}, in a bucket");
        step.upload(&plan).unwrap();
        step.launch().unwrap();
        let output = stream.clone_dtoh(&step.output()).unwrap();
        let lse = stream.clone_dtoh(&step.lse().unwrap()).unwrap();
        assert!(rows_of(&world, &output, &lse, "captured") == together, "step {number}, captured");
        world.step();
    }
    assert!(groups > 2, "some step uses {groups} tiles");
}

#[test]
fn several_tiles_in_one_launch_equal_a_launch_each_bit_for_bit() {
    for (seed, tiles) in [(81, &TILES), (82, &WIDE_TILES)] {
        assert_equals_serial::<f16>(128, tiles, seed);
        assert_equals_serial::<bf16>(64, tiles, seed);
        // TMA cannot load it.
        if tiles == &TILES {
            assert_equals_serial::<f16>(256, tiles, seed);
        } else {
            assert_equals_serial::<bf16>(96, tiles, seed);
        }
    }
}

/// Puts a sleep on the stream; counted when it is over.
#[allow(unsafe_code)]
fn sleep_on(stream: &CudaStream, over: &'static AtomicUsize) {
    unsafe extern "C" fn sleep(over: *mut c_void) {
        std::thread::sleep(Duration::from_millis(5));
        // SAFETY: it is the counter below, which lives for ever.
        unsafe { &*over.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
    }
    let counter = std::ptr::from_ref(over).cast_mut().cast::<c_void>();
    // SAFETY: the stream is alive, and the function calls nothing of CUDA.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), sleep, counter) }.unwrap();
}

/// Queues steps of new lengths behind a device that sleeps now and then, waiting for none, and then compares the outputs of all of them.
/// `queue` queues a step, which has a new plan or not, and the copies of its output and LSE.
fn run_ahead<E: Element + CudaElement>(
    world: &mut World<E>,
    stream: &Arc<CudaStream>,
    mut queue: impl FnMut(usize, &World<E>, Option<&Plan>, &mut CudaViewMut<'_, E>, &mut CudaViewMut<'_, f32>),
) {
    const STEPS: usize = 120;
    let elements = world.query.len();
    let rows = MOST_REQUESTS * world.geometry.q_heads as usize;
    let mut outputs = stream.clone_htod(&vec![E::from_f32(f32::NAN); STEPS * elements]).unwrap();
    let mut lses = stream.clone_htod(&vec![f32::NAN; STEPS * rows]).unwrap();
    let over: &AtomicUsize = Box::leak(Box::default());
    let (mut slept_before, mut steps, mut most_ahead) = (Vec::new(), Vec::new(), 0);
    for number in 0..STEPS {
        let plan = (number % 40 == 0).then(|| {
            while !world.step() {}
            world.plan(Split::Mean)
        });
        if number % 7 == 1 {
            sleep_on(stream, over);
            slept_before.push(number);
        }
        world.change_lengths();
        let mut output = outputs.slice_mut(number * elements..(number + 1) * elements);
        let mut lse = lses.slice_mut(number * rows..(number + 1) * rows);
        queue(number, world, plan.as_ref(), &mut output, &mut lse);
        steps.push(world.requests.clone());
        if let Some(sleeps_before) = slept_before.get(over.load(Ordering::SeqCst)) {
            most_ahead = most_ahead.max(number + 1 - sleeps_before);
        }
    }
    let outputs = stream.clone_dtoh(&outputs).unwrap();
    let lses = stream.clone_dtoh(&lses).unwrap();
    for (number, requests) in steps.into_iter().enumerate() {
        world.requests = requests;
        let (output, lse) = (&outputs[number * elements..][..elements], &lses[number * rows..][..rows]);
        world.check(output, lse, &format!("step {number}"));
    }
    assert!(most_ahead >= 4, "the host was at most {most_ahead} steps ahead: nothing could be overwritten");
}

fn run_captured_ahead<E: Element + CudaElement>(backend: &mut CudaBackend, forward: LaunchMode, seed: u64) {
    let device = backend.device().clone();
    let stream = device.context().new_stream().unwrap();
    let mut world = World::<E>::new(64, seed);
    prepare(backend, &Class::of(&world.geometry), world.options());
    let pages = (MOST_REQUESTS * MOST_PAGES) as u32;
    let bucket = Bucket::for_batch(&world.geometry, forward, &TILES, MOST_REQUESTS as u32, pages).unwrap();
    let memory = world.memory(&stream, &bucket);
    let plan = DevicePlan::with_bucket(&device, bucket).unwrap();
    let mut step = GraphStep::with_memory(backend, &stream, plan, memory).unwrap();
    world.arrive(150);
    (0..8).for_each(|_| world.fork());
    world.arrive(33);
    run_ahead(&mut world, &stream, |number, world, plan, output, lse| {
        if number % 3 == 0 {
            // Lengths that are never launched.
            step.set_lengths(&vec![1; step.plan().batch()]).unwrap();
        }
        if let Some(plan) = plan {
            step.upload(plan).unwrap();
            step.launch().unwrap(); // with the plan's lengths, not those before
        }
        step.set_lengths(&world.lens()).unwrap();
        // What was uploaded stays.
        (0..=number % 2).for_each(|_| step.launch().unwrap());
        stream.memcpy_dtod(&step.output(), output).unwrap();
        stream.memcpy_dtod(&step.lse().unwrap(), lse).unwrap();
    });
}

#[test]
fn captured_steps_ahead_of_the_device_have_their_own_lengths() {
    let device = device();
    let mut backend = backend(&device);
    for (seed, forward) in (51..).zip(LaunchMode::ALL) {
        run_captured_ahead::<f16>(&mut backend, forward, seed);
    }
    run_captured_ahead::<bf16>(&mut backend, LaunchMode::default(), 50);
}

#[test]
fn a_newer_plan_overrides_lengths_given_before() {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let mut world = World::<f16>::new(64, 61);
    prepare(&mut backend, &Class::of(&world.geometry), world.options());
    world.arrive(70);
    world.fork();
    let plan = world.plan(Split::Mean);
    let bucket = Bucket::of(&plan, LaunchMode::default()).unwrap();
    let memory = world.memory(&stream, &bucket);
    let in_bucket = DevicePlan::with_bucket(&device, bucket).unwrap();
    let mut step = GraphStep::with_memory(&backend, &stream, in_bucket, memory).unwrap();
    step.upload(&plan).unwrap();
    step.set_lengths(&[65, 65]).unwrap();
    step.upload(&plan).unwrap();
    step.launch().unwrap();
    let output = stream.clone_dtoh(&step.output()).unwrap();
    let lse = stream.clone_dtoh(&step.lse().unwrap()).unwrap();
    world.check(&output, &lse, "behind an upload");
}

#[test]
fn plain_launches_ahead_of_the_device_have_their_own_lengths() {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let mut world = World::<f16>::new(64, 71);
    prepare(&mut backend, &Class::of(&world.geometry), world.options());
    world.arrive(150);
    (0..8).for_each(|_| world.fork());
    let pages = (MOST_REQUESTS * MOST_PAGES) as u32;
    let forward = LaunchMode::default();
    let bucket = Bucket::for_batch(&world.geometry, forward, &TILES, MOST_REQUESTS as u32, pages).unwrap();
    let mut memory = world.memory(&stream, &bucket);
    let mut uploaded = DevicePlan::with_launch_mode(&device, forward);
    run_ahead(&mut world, &stream, |_, world, plan, output, lse| {
        if let Some(plan) = plan {
            uploaded.upload(plan, &stream).unwrap();
        }
        uploaded.set_lengths(&world.lens(), &stream).unwrap();
        let cache = KvCache { keys: &memory.keys, values: &memory.values, strides: memory.kv_strides };
        let args = DecodeArgs {
            lse: memory.lse.as_mut(),
            scale: memory.scale,
            ..DecodeArgs::new(&memory.query, cache, &mut memory.output, &mut memory.workspace)
        };
        backend.decode(&stream, &uploaded, args).unwrap();
        stream.memcpy_dtod(&memory.output, output).unwrap();
        stream.memcpy_dtod(memory.lse.as_ref().unwrap(), lse).unwrap();
    });
}

#[test]
fn two_plans_fork_to_their_streams_at_once() {
    let device = device();
    let mut backend = backend(&device);
    for merge in [MergeBy::Launch, MergeBy::LastCta] {
        let forward = LaunchMode { launch: Launch::Streams, merge };
        let worlds = [31, 32].map(|seed| {
            let mut world = World::<f16>::new(128, seed);
            world.arrive(100);
            (0..9).for_each(|_| world.fork());
            world.arrive(20);
            world
        });
        prepare(&mut backend, &Class::of(&worlds[0].geometry), worlds[0].options());
        let mut sides: Vec<_> = worlds
            .iter()
            .map(|world| {
                let stream = device.context().new_stream().unwrap();
                let plan = world.plan(Split::Fill);
                assert!(plan.tile_groups().len() > 1, "there is something to fork");
                let memory = world.memory(&stream, &Bucket::of(&plan, forward).unwrap());
                let mut uploaded = DevicePlan::with_launch_mode(&device, forward);
                uploaded.upload(&plan, &stream).unwrap();
                (stream, uploaded, memory)
            })
            .collect();
        for _ in 0..20 {
            for (stream, uploaded, memory) in &mut sides {
                let cache =
                    KvCache { keys: &memory.keys, values: &memory.values, strides: memory.kv_strides };
                let args = DecodeArgs {
                    lse: memory.lse.as_mut(),
                    ..DecodeArgs::new(&memory.query, cache, &mut memory.output, &mut memory.workspace)
                };
                backend.decode(stream, uploaded, args).unwrap();
            }
        }
        for (world, (stream, _, memory)) in worlds.iter().zip(&sides) {
            let output = stream.clone_dtoh(&memory.output).unwrap();
            let lse = stream.clone_dtoh(memory.lse.as_ref().unwrap()).unwrap();
            world.check(&output, &lse, &forward.to_string());
        }
    }
}
