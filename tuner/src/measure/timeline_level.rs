//! Timelines of a few whole batches under the fitted selector (PAT, figure 12), once all of them were measured.
//!
//! Which batches follows from the measurements alone ([`chosen_batches`]). None of them can end a run: one that cannot be recorded is told
//! with its reason.

use super::batch_level::left_to_others;
use super::row::batch_shape;
use super::{BatchPolicies, Bench, Given, Order, Preparation, Session, Told};
use crate::choice::Choice;
use crate::store::{BatchTimeline, Level, Measurement, RunFolder, SkippedTimeline, Status, Timeline};
use crate::workloads::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// Batches far from their limit that are chosen, and how many of them may be of one scenario: its batches tend to be alike.
const FARTHEST: usize = 6;
const OF_A_SCENARIO: usize = 2;
/// Batches that are chosen because they take longest.
const LONGEST: usize = 2;
/// Why those are skipped for which no time was left.
const SPENT: &str = "the run's budget was spent; a larger `--budget` leaves time for it";

/// The batches whose timelines are recorded: those with the most time over their limit under this selector, and the longest ones that are not
/// among them.
pub fn chosen_batches<'a>(rows: &'a [Measurement], selector_hash: &str) -> Vec<&'a str> {
    let selector = Choice::SELECTOR.to_string();
    let judged = rows.iter().filter(|row| {
        row.level == Level::Batch
            && row.status == Status::Correct
            && row.choice == selector
            && row.selector_hash == selector_hash
    });
    let mut timed: Vec<(&Measurement, f64)> =
        judged.filter_map(|row| Some((row, row.median_us()?))).collect();
    let names = |a: &Measurement, b: &Measurement| a.workload.cmp(&b.workload);
    let over =
        |(row, us): &(&Measurement, f64)| us / row.limit_us.filter(|limit| *limit > 0.0).unwrap_or(*us);
    timed.sort_by(|a, b| over(b).total_cmp(&over(a)).then_with(|| names(a.0, b.0)));
    let (mut chosen, mut of_scenario) = (Vec::new(), BTreeMap::new());
    for (row, _) in &timed {
        let count: &mut usize = of_scenario.entry(row.scenario.as_str()).or_default();
        if chosen.len() < FARTHEST && *count < OF_A_SCENARIO {
            *count += 1;
            chosen.push(row.workload.as_str());
        }
    }
    timed.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| names(a.0, b.0)));
    let longest = timed.iter().map(|(row, _)| row.workload.as_str()).filter(|name| !chosen.contains(name));
    let longest: Vec<&str> = longest.take(LONGEST).collect();
    chosen.extend(longest);
    chosen
}

/// Records the timelines of the chosen batches that the run does not have yet for this selector. The first one is recorded in any case, the
/// others until `deadline`.
///
/// Returns `false` if the user asked to stop.
///
/// # Errors
/// The run's folder. What fails on the bench is told, and kept as the reason why a batch has no timeline.
pub fn record_timelines(
    session: &mut Session<'_, '_>,
    workloads: &[Workload],
    policies: &BatchPolicies<'_>,
    deadline: Instant,
) -> anyhow::Result<bool> {
    let Session { benches, run, progress, interrupt } = session;
    let (progress, interrupt) = (*progress, *interrupt);
    let selector_hash = policies.selector_hash();
    let known = |run: &RunFolder, name: &str| {
        let mut all = run.timelines().batches.iter();
        all.any(|known| known.batch == name && known.selector_hash == selector_hash)
    };
    let rows = run.united_rows();
    let chosen = chosen_batches(&rows, selector_hash);
    let left: Vec<&Workload> = chosen
        .into_iter()
        .filter(|name| !known(run, name))
        .filter_map(|name| workloads.iter().find(|workload| workload.name() == name))
        .collect();
    let mut phase = progress.phase("timelines", left.len());
    // Each may be of another class and other tiles, and its kernels are used for nothing else: they are made on all cores before the first.
    let kernels = |workload: &Workload| {
        let shape = batch_shape(&workload.build().ok()?).ok()?;
        Some((workload.name().to_owned(), policies.timeline_kernels(workload, &shape)))
    };
    let wanted: BTreeMap<String, Preparation> =
        left.iter().filter_map(|workload| kernels(workload)).collect();
    let ready = if !wanted.is_empty() && benches.first().defect().is_none() {
        phase.at("making kernels ready");
        let wanted: Vec<Preparation> = wanted.values().cloned().collect();
        Some(benches.getting_ready(&wanted, &[], interrupt))
    } else {
        None
    };
    // The first one is recorded in any case.
    let begun = AtomicBool::new(false);
    let work = |bench: &mut dyn Bench, workload: &&Workload, _: usize| {
        if let (Some(ready), Some(wanted)) = (&ready, wanted.get(workload.name())) {
            ready.wait(wanted);
        }
        let spent = begun.swap(true, Relaxed) && Instant::now() >= deadline;
        Ok(if spent { Err(SPENT.to_owned()) } else { record(bench, workload, policies) })
    };
    let mut recorded = 0;
    let mut keep = |run: &mut RunFolder, workload: &Workload, outcome: Result<Timeline, String>| {
        let (batch, selector_hash) = (workload.name().to_owned(), selector_hash.to_owned());
        match outcome {
            Ok(timeline) => {
                recorded += 1;
                let choice = Choice::SELECTOR.to_string();
                run.keep_timeline(BatchTimeline { batch, choice, selector_hash, timeline })
            }
            Err(reason) => {
                if reason != SPENT {
                    tracing::warn!("{batch}: no timeline: {reason}");
                }
                run.skip_timeline(SkippedTimeline { batch, selector_hash, reason })
            }
        }
    };
    let mut done: BTreeSet<&str> = BTreeSet::new();
    let given = benches.give_out(&left, Order::AsGiven, interrupt, &work, |told| {
        match told {
            Told::Begun(workload) => phase.at(workload.name()),
            Told::NothingElse => {}
            Told::Done(workload, outcome) => {
                keep(run, workload, outcome)?;
                done.insert(workload.name());
                phase.step();
            }
            Told::Lost(workload, defect) => progress.note(&left_to_others(workload.name(), &defect)),
        }
        Ok(())
    })?;
    match given {
        Given::All => {}
        Given::Interrupted => return Ok(false),
        Given::Lost(defect) => {
            for workload in left.iter().filter(|workload| !done.contains(workload.name())) {
                keep(run, workload, Err(defect.to_string()))?;
            }
        }
    }
    phase.finish(&format!("{recorded} of {} timelines recorded", left.len()));
    Ok(true)
}

/// The timeline of a batch under the selector, or why there is none.
fn record(
    bench: &mut dyn Bench,
    workload: &Workload,
    policies: &BatchPolicies<'_>,
) -> Result<Timeline, String> {
    let batch = workload.build().map_err(|error| error.to_string())?;
    let launch_modes = bench.launch_modes().to_vec();
    let mut loaded = bench.load(&batch).map_err(|error| error.to_string())?;
    let shape = batch_shape(&batch).map_err(|error| error.to_string())?;
    let plan =
        policies.plan_selected(loaded.as_mut(), &shape, &launch_modes).map_err(|error| error.to_string())?;
    loaded.timeline(plan).map_err(|failure| failure.message)
}

#[cfg(test)]
#[path = "timeline_level_tests.rs"]
mod tests;
