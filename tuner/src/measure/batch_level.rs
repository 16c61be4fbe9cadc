//! The second level: whole batches of scenarios, under the fitted selector and what it is compared with.

use super::{
    Bench, BenchError, Contestant, Ended, Loaded, PlanId, Planning, RaceOptions, Verified, Way, race,
};
use crate::analysis::Analysis;
use crate::choice::Choice;
use crate::emit::SelectorModel;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::store::{Level, Measurement, RunFolder, Status};
use crate::workloads::Workload;
use std::collections::BTreeSet;
use std::time::Instant;
use tilewright_heuristics::{PackShape, Tile, analytic};
use tilewright_kernel_templates::Class;
use tilewright_runtime::cuda::{Forward, Launch, MergeBy, Mix};

/// How PAT launches: a stream for each tile, then the merge (PAT, section 6).
const PATS_FORWARD: Forward = Forward { launch: Launch::Streams, merge: MergeBy::Launch };

/// What batches are measured under.
#[derive(Debug)]
pub struct BatchPolicies<'a> {
    model: &'a SelectorModel,
    selector_hash: String,
    tiles: Vec<Tile>,
    /// What the selector's single launches are compiled of.
    mix: Mix,
}

impl<'a> BatchPolicies<'a> {
    /// The selector of an analysis in every way of launching, PAT's rules, the whole of PAT, and each tile of the portfolio alone, the best
    /// single one among them.
    pub fn of(analysis: &'a Analysis) -> Self {
        Self::new(&analysis.model, analysis.selector_hash(), analysis.best_single_tile())
    }

    pub(super) fn new(model: &'a SelectorModel, selector_hash: String, best_single: Option<Tile>) -> Self {
        let mut tiles = model.tiles();
        // A decoder compiles all that its selector may choose, for it does not know what batches will come.
        let mix = Mix::of(&tiles.iter().copied().collect::<Vec<_>>());
        tiles.extend(best_single);
        Self { model, selector_hash, tiles: tiles.into_iter().collect(), mix }
    }

    /// What any batch of a class of kernels is measured under, the selector first.
    fn choices(&self, feasible: &[Tile]) -> Vec<Choice> {
        let alone = self.tiles.iter().copied().filter(|tile| feasible.contains(tile)).map(Choice::Tile);
        [Choice::SELECTOR, Choice::PatRules, Choice::Pat].into_iter().chain(alone).collect()
    }

    /// How a choice plans and launches, on a bench that has these ways of launching beside the default.
    fn way(&self, choice: Choice, forwards: &[Forward]) -> Way {
        match choice {
            Choice::Selector(forward) => {
                let mix = (forward.launch == Launch::Single).then(|| self.mix.clone());
                Way { planning: Planning::AsDecoders, forward, mix }
            }
            Choice::Pat => {
                let forward = forwards.iter().copied().find(|&forward| forward == PATS_FORWARD);
                Way { planning: Planning::AsPat, forward: forward.unwrap_or_default(), mix: None }
            }
            Choice::PatRules | Choice::Tile(_) => Way::default(),
        }
    }

    /// The tile of a pack.
    fn tile(&self, choice: Choice, feasible: &[Tile], shape: &PackShape) -> Tile {
        match choice {
            Choice::Selector(_) => self.model.select(shape),
            Choice::PatRules | Choice::Pat => {
                analytic::pat(feasible, shape).unwrap_or(self.model.safe_default)
            }
            Choice::Tile(tile) => tile,
        }
    }

    /// Content hash of the selector.
    pub(super) fn selector_hash(&self) -> &str {
        &self.selector_hash
    }

    /// Plans a batch under one choice.
    pub(super) fn plan_one(
        &self,
        loaded: &mut dyn Loaded,
        choice: Choice,
        feasible: &[Tile],
        forwards: &[Forward],
    ) -> Result<PlanId, BenchError> {
        let way = self.way(choice, forwards);
        loaded.plan(&way, &mut |shape| self.tile(choice, feasible, shape))
    }

    /// Plans a batch under all choices. The selector's other ways of launching are among them where its plan is launched otherwise by them:
    /// a batch of one tile has nothing to launch side by side, and one without partials nothing to merge.
    fn plan(
        &self,
        loaded: &mut dyn Loaded,
        feasible: &[Tile],
        forwards: &[Forward],
    ) -> Result<Vec<(Choice, PlanId)>, BenchError> {
        let plan = |loaded: &mut dyn Loaded, choice: Choice| -> Result<(Choice, PlanId), BenchError> {
            Ok((choice, self.plan_one(loaded, choice, feasible, forwards)?))
        };
        let mut plans = Vec::new();
        for choice in self.choices(feasible) {
            plans.push(plan(loaded, choice)?);
        }
        let selector = plans.iter().find(|(choice, _)| *choice == Choice::SELECTOR);
        // A selector's plan that could not be made cannot be launched in any way.
        if let Some(facts) = selector.and_then(|&(_, plan)| loaded.plan_facts(plan)) {
            for choice in forwards.iter().copied().map(Choice::Selector) {
                if choice != Choice::SELECTOR && facts.tell_apart(&self.way(choice, forwards)) {
                    plans.push(plan(loaded, choice)?);
                }
            }
        }
        Ok(plans)
    }
}

/// Measures every batch that the run does not have yet for this selector, all choices in turn, none of them eliminated.
///
/// The batches share the time until `deadline`. Returns `false` if the user asked to stop.
///
/// # Errors
/// The bench, a scenario that makes no batch, or the run's folder.
#[expect(clippy::too_many_arguments, reason = "the same things as on the first level, and the policies")]
pub fn measure_batches(
    bench: &mut dyn Bench,
    workloads: &[Workload],
    policies: &BatchPolicies<'_>,
    verified: &Verified,
    run: &mut RunFolder,
    deadline: Instant,
    progress: Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<bool> {
    // A run that was resumed may have fitted another selector since: those batches are measured again.
    let known: BTreeSet<&str> = run
        .rows()
        .iter()
        .filter(|row| {
            row.level == Level::Batch && row.complete && row.selector_hash == policies.selector_hash
        })
        .map(|row| row.workload.as_str())
        .collect();
    let left: Vec<&Workload> = workloads.iter().filter(|workload| !known.contains(workload.name())).collect();
    let mut phase = progress.phase("batches", left.len());
    for (done, workload) in left.iter().enumerate() {
        if interrupt.requested() {
            return Ok(false);
        }
        let share = deadline.saturating_duration_since(Instant::now()) / (left.len() - done) as u32;
        let options = RaceOptions {
            time_limit: share,
            seed: done as u64,
            eliminate: false,
            max_rounds: 9,
            ..RaceOptions::default()
        };
        phase.at(workload.name());
        let (rows, ended) = measure(bench, workload, policies, verified, &options, interrupt)?;
        run.append(rows)?;
        if let Some(defect) = bench.defect() {
            return Err(defect.into());
        }
        phase.step();
        if ended == Ended::Interrupted {
            return Ok(false);
        }
    }
    phase.finish(&format!("{} whole batches measured", left.len()));
    Ok(true)
}

fn measure(
    bench: &mut dyn Bench,
    workload: &Workload,
    policies: &BatchPolicies<'_>,
    verified: &Verified,
    options: &RaceOptions,
    interrupt: &Interrupt,
) -> anyhow::Result<(Vec<Measurement>, Ended)> {
    let batch = workload.build()?;
    let class = Class::of(&batch.geometry);
    let forwards = bench.forwards().to_vec();
    let mut loaded = bench.load(&batch)?;
    let plans = policies.plan(loaded.as_mut(), verified.tiles(&class), &forwards)?;
    let limit_us = loaded.limit_us();
    let result = race(plans.len(), options, || interrupt.requested(), |i| loaded.sample(plans[i].1));
    drop(loaded);
    // What was measured before the device was lost is kept; a run that goes on measures the workload again.
    let lost = bench.defect().is_some();
    let conditions = bench.conditions();
    let row = |(i, contestant): (usize, Contestant)| {
        let choice = plans[i].0;
        Measurement {
            choice: choice.to_string(),
            tile: match choice {
                Choice::Tile(tile) => Some(tile),
                Choice::Selector(_) | Choice::PatRules | Choice::Pat => None,
            },
            limit_us: Some(limit_us),
            conditions: conditions.clone(),
            selector_hash: policies.selector_hash.clone(),
            complete: result.ended != Ended::Interrupted && !lost,
            ..workload.measurement(Level::Batch, &batch, contestant)
        }
    };
    let ended = result.ended;
    let rows = result.contestants.into_iter().enumerate().map(row);
    // What failed with the device says nothing about a variant.
    let said = |row: &Measurement| match row.status {
        Status::Correct => !row.samples_us.is_empty(),
        _ => !lost,
    };
    Ok((rows.filter(said).collect(), ended))
}

#[cfg(test)]
#[path = "batch_level_tests.rs"]
pub(crate) mod tests;
