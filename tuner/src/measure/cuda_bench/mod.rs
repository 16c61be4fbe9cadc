//! An NVIDIA GPU as a bench: each sample replays a captured step on a cold L2, timed by events on the device.
#![allow(unsafe_code)]

mod cases;
mod kernels;
mod loaded;
mod pool;
mod references;
mod spares;
mod timeline;

use super::sensors::Sensors;
use super::{Bench, BenchError, Coverage, Failure, Loaded, Preparation};
use crate::store::{Conditions, DeviceRecord, Resources, Status};
use cases::{Cases, option_sets};
use cudarc::driver::CudaStream;
pub(super) use kernels::kernels_of;
use loaded::LoadedBatch;
use pool::{Pool, Rows};
use references::References;
use spares::Spare;
use std::collections::BTreeMap;
use std::sync::Arc;
use tilewright_cuda::profiling::Timer;
use tilewright_cuda::profiling::probe::{self, Figures, Flush};
use tilewright_cuda::{Compiled, CudaBackend, CudaDevice, CudaError, LaunchMode, MergeBy, Mix, TrialMemory};
use tilewright_heuristics::{Prices, Tile, TileSetBuf};
use tilewright_kernel_templates::cuda::{GRANULE, KernelOptions, KvLoad, source_hash};
use tilewright_kernel_templates::toolchain::CompileError;
use tilewright_kernel_templates::{Class, CudaLimits, Limits};
use tilewright_plan::PlanOptions;
use tilewright_scenarios::Batch;

/// Points of the read curve that people are shown.
const SHOWN_READS: [u64; 7] = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30, 4 << 30];

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
    compiled: BTreeMap<(Class, KernelOptions, Tile), Result<Compiled, Failure>>,
    /// What became of tiles that were compiled together.
    mixes: BTreeMap<(Class, KernelOptions, Mix), Result<(), Failure>>,
    /// Launch modes beside the default.
    launch_modes: Vec<LaunchMode>,
    /// Those that batches are planned by.
    prices: Prices,
    cases: Cases,
    references: References,
    trials: Option<TrialMemory>,
    /// One for each way in which K and V are stored, while there is room.
    pools: Vec<Pool>,
    /// Of each type of queries, while no batch has them.
    rows: Vec<Rows>,
    spares: Vec<Spare>,
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
            prices: figures.prices,
            figures,
            compiled: BTreeMap::new(),
            mixes: BTreeMap::new(),
            launch_modes: LaunchMode::ALL
                .into_iter()
                .filter(|mode| *mode != LaunchMode::DEFAULT && mode.merge == MergeBy::Launch)
                .collect(),
            cases: Cases::default(),
            references: References::default(),
            trials: None,
            pools: Vec::new(),
            rows: Vec::new(),
            spares: Vec::new(),
        })
    }

    fn cuda_limits(&self) -> &CudaLimits {
        match &self.limits {
            Limits::Cuda(limits) => limits,
            Limits::Cpu(_) => self.device.limits(),
        }
    }

    /// How decoders plan that go by this bench's prices.
    fn plan_options(&self) -> PlanOptions {
        PlanOptions { ..self.device.plan_options() }.with_prices(self.prices)
    }

    /// Compiles tiles for a class and options, and remembers what became of each.
    fn compile(&mut self, tiles: &[Tile], class: &Class, options: KernelOptions) {
        let wanted: Vec<_> = tiles.iter().map(|&tile| (tile, *class, options)).collect();
        self.compile_all(&wanted);
    }

    /// The same for tiles of several classes and options, all at once.
    fn compile_all(&mut self, wanted: &[(Tile, Class, KernelOptions)]) {
        let mut missing = wanted.to_vec();
        missing.retain(|&(tile, class, options)| !self.compiled.contains_key(&(class, options, tile)));
        if missing.is_empty() {
            return;
        }
        let outcomes = match self.backend.prepare_all(&missing) {
            Ok(outcomes) => outcomes.into_iter().map(|outcome| outcome.map_err(failure_of)).collect(),
            Err(error) => {
                let failure = failure_of(error);
                missing.iter().map(|_| Err(failure.clone())).collect::<Vec<_>>()
            }
        };
        let arch = self.backend.compiler().arch();
        for ((tile, class, options), outcome) in missing.into_iter().zip(outcomes) {
            let judged = outcome.and_then(|compiled| {
                // The `cp.async` producer serves caches that TMA cannot load: it has to be right, and the rules are about speed.
                if options.on(&class, arch).kv_load == KvLoad::CpAsync {
                    return Ok(compiled);
                }
                let reason = compiled.check(&tile, &class, self.cuda_limits()).err();
                reason.map_or(Ok(compiled), |reason| {
                    Err(Failure { status: Status::Constraints, message: reason.to_string() })
                })
            });
            self.compiled.insert((class, options, tile), judged);
        }
    }

    /// Compiles tiles together for a class, and remembers what became of it. As many as a decoder would.
    fn compile_mix(&mut self, mix: &Mix, class: &Class, options: KernelOptions) -> Result<(), Failure> {
        let key = (*class, options, mix.clone());
        if let Some(outcome) = self.mixes.get(&key) {
            return outcome.clone();
        }
        let count = mix.tiles().len();
        let outcome = if count > Mix::MOST {
            let message =
                format!("{count} tiles are too many for a single launch, which takes {}", Mix::MOST);
            Err(Failure { status: Status::Constraints, message })
        } else {
            let prepared = self.backend.prepare_mix(mix.tiles(), class, options);
            prepared.map(drop).map_err(failure_of)
        };
        self.mixes.insert(key, outcome.clone());
        outcome
    }
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
        CudaError::Infeasible { .. } | CudaError::InfeasibleMix { .. } => Status::Constraints,
        CudaError::Untrusted { .. } => Status::Correctness,
        _ => Status::Runtime,
    };
    Failure { status, message: error.to_string() }
}

impl Bench for CudaBench {
    fn device(&self) -> DeviceRecord {
        self.device.as_device().into()
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn facts(&self) -> Vec<(String, String)> {
        let limits = self.cuda_limits();
        let mut facts = vec![
            ("multiprocessors".to_owned(), limits.sms.to_string()),
            ("shared memory of a CTA".to_owned(), format!("{} KB", limits.shared_bytes_per_cta >> 10)),
            ("L2".to_owned(), format!("{} MB", limits.l2_bytes >> 20)),
            ("memory".to_owned(), format!("{:.0} GB", limits.memory_bytes as f64 / 1e9)),
            ("launch floor".to_owned(), format!("{:.2} us", self.figures.launch_us)),
            ("latency of memory".to_owned(), format!("{} cycles", self.figures.memory_latency_cycles)),
            ("latency of L2".to_owned(), format!("{} cycles", self.figures.l2_latency_cycles)),
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
        self.prices
    }

    fn adopt_prices(&mut self, prices: Prices) {
        self.prices = prices;
    }

    fn launch_modes(&self) -> &[LaunchMode] {
        &self.launch_modes
    }

    fn versions(&self) -> Vec<(String, String)> {
        let mut versions = crate::system::versions();
        let (major, minor) = self.device.driver();
        let driver = self.sensors.driver().unwrap_or_else(|| "unknown".to_owned());
        versions.push(("driver".to_owned(), format!("{driver} (CUDA {major}.{minor})")));
        if let Ok(nvrtc) = self.backend.compiler().nvrtc() {
            let (major, minor) = nvrtc.version();
            versions.push(("nvrtc".to_owned(), format!("{major}.{minor}")));
        }
        versions
    }

    fn kernel_hash(&self) -> String {
        source_hash()
    }

    fn cold_caches(&self) -> String {
        format!(
            "Before each sample {} MB of other memory are read, more than L2 holds. Reading leaves nothing that would \
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

    fn launch_us(&self) -> f64 {
        self.figures.launch_us
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

    fn prepare(&mut self, wanted: &[Preparation]) {
        let arch = self.backend.compiler().arch();
        let kernels = wanted.iter().flat_map(|&Preparation { ref tiles, class, coverage }| {
            let each = move |options| tiles.iter().map(move |&tile| (tile, class, options));
            option_sets(coverage, &class, arch).into_iter().flat_map(each)
        });
        self.compile_all(&kernels.collect::<Vec<_>>());
    }

    fn prepare_sets(&mut self, wanted: &[(TileSetBuf, Class)]) {
        let arch = self.backend.compiler().arch();
        let missing: Vec<(Mix, Class, KernelOptions)> = wanted
            .iter()
            .map(|(set, class)| {
                (Mix::of(set.tiles()), *class, KernelOptions::for_pages(GRANULE).on(class, arch))
            })
            .filter(|(mix, class, options)| !self.mixes.contains_key(&(*class, *options, mix.clone())))
            .collect();
        let prepared = self.backend.prepare_mixes(&missing);
        for ((mix, class, options), prepared) in missing.into_iter().zip(prepared) {
            self.mixes.insert((class, options, mix), prepared.map(drop).map_err(failure_of));
        }
    }

    fn resources(&self, tile: &Tile, class: &Class) -> Resources {
        match self.compiled.get(&(*class, KernelOptions::default(), *tile)) {
            Some(Ok(compiled)) => Resources {
                registers: Some(compiled.registers),
                shared_bytes: Some(compiled.shared_bytes),
                spill_bytes: Some(compiled.local_bytes),
                scratch_bytes: None,
            },
            _ => Resources::default(),
        }
    }

    fn expect(&mut self, wanted: &[Preparation]) {
        let classes = wanted.iter().map(|wanted| (wanted.class, wanted.coverage.options));
        self.references.compute_ahead(classes.collect());
    }

    fn verify(&mut self, tile: &Tile, class: &Class, coverage: Coverage) -> Result<f64, Failure> {
        self.verify_variants(tile, class, coverage)
    }

    fn load<'a>(&'a mut self, batch: &'a Batch) -> Result<Box<dyn Loaded + 'a>, BenchError> {
        // The memory of the cases is needed.
        self.cases = Cases::default();
        self.trials = None;
        Ok(Box::new(LoadedBatch::new(self, batch)?))
    }
}
