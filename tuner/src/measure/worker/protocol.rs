//! What a run and its worker say to each other: one answer to each request, in order.

use super::wire::{
    BatchHead, BenchErrorRecord, ClassDef, ExecutionRecord, LaunchModeText, LimitsDef, TileText, bits, text,
};
use crate::measure::plan_tiles::PlanTilesRecord;
use crate::measure::{Bench, Coverage, Failure, PlanFacts, Preparation};
use crate::store::{Conditions, DeviceRecord, PricesRecord, Resources, Timeline};
use serde::{Deserialize, Serialize};
use tilewright_heuristics::{Tile, TileSetBuf};
use tilewright_kernel_templates::{Class, Limits};

/// [`Preparation`] as it is sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PreparationRecord {
    pub(super) tiles: Vec<TileText>,
    #[serde(with = "ClassDef")]
    pub(super) class: Class,
    pub(super) coverage: Coverage,
}

impl PreparationRecord {
    pub(super) fn of(&Preparation { ref tiles, class, coverage }: &Preparation) -> Self {
        Self { tiles: tiles.iter().copied().map(TileText).collect(), class, coverage }
    }
}

impl From<PreparationRecord> for Preparation {
    fn from(PreparationRecord { tiles, class, coverage }: PreparationRecord) -> Self {
        Self { tiles: tiles.into_iter().map(|tile| tile.0).collect(), class, coverage }
    }
}

/// A set of tiles of a class, as it is sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SetRecord {
    tiles: Vec<TileText>,
    #[serde(with = "ClassDef")]
    class: Class,
}

impl SetRecord {
    pub(super) fn of((set, class): &(TileSetBuf, Class)) -> Self {
        Self { tiles: set.tiles().iter().copied().map(TileText).collect(), class: *class }
    }

    /// `None` of tiles that make no set.
    pub(super) fn set(self) -> Option<(TileSetBuf, Class)> {
        let tiles: Vec<Tile> = self.tiles.into_iter().map(|tile| tile.0).collect();
        Some((TileSetBuf::of(&tiles)?, self.class))
    }
}

/// What a worker is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// What a bench says of itself.
    Describe,
    /// Plans by these prices from now on.
    AdoptPrices(PricesRecord),
    /// What a variant needs.
    Resources {
        #[serde(with = "text")]
        tile: Tile,
        #[serde(with = "ClassDef")]
        class: Class,
    },
    /// Makes tiles ready at once.
    Prepare(Vec<PreparationRecord>),
    /// Makes sets of tiles that share a kernel ready at once.
    PrepareSets(Vec<SetRecord>),
    /// These come to be verified.
    Expect(Vec<PreparationRecord>),
    /// Compiles a kernel into the cache: asked of a process that measures nothing.
    Compile { name: String, text: String },
    /// The device's state.
    Conditions,
    /// Runs a variant against the reference.
    Verify {
        #[serde(with = "text")]
        tile: Tile,
        #[serde(with = "ClassDef")]
        class: Class,
        coverage: Coverage,
    },
    /// Makes a batch ready; its page table and lengths follow as a frame of numbers. It takes the place of the one before.
    Load(BatchHead),
    /// Plans the loaded batch in a execution, with these tiles.
    Plan { execution: ExecutionRecord, tiles: PlanTilesRecord },
    /// Executes a plan of the loaded batch once.
    Sample { plan: usize },
    /// Executes a plan of the loaded batch; what it computes for these requests.
    Outputs { plan: usize, requests: Vec<usize> },
    /// Executes a plan of the loaded batch; when its work items ran, and where.
    Timeline { plan: usize },
    /// Gives the loaded batch up.
    Unload,
}

/// What a worker answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Described(Box<Description>),
    PricesAdopted,
    Resources(Resources),
    Prepared,
    Expected,
    Conditions(Conditions),
    /// The largest relative error.
    Verified(#[serde(with = "bits")] f64),
    Loaded {
        #[serde(with = "bits")]
        limit_us: f64,
    },
    /// The number of the plan, and what it has.
    Planned {
        plan: usize,
        facts: Option<PlanFacts>,
    },
    /// The time in µs.
    Sampled(#[serde(with = "bits")] f64),
    /// The bits of what was computed.
    Computed(Vec<u32>),
    Timeline(Timeline),
    Unloaded,
    /// The variant did not pass.
    Failed(Failure),
    /// The bench cannot do this.
    Refused(BenchErrorRecord),
}

/// What a bench says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) device: DeviceRecord,
    #[serde(with = "LimitsDef")]
    pub(super) limits: Limits,
    pub(super) prices: PricesRecord,
    pub(super) launch_modes: Vec<LaunchModeText>,
    pub(super) facts: Vec<(String, String)>,
    pub(super) versions: Vec<(String, String)>,
    pub(super) kernel_hash: String,
    pub(super) cold_caches: String,
    pub(super) limit_method: String,
    #[serde(with = "bits")]
    pub(super) launch_us: f64,
    pub(super) warnings: Vec<String>,
}

impl Description {
    pub(super) fn of(bench: &dyn Bench) -> Self {
        Self {
            device: bench.device(),
            limits: bench.limits().clone(),
            prices: bench.prices().into(),
            launch_modes: bench.launch_modes().iter().copied().map(LaunchModeText).collect(),
            facts: bench.facts(),
            versions: bench.versions(),
            kernel_hash: bench.kernel_hash(),
            cold_caches: bench.cold_caches(),
            limit_method: bench.limit_method(),
            launch_us: bench.launch_us(),
            warnings: bench.warnings(),
        }
    }
}
