//! A batch that a worker has loaded: loaded and planned again in the process that takes its place.

use super::client::Worker;
use super::protocol::{Answer, Request};
use super::wire::ExecutionRecord;
use crate::measure::plan_tiles::PlanTilesRecord;
use crate::measure::{BenchError, Execution, Failure, Loaded, PlanFacts, PlanId, PlanTiles};
use crate::store::{Status, Timeline};
use std::time::Duration;
use tilewright_cuda::Launch;
use tilewright_scenarios::Batch;

/// A batch in a worker.
pub(super) struct LoadedWorker<'a> {
    worker: &'a mut Worker,
    batch: &'a Batch,
    limit_us: f64,
    /// The process that has loaded it.
    generation: u64,
    plans: Vec<WorkerPlan>,
}

/// A plan as the run knows it.
struct WorkerPlan {
    execution: Execution,
    tiles: PlanTiles,
    /// What it has; not known of one that ended its process.
    facts: Option<PlanFacts>,
    /// The process that has made it, and its number there.
    made: Option<(u64, usize)>,
    /// Why it is not to be run again.
    failed: Option<Failure>,
}

/// Why a plan is not there.
enum Unplanned {
    /// The plan ended its process.
    Failed(Failure),
    /// It cannot be made.
    Refused(BenchError),
}

impl<'a> LoadedWorker<'a> {
    pub(super) fn of(worker: &'a mut Worker, batch: &'a Batch, limit_us: f64) -> Self {
        let generation = worker.generation;
        Self { worker, batch, limit_us, generation, plans: Vec::new() }
    }

    /// Loads the batch again if its process is gone.
    fn reload(&mut self) -> Result<(), BenchError> {
        if !self.worker.has(self.generation) {
            if let Err(error) = self.worker.load(self.batch) {
                // It could be loaded before: this is no fault of a variant.
                if self.worker.defect().is_none() {
                    self.worker.give_up(format!("a batch cannot be loaded again: {error}"));
                }
                return Err(error);
            }
            self.generation = self.worker.generation;
        }
        Ok(())
    }

    /// The number of a plan in the process that there is now.
    fn prepare(&mut self, plan: usize) -> Result<usize, Unplanned> {
        self.reload().map_err(Unplanned::Refused)?;
        let WorkerPlan { execution, tiles, made, facts, .. } = &mut self.plans[plan];
        if let Some((generation, number)) = *made
            && generation == self.generation
        {
            return Ok(number);
        }
        let tiles = PlanTilesRecord::from(&*tiles);
        // A mix takes as long to compile as all of its tiles.
        let limit = match execution.launch_mode.launch {
            Launch::Serial | Launch::Streams => self.worker.limits.load,
            Launch::Single => self.worker.limits.prepare,
        };
        match self
            .worker
            .exchange(Request::Plan { execution: ExecutionRecord::from(&*execution), tiles }, limit)
        {
            Ok(Answer::Planned { plan: number, facts: said }) => {
                *made = Some((self.generation, number));
                *facts = said;
                Ok(number)
            }
            Ok(Answer::Refused(error)) => Err(Unplanned::Refused(error.into())),
            Ok(other) => Err(Unplanned::Failed(self.worker.failed(other))),
            Err(failure) => Err(Unplanned::Failed(failure)),
        }
    }
}

impl LoadedWorker<'_> {
    /// Has a plan run, unless it failed before.
    fn run<T>(
        &mut self,
        plan: PlanId,
        limit: Duration,
        request: impl FnOnce(usize) -> Request,
        expected: impl FnOnce(Answer) -> Result<T, Answer>,
    ) -> Result<T, Failure> {
        let PlanId(plan) = plan;
        if let Some(failure) = &self.plans[plan].failed {
            return Err(failure.clone());
        }
        let outcome = match self.prepare(plan) {
            Ok(number) => match self.worker.exchange(request(number), limit) {
                Ok(answer) => expected(answer).map_err(|other| self.worker.failed(other)),
                Err(failure) => Err(failure),
            },
            Err(Unplanned::Failed(failure)) => Err(failure),
            Err(Unplanned::Refused(error)) => {
                Err(Failure { status: Status::Runtime, message: error.to_string() })
            }
        };
        // What ended a process is not given to the next.
        self.plans[plan].failed = outcome.as_ref().err().cloned();
        outcome
    }
}

impl Loaded for LoadedWorker<'_> {
    fn limit_us(&self) -> f64 {
        self.limit_us
    }

    fn plan(&mut self, execution: &Execution, tiles: &PlanTiles) -> Result<PlanId, BenchError> {
        let (execution, tiles) = (execution.clone(), tiles.clone());
        self.plans.push(WorkerPlan { execution, tiles, facts: None, made: None, failed: None });
        let plan = self.plans.len() - 1;
        match self.prepare(plan) {
            Ok(_) => {}
            // The others are measured all the same; this one's samples say what became of it.
            Err(Unplanned::Failed(failure)) => self.plans[plan].failed = Some(failure),
            Err(Unplanned::Refused(error)) => return Err(error),
        }
        Ok(PlanId(plan))
    }

    fn plan_facts(&self, plan: PlanId) -> Option<PlanFacts> {
        self.plans.get(plan.0).and_then(|plan| plan.facts)
    }

    fn sample(&mut self, plan: PlanId) -> Result<f64, Failure> {
        let limit = self.worker.limits.sample;
        self.run(
            plan,
            limit,
            |plan| Request::Sample { plan },
            |answer| match answer {
                Answer::Sampled(us) => Ok(us),
                other => Err(other),
            },
        )
    }

    fn outputs(&mut self, plan: PlanId, requests: &[usize]) -> Result<Vec<f32>, Failure> {
        // Beside the step all of its output is copied.
        let limit = self.worker.limits.load;
        let request = |plan| Request::Outputs { plan, requests: requests.to_vec() };
        self.run(plan, limit, request, |answer| match answer {
            Answer::Computed(bits) => Ok(bits.into_iter().map(f32::from_bits).collect()),
            other => Err(other),
        })
    }

    fn timeline(&mut self, plan: PlanId) -> Result<Timeline, Failure> {
        // Kernels that note what they do are compiled for it.
        let limit = self.worker.limits.prepare;
        self.run(
            plan,
            limit,
            |plan| Request::Timeline { plan },
            |answer| match answer {
                Answer::Timeline(timeline) => Ok(timeline),
                other => Err(other),
            },
        )
    }
}

impl Drop for LoadedWorker<'_> {
    fn drop(&mut self) {
        self.worker.unload(self.generation);
    }
}
