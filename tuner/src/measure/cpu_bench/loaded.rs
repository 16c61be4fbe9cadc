//! A batch on the host's processor, and its plans.

use super::super::bench::rows_of;
use super::super::{
    BenchError, Execution, Failure, Loaded, PlanFacts, PlanId, PlanTiles, Planning, cpu_timeline,
};
use super::Figures;
use super::pool::{Pool, PoolElement};
use crate::store::{Status, Timeline};
use std::time::Instant;
use tilewright_cpu::ExecError;
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, KvPages};
use tilewright_cuda::LaunchMode;
use tilewright_heuristics::{Backend, Geometry};
use tilewright_plan::{ChooseTiles, DeviceProfile, KvStrides, PageTable, Plan, PlanOptions};
use tilewright_scenarios::Batch;

/// What is sampled: pages from the pool, and plans of the batch.
pub(super) struct LoadedBatch<'a, E, K> {
    pub(super) batch: &'a Batch,
    pub(super) backend: &'a mut CpuBackend,
    pub(super) figures: Figures,
    pub(super) pool: &'a mut Pool<K>,
    pub(super) batch_elements: usize,
    pub(super) page_elements: usize,
    pub(super) query: Vec<E>,
    pub(super) output: Vec<E>,
    pub(super) plans: Vec<(Plan, Execution)>,
}

impl<E, K> LoadedBatch<'_, E, K> {
    fn table(&self) -> Result<PageTable<'_>, BenchError> {
        let Batch { page_table, max_pages, seq_lens, geometry, .. } = self.batch;
        PageTable::new(page_table, *max_pages, seq_lens, geometry.page_size)
            .map_err(|source| self.error(source))
    }

    fn error(&self, source: tilewright_plan::PlanError) -> BenchError {
        BenchError::Plan { batch: self.batch.name.clone(), source }
    }

    fn build(&self, planning: Planning, choose: impl ChooseTiles) -> Result<Plan, BenchError> {
        let table = self.table()?;
        Plan::build(&self.batch.geometry, &table, &self.options(planning), choose)
            .map_err(|source| self.error(source))
    }

    fn options(&self, planning: Planning) -> PlanOptions {
        let device = DeviceProfile::of_units(Backend::Cpu, self.backend.threads());
        planning.options(PlanOptions::on(device)).with_prices(self.figures.prices)
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
        let (plan, Execution { launch_mode, .. }) = &self.plans[plan.0];
        if *launch_mode != LaunchMode::DEFAULT {
            let message = format!("a processor has no launches, and executes nothing as {launch_mode}");
            return Err(Failure { status: Status::Constraints, message });
        }
        let window = begin..begin + self.batch_elements;
        self.pool.next = begin + self.batch_elements.next_multiple_of(self.page_elements);
        let geometry = &self.batch.geometry;
        let strides = KvStrides::nhd(geometry);
        let cache = K::cache(&self.pool.keys[window.clone()], &self.pool.values[window], strides);
        let scale = 1.0 / (geometry.head_dim as f32).sqrt();
        let args = DecodeArgs { scale: Some(scale), ..DecodeArgs::new(&self.query, cache, &mut self.output) };
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

    fn plan(&mut self, execution: &Execution, tiles: &PlanTiles) -> Result<PlanId, BenchError> {
        let plan = self.build(execution.planning, tiles)?;
        self.plans.push((plan, execution.clone()));
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
        let (plan, Execution { planning, .. }) = &self.plans[plan.0];
        let options = self.options(*planning);
        Ok(cpu_timeline::timeline(plan, &options, self.backend.threads(), &units))
    }
}
