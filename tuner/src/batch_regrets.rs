//! Policies, compared on whole batches that were executed under each.

use crate::choice::{BATCH_INVARIANT, Choice, PAT_RULES, PATS_PLANNER, SELECTOR};
use crate::fit::PolicyRegret;
use crate::statistics::{mean, median, quantile};
use crate::store::{Level, Measurement, Status};
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::TileSetBuf;

/// Whether a choice differs from the selector's by its launches alone. Such are compared with each other, and are no policies.
fn launched_otherwise(choice: &str) -> bool {
    choice.parse().is_ok_and(|choice: Choice| choice.other_launch_mode().is_some())
}

/// Whether a choice is compared with the best of a batch.
fn is_policy(choice: &str) -> bool {
    choice != BATCH_INVARIANT && !launched_otherwise(choice)
}

/// Samples of a batch by choice. What was measured beside a selector took turns with it: those samples stand for a choice that has some, and not the ones of
/// a race before, when the device may have been faster or slower.
pub fn samples_by_choice<'a>(
    rows: impl Iterator<Item = &'a Measurement> + Clone,
) -> BTreeMap<&'a str, Vec<f64>> {
    let judged = rows.filter(|row| {
        row.level == Level::Batch && row.status == Status::Correct && !row.samples_us.is_empty()
    });
    // Of a run that was resumed with another selector: the last.
    let selector = judged.clone().filter(|row| row.choice == SELECTOR).last();
    let beside =
        |row: &&Measurement| selector.is_some_and(|selector| selector.selector_hash == row.selector_hash);
    let turns: BTreeSet<&str> = judged.clone().filter(beside).map(|row| row.choice.as_str()).collect();
    let mut samples: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for row in judged.filter(|row| beside(row) || !turns.contains(row.choice.as_str())) {
        samples.entry(&row.choice).or_default().extend(&row.samples_us);
    }
    samples
}

/// The measured times of each batch: workload -> choice -> median, for policies that ran. Batch-invariant plans compute what no other does, and are
/// compared with the selector alone ([`crate::invariant_cost`]).
pub fn batch_times(rows: &[Measurement]) -> BTreeMap<&str, BTreeMap<&str, f64>> {
    let mut batches: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.level == Level::Batch && row.status == Status::Correct) {
        batches.entry(&row.workload).or_default().push(row);
    }
    batches
        .into_iter()
        .map(|(workload, rows)| {
            let samples = samples_by_choice(rows.into_iter());
            let policies = samples.into_iter().filter(|(choice, _)| is_policy(choice));
            (workload, policies.filter_map(|(choice, samples)| Some((choice, median(&samples)?))).collect())
        })
        .collect()
}

fn best(times: &BTreeMap<&str, f64>) -> Option<f64> {
    times.values().copied().min_by(f64::total_cmp)
}

/// The single tile with the least mean regret over all batches that measured it everywhere; of those that took turns with a selector, if some did.
pub fn best_single<'a>(
    batches: &BTreeMap<&'a str, BTreeMap<&'a str, f64>>,
    rows: &'a [Measurement],
) -> Option<&'a str> {
    let beside = rows.iter().filter(|row| row.level == Level::Batch && !row.selector_hash.is_empty());
    let beside: BTreeSet<&str> = beside.map(|row| row.choice.as_str()).collect();
    let choices: BTreeSet<&str> = batches.values().flat_map(BTreeMap::keys).copied().collect();
    choices
        .into_iter()
        .filter(|choice| beside.is_empty() || beside.contains(choice))
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
    let single = best_single(&batches, rows);
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
