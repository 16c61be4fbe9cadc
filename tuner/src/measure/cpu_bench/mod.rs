//! The host's processor as a bench: pools of pages larger than the caches, so that every sample reads cold memory.

mod cases;
mod loaded;
mod pool;

use super::numbers::{self, Stream};
use super::{Bench, BenchError, Coverage, Failure, Loaded};
use crate::store::{DeviceRecord, Resources};
use cases::References;
use half::{bf16, f16};
use loaded::LoadedBatch;
use pool::{PoolElement, Pools, repeated};
use std::time::Instant;
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, HostDevice, KvCache, KvPages, probe};
use tilewright_heuristics::{Dtype, Geometry, Prices, Tile};
use tilewright_kernel_templates::{Class, CpuLimits, Limits, cpu as scratch};
use tilewright_plan::{E4m3, E5m2, KvStrides, PageTable, Plan, PlanOptions};
use tilewright_scenarios::Batch;

/// Multiple of the last-level cache that is read between two reads of the same page, at least.
const REUSE_DISTANCE: usize = 2;
/// What stands for the last-level cache where the system does not tell its size.
const UNKNOWN_CACHE_BYTES: usize = 32 << 20;
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

impl CpuBench {
    /// The host's processor with `threads` threads; all of them by default. Measures what it gives at most.
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
}

/// The time of a step over one token: waking the threads, one work item, nothing to read.
fn launch_floor(backend: &mut CpuBackend) -> f64 {
    let geometry = Geometry { q_heads: 1, kv_heads: 1, head_dim: 64, page_size: 16, dtype: Dtype::F32 };
    let zeros = vec![0.0f32; 16 * 64];
    let mut output = vec![0.0f32; 64];
    let seq_lens = [1];
    let tile = Tile::of("m1n16w1s1");
    let table = PageTable::new(&[0], 1, &seq_lens, geometry.page_size).expect("one page of one request");
    let plan =
        Plan::build(&geometry, &table, &PlanOptions::default(), tile).expect("one token can be planned");
    let mut samples = Vec::with_capacity(FLOOR_SAMPLES);
    for _ in 0..FLOOR_SAMPLES {
        let cache = KvCache { keys: &zeros, values: &zeros, strides: KvStrides::nhd(&geometry) };
        let args = DecodeArgs::new(&zeros[..64], cache, &mut output);
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
            ("L1 cache", kb(l1d_bytes)),
            ("L2", kb(l2_bytes)),
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
        tilewright_cpu::kernel_hash()
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

    fn verify(&mut self, tile: &Tile, class: &Class, coverage: Coverage) -> Result<f64, Failure> {
        let Self { references, backend, .. } = self;
        match class.dtype {
            Dtype::F16 | Dtype::Fp8F16 | Dtype::E5m2F16 => {
                references.verify::<f16>(backend, tile, class, coverage)
            }
            Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => {
                references.verify::<bf16>(backend, tile, class, coverage)
            }
            Dtype::F32 | Dtype::Fp8F32 | Dtype::E5m2F32 => {
                references.verify::<f32>(backend, tile, class, coverage)
            }
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
            Dtype::E5m2F16 => self.load_typed::<f16, E5m2>(batch),
            Dtype::E5m2Bf16 => self.load_typed::<bf16, E5m2>(batch),
            Dtype::E5m2F32 => self.load_typed::<f32, E5m2>(batch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Status;
    use tilewright_conformance::{self as conformance, CaseCache};

    #[test]
    fn a_wrong_variant_is_told_from_a_right_one() {
        let mut bench = CpuBench::new(Some(2));
        let class = Class { head_dim: 64, dtype: Dtype::F16 };
        let tile = Tile::of("m4n32w2s2");
        let error = bench.verify(&tile, &class, Coverage::PLAIN).expect("a tile of the space is correct");
        assert!(error < conformance::tolerance(Dtype::F16), "{error}");
        // What is expected is drawn apart from what the backend reads.
        for case in &mut bench.references.f16.cases {
            let CaseCache::Plain { values, .. } = &mut case.cache else { panic!("f16 has no scales") };
            values.fill(f16::ONE);
        }
        let failure = bench.verify(&tile, &class, Coverage::PLAIN).unwrap_err();
        assert_eq!(failure.status, Status::Correctness);
        assert!(failure.message.contains("relative error"), "{}", failure.message);
    }

    #[test]
    fn batch_invariant_plans_are_verified_in_every_type() {
        let mut bench = CpuBench::new(Some(2));
        let limits = bench.limits().clone();
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::Fp8F16, Dtype::E5m2F16] {
            let class = Class { head_dim: 64, dtype };
            let set = tilewright_kernel_templates::invariant_set(&class, &limits).unwrap();
            for tile in set.tiles() {
                let error = bench.verify(tile, &class, Coverage::INVARIANT).unwrap();
                assert!(error > 0.0 && error < conformance::tolerance(dtype), "{class} {tile}: {error}");
            }
        }
    }
}
