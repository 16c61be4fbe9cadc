//! The run's side: a bench whose work is done by a process that may be replaced.

use super::connection::{Connection, Started};
use super::frames;
use super::loaded::LoadedWorker;
use super::process::WorkerCommand;
use super::protocol::{Answer, Description, PreparationRecord, Request, SetRecord};
use super::wire::BatchHead;
use crate::measure::{Bench, BenchError, Coverage, Failure, Loaded, Preparation};
use crate::store::{Conditions, DeviceRecord, PricesRecord, Resources, Status};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tilewright_cuda::LaunchMode;
use tilewright_heuristics::{Prices, Tile, TileSetBuf};
use tilewright_kernel_templates::{Class, Limits};
use tilewright_scenarios::Batch;

/// Processes that may end one after the other while they start or load a batch: then it is not a variant that ends them.
const MAX_DEATHS: usize = 3;

/// How long a worker may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// To start and describe its device.
    pub start: Duration,
    /// To make all tiles of a class ready.
    pub prepare: Duration,
    /// To verify a variant, or to say what it needs.
    pub verify: Duration,
    /// To load a batch, to plan it, or to give it up.
    pub load: Duration,
    /// For one sample.
    pub sample: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(60),
            prepare: Duration::from_secs(600),
            verify: Duration::from_secs(40),
            load: Duration::from_secs(60),
            sample: Duration::from_secs(10),
        }
    }
}

/// A bench in a process of its own.
#[derive(Debug)]
pub struct WorkerBench {
    /// What the first process said; one that takes its place measures the same device.
    description: Description,
    launch_modes: Vec<LaunchMode>,
    // What a variant needs is asked of a shared bench.
    worker: RefCell<Worker>,
    needs: RefCell<BTreeMap<(Tile, Class), Resources>>,
}

impl WorkerBench {
    /// Starts a worker.
    ///
    /// # Errors
    /// It cannot be started, or does not say in time which device it has.
    pub fn spawn(command: WorkerCommand, limits: TimeLimits) -> Result<Self, BenchError> {
        Self::launch(Box::new(move || command.start()), limits)
    }

    pub(super) fn launch(launch: Launch, limits: TimeLimits) -> Result<Self, BenchError> {
        let mut worker =
            Worker { launch, limits, prices: None, connection: None, generation: 0, defect: None };
        let description = worker.start().map_err(|message| BenchError::Worker { message })?;
        worker.prices = Some(description.prices);
        let launch_modes = description.launch_modes.iter().map(|launch_mode| launch_mode.0).collect();
        Ok(Self { description, launch_modes, worker: RefCell::new(worker), needs: RefCell::default() })
    }
}

impl Bench for WorkerBench {
    fn device(&self) -> DeviceRecord {
        self.description.device.clone()
    }

    fn limits(&self) -> &Limits {
        &self.description.limits
    }

    fn prices(&self) -> Prices {
        self.description.prices.into()
    }

    fn adopt_prices(&mut self, prices: Prices) {
        self.description.prices = prices.into();
        self.worker.get_mut().adopt_prices(prices.into());
    }

    fn launch_modes(&self) -> &[LaunchMode] {
        &self.launch_modes
    }

    fn facts(&self) -> Vec<(String, String)> {
        self.description.facts.clone()
    }

    fn versions(&self) -> Vec<(String, String)> {
        self.description.versions.clone()
    }

    fn kernel_hash(&self) -> String {
        self.description.kernel_hash.clone()
    }

    fn cold_caches(&self) -> String {
        self.description.cold_caches.clone()
    }

    fn limit_method(&self) -> String {
        self.description.limit_method.clone()
    }

    fn launch_us(&self) -> f64 {
        self.description.launch_us
    }

    fn warnings(&self) -> Vec<String> {
        self.description.warnings.clone()
    }

    fn resources(&self, tile: &Tile, class: &Class) -> Resources {
        // Asked once a variant: a process that takes another's place need not compile it again, nor die of it again.
        *self.needs.borrow_mut().entry((*tile, *class)).or_insert_with(|| {
            let mut worker = self.worker.borrow_mut();
            let limit = worker.limits.verify;
            match worker.exchange(Request::Resources { tile: *tile, class: *class }, limit) {
                Ok(Answer::Resources(resources)) => resources,
                Ok(other) => {
                    worker.unexpected(&other);
                    Resources::default()
                }
                Err(failure) => {
                    tracing::warn!("{tile}, {class}: what it needs is not known: {}", failure.message);
                    Resources::default()
                }
            }
        })
    }

    fn prepare(&mut self, wanted: &[Preparation]) {
        let worker = self.worker.get_mut();
        let limit = worker.limits.prepare;
        let sent = wanted.iter().map(PreparationRecord::of).collect();
        match worker.exchange(Request::Prepare(sent), limit) {
            Ok(Answer::Prepared) => {}
            Ok(other) => drop(worker.unexpected(&other)),
            // The tiles are then made ready one by one, and those at fault are found.
            Err(failure) => tracing::warn!("tiles not made ready at once: {}", failure.message),
        }
    }

    fn prepare_sets(&mut self, wanted: &[(TileSetBuf, Class)]) {
        let worker = self.worker.get_mut();
        let limit = worker.limits.prepare;
        let wanted = wanted.iter().map(SetRecord::of).collect();
        match worker.exchange(Request::PrepareSets(wanted), limit) {
            Ok(Answer::Prepared) => {}
            Ok(other) => drop(worker.unexpected(&other)),
            Err(failure) => tracing::warn!("sets of tiles not made ready at once: {}", failure.message),
        }
    }

    fn expect(&mut self, wanted: &[Preparation]) {
        let worker = self.worker.get_mut();
        let limit = worker.limits.load;
        let sent = wanted.iter().map(PreparationRecord::of).collect();
        match worker.exchange(Request::Expect(sent), limit) {
            Ok(Answer::Expected) => {}
            Ok(other) => drop(worker.unexpected(&other)),
            // What is verified is then made ready when it is.
            Err(failure) => tracing::warn!("nothing is made ready ahead: {}", failure.message),
        }
    }

    fn end(&mut self) {
        let connection = self.worker.get_mut().connection.take();
        // A device's memory takes half a second to be given back, for which its process is waited for.
        let thread = std::thread::Builder::new().name("end of a worker".to_owned());
        drop(thread.spawn(move || drop(connection)));
    }

    fn conditions(&mut self) -> Conditions {
        let worker = self.worker.get_mut();
        let limit = worker.limits.sample;
        match worker.exchange(Request::Conditions, limit) {
            Ok(Answer::Conditions(conditions)) => conditions,
            Ok(other) => {
                worker.unexpected(&other);
                Conditions::default()
            }
            Err(_) => Conditions::default(),
        }
    }

    fn verify(&mut self, tile: &Tile, class: &Class, coverage: Coverage) -> Result<f64, Failure> {
        let worker = self.worker.get_mut();
        let limit = worker.limits.verify;
        match worker.exchange(Request::Verify { tile: *tile, class: *class, coverage }, limit)? {
            Answer::Verified(error) => Ok(error),
            other => Err(worker.failed(other)),
        }
    }

    fn load<'a>(&'a mut self, batch: &'a Batch) -> Result<Box<dyn Loaded + 'a>, BenchError> {
        let worker = self.worker.get_mut();
        let limit_us = worker.load(batch)?;
        Ok(Box::new(LoadedWorker::of(worker, batch, limit_us)))
    }

    fn defect(&self) -> Option<BenchError> {
        self.worker.borrow().defect()
    }
}

/// Starts a process.
pub(super) type Launch = Box<dyn FnMut() -> Result<Started, String> + Send>;

/// The process that does the work, and the way to another one.
pub(super) struct Worker {
    launch: Launch,
    pub(super) limits: TimeLimits,
    /// What the first process measured, or the run decided on: each later one plans by them, so that a batch has the same plans in all.
    prices: Option<PricesRecord>,
    /// The process; started anew when it is next needed.
    connection: Option<Connection>,
    /// How many processes there were: what one has loaded and planned is gone in the next.
    pub(super) generation: u64,
    /// Why there will be no other.
    defect: Option<String>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("running", &self.connection.is_some())
            .field("generation", &self.generation)
            .field("defect", &self.defect)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts a process; what it says of itself.
    fn start(&mut self) -> Result<Description, String> {
        let mut connection = Connection::of((self.launch)()?);
        let answer = connection
            .exchange(Request::Describe, Vec::new(), self.limits.start)
            .map_err(|failure| failure.message)?;
        let Answer::Described(description) = answer else {
            return Err(format!("it answered {answer:?} when it was asked which device it has"));
        };
        if let Some(prices) = self.prices {
            let answer = connection
                .exchange(Request::AdoptPrices(prices), Vec::new(), self.limits.start)
                .map_err(|failure| failure.message)?;
            if !matches!(answer, Answer::PricesAdopted) {
                return Err(format!("it answered {answer:?} when it was told the run's prices"));
            }
        }
        self.connection = Some(connection);
        self.generation += 1;
        Ok(*description)
    }

    /// The process, started anew if there is none.
    fn ready(&mut self) -> Result<&mut Connection, String> {
        if let Some(defect) = &self.defect {
            return Err(defect.clone());
        }
        // One that ended on its own since the last answer is replaced, and no variant is blamed for it.
        if self.connection.as_mut().is_some_and(|connection| !connection.alive()) {
            self.connection = None;
        }
        let mut last = String::new();
        for _ in 0..MAX_DEATHS {
            if self.connection.is_some() {
                break;
            }
            // What it says of itself is known from the first.
            if let Err(error) = self.start() {
                last = error;
            }
        }
        self.connection.as_mut().ok_or_else(|| {
            let defect =
                format!("{MAX_DEATHS} of them could not start one after the other; the last: {last}");
            self.defect.insert(defect).clone()
        })
    }

    /// Hands prices to the process that there is, and to each that takes its place.
    fn adopt_prices(&mut self, prices: PricesRecord) {
        self.prices = Some(prices);
        if self.connection.is_none() {
            return;
        }
        let limit = self.limits.load;
        match self.exchange(Request::AdoptPrices(prices), limit) {
            Ok(Answer::PricesAdopted) => {}
            Ok(other) => drop(self.unexpected(&other)),
            // It is gone, and the next is told as it starts.
            Err(failure) => tracing::warn!("prices could not be handed over: {}", failure.message),
        }
    }

    /// Asks the process, in a new one if need be.
    pub(super) fn exchange(&mut self, request: Request, limit: Duration) -> Result<Answer, Failure> {
        self.exchange_with(request, Vec::new(), limit)
    }

    fn exchange_with(
        &mut self,
        request: Request,
        numbers: Vec<u8>,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        let connection = self.ready().map_err(|message| Failure { status: Status::Runtime, message })?;
        let answer = connection.exchange(request, numbers, limit);
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    /// Loads a batch, in a new process if it ends the one that there is; its limit in µs.
    pub(super) fn load(&mut self, batch: &Batch) -> Result<f64, BenchError> {
        let mut last = String::new();
        for _ in 0..MAX_DEATHS {
            let numbers = frames::numbers(&batch.page_table, &batch.seq_lens).map_err(|error| {
                BenchError::Worker { message: format!("{}: cannot be sent: {error}", batch.name) }
            })?;
            let limit = self.limits.load;
            match self.exchange_with(Request::Load(BatchHead::of(batch)), numbers, limit) {
                Ok(Answer::Loaded { limit_us }) => return Ok(limit_us),
                Ok(Answer::Refused(error)) => return Err(error.into()),
                Ok(other) => last = self.unexpected(&other).message,
                Err(failure) => last = failure.message,
            }
            if let Some(defect) = self.defect() {
                return Err(defect);
            }
        }
        self.give_up(format!(
            "{}: {MAX_DEATHS} of them ended while they loaded it; the last: {last}",
            batch.name
        ));
        Err(BenchError::Worker { message: self.defect.clone().unwrap_or_default() })
    }

    /// Gives the loaded batch up, in the process that has loaded it.
    pub(super) fn unload(&mut self, generation: u64) {
        if self.connection.is_some() && self.generation == generation {
            // If that fails, the process is gone, and the batch with it.
            let _ = self.exchange(Request::Unload, self.limits.load);
        }
    }

    /// Whether the process that was there is still to be used.
    pub(super) fn has(&mut self, generation: u64) -> bool {
        self.generation == generation && self.connection.as_mut().is_some_and(Connection::alive)
    }

    /// What an answer that is no success says about a variant.
    pub(super) fn failed(&mut self, answer: Answer) -> Failure {
        match answer {
            Answer::Failed(failure) => {
                // What failed while it ran may have left the device unusable for this process: the next variant gets another.
                if failure.status == Status::Runtime {
                    self.connection = None;
                }
                failure
            }
            other => self.unexpected(&other),
        }
    }

    /// The process has lost its thread: it is stopped.
    pub(super) fn unexpected(&mut self, answer: &Answer) -> Failure {
        self.connection = None;
        let message =
            format!("the process gave another answer than was asked for ({answer:?}); it was stopped");
        Failure { status: Status::Runtime, message }
    }

    /// No other process is started.
    pub(super) fn give_up(&mut self, why: String) {
        self.connection = None;
        self.defect = Some(why);
    }

    /// Why there will be no other process.
    pub(super) fn defect(&self) -> Option<BenchError> {
        self.defect.clone().map(|message| BenchError::Worker { message })
    }
}
