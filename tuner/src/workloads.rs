//! What is measured: the batches of scenario files, told apart by level and scaled to the device.

use crate::shard::{Shard, assign};
use crate::store::ScenarioRecord;
use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use tilewright_heuristics::{Backend, BatchShape, Dtype, Geometry, Prices};
use tilewright_kernel_templates::{Class, Limits};
use tilewright_plan::{Forest, PageTable, PlanError, batch_shape};
use tilewright_scenarios::{Batch, BatchSpec, Scenario, ScenarioError, catalogue};

/// What a batch may cost, so that many of them can be measured in minutes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Most bytes of distinct K and V.
    pub max_bytes: u64,
    /// Most floating-point operations of QK and PV.
    pub max_flops: f64,
    /// Most bytes of distinct K and V of a pack, which is never scaled down.
    pub max_pack_bytes: u64,
    /// `max_bytes` without regard to a device's memory: shards are divided by it, alike on every machine.
    pub nominal_bytes: u64,
}

impl Scale {
    /// What a backend does in milliseconds.
    pub const fn of(backend: Backend) -> Self {
        match backend {
            Backend::Cpu => {
                Self { max_bytes: 16 << 20, max_flops: 2e9, max_pack_bytes: 1 << 30, nominal_bytes: 16 << 20 }
            }
            // All of PAT's batches as they are; the largest has 17 GB.
            Backend::Cuda => Self {
                max_bytes: 24 << 30,
                max_flops: 1e13,
                max_pack_bytes: 24 << 30,
                nominal_bytes: 24 << 30,
            },
        }
    }

    /// What a device does in milliseconds, or what the user wants of it.
    pub fn on(limits: &Limits, max_batch_mb: Option<u32>) -> Self {
        let mut scale = Self::of(limits.backend());
        if let Limits::Cuda(limits) = limits {
            // A batch that does not fit would end the run: half of the memory leaves room for all else.
            scale.max_bytes = scale.max_bytes.min(limits.memory_bytes / 2);
            scale.max_pack_bytes = scale.max_pack_bytes.min(limits.memory_bytes / 2);
        }
        if let Some(mb) = max_batch_mb {
            scale.max_bytes = u64::from(mb) << 20;
            scale.nominal_bytes = scale.max_bytes;
        }
        scale
    }
}

/// What a sample takes beside its limit, about: waking the threads, twice where partials are merged.
const CPU_SAMPLE_NS: u64 = 20_000;
/// Reading more than L2 holds, so that it is cold, a graph's launch, and waiting for its end.
const CUDA_SAMPLE_NS: u64 = 150_000;

/// A batch to be measured: light until it is built.
#[derive(Clone, Debug)]
pub struct Workload {
    spec: BatchSpec,
    scenario: String,
    held_out: bool,
    invariant: bool,
    sample_ns: u64,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Workload {
    /// Its name, unique in its level.
    pub fn name(&self) -> &str {
        self.spec.name()
    }

    /// The attention layers that it is of.
    pub fn geometry(&self) -> &Geometry {
        self.spec.geometry()
    }

    /// The batch.
    ///
    /// # Errors
    /// The scenario makes no batch.
    pub fn build(&self) -> Result<Batch, ScenarioError> {
        self.spec.build()
    }

    /// The scenario that it is of.
    pub fn scenario(&self) -> &str {
        &self.scenario
    }

    /// About how long a sample takes, in ns, by the bytes that it reads: batches share a run's time by it.
    pub const fn sample_ns(&self) -> u64 {
        self.sample_ns
    }

    /// Whether it is only judged, never fitted.
    pub const fn held_out(&self) -> bool {
        self.held_out
    }

    /// Whether a run that executes it under its selector executes it with batch-invariant plans, too.
    pub const fn invariant(&self) -> bool {
        self.invariant
    }
}

/// What a selector is told of a batch.
///
/// # Errors
/// A malformed page table.
pub fn batch_shape_of(batch: &Batch) -> Result<BatchShape, PlanError> {
    let Batch { page_table, max_pages, seq_lens, geometry, .. } = batch;
    let table = PageTable::new(page_table, *max_pages, seq_lens, geometry.page_size)?;
    Ok(batch_shape(geometry, &Forest::build(&table)))
}

/// All workloads of a run.
#[derive(Clone, Debug, Default)]
pub struct Workloads {
    /// Whole batches; sweeps of packs are batches of alike packs.
    pub batches: Vec<Workload>,
    /// The scenarios that they were made from.
    pub records: Vec<ScenarioRecord>,
    /// The element types of all workloads, those of other shards too.
    pub dtypes: BTreeSet<Dtype>,
}

impl Workloads {
    /// Loads scenario files, or the catalogue if there are none. A shard gets a part that takes about as long as every other one
    /// ([`Scale::work`]).
    ///
    /// # Errors
    /// A file that is no scenario, or a scenario that makes no batches.
    pub fn load(
        files: &[PathBuf],
        backend: Backend,
        scale: &Scale,
        shard: Option<Shard>,
    ) -> anyhow::Result<Self> {
        let mut scenarios = files
            .iter()
            .map(Scenario::load)
            .collect::<Result<Vec<_>, _>>()
            .context("cannot load the scenarios")?;
        if scenarios.is_empty() {
            scenarios = catalogue(backend);
        }
        let mut workloads = Self::default();
        let mut work = Vec::new();
        for scenario in &scenarios {
            let record =
                ScenarioRecord { name: scenario.name().to_owned(), hash: scenario.hash().to_owned() };
            workloads.records.push(record);
            let specs = scenario.batches()?;
            for spec in specs {
                let scenario_name = scenario.name().to_owned();
                if shard.is_some() {
                    work.push(scale.work(&spec, scenario.is_pack_sweep(), backend)?);
                }
                let spec = if scenario.is_pack_sweep() {
                    // A pack of another size is another shape: what a sweep names is what is measured.
                    scale.require_room(&spec)?;
                    spec
                } else {
                    scale.fit(spec)?
                };
                workloads.batches.push(Workload {
                    sample_ns: sample_ns(spec.unique_bytes(), 0.0, backend),
                    spec,
                    scenario: scenario_name,
                    held_out: scenario.held_out(),
                    invariant: scenario.invariant(),
                });
            }
        }
        require_unique(&workloads.batches)?;
        workloads.dtypes.extend(workloads.batches.iter().map(|workload| workload.spec.geometry().dtype));
        if let Some(Shard { index, count }) = shard {
            let shards = assign(&work, count);
            let all = std::mem::take(&mut workloads.batches).into_iter().zip(shards);
            workloads.batches = all.filter(|&(_, of)| of == index).map(|(workload, _)| workload).collect();
        }
        Ok(workloads)
    }
}

impl Workloads {
    /// The classes of kernels that are timed, and how many workloads each has.
    pub fn classes(&self) -> BTreeMap<Class, usize> {
        let mut classes = BTreeMap::new();
        for workload in &self.batches {
            *classes.entry(Class::of(workload.spec.geometry())).or_default() += 1;
        }
        classes
    }
}

fn require_unique(level: &[Workload]) -> anyhow::Result<()> {
    let mut names: Vec<&str> = level.iter().map(Workload::name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            anyhow::bail!("two workloads are called `{}`; give their scenarios different names", pair[0])
        }
        None => Ok(()),
    }
}

impl Scale {
    /// Refuses a pack that has no room on the device, before anything is compiled or measured.
    fn require_room(&self, spec: &BatchSpec) -> Result<(), ScenarioError> {
        let (bytes, most) = (spec.unique_bytes(), self.max_pack_bytes);
        if bytes <= most {
            return Ok(());
        }
        Err(spec.error(format!(
            "{:.1} GB of K and V have no room here, where a pack may have {:.1}; lower its `kv_len`, `own` or `packs`",
            bytes as f64 / 1e9,
            most as f64 / 1e9
        )))
    }

    /// Scales a batch down until it costs no more than allowed.
    pub(crate) fn fit(&self, spec: BatchSpec) -> Result<BatchSpec, ScenarioError> {
        self.fit_within(self.max_bytes, &spec).map(|(spec, _)| spec)
    }

    /// A batch scaled down to these bytes and to the FLOPs that are allowed, and its FLOPs.
    fn fit_within(&self, mut max_bytes: u64, spec: &BatchSpec) -> Result<(BatchSpec, f64), ScenarioError> {
        loop {
            let scaled = spec.scaled(max_bytes);
            let flops = scaled.build()?.flops();
            // A batch that cannot shrink further is measured as it is.
            if flops <= self.max_flops || max_bytes < 64 << 10 {
                return Ok((scaled, flops));
            }
            max_bytes /= 2;
        }
    }

    /// About how long a sample of a batch takes, in ns: its limit on a usual device of the backend, and what each sample takes in any
    /// case. A race takes as many of them for every batch, or about: all batches are raced under the same candidates. No number of
    /// the machine at hand is in it, so that shards that are measured on different machines divide a run alike.
    ///
    /// # Errors
    /// The scenario makes no batch.
    pub fn work(&self, spec: &BatchSpec, is_pack: bool, backend: Backend) -> Result<u64, ScenarioError> {
        let (bytes, flops) = if is_pack {
            (spec.unique_bytes(), spec.build()?.flops())
        } else {
            let (scaled, flops) = self.fit_within(self.nominal_bytes, spec)?;
            (scaled.unique_bytes(), flops)
        };
        Ok(sample_ns(bytes, flops, backend))
    }
}

/// What a sample takes that reads these bytes and computes these FLOPs, on a usual device of a backend.
fn sample_ns(bytes: u64, flops: f64, backend: Backend) -> u64 {
    let (prices, in_any_case_ns) = match backend {
        Backend::Cpu => (Prices::CPU, CPU_SAMPLE_NS),
        Backend::Cuda => (Prices::H200, CUDA_SAMPLE_NS),
    };
    const ATTOSECONDS_PER_NS: f64 = 1e9;
    let limit = (bytes as f64 * prices.hbm_byte as f64).max(flops * prices.flop as f64);
    (limit / ATTOSECONDS_PER_NS) as u64 + in_any_case_ns
}

#[cfg(test)]
#[path = "workloads_tests.rs"]
mod tests;
