//! The second level: whole batches of scenarios, under the fitted selector and what it is compared with.

use super::{Bench, BenchError, Contestant, Ended, PlanId, RaceOptions, Verified, race};
use crate::analysis::Analysis;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::report_data::{PAT_RULES, SELECTOR};
use crate::store::{Level, Measurement, RunFolder, Status};
use crate::workloads::Workload;
use std::collections::BTreeSet;
use std::time::Instant;
use tilewright_heuristics::{PackShape, Tile, analytic};
use tilewright_kernel_templates::Class;

/// A way to choose tiles: its name, and the tile of a pack.
type Choice<'a> = (String, Box<dyn Fn(&PackShape) -> Tile + 'a>);

/// The ways to choose tiles that batches are measured under.
#[derive(Debug)]
pub struct BatchPolicies<'a> {
    analysis: &'a Analysis,
    selector_hash: String,
    tiles: Vec<Tile>,
}

impl<'a> BatchPolicies<'a> {
    /// The selector of an analysis, PAT's rules, and each tile of the portfolio alone, the best single one among them.
    pub fn of(analysis: &'a Analysis) -> Self {
        let mut tiles: BTreeSet<Tile> = analysis.model.portfolio.iter().copied().collect();
        tiles.insert(analysis.model.safe_default);
        tiles.extend(analysis.best_single_tile());
        Self { analysis, selector_hash: analysis.selector_hash(), tiles: tiles.into_iter().collect() }
    }

    /// The choices for one class of kernels: name, and the tile of a pack.
    fn choices<'b>(&'b self, feasible: &'b [Tile]) -> Vec<Choice<'b>> {
        let model = &self.analysis.model;
        let mut choices: Vec<Choice<'b>> = vec![
            (SELECTOR.to_owned(), Box::new(|shape| model.choose(shape))),
            (
                PAT_RULES.to_owned(),
                Box::new(|shape| analytic::pat(feasible, shape).unwrap_or(model.safe_default)),
            ),
        ];
        for &tile in self.tiles.iter().filter(|tile| feasible.contains(tile)) {
            choices.push((tile.to_string(), Box::new(move |_| tile)));
        }
        choices
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
    let choices = policies.choices(verified.tiles(&class));
    let mut loaded = bench.load(&batch)?;
    let plans = choices
        .iter()
        .map(|(_, choose)| loaded.plan(&mut |shape| choose(shape)))
        .collect::<Result<Vec<PlanId>, BenchError>>()?;
    let limit_us = loaded.limit_us();
    let result = race(choices.len(), options, || interrupt.requested(), |i| loaded.sample(plans[i]));
    drop(loaded);
    // What was measured before the device was lost is kept; a run that goes on measures the workload again.
    let lost = bench.defect().is_some();
    let conditions = bench.conditions();
    let row = |(i, contestant): (usize, Contestant)| {
        let choice = &choices[i].0;
        Measurement {
            choice: choice.clone(),
            tile: choice.parse().ok(),
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
