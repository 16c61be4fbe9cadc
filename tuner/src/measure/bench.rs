//! What the tuner asks of a device: the seam where a backend plugs in.

use super::PlanTiles;
use super::{Execution, PlanFacts, Planning};
use crate::store::{Conditions, DeviceRecord, Resources, Status, Timeline};
use kernel_templates::{Class, Limits};
use scenarios::Batch;
use serde::{Deserialize, Serialize};
use std::fmt;
use tilewright_cuda::LaunchMode;
use tilewright_heuristics::{Prices, Tile, TileSetBuf};
use tilewright_kernel_templates as kernel_templates;
use tilewright_kernel_templates::cuda::{KernelOptions, KvLoad};
use tilewright_scenarios as scenarios;

/// Why a bench cannot measure at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BenchError {
    /// The batch does not fit the device.
    #[error(
        "{batch}: needs {needed_mb} MB of KV, the device gives {available_mb} MB; lower `--max-batch-mb`"
    )]
    TooLarge {
        /// The batch.
        batch: String,
        /// What it needs.
        needed_mb: u64,
        /// What there is.
        available_mb: u64,
    },
    /// The device cannot take the batch.
    #[error("{batch}: {message}")]
    Device {
        /// The batch.
        batch: String,
        /// What the device says.
        message: String,
    },
    /// The batch cannot be planned.
    #[error("{batch}: {source}")]
    Plan {
        /// The batch.
        batch: String,
        /// What is wrong with it.
        source: tilewright_plan::PlanError,
    },
    /// The process that measures is gone, and no other could take its place.
    #[error(
        "the process that measures the device cannot be used: {message}; what was measured is kept: mend the device \
         (`tilewright doctor`), then go on with `--resume`"
    )]
    Worker {
        /// What became of it.
        message: String,
    },
}

/// Why a variant did not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What became of it.
    pub status: Status,
    /// The details.
    pub message: String,
}

/// Tiles of a class that are made ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preparation {
    /// The tiles.
    pub tiles: Vec<Tile>,
    /// The class.
    pub class: Class,
    /// Which variants of them.
    pub coverage: Coverage,
}

impl Preparation {
    /// The same of one of its tiles.
    pub fn only(&self, tile: Tile) -> Self {
        Self { tiles: vec![tile], ..*self }
    }
}

impl fmt::Display for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tiles, class, coverage } = self;
        match tiles.as_slice() {
            [tile] => write!(f, "{tile}")?,
            several => write!(f, "{} tiles", several.len())?,
        }
        write!(f, ", {class}")?;
        let Coverage { options, cp_async, trial, timeline, invariant } = *coverage;
        let variants = [
            (options, "with options"),
            (cp_async, "cp.async"),
            (trial, "on trial"),
            (timeline, "of a timeline"),
            (invariant, "batch-invariant"),
        ];
        let named = variants.iter().filter(|(has, _)| *has);
        named.into_iter().try_for_each(|(_, variant)| write!(f, ", {variant}"))
    }
}

/// Which variants of a tile are made ready or verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Those with a window, a soft-cap and sinks, beside the plain one.
    pub options: bool,
    /// Those with the `cp.async` producer, where a class has others with TMA.
    pub cp_async: bool,
    /// Only that one small batch is right, which is enough to be raced and not to be returned by a selector.
    pub trial: bool,
    /// The kernels that note what their CTAs do, in place of the plain ones. They are made ready, and not verified: they compute the same.
    pub timeline: bool,
    /// Those of batch-invariant plans, which are kernels of their own, in place of the others.
    pub invariant: bool,
}

impl Coverage {
    /// The variant that most workloads are timed with.
    pub const PLAIN: Self =
        Self { options: false, cp_async: false, trial: false, timeline: false, invariant: false };

    /// The same, on trial.
    pub const TRIAL: Self = Self { trial: true, ..Self::PLAIN };

    /// The variant of batch-invariant plans, whose pages TMA can load.
    pub const INVARIANT: Self = Self { invariant: true, ..Self::PLAIN };

    /// The variant that a batch with pages of this size is timed with.
    pub const fn for_pages(page_size: u32) -> Self {
        let cp_async = matches!(KernelOptions::for_pages(page_size).kv_load, KvLoad::CpAsync);
        Self { cp_async, ..Self::PLAIN }
    }

    /// How the batches are planned that its variants are verified on.
    pub const fn planning(self) -> Planning {
        if self.invariant { Planning::Invariant } else { Planning::AsDecoders }
    }

    /// How its variants load K and V.
    pub const fn kv_load(self) -> KvLoad {
        if self.cp_async { KvLoad::CpAsync } else { KvLoad::Tma }
    }
}

/// The rows of some requests out of all of a batch's output, `row` elements each.
pub(super) fn rows_of<T: Copy>(output: &[T], row: usize, requests: &[usize]) -> Result<Vec<T>, Failure> {
    let mut rows = Vec::with_capacity(requests.len() * row);
    for &request in requests {
        let begin = request.checked_mul(row);
        let found = begin.and_then(|begin| output.get(begin..begin.checked_add(row)?));
        rows.extend_from_slice(found.ok_or_else(|| Failure {
            status: Status::Runtime,
            message: format!("there is no request {request} in the batch"),
        })?);
    }
    Ok(rows)
}

/// A plan that a loaded batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanId(pub usize);

/// A device under measurement. Several are driven by a thread each.
pub trait Bench: Send {
    /// The device.
    fn device(&self) -> DeviceRecord;
    /// Its limits, as the feasibility rules see them.
    fn limits(&self) -> &Limits;
    /// What a plan's parts cost on it: as measured when the bench began, unless others were adopted since. Batches are planned by them.
    fn prices(&self) -> Prices;
    /// Plans by these prices from now on: another bench measured them on the same device, and two that plan alike measure the same plans.
    fn adopt_prices(&mut self, prices: Prices);
    /// Launch modes a plan that it has beside the default.
    fn launch_modes(&self) -> &[LaunchMode] {
        &[]
    }
    /// Its limits and measured prices, by name, for people.
    fn facts(&self) -> Vec<(String, String)>;
    /// The software that decides a result.
    fn versions(&self) -> Vec<(String, String)>;
    /// Hash of the kernel's sources.
    fn kernel_hash(&self) -> String;
    /// How caches are made cold before each sample, in a sentence.
    fn cold_caches(&self) -> String;
    /// How the limit is found, in a sentence.
    fn limit_method(&self) -> String;
    /// The time of a launch with nothing to do, in µs.
    fn launch_us(&self) -> f64;
    /// What a reader must know before trusting the figures.
    fn warnings(&self) -> Vec<String>;
    /// What a variant needs of the device.
    fn resources(&self, tile: &Tile, class: &Class) -> Resources;
    /// Makes all of these ready at once, where that is faster than one by one. What fails shows when they are verified.
    fn prepare(&mut self, _wanted: &[Preparation]) {}
    /// Makes sets of several tiles ready at once that share a kernel, for batches with pages that TMA can load. What fails shows when they are sampled.
    fn prepare_sets(&mut self, _wanted: &[(TileSetBuf, Class)]) {}
    /// These come to be verified, in about this order: what their verification needs beside kernels may be made ready while the bench does other things.
    fn expect(&mut self, _wanted: &[Preparation]) {}
    /// Nothing more is measured: what it holds of the device may be given back while the caller does other things.
    fn end(&mut self) {}
    /// The device's state now.
    fn conditions(&mut self) -> Conditions {
        Conditions::default()
    }
    /// Runs the variants that the coverage names on conformance shapes against the f64 reference; the largest relative error. A trial may be a
    /// single batch whose answer is known.
    ///
    /// # Errors
    /// The variant is wrong or cannot run.
    fn verify(&mut self, tile: &Tile, class: &Class, coverage: Coverage) -> Result<f64, Failure>;
    /// Makes a batch ready to be measured.
    ///
    /// # Errors
    /// The batch does not fit or is malformed.
    fn load<'a>(&'a mut self, batch: &'a Batch) -> Result<Box<dyn Loaded + 'a>, BenchError>;
    /// Why nothing can be measured any more: failures since then say nothing about a variant.
    fn defect(&self) -> Option<BenchError> {
        None
    }
}

/// A batch on a device.
pub trait Loaded {
    /// The least time that the hardware needs for the batch, in µs.
    fn limit_us(&self) -> f64;
    /// Plans the batch, with these tiles. A plan that cannot be launched as asked says so when it is sampled.
    ///
    /// # Errors
    /// The batch is malformed.
    fn plan(&mut self, execution: &Execution, tiles: &PlanTiles) -> Result<PlanId, BenchError>;
    /// What of a plan decides whether launch modes it differ; `None` if there is no such plan, or if making it failed.
    fn plan_facts(&self, plan: PlanId) -> Option<PlanFacts>;
    /// Executes a plan once on cold caches; its time in µs.
    ///
    /// # Errors
    /// Why it could not run.
    fn sample(&mut self, plan: PlanId) -> Result<f64, Failure>;
    /// Executes a plan on the batch's own numbers ([`numbers`](super::numbers)); what it computes for these requests,
    /// `[requests, q_heads, head_dim]`. NaN is what was not written.
    ///
    /// # Errors
    /// Why it could not run, or a request that the batch does not have.
    fn outputs(&mut self, plan: PlanId, requests: &[usize]) -> Result<Vec<f32>, Failure>;
    /// Executes a plan in the default launch mode twice on cold caches; when each work item of the second execution ran, and where.
    ///
    /// # Errors
    /// Why it could not run, or is launched otherwise.
    fn timeline(&mut self, plan: PlanId) -> Result<Timeline, Failure>;
}
