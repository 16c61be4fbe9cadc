//! An NVIDIA GPU as a bench: each sample replays a captured step on a cold second-level cache, timed by events on the device.
#![allow(unsafe_code)]

use super::sensors::Sensors;
use super::{Bench, BenchError, Coverage, Failure, Loaded, PlanId};
use crate::store::{Conditions, DeviceRecord, Resources, Status};
use cudarc::driver::CudaStream;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use tilewright_heuristics::{Dtype, Geometry, PackShape, Prices, Tile};
use tilewright_kernel_templates::cuda::{AttentionOptions, CompileError, CudaLimits, source_hash};
use tilewright_kernel_templates::{Class, Limits};
use tilewright_runtime::awkward::{self, AwkwardCase, CudaCase};
use tilewright_runtime::cuda::probe::{self, Figures, Flush};
use tilewright_runtime::cuda::{
    Compiled, CudaBackend, CudaDevice, CudaError, DeviceMemory, DevicePlan, Graph, RawArgs, RawScales,
    RowStrides, Timer,
};
use tilewright_runtime::{E4m3, KvStrides, PageTable, Plan};
use tilewright_scenarios::Batch;

/// Points of the read curve that people are shown.
const SHOWN_READS: [u64; 7] = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30, 4 << 30];
/// What K and V of more than 2^31 elements need, and some room beside them.
const FAR_CACHE_BYTES: u64 = 10 << 30;
/// Part of the free memory that a batch may take.
const USABLE_MEMORY: f64 = 0.8;

/// A GPU under measurement.
#[derive(Debug)]
pub struct CudaBench {
    device: CudaDevice,
    limits: Limits,
    backend: CudaBackend,
    stream: Arc<CudaStream>,
    timer: Timer,
    flush: Flush,
    figures: Figures,
    sensors: Sensors,
    /// What became of every tile that was compiled.
    compiled: BTreeMap<(Class, AttentionOptions, Tile), Result<Compiled, Failure>>,
    cases: Cases,
    pool: Option<Pool>,
}

/// Awkward cases on the device, with their references; those of a tile by its n, on which they depend.
#[derive(Debug, Default)]
struct Cases {
    class: Option<Class>,
    common: Vec<CudaCase>,
    by_n: BTreeMap<u16, Vec<CudaCase>>,
}

/// Pages of K and V, full of random numbers: their values decide no time, but zeros might.
#[derive(Debug)]
struct Pool {
    dtype: Dtype,
    keys: DeviceMemory,
    values: DeviceMemory,
    /// One f32 of 1, the scale of all heads where K and V are FP8.
    scale: DeviceMemory,
}

impl CudaBench {
    /// The GPU with this number. Measures what it gives at most. Fetches NVRTC if this machine has none.
    ///
    /// # Errors
    /// No driver, no such device, no compiler.
    pub fn new(ordinal: usize) -> Result<Self, CudaError> {
        let device = CudaDevice::open(ordinal)?;
        let backend = CudaBackend::or_fetch(&device)?;
        let stream = new_stream(&device)?;
        let figures = probe::measure(&device, backend.compiler(), &stream)?;
        let flush = Flush::new(&device, backend.compiler(), &stream)?;
        let limits = CudaLimits {
            read_bandwidth: figures.bandwidth() as u64,
            memory_latency_cycles: figures.memory_latency_cycles,
            ..device.limits().clone()
        };
        Ok(Self {
            sensors: Sensors::of(device.uuid()?),
            timer: Timer::new(device.context())?,
            limits: Limits::Cuda(limits),
            device,
            backend,
            stream,
            flush,
            figures,
            compiled: BTreeMap::new(),
            cases: Cases::default(),
            pool: None,
        })
    }

    fn cuda_limits(&self) -> &CudaLimits {
        match &self.limits {
            Limits::Cuda(limits) => limits,
            Limits::Cpu(_) => self.device.limits(),
        }
    }

    /// Compiles tiles for a class and options, and remembers what became of each.
    fn compile(&mut self, tiles: &[Tile], class: &Class, options: AttentionOptions) {
        let missing: Vec<Tile> = tiles
            .iter()
            .copied()
            .filter(|tile| !self.compiled.contains_key(&(*class, options, *tile)))
            .collect();
        if missing.is_empty() {
            return;
        }
        let outcomes = match self.backend.prepare(&missing, class, options, || ()) {
            Ok(outcomes) => outcomes.into_iter().map(|outcome| outcome.map_err(failure_of)).collect(),
            Err(error) => {
                let failure = failure_of(error);
                missing.iter().map(|_| Err(failure.clone())).collect::<Vec<_>>()
            }
        };
        for (tile, outcome) in missing.into_iter().zip(outcomes) {
            let judged = outcome.and_then(|compiled| {
                let reason = compiled.check(&tile, class, self.cuda_limits()).err();
                reason.map_or(Ok(compiled), |reason| {
                    Err(Failure { status: Status::Constraints, message: reason.to_string() })
                })
            });
            self.compiled.insert((*class, options, tile), judged);
        }
    }

    /// Makes the cases of a class and of a tile's n.
    fn make_cases(&mut self, tile: &Tile, class: &Class) -> Result<(), Failure> {
        let seed = seed();
        if self.cases.class != Some(*class) {
            let mut common = upload(awkward::cases(class, seed), &self.device)?;
            let far = awkward::tile_cases(class, tile, seed).into_iter().find(AwkwardCase::is_plain);
            // A device that has no room for such a cache cannot be asked for one either.
            let room = self.device.free_memory().map_err(failure_of)? > FAR_CACHE_BYTES;
            if let Some(far) = far.filter(|_| room) {
                common.push(upload_far(far, &self.device)?);
            }
            self.cases = Cases { class: Some(*class), common, by_n: BTreeMap::new() };
        }
        if !self.cases.by_n.contains_key(&tile.n) {
            let cases = upload(awkward::tile_cases(class, tile, seed), &self.device)?;
            self.cases.by_n.insert(tile.n, cases);
        }
        Ok(())
    }
}

/// The variants that cases are run on. A window and sinks can be compiled in without having an effect, a soft-cap cannot: three variants
/// serve all cases.
const fn option_sets(coverage: Coverage) -> &'static [AttentionOptions] {
    const PLAIN: AttentionOptions = AttentionOptions { window: false, softcap: false, sinks: false };
    const WINDOW_SINKS: AttentionOptions = AttentionOptions { window: true, sinks: true, ..PLAIN };
    const ALL: AttentionOptions = AttentionOptions { softcap: true, ..WINDOW_SINKS };
    match coverage {
        Coverage::Plain => &[PLAIN],
        Coverage::Options => &[PLAIN, WINDOW_SINKS, ALL],
    }
}

/// The first variant that serves a case; `None` if the coverage has none.
fn variant_for(case: &CudaCase, coverage: Coverage) -> Option<AttentionOptions> {
    let wanted = case.options();
    let serves = |have: &AttentionOptions| {
        have.softcap == wanted.softcap && have.window >= wanted.window && have.sinks >= wanted.sinks
    };
    option_sets(coverage).iter().copied().find(serves)
}

/// Fresh numbers in every run; a failure names them.
fn seed() -> u64 {
    u64::from(std::process::id())
}

fn new_stream(device: &CudaDevice) -> Result<Arc<CudaStream>, CudaError> {
    device
        .context()
        .new_stream()
        .map_err(|source| CudaError::Driver { what: "cannot make a stream".to_owned(), source })
}

fn failure_of(error: CudaError) -> Failure {
    let status = match &error {
        CudaError::Compile(CompileError::Nvrtc { .. } | CompileError::Cubin { .. }) | CudaError::Nvrtc(_) => {
            Status::Compile
        }
        CudaError::Infeasible { .. } => Status::Constraints,
        _ => Status::Runtime,
    };
    Failure { status, message: error.to_string() }
}

fn upload(cases: Vec<AwkwardCase>, device: &CudaDevice) -> Result<Vec<CudaCase>, Failure> {
    cases.into_iter().map(|case| upload_one(case, device)).collect()
}

fn upload_one(case: AwkwardCase, device: &CudaDevice) -> Result<CudaCase, Failure> {
    let uploaded = match case.geometry.dtype {
        Dtype::Bf16 | Dtype::Fp8Bf16 => CudaCase::new::<half::bf16>(case, device),
        Dtype::F16 | Dtype::Fp8F16 | Dtype::F32 | Dtype::Fp8F32 => CudaCase::new::<half::f16>(case, device),
    };
    uploaded.map_err(failure_of)
}

fn upload_far(case: AwkwardCase, device: &CudaDevice) -> Result<CudaCase, Failure> {
    let uploaded = match case.geometry.dtype {
        Dtype::Bf16 | Dtype::Fp8Bf16 => CudaCase::far::<half::bf16>(case, device),
        Dtype::F16 | Dtype::Fp8F16 | Dtype::F32 | Dtype::Fp8F32 => CudaCase::far::<half::f16>(case, device),
    };
    uploaded.map_err(failure_of)
}

impl Bench for CudaBench {
    fn device(&self) -> DeviceRecord {
        let device = self.device.as_device();
        DeviceRecord {
            backend: device.backend.name().to_owned(),
            name: device.name.to_owned(),
            capability: device.capability.to_owned(),
            units: device.units,
        }
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn facts(&self) -> Vec<(String, String)> {
        let limits = self.cuda_limits();
        let mut facts = vec![
            ("multiprocessors".to_owned(), limits.sms.to_string()),
            ("shared memory of a CTA".to_owned(), format!("{} KB", limits.shared_bytes_per_cta >> 10)),
            ("second-level cache".to_owned(), format!("{} MB", limits.l2_bytes >> 20)),
            ("memory".to_owned(), format!("{:.0} GB", limits.memory_bytes as f64 / 1e9)),
            ("launch floor".to_owned(), format!("{:.2} us", self.figures.launch_us)),
            ("latency of memory".to_owned(), format!("{} cycles", self.figures.memory_latency_cycles)),
            (
                "latency of the second-level cache".to_owned(),
                format!("{} cycles", self.figures.l2_latency_cycles),
            ),
        ];
        let largest = self.figures.reads.last().map_or(0, |read| read.bytes);
        for bytes in SHOWN_READS.into_iter().filter(|&bytes| bytes <= largest) {
            let us = self.figures.read_us(bytes);
            facts.push((
                format!("reading {} MB", bytes >> 20),
                format!("{us:.1} us, {:.0} GB/s", bytes as f64 / us / 1e3),
            ));
        }
        if limits.matrix_flops > 0 {
            let peak = format!("{} TFLOP/s by the data sheet", limits.matrix_flops / 1_000_000_000_000);
            facts.push(("16-bit matrix peak".to_owned(), peak));
        }
        facts.extend(self.prices().facts());
        facts
    }

    fn prices(&self) -> Prices {
        self.figures.prices
    }

    fn versions(&self) -> Vec<(String, String)> {
        let mut versions = crate::system::versions();
        let (major, minor) = self.device.driver();
        let driver = self.sensors.driver().unwrap_or_else(|| "unknown".to_owned());
        versions.push(("driver".to_owned(), format!("{driver} (CUDA {major}.{minor})")));
        let (major, minor) = self.backend.compiler().nvrtc().version();
        versions.push(("nvrtc".to_owned(), format!("{major}.{minor}")));
        versions
    }

    fn kernel_hash(&self) -> String {
        source_hash()
    }

    fn cold_caches(&self) -> String {
        format!(
            "Before each sample {} MB of other memory are read, more than the second-level cache holds. Reading leaves nothing that would \
             have to be written back while the sample runs. Queries and plans are evicted too.",
            self.flush.bytes() >> 20
        )
    }

    fn limit_method(&self) -> String {
        "The larger of two times: reading the distinct K and V, the queries and as many bytes as the outputs, on the curve of cold \
         reads measured at the start of the run; and the floating-point operations of QK and PV at the tensor cores' peak by the data \
         sheet, plus one launch."
            .to_owned()
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let others = self.sensors.others();
        if others > 0 {
            warnings.push(format!(
                "Other processes computed on the device when the run began ({others}): tune it again when they have ended."
            ));
        }
        let throttled = self.sensors.read().throttled;
        if !throttled.is_empty() {
            warnings.push(format!("The device's clocks were held down when the run began: {throttled}."));
        }
        warnings
    }

    fn conditions(&mut self) -> Conditions {
        self.sensors.read()
    }

    fn prepare(&mut self, tiles: &[Tile], class: &Class, coverage: Coverage) {
        for &options in option_sets(coverage) {
            self.compile(tiles, class, options);
        }
    }

    fn resources(&self, tile: &Tile, class: &Class) -> Resources {
        match self.compiled.get(&(*class, AttentionOptions::default(), *tile)) {
            Some(Ok(compiled)) => Resources {
                registers: Some(compiled.registers),
                shared_bytes: Some(compiled.shared_bytes),
                spill_bytes: Some(compiled.local_bytes),
                scratch_bytes: None,
            },
            _ => Resources::default(),
        }
    }

    fn verify(&mut self, tile: &Tile, class: &Class, coverage: Coverage) -> Result<f64, Failure> {
        self.compile(&[*tile], class, AttentionOptions::default());
        if let Some(Err(failure)) = self.compiled.get(&(*class, AttentionOptions::default(), *tile)) {
            return Err(failure.clone());
        }
        self.make_cases(tile, class)?;
        for &options in option_sets(coverage) {
            self.compile(&[*tile], class, options);
        }
        let mut worst: f64 = 0.0;
        let Cases { common, by_n, .. } = &mut self.cases;
        let of_tile = by_n.get_mut(&tile.n).into_iter().flatten().map(|case| (true, case));
        for (of_tile, case) in common.iter_mut().map(|case| (false, case)).chain(of_tile) {
            let name = case.case.name;
            let fail = |status, message: String| Failure {
                status,
                message: format!("{name}: {message} (seed {})", seed()),
            };
            let Some(options) = variant_for(case, coverage) else { continue };
            // Options need registers of their own: a tile may have room for plain attention only.
            match self.compiled.get(&(*class, options, *tile)) {
                Some(Err(Failure { status: Status::Constraints, .. })) => continue,
                Some(Err(failure)) => return Err(fail(failure.status, failure.message.clone())),
                _ => {}
            }
            // As the case wants to be planned; cases of the tile also as engines plan.
            let planned = [Some(case.case.options), of_tile.then(|| self.device.plan_options())];
            for planned in planned.into_iter().flatten() {
                let (output, lse) = case
                    .run_on(&self.backend, &self.stream, tile, options, planned)
                    .map_err(|error| fail(Status::Runtime, error.to_string()))?;
                let checked = case.case.check(&output, &lse);
                let error = checked.map_err(|message| fail(Status::Correctness, message))?;
                worst = worst.max(error);
            }
        }
        let allowed = awkward::tolerance(class.dtype);
        if worst < allowed {
            Ok(worst)
        } else {
            let message = format!("relative error {worst:.1e}, allowed {allowed:.0e}");
            Err(Failure { status: Status::Correctness, message })
        }
    }

    fn load<'a>(&'a mut self, batch: &'a Batch) -> Result<Box<dyn Loaded + 'a>, BenchError> {
        // The references of the cases are no longer needed, and their memory is.
        self.cases = Cases::default();
        let geometry = batch.geometry;
        let device =
            |error: CudaError| BenchError::Device { batch: batch.name.clone(), message: error.to_string() };
        let token = (geometry.kv_heads * geometry.head_dim) as usize * geometry.dtype.kv_bytes();
        let bytes = batch.pages as usize * geometry.page_size as usize * token;
        let queries =
            batch.requests() * (geometry.q_heads * geometry.head_dim) as usize * geometry.dtype.query_bytes();
        let enough = |pool: &Pool| pool.dtype == geometry.dtype && pool.keys.bytes() >= bytes;
        if !self.pool.as_ref().is_some_and(enough) {
            self.pool = None;
            let free = self.device.free_memory().map_err(device)?;
            let needed = 2 * bytes as u64;
            if needed as f64 > free as f64 * USABLE_MEMORY {
                return Err(BenchError::TooLarge {
                    batch: batch.name.clone(),
                    needed_mb: needed >> 20,
                    available_mb: free >> 20,
                });
            }
            self.pool = Some(Pool::new(&self.device, geometry.dtype, bytes).map_err(device)?);
        }
        let query = random_memory(&self.device, geometry.dtype.query(), queries).map_err(device)?;
        let output = DeviceMemory::new(self.device.context(), queries).map_err(device)?;
        Ok(Box::new(LoadedBatch { batch, bench: self, query, output, plans: Vec::new() }))
    }
}

impl Pool {
    fn new(device: &CudaDevice, dtype: Dtype, bytes: usize) -> Result<Self, CudaError> {
        let scale = DeviceMemory::new(device.context(), 4)?;
        scale.write(0, &[1.0f32])?;
        Ok(Self {
            dtype,
            keys: random_memory(device, dtype, bytes)?,
            values: random_memory(device, dtype, bytes)?,
            scale,
        })
    }
}

/// Copies of one random block whose length divides nothing, so that pages differ. Elements are those that K and V have.
fn random_memory(device: &CudaDevice, dtype: Dtype, bytes: usize) -> Result<DeviceMemory, CudaError> {
    const BLOCK: usize = (1 << 20) + 2;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut number = || rng.random_range(-1.0f32..1.0);
    let block: Vec<u16> = (0..BLOCK.min(bytes.div_ceil(2)))
        .map(|_| match dtype {
            Dtype::Bf16 => half::bf16::from_f32(number()).to_bits(),
            Dtype::F16 | Dtype::F32 => half::f16::from_f32(number()).to_bits(),
            Dtype::Fp8F16 | Dtype::Fp8Bf16 | Dtype::Fp8F32 => {
                u16::from_le_bytes([(); 2].map(|()| E4m3::from_f32(number()).to_bits()))
            }
        })
        .collect();
    let memory = DeviceMemory::new(device.context(), bytes)?;
    memory.repeat(&block)?;
    Ok(memory)
}

struct LoadedBatch<'a> {
    batch: &'a Batch,
    bench: &'a mut CudaBench,
    query: DeviceMemory,
    output: DeviceMemory,
    plans: Vec<Result<Captured, Failure>>,
}

/// A plan on the device, captured. Fields are dropped in this order: the graph before the memory that it names.
struct Captured {
    graph: Graph,
    _uploaded: DevicePlan,
    _workspace: DeviceMemory,
}

impl LoadedBatch<'_> {
    fn build(&self, select: impl FnMut(&PackShape) -> Tile) -> Result<Plan, BenchError> {
        let Batch { page_table, max_pages, seq_lens, geometry, .. } = self.batch;
        let planned = PageTable::new(page_table, *max_pages, seq_lens, geometry.page_size)
            .and_then(|table| Plan::build(geometry, &table, &self.bench.device.plan_options(), select));
        planned.map_err(|source| BenchError::Plan { batch: self.batch.name.clone(), source })
    }

    fn capture(&mut self, plan: &Plan) -> Result<Captured, Failure> {
        let geometry = self.batch.geometry;
        // Mostly they are there; a process that takes another's place has none yet.
        let tiles: Vec<Tile> = plan.tile_groups().iter().map(|group| group.tile).collect();
        let (class, options) = (Class::of(&geometry), AttentionOptions::default());
        self.bench.compile(&tiles, &class, options);
        for tile in tiles {
            if let Some(Err(failure)) = self.bench.compiled.get(&(class, options, tile)) {
                return Err(failure.clone());
            }
        }
        self.capture_compiled(plan).map_err(failure_of)
    }

    fn capture_compiled(&self, plan: &Plan) -> Result<Captured, CudaError> {
        let CudaBench { device, backend, stream, pool, .. } = &*self.bench;
        let geometry = self.batch.geometry;
        let (keys, values) =
            pool.as_ref().map_or((0, 0), |pool| (pool.keys.address(), pool.values.address()));
        let scale = pool.as_ref().map_or(0, |pool| pool.scale.address());
        let mut uploaded = DevicePlan::new(device);
        uploaded.upload(plan, stream)?;
        let workspace = DeviceMemory::new(device.context(), uploaded.workspace_bytes())?;
        let args = RawArgs {
            query: self.query.address(),
            query_strides: RowStrides::dense(&geometry),
            keys,
            values,
            kv_strides: KvStrides::nhd(&geometry),
            output: self.output.address(),
            output_strides: RowStrides::dense(&geometry),
            lse: None,
            workspace: workspace.address(),
            scale: 1.0 / (geometry.head_dim as f32).sqrt(),
            window: None,
            softcap: None,
            sinks: None,
            scales: Some(RawScales { keys: scale, values: scale, per_head: false }),
        };
        // SAFETY: all memory is as large as the batch and the plan say, and lives as long as the graph.
        let graph =
            unsafe { Graph::capture(stream, || backend.decode_raw(stream.cu_stream(), &uploaded, &args))? };
        Ok(Captured { graph, _uploaded: uploaded, _workspace: workspace })
    }
}

impl Loaded for LoadedBatch<'_> {
    fn limit_us(&self) -> f64 {
        let Geometry { q_heads, head_dim, .. } = self.batch.geometry;
        let tokens: f64 = self.batch.seq_lens.iter().map(|&len| f64::from(len)).sum();
        let flops = 4.0 * f64::from(q_heads) * f64::from(head_dim) * tokens;
        let peak = match self.bench.cuda_limits().matrix_flops {
            0 => f64::INFINITY,
            flops => flops as f64,
        };
        let bytes = self.batch.unique_bytes() + 2 * self.query.bytes() as u64;
        let figures = &self.bench.figures;
        figures.read_us(bytes).max(flops / peak * 1e6 + figures.launch_us)
    }

    fn pack_shapes(&self) -> Result<Vec<PackShape>, BenchError> {
        let any = Tile { m: 16, n: 16, warps: 1, stages: 1 };
        Ok(self.build(|_| any)?.packs().iter().map(|pack| pack.shape).collect())
    }

    fn plan(&mut self, select: &mut dyn FnMut(&PackShape) -> Tile) -> Result<PlanId, BenchError> {
        let plan = self.build(select)?;
        // What cannot be captured fails when it is sampled: the other plans are measured all the same.
        let captured = self.capture(&plan);
        self.plans.push(captured);
        Ok(PlanId(self.plans.len() - 1))
    }

    fn sample(&mut self, plan: PlanId) -> Result<f64, Failure> {
        let CudaBench { stream, timer, flush, .. } = &*self.bench;
        let Captured { graph, .. } = self.plans[plan.0].as_ref().map_err(Clone::clone)?;
        flush.queue(stream).map_err(failure_of)?;
        timer.time_us(stream, || graph.launch(stream)).map_err(failure_of)
    }
}
