//! Policies, compared on whole batches that were executed under each.

use crate::choice::{Choice, PAT_RULES, PATS_PLANNER, SELECTOR};
use crate::fit::PolicyRegret;
use crate::statistics::{mean, median, quantile};
use crate::store::{Level, Measurement, Status};
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::TileSetBuf;

/// Whether a choice differs from the selector's by its launches alone. Such are compared with each other, and are no policies.
fn launched_otherwise(choice: &str) -> bool {
    choice.parse().is_ok_and(|choice: Choice| choice.other_launch_mode().is_some())
}

/// The measured times of each batch: workload -> choice -> median, for policies that ran.
pub fn batch_times(rows: &[Measurement]) -> BTreeMap<&str, BTreeMap<&str, f64>> {
    let mut samples: BTreeMap<&str, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    let judged = |row: &&Measurement| {
        row.level == Level::Batch && row.status == Status::Correct && !launched_otherwise(&row.choice)
    };
    for row in rows.iter().filter(judged) {
        samples.entry(&row.workload).or_default().entry(&row.choice).or_default().extend(&row.samples_us);
    }
    samples
        .into_iter()
        .map(|(workload, choices)| {
            (
                workload,
                choices
                    .into_iter()
                    .filter_map(|(choice, samples)| Some((choice, median(&samples)?)))
                    .collect(),
            )
        })
        .collect()
}

fn best(times: &BTreeMap<&str, f64>) -> Option<f64> {
    times.values().copied().min_by(f64::total_cmp)
}

/// The single tile with the least mean regret over all batches that measured it everywhere.
pub fn best_single<'a>(batches: &BTreeMap<&'a str, BTreeMap<&'a str, f64>>) -> Option<&'a str> {
    let choices: BTreeSet<&str> = batches.values().flat_map(BTreeMap::keys).copied().collect();
    choices
        .into_iter()
        .filter(|choice| choice.parse().is_ok_and(|set: TileSetBuf| set.single().is_some()))
        .filter_map(|choice| Some((choice, mean(&regrets(batches, choice)?)?)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(choice, _)| choice)
}

/// The regret of one choice on every batch; `None` unless all batches measured it.
fn regrets(batches: &BTreeMap<&str, BTreeMap<&str, f64>>, choice: &str) -> Option<Vec<f64>> {
    batches.values().map(|times| Some(times.get(choice)? / best(times)? - 1.0)).collect()
}

/// What the report calls it.
pub fn best_single_name(tile: &str) -> String {
    format!("best single tile ({tile})")
}

/// Policies, compared on the whole batches that were executed under the selector, or, where none was, on all; empty if none were
/// measured.
pub fn batch_policies(rows: &[Measurement]) -> Vec<PolicyRegret> {
    let mut batches = batch_times(rows);
    if batches.values().any(|times| times.contains_key(SELECTOR)) {
        batches.retain(|_, times| times.contains_key(SELECTOR));
    }
    let single = best_single(&batches);
    let named = [
        Some((SELECTOR.to_owned(), SELECTOR)),
        single.map(|tile| (best_single_name(tile), tile)),
        Some((PAT_RULES.to_owned(), PAT_RULES)),
        Some((PATS_PLANNER.to_owned(), PATS_PLANNER)),
    ];
    named
        .into_iter()
        .flatten()
        .filter_map(|(name, choice)| {
            let regrets = regrets(&batches, choice)?;
            Some(PolicyRegret {
                name,
                mean: mean(&regrets)?,
                p95: quantile(&regrets, 0.95)?,
                worst: quantile(&regrets, 1.0)?,
                count: regrets.len(),
                per_row: regrets,
            })
        })
        .collect()
}
