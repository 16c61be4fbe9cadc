//! What a batch is executed under once a selector is fitted, and how it is planned so.

use super::batch_level::DECISION_SAMPLES;
use super::{
    BenchError, Coverage, Execution, Failure, InvariantFamilies, Loaded, PlanId, PlanTiles, Planning,
    Preparation, execution_of_set,
};
use crate::analysis::Analysis;
use crate::choice::Choice;
use crate::emit::SelectorModel;
use crate::returned::sets_returned_by;
use crate::store::{Level, Measurement, Status};
use crate::workloads::Workload;
use std::collections::{BTreeMap, BTreeSet};
use tilewright_cuda::{Launch, LaunchMode, MergeBy, Mix};
use tilewright_heuristics::{BatchShape, Tile, TileSetBuf};
use tilewright_kernel_templates::Class;

/// How PAT launches: a stream for each tile, then the merge (PAT, section 6).
pub(super) const PATS_LAUNCH_MODE: LaunchMode =
    LaunchMode { launch: Launch::Streams, merge: MergeBy::Launch };

/// What batches are measured under once a selector is fitted.
#[derive(Debug)]
pub struct BatchPolicies<'a> {
    model: &'a SelectorModel,
    selector_hash: String,
    sets: Vec<TileSetBuf>,
    invariant: InvariantFamilies,
    least_rounds: usize,
}

impl<'a> BatchPolicies<'a> {
    /// The selector of an analysis in every launch mode, PAT's rules, PAT's planner, and each of the selector's sets, the best single one among them: tiles
    /// alone for all batches, several where the selector may return them.
    pub fn of(analysis: &'a Analysis) -> Self {
        Self::new(&analysis.model, analysis.selector_hash(), analysis.best_single_set())
    }

    pub(super) fn new(
        model: &'a SelectorModel,
        selector_hash: String,
        best_single: Option<TileSetBuf>,
    ) -> Self {
        let sets: BTreeSet<TileSetBuf> = model.sets.iter().copied().chain(best_single).collect();
        let invariant = InvariantFamilies::default();
        Self { model, selector_hash, sets: sets.into_iter().collect(), invariant, least_rounds: 1 }
    }

    /// The same, and batch-invariant plans of these families on batches whose scenario wants them.
    #[must_use]
    pub fn with_invariant(self, invariant: InvariantFamilies) -> Self {
        Self { invariant, ..self }
    }

    /// The same, with as many samples of each batch as a decision rests on, whatever time is left: a batch with one or two says nothing.
    #[must_use]
    pub fn with_enough_samples(self) -> Self {
        Self { least_rounds: DECISION_SAMPLES, ..self }
    }

    /// Rounds that each batch gets, whatever time is left.
    pub(super) const fn least_rounds(&self) -> usize {
        self.least_rounds
    }

    /// What any batch of a class of kernels is measured under, the selector first. Several tiles in one launch are a kernel of their own, which is compiled
    /// for the classes alone that the selector may return them for.
    fn choices(&self, class: &Class, feasible: &[Tile]) -> Vec<Choice> {
        let returned = sets_returned_by(self.model, class);
        let can_run = |set: &&TileSetBuf| {
            set.tiles().iter().all(|tile| feasible.contains(tile))
                && (set.tiles().len() == 1 || returned.contains(set))
        };
        let alone = self.sets.iter().filter(can_run).copied().map(Choice::Set);
        [Choice::SELECTOR, Choice::PatRules, Choice::Pat].into_iter().chain(alone).collect()
    }

    /// How a choice plans and launches, on a bench that has these launch modes beside the default.
    fn execution(&self, choice: Choice, batch: &BatchShape, launch_modes: &[LaunchMode]) -> Execution {
        match choice {
            Choice::Selector(launch_mode) => {
                let set = self.model.select(batch);
                if launch_mode == LaunchMode::DEFAULT {
                    return execution_of_set(&set, launch_modes);
                }
                let mix = (launch_mode.launch == Launch::Single).then(|| Mix::of(set.tiles()));
                Execution { planning: Planning::AsDecoders, launch_mode, mix }
            }
            Choice::Pat => {
                let launch_mode =
                    launch_modes.iter().copied().find(|&launch_mode| launch_mode == PATS_LAUNCH_MODE);
                Execution {
                    planning: Planning::AsPat,
                    launch_mode: launch_mode.unwrap_or_default(),
                    mix: None,
                }
            }
            Choice::PatRules => Execution::default(),
            Choice::Invariant => Execution { planning: Planning::Invariant, ..Execution::default() },
            Choice::Set(set) => execution_of_set(&set, launch_modes),
        }
    }

    /// The tiles of a batch; none where its class has no family of batch-invariant plans.
    fn tiles(&self, choice: Choice, batch: &BatchShape, feasible: &[Tile]) -> Option<PlanTiles> {
        Some(match choice {
            Choice::Selector(_) => PlanTiles::Set(self.model.select(batch)),
            Choice::PatRules | Choice::Pat => PlanTiles::PatRules(feasible.to_vec()),
            Choice::Invariant => PlanTiles::Set(self.invariant.of_batch(batch)?),
            Choice::Set(set) => PlanTiles::Set(set),
        })
    }

    /// What the timeline of the selector's plan of a batch of this shape needs.
    pub(super) fn timeline_kernels(&self, workload: &Workload, shape: &BatchShape) -> Preparation {
        let geometry = workload.geometry();
        let coverage = Coverage { timeline: true, ..Coverage::for_pages(geometry.page_size) };
        let tiles = self.model.select(shape).tiles().to_vec();
        Preparation { tiles, class: Class::of(geometry), coverage }
    }

    /// What timelines of these workloads would need, as far as they were raced: which of them are recorded is known once all are measured under the selector.
    pub fn to_prepare_timelines(&self, rows: &[Measurement], workloads: &[Workload]) -> Vec<Preparation> {
        let shape = |row: &Measurement| Some((row.workload.clone(), row.batch?));
        let raced = rows.iter().filter(|row| row.level == Level::Batch);
        let shapes: BTreeMap<String, BatchShape> = raced.filter_map(shape).collect();
        let kernels =
            |workload: &Workload| Some(self.timeline_kernels(workload, shapes.get(workload.name())?));
        workloads.iter().filter_map(kernels).collect()
    }

    /// Content hash of the selector.
    pub(super) fn selector_hash(&self) -> &str {
        &self.selector_hash
    }

    /// Plans a batch under the selector.
    pub(super) fn plan_selected(
        &self,
        loaded: &mut dyn Loaded,
        batch: &BatchShape,
        launch_modes: &[LaunchMode],
    ) -> Result<PlanId, BenchError> {
        let tiles = PlanTiles::Set(self.model.select(batch));
        loaded.plan(&self.execution(Choice::SELECTOR, batch, launch_modes), &tiles)
    }

    /// Plans a batch under all choices. The selector's other launch modes are among them where its plan is launched otherwise by them:
    /// a batch of one tile has nothing to launch side by side, and one without partials nothing to merge.
    pub(super) fn plan(
        &self,
        loaded: &mut dyn Loaded,
        workload: &Workload,
        batch: &BatchShape,
        feasible: &[Tile],
        launch_modes: &[LaunchMode],
    ) -> Result<Vec<(Choice, Planned)>, BenchError> {
        let mut plans = Vec::new();
        let plan =
            |loaded: &mut dyn Loaded, choice: Choice| -> Result<Option<(Choice, Planned)>, BenchError> {
                let Some(tiles) = self.tiles(choice, batch, feasible) else { return Ok(None) };
                let planned = loaded.plan(&self.execution(choice, batch, launch_modes), &tiles);
                let planned = if choice == Choice::Invariant { on_its_own(planned)? } else { Ok(planned?) };
                Ok(Some((choice, planned)))
            };
        let invariant = workload.invariant().then_some(Choice::Invariant);
        let class = Class::of(workload.geometry());
        for choice in self.choices(&class, feasible).into_iter().chain(invariant) {
            plans.extend(plan(loaded, choice)?);
        }
        let selector = plans.iter().find(|(choice, _)| *choice == Choice::SELECTOR);
        let selector = selector.and_then(|(_, planned)| planned.as_ref().ok().copied());
        // A selector's plan that could not be made cannot be launched in any execution.
        if let Some(facts) = selector.and_then(|plan| loaded.plan_facts(plan)) {
            let default = self.execution(Choice::SELECTOR, batch, launch_modes).launch_mode;
            for launch_mode in launch_modes.iter().copied().filter(|&launch_mode| launch_mode != default) {
                let choice = Choice::Selector(launch_mode);
                if choice != Choice::SELECTOR
                    && facts.tell_apart(&self.execution(choice, batch, launch_modes))
                {
                    plans.extend(plan(loaded, choice)?);
                }
            }
        }
        Ok(plans)
    }
}

/// A plan, or why there is none: its choice has a row that says so, and the others are measured.
pub(super) type Planned = Result<PlanId, Failure>;

/// A plan that only its own choice misses where the batch cannot be planned so.
fn on_its_own(planned: Result<PlanId, BenchError>) -> Result<Planned, BenchError> {
    match planned {
        Ok(plan) => Ok(Ok(plan)),
        Err(error @ BenchError::Worker { .. }) => Err(error),
        Err(error) => Ok(Err(Failure { status: Status::Runtime, message: error.to_string() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emit::TreeModel;
    use crate::measure::batch_level::tests::{LARGE, model};
    use tilewright_heuristics::Dtype;

    #[test]
    fn several_tiles_are_launched_together_where_the_selector_may_return_them() {
        let leaf = |set| Box::new(TreeModel::Leaf { ranked: vec![set], support: 1, regret: 0.0 });
        let head_dim = BatchShape::NAMES.iter().position(|name| *name == "head_dim").unwrap();
        let model = SelectorModel {
            tree: TreeModel::Split { feature: head_dim, threshold: 64, low: leaf(1), high: leaf(0) },
            ..model()
        };
        let policies = BatchPolicies::new(&model, "hash".to_owned(), None);
        let of = |head_dim| {
            let class = Class { head_dim, dtype: Dtype::F32 };
            let feasible: Vec<Tile> = model.sets.iter().flat_map(|set| set.tiles()).copied().collect();
            policies.choices(&class, &feasible)[3..].to_vec()
        };
        let [together, alone] = [model.sets[0], TileSetBuf::one(LARGE)].map(Choice::Set);
        assert_eq!(of(64), [alone]);
        assert_eq!(of(128), [together, alone]);
    }
}
