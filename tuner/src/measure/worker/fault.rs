//! Faults on request, for tests: a bench that hangs, aborts or panics at one tile.
//!
//! Only the hidden command `worker` asks for one, by the variable [`FAULT_VARIABLE`]: `hang:m16n64w1s1` hangs wherever that tile
//! is run, `abort:...` and `panic:...` do as they say. `hang:m16n64w1s1:sample` spares its verification.

use crate::measure::{
    Bench, BenchError, Coverage, Execution, Failure, Loaded, PlanFacts, PlanId, PlanTiles, Preparation,
};
use crate::store::{Conditions, DeviceRecord, Resources, Timeline};
use std::time::Duration;
use tilewright_cuda::LaunchMode;
use tilewright_heuristics::{Prices, Tile, TileSetBuf};
use tilewright_kernel_templates::{Class, Limits};
use tilewright_scenarios::Batch;

/// The variable that asks for a fault.
pub const FAULT_VARIABLE: &str = "TILEWRIGHT_TEST_FAULT";

/// What goes wrong, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    kind: Kind,
    tile: Tile,
    spare_verification: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Hang,
    Abort,
    Panic,
}

impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is no fault; write hang, abort or panic, and a tile: hang:m16n64w1s1[:sample]")
        };
        let mut parts = text.split(':');
        let kind = match parts.next() {
            Some("hang") => Kind::Hang,
            Some("abort") => Kind::Abort,
            Some("panic") => Kind::Panic,
            _ => return Err(wrong()),
        };
        let tile = parts.next().and_then(|tile| tile.parse().ok()).ok_or_else(wrong)?;
        match (parts.next(), parts.next()) {
            (None, _) => Ok(Self { kind, tile, spare_verification: false }),
            (Some("sample"), None) => Ok(Self { kind, tile, spare_verification: true }),
            _ => Err(wrong()),
        }
    }
}

impl Fault {
    /// The fault that the environment asks for.
    ///
    /// # Errors
    /// The variable says something that is none.
    pub fn from_environment() -> Result<Option<Self>, String> {
        match std::env::var(FAULT_VARIABLE) {
            Ok(text) => text.parse().map(Some).map_err(|error| format!("{FAULT_VARIABLE}: {error}")),
            Err(_) => Ok(None),
        }
    }

    fn strike(self) {
        match self.kind {
            Kind::Hang => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            Kind::Abort => std::process::abort(),
            Kind::Panic => panic!("{} was asked to panic", self.tile),
        }
    }
}

/// A bench with a fault.
pub struct FaultyBench {
    bench: Box<dyn Bench>,
    fault: Fault,
}

impl std::fmt::Debug for FaultyBench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyBench").field("fault", &self.fault).finish_non_exhaustive()
    }
}

impl FaultyBench {
    /// Gives a bench a fault.
    pub fn new(bench: Box<dyn Bench>, fault: Fault) -> Self {
        Self { bench, fault }
    }
}

impl Bench for FaultyBench {
    fn device(&self) -> DeviceRecord {
        self.bench.device()
    }

    fn limits(&self) -> &Limits {
        self.bench.limits()
    }

    fn prices(&self) -> Prices {
        self.bench.prices()
    }

    fn adopt_prices(&mut self, prices: Prices) {
        self.bench.adopt_prices(prices);
    }

    fn launch_modes(&self) -> &[LaunchMode] {
        self.bench.launch_modes()
    }

    fn facts(&self) -> Vec<(String, String)> {
        self.bench.facts()
    }

    fn versions(&self) -> Vec<(String, String)> {
        self.bench.versions()
    }

    fn kernel_hash(&self) -> String {
        self.bench.kernel_hash()
    }

    fn cold_caches(&self) -> String {
        self.bench.cold_caches()
    }

    fn limit_method(&self) -> String {
        self.bench.limit_method()
    }

    fn launch_us(&self) -> f64 {
        self.bench.launch_us()
    }

    fn warnings(&self) -> Vec<String> {
        self.bench.warnings()
    }

    fn resources(&self, tile: &Tile, class: &Class) -> Resources {
        self.bench.resources(tile, class)
    }

    fn prepare(&mut self, wanted: &[Preparation]) {
        self.bench.prepare(wanted);
    }

    fn prepare_sets(&mut self, wanted: &[(TileSetBuf, Class)]) {
        self.bench.prepare_sets(wanted);
    }

    fn expect(&mut self, wanted: &[Preparation]) {
        self.bench.expect(wanted);
    }

    fn end(&mut self) {
        self.bench.end();
    }

    fn conditions(&mut self) -> Conditions {
        self.bench.conditions()
    }

    fn verify(&mut self, tile: &Tile, class: &Class, coverage: Coverage) -> Result<f64, Failure> {
        if *tile == self.fault.tile && !self.fault.spare_verification {
            self.fault.strike();
        }
        self.bench.verify(tile, class, coverage)
    }

    fn load<'a>(&'a mut self, batch: &'a Batch) -> Result<Box<dyn Loaded + 'a>, BenchError> {
        let (fault, loaded) = (self.fault, self.bench.load(batch)?);
        Ok(Box::new(FaultyBatch { loaded, fault, struck: Vec::new() }))
    }

    fn defect(&self) -> Option<BenchError> {
        self.bench.defect()
    }
}

struct FaultyBatch<'a> {
    loaded: Box<dyn Loaded + 'a>,
    fault: Fault,
    /// Plans in which the tile has a part.
    struck: Vec<PlanId>,
}

impl Loaded for FaultyBatch<'_> {
    fn limit_us(&self) -> f64 {
        self.loaded.limit_us()
    }

    fn plan_facts(&self, plan: PlanId) -> Option<PlanFacts> {
        self.loaded.plan_facts(plan)
    }

    fn plan(&mut self, execution: &Execution, tiles: &PlanTiles) -> Result<PlanId, BenchError> {
        let plan = self.loaded.plan(execution, tiles)?;
        if tiles.may_have(&self.fault.tile) {
            self.struck.push(plan);
        }
        Ok(plan)
    }

    fn sample(&mut self, plan: PlanId) -> Result<f64, Failure> {
        if self.struck.contains(&plan) {
            self.fault.strike();
        }
        self.loaded.sample(plan)
    }

    fn outputs(&mut self, plan: PlanId, requests: &[usize]) -> Result<Vec<f32>, Failure> {
        if self.struck.contains(&plan) {
            self.fault.strike();
        }
        self.loaded.outputs(plan, requests)
    }

    fn timeline(&mut self, plan: PlanId) -> Result<Timeline, Failure> {
        if self.struck.contains(&plan) {
            self.fault.strike();
        }
        self.loaded.timeline(plan)
    }
}
