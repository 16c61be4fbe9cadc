//! Awkward cases on the CPU backend.

use super::reference::to_f64;
use super::values::poison;
use super::{CaseCache, ConformanceCase};
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, KvCache, KvPages};
use tilewright_heuristics::Tile;
use tilewright_plan::{Plan, PlanOptions};

/// A case with its K, V and Q, to be computed under many tiles.
#[derive(Clone, Debug)]
pub struct CpuCase<E> {
    /// The case.
    pub case: ConformanceCase,
    /// Its K and V.
    pub cache: CaseCache<E>,
    /// Its queries.
    pub query: Vec<E>,
}

impl<E: Element> CpuCase<E> {
    /// Draws K, V and Q.
    pub fn new(case: ConformanceCase) -> Self {
        Self { cache: case.cache(), query: case.query(), case }
    }

    /// Output and LSE under one tile, for [`ConformanceCase::check`].
    ///
    /// # Errors
    /// Why it cannot be planned or executed.
    pub fn run(&self, backend: &mut CpuBackend, tile: &Tile) -> Result<(Vec<f64>, Vec<f64>), String> {
        self.run_on(backend, tile, self.case.options)
    }

    /// As [`CpuCase::run`], planned in another way.
    ///
    /// # Errors
    /// As [`CpuCase::run`].
    pub fn run_on(
        &self,
        backend: &mut CpuBackend,
        tile: &Tile,
        planned: PlanOptions,
    ) -> Result<(Vec<f64>, Vec<f64>), String> {
        let plan = self.case.plan_with(&planned, *tile).map_err(|error| error.to_string())?;
        let strides = self.case.strides();
        match &self.cache {
            CaseCache::Plain { keys, values } => {
                self.run_over(KvCache { keys, values, strides }, backend, &plan)
            }
            CaseCache::E4m3(pages) => self.run_over(pages.on_cpu(strides), backend, &plan),
            CaseCache::E5m2(pages) => self.run_over(pages.on_cpu(strides), backend, &plan),
        }
    }

    fn run_over<C: KvPages<E>>(
        &self,
        cache: C,
        backend: &mut CpuBackend,
        plan: &Plan,
    ) -> Result<(Vec<f64>, Vec<f64>), String> {
        let heads = self.case.queries() * self.case.geometry.q_heads as usize;
        // Poison shows what was never written.
        let mut wide = poison(self.query.len());
        let mut output = E::narrowed(&wide);
        let mut lse = poison(heads);
        let sinks = self.case.sinks();
        let args = DecodeArgs {
            lse: Some(&mut lse),
            scale: Some(self.case.scale()),
            mask: self.case.mask,
            sinks: sinks.as_deref(),
            ..DecodeArgs::new(&self.query, cache, &mut output)
        };
        backend.decode(plan, args).map_err(|error| error.to_string())?;
        E::copy_wide(&output, &mut wide);
        Ok((to_f64(&wide), to_f64(&lse)))
    }
}
