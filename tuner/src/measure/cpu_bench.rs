//! The host's processor as a bench: pools of pages larger than the caches, so that every sample reads cold memory.

use super::bench::rows_of;
use super::cpu_timeline;
use super::numbers::{self, Stream};
use super::{Bench, BenchError, Coverage, Failure, Loaded, PlanFacts, PlanId, Planning, Way};
use crate::store::{DeviceRecord, Resources, Status, Timeline};
use half::{bf16, f16};
use std::time::Instant;
use tilewright_heuristics::{Dtype, Geometry, PackShape, Prices, Tile};
use tilewright_kernel_templates::{Class, CpuLimits, Limits, cpu as scratch};
use tilewright_runtime::awkward::{self, AwkwardCase, CpuCase};
use tilewright_runtime::cpu::{
    CpuBackend, DecodeArgs, Element, Fp8KvCache, HostDevice, KvCache, KvPages, Number, probe,
};
use tilewright_runtime::cuda::Forward;
use tilewright_runtime::{E4m3, ExecError, KvScales, KvStrides, PageTable, Plan, PlanOptions};
use tilewright_scenarios::Batch;

/// Between two reads of the same page, at least so many times the last-level cache is read.
const REUSE_DISTANCE: usize = 2;
/// What stands for the last-level cache where the system does not tell its size.
const UNKNOWN_CACHE_BYTES: usize = 32 << 20;
/// Draws the awkward cases: the same for every tile and run, so that a failure can be looked at again.
const VERIFICATION_SEED: u64 = 7;
/// Samples of an empty plan for the launch floor.
const FLOOR_SAMPLES: usize = 200;

/// The host's processor under measurement.
#[derive(Debug)]
pub struct CpuBench {
    host: HostDevice,
    limits: Limits,
    backend: CpuBackend,
    figures: Figures,
    pools: Pools,
    references: References,
    memory_bytes: u64,
}

/// What the processor was measured to give at most.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// Bytes per second, read by all threads.
    read_bandwidth: f64,
    /// Multiply-adds count twice.
    flops: f64,
    /// Time of a step with next to nothing to do, in µs.
    floor_us: f64,
    /// What a plan's parts cost, as batches are planned.
    prices: Prices,
}

#[derive(Debug, Default)]
struct Pools {
    f16: Pool<f16>,
    bf16: Pool<bf16>,
    f32: Pool<f32>,
    fp8: Pool<E4m3>,
}

/// K and V pages of one element type; samples walk through it.
#[derive(Debug, Default)]
struct Pool<E> {
    keys: Vec<E>,
    values: Vec<E>,
    next: usize,
}

/// Awkward cases of the class that was verified last, with their numbers and what they expect. Only one class's: they take
/// some 200 MB, and tiles are verified class by class.
#[derive(Debug, Default)]
struct ClassCases<E> {
    class: Option<Class>,
    cases: Vec<CpuCase<E>>,
}

#[derive(Debug, Default)]
struct References {
    f16: ClassCases<f16>,
    bf16: ClassCases<bf16>,
    f32: ClassCases<f32>,
}

impl CpuBench {
    /// The host's processor with so many threads; all of them by default. Measures what it gives at most.
    pub fn new(threads: Option<u32>) -> Self {
        let host = threads.map_or_else(HostDevice::detect, HostDevice::with_threads);
        let mut backend = CpuBackend::new(host.limits.threads);
        let mut figures = Figures {
            prices: probe::prices(&mut backend, llc_bytes(&host.limits)),
            read_bandwidth: probe::read_bandwidth(host.limits.threads, 4 * llc_bytes(&host.limits)),
            flops: probe::fma_flops(host.limits.threads),
            floor_us: 0.0,
        };
        figures.floor_us = launch_floor(&mut backend);
        Self {
            limits: Limits::Cpu(host.limits.clone()),
            host,
            backend,
            figures,
            pools: Pools::default(),
            references: References::default(),
            memory_bytes: crate::system::available_memory().unwrap_or(u64::MAX),
        }
    }

    fn load_typed<'a, E: Element, K: PoolElement>(
        &'a mut self,
        batch: &'a Batch,
    ) -> Result<Box<dyn Loaded + 'a>, BenchError>
    where
        for<'c> K::Cache<'c>: KvPages<E>,
    {
        let geometry = batch.geometry;
        let page_elements = (geometry.page_size * geometry.kv_heads * geometry.head_dim) as usize;
        let batch_elements = batch.pages as usize * page_elements;
        let cache_elements = REUSE_DISTANCE * llc_bytes(&self.host.limits) / size_of::<K>() / 2;
        let needed = batch_elements + cache_elements;
        let needed_bytes = (2 * needed * size_of::<K>()) as u64;
        let too_large = || BenchError::TooLarge {
            batch: batch.name.clone(),
            needed_mb: needed_bytes >> 20,
            available_mb: self.memory_bytes >> 20,
        };
        if needed_bytes > self.memory_bytes {
            return Err(too_large());
        }
        let pool = K::pool(&mut self.pools);
        pool.grow(needed);
        let queries = batch.requests() * (geometry.q_heads * geometry.head_dim) as usize;
        Ok(Box::new(LoadedBatch::<E, K> {
            batch,
            backend: &mut self.backend,
            figures: self.figures,
            pool,
            batch_elements,
            page_elements,
            query: repeated(&numbers::block(Stream::Query, queries, E::from_f32), queries),
            output: vec![E::from_f32(0.0); queries],
            plans: Vec::new(),
        }))
    }

    fn verify_typed<E: QueryElement>(&mut self, tile: &Tile, class: &Class) -> Result<f64, Failure> {
        let plain = |cases: Vec<AwkwardCase>| {
            cases.into_iter().filter(AwkwardCase::is_plain).map(CpuCase::new).collect::<Vec<CpuCase<E>>>()
        };
        let kept = E::references(&mut self.references);
        if kept.class != Some(*class) {
            *kept =
                ClassCases { class: Some(*class), cases: plain(awkward::cases(class, VERIFICATION_SEED)) };
        }
        let of_tile = plain(awkward::tile_cases(class, tile, VERIFICATION_SEED));
        let mut worst: f64 = 0.0;
        for case in kept.cases.iter().chain(&of_tile) {
            worst = worst.max(error(case, &mut self.backend, tile)?);
        }
        Ok(worst)
    }
}

/// The relative error of a case under one tile.
fn error<E: Element>(case: &CpuCase<E>, backend: &mut CpuBackend, tile: &Tile) -> Result<f64, Failure> {
    let (output, lse) =
        case.run(backend, tile).map_err(|message| Failure { status: Status::Runtime, message })?;
    case.case.check(&output, &lse).map_err(|message| Failure { status: Status::Correctness, message })
}

/// The time of a step over one token: waking the threads, one work item, nothing to read.
fn launch_floor(backend: &mut CpuBackend) -> f64 {
    let geometry = Geometry { q_heads: 1, kv_heads: 1, head_dim: 64, page_size: 16, dtype: Dtype::F32 };
    let zeros = vec![0.0f32; 16 * 64];
    let mut output = vec![0.0f32; 64];
    let seq_lens = [1];
    let tile = Tile { m: 1, n: 16, warps: 1, stages: 1 };
    let table = PageTable::new(&[0], 1, &seq_lens, geometry.page_size).expect("one page of one request");
    let plan =
        Plan::build(&geometry, &table, &PlanOptions::default(), |_| tile).expect("one token can be planned");
    let mut samples = Vec::with_capacity(FLOOR_SAMPLES);
    for _ in 0..FLOOR_SAMPLES {
        let cache = KvCache { keys: &zeros, values: &zeros, strides: KvStrides::nhd(&geometry) };
        let args = DecodeArgs { query: &zeros[..64], cache, scale: 1.0, output: &mut output, lse: None };
        let begin = Instant::now();
        backend.decode(&plan, args).expect("one token can be decoded");
        samples.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    crate::statistics::median(&samples).unwrap_or(0.0)
}

fn llc_bytes(limits: &CpuLimits) -> usize {
    if limits.llc_bytes > 0 { limits.llc_bytes } else { UNKNOWN_CACHE_BYTES }
}

impl Bench for CpuBench {
    fn device(&self) -> DeviceRecord {
        self.host.as_device().into()
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn facts(&self) -> Vec<(String, String)> {
        let CpuLimits { threads, l1d_bytes, l2_bytes, llc_bytes } = self.host.limits;
        let kb = |bytes: usize| format!("{} KB", bytes >> 10);
        let limits = [
            ("threads", threads.to_string()),
            ("first-level cache", kb(l1d_bytes)),
            ("second-level cache", kb(l2_bytes)),
            ("last-level cache", kb(llc_bytes)),
            ("read bandwidth", format!("{:.1} GB/s", self.figures.read_bandwidth / 1e9)),
            ("multiply-add peak", format!("{:.0} GFLOP/s", self.figures.flops / 1e9)),
            ("launch floor", format!("{:.1} us", self.figures.floor_us)),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        limits.into_iter().chain(self.prices().facts()).collect()
    }

    fn prices(&self) -> Prices {
        self.figures.prices
    }

    fn adopt_prices(&mut self, prices: Prices) {
        self.figures.prices = prices;
    }

    fn versions(&self) -> Vec<(String, String)> {
        crate::system::versions()
    }

    fn kernel_hash(&self) -> String {
        tilewright_runtime::cpu::kernel_hash()
    }

    fn cold_caches(&self) -> String {
        format!(
            "Each sample reads other pages of a pool: between two reads of a page at least {} MB of other pages are read, \
             {REUSE_DISTANCE} times the last-level cache. Queries, outputs and plans stay warm, as in a decode loop.",
            (REUSE_DISTANCE * llc_bytes(&self.host.limits)) >> 20
        )
    }

    fn limit_method(&self) -> String {
        "The larger of two times, plus the launch floor: bytes of distinct K and V over the read bandwidth, and the \
         floating-point operations of QK and PV over the multiply-add peak; both measured at the start of the run, on all \
         threads."
            .to_owned()
    }

    fn launch_us(&self) -> f64 {
        self.figures.floor_us
    }

    fn warnings(&self) -> Vec<String> {
        let busy = crate::system::load().unwrap_or(0.0);
        let mut warnings = Vec::new();
        if busy > 0.5 * f64::from(self.host.limits.threads) {
            warnings.push(format!(
                "The machine was busy when the run began ({busy:.1} runnable processes on {} threads): tune it again when \
                 it is idle.",
                self.host.limits.threads
            ));
        }
        warnings
    }

    fn resources(&self, tile: &Tile, class: &Class) -> Resources {
        let scratch = u32::try_from(scratch::scratch_bytes(tile, class)).ok();
        Resources { scratch_bytes: scratch, ..Resources::default() }
    }

    fn verify(&mut self, tile: &Tile, class: &Class, _: Coverage) -> Result<f64, Failure> {
        match class.dtype {
            Dtype::F16 | Dtype::Fp8F16 => self.verify_typed::<f16>(tile, class),
            Dtype::Bf16 | Dtype::Fp8Bf16 => self.verify_typed::<bf16>(tile, class),
            Dtype::F32 | Dtype::Fp8F32 => self.verify_typed::<f32>(tile, class),
        }
    }

    fn load<'a>(&'a mut self, batch: &'a Batch) -> Result<Box<dyn Loaded + 'a>, BenchError> {
        match batch.geometry.dtype {
            Dtype::F16 => self.load_typed::<f16, f16>(batch),
            Dtype::Bf16 => self.load_typed::<bf16, bf16>(batch),
            Dtype::F32 => self.load_typed::<f32, f32>(batch),
            Dtype::Fp8F16 => self.load_typed::<f16, E4m3>(batch),
            Dtype::Fp8Bf16 => self.load_typed::<bf16, E4m3>(batch),
            Dtype::Fp8F32 => self.load_typed::<f32, E4m3>(batch),
        }
    }
}

/// An element of K and V with a pool of its own.
trait PoolElement: Number {
    type Cache<'c>;
    fn pool(pools: &mut Pools) -> &mut Pool<Self>;
    fn cache<'c>(keys: &'c [Self], values: &'c [Self], strides: KvStrides) -> Self::Cache<'c>;
}

/// An element of Q with references of its own.
trait QueryElement: Element {
    fn references(references: &mut References) -> &mut ClassCases<Self>;
}

impl PoolElement for f16 {
    type Cache<'c> = KvCache<'c, Self>;

    fn pool(pools: &mut Pools) -> &mut Pool<Self> {
        &mut pools.f16
    }

    fn cache<'c>(keys: &'c [Self], values: &'c [Self], strides: KvStrides) -> Self::Cache<'c> {
        KvCache { keys, values, strides }
    }
}

impl QueryElement for f16 {
    fn references(references: &mut References) -> &mut ClassCases<Self> {
        &mut references.f16
    }
}

impl PoolElement for bf16 {
    type Cache<'c> = KvCache<'c, Self>;

    fn pool(pools: &mut Pools) -> &mut Pool<Self> {
        &mut pools.bf16
    }

    fn cache<'c>(keys: &'c [Self], values: &'c [Self], strides: KvStrides) -> Self::Cache<'c> {
        KvCache { keys, values, strides }
    }
}

impl QueryElement for bf16 {
    fn references(references: &mut References) -> &mut ClassCases<Self> {
        &mut references.bf16
    }
}

impl PoolElement for f32 {
    type Cache<'c> = KvCache<'c, Self>;

    fn pool(pools: &mut Pools) -> &mut Pool<Self> {
        &mut pools.f32
    }

    fn cache<'c>(keys: &'c [Self], values: &'c [Self], strides: KvStrides) -> Self::Cache<'c> {
        KvCache { keys, values, strides }
    }
}

impl QueryElement for f32 {
    fn references(references: &mut References) -> &mut ClassCases<Self> {
        &mut references.f32
    }
}

impl PoolElement for E4m3 {
    type Cache<'c> = Fp8KvCache<'c>;

    fn pool(pools: &mut Pools) -> &mut Pool<Self> {
        &mut pools.fp8
    }

    fn cache<'c>(keys: &'c [Self], values: &'c [Self], strides: KvStrides) -> Self::Cache<'c> {
        Fp8KvCache { keys, values, strides, scales: KvScales::new(1.0, 1.0) }
    }
}

impl<K: Number> Pool<K> {
    /// Makes room for `elements` of K and of V: copies of one block, which is far cheaper to make than as many numbers.
    fn grow(&mut self, elements: usize) {
        if self.keys.len() >= elements {
            return;
        }
        for (stream, pages) in [(Stream::Keys, &mut self.keys), (Stream::Values, &mut self.values)] {
            *pages = repeated(&numbers::block(stream, elements, K::from_f32), elements);
        }
        // Writing left the end of the pool in the caches: begin where it is cold.
        self.next = 0;
    }
}

/// The first `len` elements of endless copies of a block.
fn repeated<T: Copy>(block: &[T], len: usize) -> Vec<T> {
    let mut all = Vec::with_capacity(len);
    while all.len() < len && !block.is_empty() {
        all.extend_from_slice(&block[..block.len().min(len - all.len())]);
    }
    all
}

struct LoadedBatch<'a, E, K> {
    batch: &'a Batch,
    backend: &'a mut CpuBackend,
    figures: Figures,
    pool: &'a mut Pool<K>,
    batch_elements: usize,
    page_elements: usize,
    query: Vec<E>,
    output: Vec<E>,
    plans: Vec<(Plan, Way)>,
}

impl<E, K> LoadedBatch<'_, E, K> {
    fn table(&self) -> Result<PageTable<'_>, BenchError> {
        let Batch { page_table, max_pages, seq_lens, geometry, .. } = self.batch;
        PageTable::new(page_table, *max_pages, seq_lens, geometry.page_size)
            .map_err(|source| self.error(source))
    }

    fn error(&self, source: tilewright_runtime::PlanError) -> BenchError {
        BenchError::Plan { batch: self.batch.name.clone(), source }
    }

    fn build(&self, planning: Planning, select: impl FnMut(&PackShape) -> Tile) -> Result<Plan, BenchError> {
        let table = self.table()?;
        Plan::build(&self.batch.geometry, &table, &self.options(planning), select)
            .map_err(|source| self.error(source))
    }

    fn options(&self, planning: Planning) -> PlanOptions {
        planning.options(PlanOptions { prices: self.figures.prices, ..PlanOptions::default() })
    }
}

impl<E: Element, K: PoolElement> LoadedBatch<'_, E, K>
where
    for<'c> K::Cache<'c>: KvPages<E>,
{
    /// Executes a plan on the pages from element `begin` of the pool on; its time in µs. The next sample reads those behind them.
    fn execute(&mut self, plan: PlanId, begin: usize) -> Result<f64, Failure> {
        self.execute_by(plan, begin, |backend, plan, args| backend.decode(plan, args)).map(|(us, ())| us)
    }

    /// The same by one of the backend's calls; its time in µs, and what the call returns.
    fn execute_by<T>(
        &mut self,
        plan: PlanId,
        begin: usize,
        call: impl FnOnce(&mut CpuBackend, &Plan, DecodeArgs<'_, E, K::Cache<'_>>) -> Result<T, ExecError>,
    ) -> Result<(f64, T), Failure> {
        let (plan, Way { forward, .. }) = &self.plans[plan.0];
        if *forward != Forward::DEFAULT {
            let message = format!("a processor has no launches, and executes nothing as {forward}");
            return Err(Failure { status: Status::Constraints, message });
        }
        let window = begin..begin + self.batch_elements;
        self.pool.next = begin + self.batch_elements.next_multiple_of(self.page_elements);
        let geometry = &self.batch.geometry;
        let strides = KvStrides::nhd(geometry);
        let cache = K::cache(&self.pool.keys[window.clone()], &self.pool.values[window], strides);
        let scale = 1.0 / (geometry.head_dim as f32).sqrt();
        let args = DecodeArgs { query: &self.query, cache, scale, output: &mut self.output, lse: None };
        let begin = Instant::now();
        let done = call(self.backend, plan, args)
            .map_err(|error| Failure { status: Status::Runtime, message: error.to_string() })?;
        Ok((begin.elapsed().as_secs_f64() * 1e6, done))
    }

    /// Where in the pool pages are cold that a batch has not read for long.
    fn cold(&mut self) -> usize {
        if self.pool.next + self.batch_elements > self.pool.keys.len() {
            self.pool.next = 0;
        }
        self.pool.next
    }
}

impl<E: Element, K: PoolElement> Loaded for LoadedBatch<'_, E, K>
where
    for<'c> K::Cache<'c>: KvPages<E>,
{
    fn limit_us(&self) -> f64 {
        let reading = self.batch.unique_bytes() as f64 / self.figures.read_bandwidth;
        reading.max(self.batch.flops() / self.figures.flops) * 1e6 + self.figures.floor_us
    }

    fn pack_shapes(&self, planning: Planning) -> Result<Vec<PackShape>, BenchError> {
        let any = Tile { m: 1, n: 16, warps: 1, stages: 1 };
        Ok(self.build(planning, |_| any)?.packs().iter().map(|pack| pack.shape).collect())
    }

    fn plan(&mut self, way: &Way, select: &mut dyn FnMut(&PackShape) -> Tile) -> Result<PlanId, BenchError> {
        let plan = self.build(way.planning, select)?;
        self.plans.push((plan, way.clone()));
        Ok(PlanId(self.plans.len() - 1))
    }

    fn plan_facts(&self, plan: PlanId) -> Option<PlanFacts> {
        self.plans.get(plan.0).map(|(plan, _)| PlanFacts::of(plan))
    }

    fn sample(&mut self, plan: PlanId) -> Result<f64, Failure> {
        let begin = self.cold();
        self.execute(plan, begin)
    }

    fn outputs(&mut self, plan: PlanId, requests: &[usize]) -> Result<Vec<f32>, Failure> {
        self.output.fill(E::from_f32(f32::NAN));
        // The batch's own numbers are those at the pool's begin.
        self.execute(plan, 0)?;
        let Geometry { q_heads, head_dim, .. } = self.batch.geometry;
        let rows = rows_of(&self.output, (q_heads * head_dim) as usize, requests)?;
        Ok(rows.into_iter().map(E::to_f32).collect())
    }

    fn timeline(&mut self, plan: PlanId) -> Result<Timeline, Failure> {
        self.sample(plan)?;
        let begin = self.cold();
        let (_, units) = self.execute_by(plan, begin, |backend, plan, args| backend.record(plan, args))?;
        let (plan, Way { planning, .. }) = &self.plans[plan.0];
        let options = self.options(*planning);
        Ok(cpu_timeline::timeline(plan, &options, self.backend.threads(), &units))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_runtime::awkward::CaseCache;

    #[test]
    fn a_wrong_variant_is_told_from_a_right_one() {
        let mut bench = CpuBench::new(Some(2));
        let class = Class { head_dim: 64, dtype: Dtype::F16 };
        let tile = Tile { m: 4, n: 32, warps: 2, stages: 2 };
        let error = bench.verify(&tile, &class, Coverage::PLAIN).expect("a tile of the space is correct");
        assert!(error < awkward::tolerance(Dtype::F16), "{error}");
        // What is expected is drawn apart from what the backend reads.
        for case in &mut bench.references.f16.cases {
            let CaseCache::Plain { values, .. } = &mut case.cache else { panic!("f16 has no scales") };
            values.fill(f16::ONE);
        }
        let failure = bench.verify(&tile, &class, Coverage::PLAIN).unwrap_err();
        assert_eq!(failure.status, Status::Correctness);
        assert!(failure.message.contains("relative error"), "{}", failure.message);
    }
}
