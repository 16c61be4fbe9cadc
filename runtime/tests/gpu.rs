//! The suite for machines with a GPU: `cargo test -p tilewright-runtime --test gpu`. It runs when it is named only, so it never passes by
//! doing nothing.

mod append;
mod beside;
mod cubins;
mod every_kernel;
mod forward;
mod graph_plan;
mod invariance;
mod lent;
mod parts;
mod racecheck;
mod timeline;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use every_kernel::tiles;
use half::{bf16, f16};
use lent::Lent;
use parts::{Parts, Shape};
use std::sync::Arc;
use tilewright_conformance::{self as conformance, ConformanceCase, CudaCase, options_of};
use tilewright_cpu::Element;
use tilewright_cuda::profiling::Timer;
use tilewright_cuda::profiling::probe::{self, FlushBy};
use tilewright_cuda::{
    CudaBackend, CudaDevice, CudaElement, CudaError, DecodeArgs, DeviceMemory, DevicePlan, Graph,
    MergeStatesArgs, RawArgs, RawMergeStates, RawState, RowStrides, State,
};
use tilewright_heuristics::{Dtype, Geometry, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{KernelOptions, has_tma_producers};
use tilewright_plan::{E4m3, E5m2, KvStrides, PageTable, Plan, StatesError};
use tilewright_runtime::{
    Attention, AttentionError, AttentionOptions, AttentionPlan, Cuda, Heads, KvCache, PerRow,
};

fn device() -> Lent {
    Lent::beside_others()
}

fn backend(device: &CudaDevice) -> CudaBackend {
    CudaBackend::or_fetch(device).expect("this suite needs NVRTC, or pip to fetch it")
}

fn upload(case: ConformanceCase, device: &CudaDevice) -> CudaCase {
    match case.geometry.dtype {
        Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => CudaCase::new::<bf16>(case, device).unwrap(),
        _ => CudaCase::new::<f16>(case, device).unwrap(),
    }
}

#[test]
fn a_cache_beyond_2_31_elements_is_read_where_it_is() {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let class = Class { head_dim: 128, dtype: Dtype::F16 };
    let tile = Tile::of("m16n64w4s2");
    let case = conformance::tile_cases(&class, &tile, 4).into_iter().find(ConformanceCase::is_plain).unwrap();
    backend.prepare(&[tile], &class, options_of(&case), || ()).unwrap().remove(0).unwrap();
    let mut far = CudaCase::far::<f16>(case, &device).unwrap();
    let (output, lse) = far.run(&backend, &stream, &tile).unwrap();
    far.case.check(&output, &lse).unwrap();
}

/// A batch of two requests that share a page, through the API of engines.
struct Small {
    attention: Attention<Cuda>,
    stream: Arc<CudaStream>,
    keys: CudaSlice<f16>,
    values: CudaSlice<f16>,
    query: CudaSlice<f16>,
    output: CudaSlice<f16>,
}

const SMALL_HEADS: Heads = Heads { query: 8, kv: 2, dim: 128 };
const PAGE_SIZE: u32 = 16;

impl Small {
    fn new(device: &CudaDevice, options: AttentionOptions) -> Self {
        let context = Arc::clone(device.context());
        let stream = context.new_stream().unwrap();
        let filled =
            |count: usize, value: f32| stream.clone_htod(&vec![f16::from_f32(value); count]).unwrap();
        let cache = 3 * 16 * 2 * 128;
        let options = AttentionOptions { fetch_nvrtc: true, ..options };
        Self {
            attention: Attention::cuda(context, SMALL_HEADS, options).unwrap(),
            keys: filled(cache, 0.1),
            values: filled(cache, 0.25),
            query: filled(2 * 8 * 128, 0.3),
            output: filled(2 * 8 * 128, f32::NAN),
            stream,
        }
    }

    fn plan(&self) -> AttentionPlan<Cuda> {
        self.attention.plan(&PageTable::new(&[0, 1, 0, 2], 2, &[32, 20], PAGE_SIZE).unwrap()).unwrap()
    }

    fn run(&mut self, plan: &AttentionPlan<Cuda>) -> Result<(), AttentionError> {
        let cache = KvCache::nhd(&self.keys, &self.values);
        self.attention.run(plan, &self.stream, &self.query, &cache, &mut self.output)
    }

    fn output(&self) -> Vec<f16> {
        self.stream.clone_dtoh(&self.output).unwrap()
    }
}

#[test]
fn an_engine_plans_once_and_runs_each_layer() {
    let device = device();
    let mut small = Small::new(&device, AttentionOptions::default());
    let mut plan = small.plan();
    for _ in 0..2 {
        small.run(&plan).unwrap();
        let output = small.output();
        assert!(output.iter().all(|x| (x.to_f32() - 0.25).abs() < 1e-3), "{:?}", &output[..4]);
    }
    // Another layout of the cache, sinks and the LSE; then a longer request, and a plan in the memory of this one.
    let sinks = small.stream.clone_htod(&[f32::NEG_INFINITY; 8]).unwrap();
    let mut lse = small.stream.alloc_zeros::<f32>(2 * 8).unwrap();
    plan.set_lengths(&[32, 21]).unwrap();
    let Small { attention, stream, keys, values, query, output } = &mut small;
    let per_row = PerRow { lse: Some(&mut lse), sinks: Some(&sinks) };
    attention.run_with(&plan, stream, query, &KvCache::hnd(keys, values), output, per_row).unwrap();
    // All keys are equal: the LSE is the logit plus the logarithm of the number of tokens.
    let logit = 128.0 * 0.1 * 0.3 / 128f32.sqrt();
    let found = stream.clone_dtoh(&lse).unwrap();
    for (row, lse) in found.iter().enumerate() {
        let tokens = [32f32, 21.0][row / 8];
        assert!((lse - logit - tokens.ln()).abs() < 2e-3, "row {row}: {lse}");
    }
    assert!(plan.set_lengths(&[33, 21]).is_err(), "33 tokens need another page");
    drop(plan);
    let plan = small.plan();
    small.run(&plan).unwrap();
    assert!(small.output().iter().all(|x| (x.to_f32() - 0.25).abs() < 1e-3));

    small.keys = small.stream.alloc_zeros(10).unwrap();
    let error = small.run(&plan).unwrap_err();
    assert!(matches!(error, AttentionError::Cuda(CudaError::Length { name: "keys", .. })), "{error}");
}

/// Threads begin without a current device, as all of an engine's do but one: whatever takes it for granted fails there, or uses another device.
#[test]
fn no_call_takes_a_current_device_for_granted() {
    let device = device();
    let mut small = Small::new(&device, AttentionOptions::default());
    let (small, plan) = std::thread::spawn(move || {
        let plan = small.plan();
        small.run(&plan).unwrap();
        (small, plan)
    })
    .join()
    .unwrap();
    let mut small = small;
    std::thread::spawn(move || {
        small.run(&plan).unwrap();
        drop(plan);
        let output = small.output();
        assert!(output.iter().all(|x| (x.to_f32() - 0.25).abs() < 1e-3), "{:?}", &output[..4]);
    })
    .join()
    .unwrap();
}

/// Tensors of other libraries are addresses, on a stream of theirs.
#[test]
#[allow(unsafe_code)]
fn addresses_in_any_strides_are_run_and_captured() {
    let device = device();
    let small = Small::new(&device, AttentionOptions::default());
    let (plan, stream) = (small.plan(), &small.stream);
    // Nine heads a query, of which eight are written.
    let nothing = vec![f16::NAN; 2 * 9 * 128];
    let mut wide = stream.clone_htod(&nothing).unwrap();
    let address = |slice: &CudaSlice<f16>| slice.device_ptr(stream).0;
    let args = RawArgs {
        query: address(&small.query),
        keys: address(&small.keys),
        values: address(&small.values),
        output: address(&wide),
        output_strides: RowStrides { request: 9 * 128, head: 128 },
        ..RawArgs::dense(&small.attention.geometry(PAGE_SIZE))
    };
    let check = |wide: &CudaSlice<f16>, what: &str| {
        for (i, x) in stream.clone_dtoh(wide).unwrap().iter().enumerate() {
            let right = if i / 128 % 9 < 8 { (x.to_f32() - 0.25).abs() < 1e-3 } else { x.to_f32().is_nan() };
            assert!(right, "{what}, element {i}: {x}");
        }
    };
    // SAFETY: the stream is the context's, and lives as long as this.
    let borrowed = unsafe { device.context().wrap_borrowed_stream(stream.cu_stream()) };
    // SAFETY: the slices are as large as the plan, its pages and the strides say, and live until the stream is waited for.
    unsafe { small.attention.run_raw(&plan, &borrowed, &args) }.unwrap();
    check(&wide, "run");

    // What was uploaded on one stream is captured on another; a plan that was not is refused, and the capture goes on.
    let (other, fresh) = (device.context().new_stream().unwrap(), small.plan());
    // SAFETY: as above.
    let run = |plan| unsafe { small.attention.run_raw(plan, &other, &args) };
    // SAFETY: what is captured names the slices and the plan, which outlive the graph.
    let graph = unsafe {
        Graph::capture(&other, || {
            let refused = run(&fresh).unwrap_err();
            assert!(matches!(refused, AttentionError::Captured { .. }), "{refused}");
            run(&plan).unwrap();
            Ok(())
        })
    }
    .unwrap();
    stream.memcpy_htod(&nothing, &mut wide).unwrap();
    graph.launch(stream).unwrap();
    check(&wide, "graph");
}

#[test]
fn a_live_plan_follows_its_batch() {
    let device = device();
    let mut small = Small::new(&device, AttentionOptions::default());
    let mut live = small.attention.live_plan(PAGE_SIZE).unwrap();
    live.add(0, &[0, 1], 32).unwrap();
    live.add(1, &[0, 2], 20).unwrap();
    for step in 0..6 {
        live.update().unwrap();
        let Small { attention, stream, keys, values, query, output } = &mut small;
        let mut lse = stream.alloc_zeros::<f32>(2 * 8).unwrap();
        let per_row = PerRow { lse: Some(&mut lse), sinks: None };
        attention.run_with(&live, stream, query, &KvCache::nhd(keys, values), output, per_row).unwrap();
        let logit = 128.0 * 0.1 * 0.3 / 128f32.sqrt();
        let lse = stream.clone_dtoh(&lse).unwrap();
        let tokens = (20 + step) as f32;
        assert!((lse[8] - logit - tokens.ln()).abs() < 2e-3, "step {step}: {}", lse[8]);
        live.grow(1, 21 + step).unwrap();
    }
    live.remove(0).unwrap();
    live.update().unwrap();
    let Small { attention, stream, keys, values, query, output } = &mut small;
    attention.run(&live, stream, query, &KvCache::nhd(keys, values), output).unwrap();
    let output = stream.clone_dtoh(output).unwrap();
    assert!(output[..8 * 128].iter().all(|x| x.to_f32() == 0.0), "a row without a request is zeros");
    assert!(output[8 * 128..].iter().all(|x| (x.to_f32() - 0.25).abs() < 1e-3));
}

#[test]
fn an_engine_decodes_a_cache_of_bytes_with_scales() {
    decode_bytes(Dtype::Fp8F16, |number| E4m3::from_f32(number).to_bits());
    decode_bytes(Dtype::E5m2F16, |number| E5m2::from_f32(number).to_bits());
}

fn decode_bytes(dtype: Dtype, byte: fn(f32) -> u8) {
    let device = device();
    let options = AttentionOptions { dtype, ..AttentionOptions::default() };
    let mut small = Small::new(&device, options);
    let plan = small.plan();
    let elements = 3 * 16 * 2 * 128;
    let Small { attention, stream, query, output, .. } = &mut small;
    let keys = stream.clone_htod(&vec![byte(1.25); elements]).unwrap();
    let values = stream.clone_htod(&vec![byte(3.0); elements]).unwrap();
    let scale = |scales: &[f32]| stream.clone_htod(scales).unwrap();
    let (one, per_head, too_many) = (scale(&[0.5]), scale(&[0.5, 0.25]), scale(&[1.0; 3]));

    let cache = KvCache::nhd(&keys, &values).with_scales(&one, &one);
    attention.run(&plan, stream, query, &cache, output).unwrap();
    let found = stream.clone_dtoh(output).unwrap();
    assert!(found.iter().all(|x| (x.to_f32() - 1.5).abs() < 1e-3), "{:?}", &found[..4]);

    let cache = KvCache::nhd(&values, &values).with_scales(&per_head, &per_head);
    attention.run(&plan, stream, query, &cache, output).unwrap();
    let found = stream.clone_dtoh(output).unwrap();
    for (i, x) in found.iter().enumerate() {
        let expected = [1.5, 0.75][i / (4 * 128) % 2];
        assert!((x.to_f32() - expected).abs() < 1e-3, "element {i}: {x} for {expected}");
    }

    // One for all heads beside one a head: the single one is too short.
    let cache = KvCache::nhd(&keys, &values).with_scales(&one, &too_many);
    let error = attention.run(&plan, stream, query, &cache, output).unwrap_err();
    let AttentionError::Cuda(error) = error else { panic!("{error}") };
    assert!(matches!(error, CudaError::Length { name: "key_scales", found: 1, needed: 2 }), "{error}");
    let error = small.run(&plan).unwrap_err();
    assert!(matches!(error, AttentionError::Cuda(CudaError::Dtype { given: Dtype::F16, .. })), "{error}");
}

#[test]
fn a_plan_serves_requests_that_grow_inside_their_pages() {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let class = Class { head_dim: 64, dtype: Dtype::F16 };
    let tile = Tile::of("m16n32w2s2");
    let names = ["lengths around every edge", "queries before a page that they do not see"];
    for name in names {
        let case = conformance::cases(&class, 5).into_iter().find(|case| case.name == name).unwrap();
        backend.prepare(&[tile], &class, options_of(&case), || ()).unwrap().remove(0).unwrap();
        let page_size = case.geometry.page_size;
        // Planned when each request had one token in its last page.
        let planned: Vec<u32> = case.seq_lens.iter().map(|len| len - (len.max(&1) - 1) % page_size).collect();
        let mut case = upload(case, &device);
        let (output, lse) = case.run_grown(&backend, &stream, &tile, &planned).unwrap();
        case.case.check(&output, &lse).unwrap();
    }
}

#[test]
#[allow(unsafe_code)]
fn a_captured_graph_replays_with_the_same_bits() {
    let device = device();
    let mut small = Small::new(&device, AttentionOptions::default());
    let plan = small.plan();
    small.run(&plan).unwrap();
    let first = small.output();
    let stream = Arc::clone(&small.stream);
    // SAFETY: the batch and the plan outlive the graph.
    let graph = unsafe { Graph::capture(&stream, || small.run(&plan).map_err(into_cuda)).unwrap() };
    let timer = Timer::new(device.context()).unwrap();
    for _ in 0..3 {
        assert!(timer.time_us(&stream, || graph.launch(&stream)).unwrap() > 0.0);
        let again = small.output();
        assert!(first.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

fn into_cuda(error: AttentionError) -> CudaError {
    match error {
        AttentionError::Cuda(error) => error,
        error => panic!("{error}"),
    }
}

#[test]
fn prices_are_those_of_a_gpu() {
    let device = Lent::alone();
    let backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let figures = probe::measure(&device, backend.compiler(), &stream).unwrap();
    println!("{figures:?}");
    let (first, last) = (figures.reads[0], figures.reads[figures.reads.len() - 1]);
    assert!(last.us > 10.0 * first.us, "{} times as much takes longer", last.bytes / first.bytes);
    assert!((0.5..20.0).contains(&figures.launch_us));
    assert!(figures.memory_latency_cycles > figures.l2_latency_cycles && figures.l2_latency_cycles > 50);
    assert!(figures.bandwidth() > 1e11);
    let prices = figures.prices;
    let rate = |price: u64| 1e18 / price as f64;
    assert!((1e11..1e14).contains(&rate(prices.hbm_byte)), "{prices:?}");
    assert!(prices.l2_byte < prices.hbm_byte, "{prices:?}: L2 is faster than HBM");
    assert!(rate(prices.l2_byte) < 1e14, "{prices:?}");
    assert!(prices.partial_byte > prices.l2_byte, "{prices:?}: a partial is written, too");
    assert!(rate(prices.partial_byte) > 1e11, "{prices:?}");
    // No faster than the data sheet says, and no ten times slower.
    let peak = device.limits().matrix_flops as f64;
    if peak > 0.0 {
        assert!((0.1 * peak..1.05 * peak).contains(&rate(prices.flop)), "{prices:?}");
    }
    // Between a tenth of a microsecond and ten for each CTA, those that run at once sharing it.
    let slots = u64::from(device.plan_options().device.max_concurrent_ctas);
    assert!((100_000_000_000..10_000_000_000_000).contains(&(prices.cta * slots)), "{prices:?}");
    assert!((500_000_000_000..30_000_000_000_000).contains(&prices.merge), "{prices:?}: some microseconds");
}

#[test]
fn flushes_by_writing_and_by_reading_give_near_limits() {
    let device = Lent::alone();
    let backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let figures = |by| probe::measure_flushed(by, &device, backend.compiler(), &stream).unwrap();
    let (read, written) = (figures(FlushBy::Reading), figures(FlushBy::Writing));
    println!("{} us and {} us of an empty launch", read.launch_us, written.launch_us);
    assert!((0.5..20.0).contains(&written.launch_us));
    // What is written back is at most one cache full: little of the largest read.
    assert!((0.7..1.1).contains(&(written.bandwidth() / read.bandwidth())), "{written:?}");
}

#[test]
fn static_figures_agree_with_what_the_driver_says() {
    let device = device();
    assert_eq!(
        &CudaDevice::limits_of(0).unwrap(),
        device.limits(),
        "a device says the same before it is open"
    );
    let mut backend = backend(&device);
    let class = Class { head_dim: 128, dtype: Dtype::F16 };
    let tiles: Vec<Tile> = tiles(&class, &device).into_iter().step_by(7).collect();
    for options in [16, 1].map(KernelOptions::for_pages) {
        let compiled = backend.prepare(&tiles, &class, options, || ()).unwrap();
        for (tile, compiled) in tiles.iter().zip(compiled) {
            let compiled = compiled.unwrap();
            let told = backend.told_by_driver(tile, &class, options).unwrap();
            let found = (compiled.registers, compiled.local_bytes, compiled.ctas_per_sm);
            assert_eq!(found, told, "{tile} {options:?}");
        }
    }
}

#[test]
fn options_make_a_difference_only_where_kernels_do() {
    let device = device();
    let mut backend = backend(&device);
    let class = Class { head_dim: 64, dtype: Dtype::F16 };
    let tile = Tile::of("m16n32w2s3");
    let prepare = |backend: &mut CudaBackend, options| {
        backend.prepare(&[tile], &class, options, || ()).unwrap().remove(0).unwrap();
    };
    let [tma, cp_async] = [16, 1].map(KernelOptions::for_pages);
    prepare(&mut backend, tma);
    let told = backend.told_by_driver(&tile, &class, cp_async);
    if has_tma_producers(&class, device.arch()) {
        let error = told.unwrap_err();
        assert!(
            matches!(&error, CudaError::NotPrepared { kernel } if kernel.ends_with("_cp_async")),
            "{error}"
        );
        prepare(&mut backend, cp_async);
        backend.told_by_driver(&tile, &class, cp_async).unwrap();
    } else {
        told.unwrap();
    }
    let tiles = [tile, Tile { m: 32, ..tile }];
    let [copies, each] =
        [tma, cp_async].map(|options| backend.prepare_mix(&tiles, &class, options).unwrap().1);
    let differs = copies.shared_bytes != each.shared_bytes;
    assert_eq!(differs, has_tma_producers(&class, device.arch()), "with TMA producers there are two kernels");
    if has_tma_producers(&class, device.arch()) {
        let unequal = [tile, Tile { m: 64, n: 64, warps: 4, ..tile }];
        let error = backend.prepare_mix(&unequal, &class, tma).unwrap_err();
        assert!(
            matches!(&error, CudaError::InfeasibleMix { reason, .. } if reason.contains("warps")),
            "{error}"
        );
        backend.prepare_mix(&unequal, &class, cp_async).unwrap();
    }
}

#[test]
fn memory_is_written_read_and_repeated() {
    let device = device();
    let memory = DeviceMemory::new(device.context(), 1000).unwrap();
    memory.repeat(&[1u8, 2, 3]).unwrap();
    let mut read = [0u8; 1000];
    let stream = device.context().new_stream().unwrap();
    memory.read(0, &mut read, &stream).unwrap();
    assert!(read.iter().enumerate().all(|(i, &byte)| usize::from(byte) == i % 3 + 1));
}

/// Attends parts of a batch's KV by a plan each, merges the states in several ways, and compares with attention over the whole.
#[allow(unsafe_code)]
fn check_parts<E: Element + CudaElement>(backend: &mut CudaBackend, head_dim: u32, shape: &Shape) {
    use cudarc::driver::{DevicePtr, DevicePtrMut};
    let device = backend.device().clone();
    let stream = device.context().new_stream().unwrap();
    let geometry =
        Geometry { q_heads: 8, kv_heads: 2, head_dim, page_size: 16, dtype: <E as Element>::DTYPE };
    let (class, tile) = (Class::of(&geometry), Tile::of("m16n32w2s2"));
    let options = KernelOptions::for_pages(geometry.page_size);
    backend.prepare(&[tile], &class, options, || ()).unwrap().remove(0).unwrap();
    let parts = Parts::<E>::new(geometry, shape, 6);
    let (rows, elements) = (parts.rows(), parts.query.len());
    let keys = stream.clone_htod(&parts.keys).unwrap();
    let values = stream.clone_htod(&parts.values).unwrap();
    let query = stream.clone_htod(&parts.query).unwrap();
    let nan = |len: usize| stream.clone_htod(&vec![E::from_f32(f32::NAN); len]).unwrap();
    let mut outputs: Vec<_> = parts.parts.iter().map(|_| nan(elements)).collect();
    let mut lses: Vec<_> = parts.parts.iter().map(|_| stream.alloc_zeros::<f32>(rows).unwrap()).collect();
    for ((part, output), lse) in parts.parts.iter().zip(&mut outputs).zip(&mut lses) {
        let plan = Plan::build(&geometry, &part.table(&geometry), &device.plan_options(), tile).unwrap();
        let mut uploaded = DevicePlan::new(&device);
        uploaded.upload(&plan, &stream).unwrap();
        let mut workspace = stream.alloc_zeros::<u8>(uploaded.workspace_bytes()).unwrap();
        let strides = KvStrides::nhd(&geometry);
        let cache = tilewright_cuda::KvCache { keys: &keys, values: &values, strides };
        let args = DecodeArgs {
            lse: Some(lse),
            scale: Some(parts.scale()),
            ..DecodeArgs::new(&query, cache, output, &mut workspace)
        };
        backend.decode(&stream, &uploaded, args).unwrap();
        stream.synchronize().unwrap();
    }

    // Typed, into memory of its own.
    let (mut output, mut lse) = (nan(elements), stream.clone_htod(&vec![f32::NAN; rows]).unwrap());
    let mut merge = |backend: &CudaBackend, rows| {
        let states: Vec<State<'_, E>> =
            outputs.iter().zip(&lses).map(|(output, lse)| State { output, lse }).collect();
        let (output, lse) = (&mut output, Some(&mut lse));
        backend.merge_states(&stream, MergeStatesArgs { states: &states, rows, head_dim, output, lse })
    };
    let error = merge(backend, rows).unwrap_err();
    assert!(matches!(error, CudaError::StatesNotPrepared { .. }), "{error}");
    backend.prepare_merge_states(&class).unwrap();
    let error = merge(backend, rows + 1).unwrap_err();
    assert!(matches!(error, CudaError::States(StatesError::Length { state: Some(0), .. })), "{error}");
    merge(backend, rows).unwrap();
    // Replayed by a graph.
    // SAFETY: the slices and the backend outlive the graph, whose replay is waited for.
    let graph = unsafe { Graph::capture(&stream, || merge(backend, rows)).unwrap() };
    let read = |output: &cudarc::driver::CudaSlice<E>, lse: &cudarc::driver::CudaSlice<f32>| {
        (stream.clone_dtoh(output).unwrap(), stream.clone_dtoh(lse).unwrap())
    };
    let (found, found_lse) = read(&output, &lse);
    parts.check(&found, &found_lse);
    let bits = |(output, lse): (Vec<E>, Vec<f32>)| -> Vec<u32> {
        output.into_iter().map(E::to_f32).chain(lse).map(f32::to_bits).collect()
    };
    let first = bits((found, found_lse));
    stream.memcpy_htod(&vec![E::from_f32(f32::NAN); elements], &mut output).unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(bits(read(&output, &lse)), first);

    // From addresses, in place of state 0.
    let states: Vec<RawState> = outputs
        .iter()
        .zip(&lses)
        .map(|(output, lse)| RawState {
            output: output.device_ptr(&stream).0,
            lse: lse.device_ptr(&stream).0,
        })
        .collect();
    let (into, into_lse) = (outputs[0].device_ptr_mut(&stream).0, lses[0].device_ptr_mut(&stream).0);
    let raw = RawMergeStates { states: &states, rows, output: into, lse: Some(into_lse) };
    // SAFETY: the slices have these rows and live to the end of this function, which waits for the stream; state 0 is used by
    // nothing else.
    unsafe { backend.merge_states_raw(stream.cu_stream(), &class, &raw).unwrap() };
    assert_eq!(bits(read(&outputs[0], &lses[0])), first);
}

#[test]
fn attention_in_parts_merges_to_attention_over_the_whole() {
    let device = device();
    let mut backend = backend(&device);
    // Many queries on one prefix, parts that end inside a page, requests without tokens of their own, and one without the prefixes.
    let own: Vec<u32> = (0..40).map(|request| request % 7 * 5).collect();
    let shape = Shape { prefix: 1000, groups: vec![100, 33], own, outsider: Some(8) };
    for head_dim in Class::HEAD_DIMS {
        check_parts::<f16>(&mut backend, head_dim, &shape);
        check_parts::<bf16>(&mut backend, head_dim, &shape);
    }
}
