//! Whether a selector is fit to be used: judged by the run's own held-out batches, before a module of it is written.

use crate::analysis::Analysis;
use crate::batch_regrets::batch_policies;
use crate::choice::{PAT_RULES, SELECTOR};
use crate::fit::Validation;
use crate::statistics::quantile;
use crate::store::{Level, Measurement, Recording, Status};
use std::collections::BTreeMap;
use tilewright_heuristics::TileSetBuf;
use tilewright_reports::policy_names::BEST_SINGLE_TILE;

/// Mean regret that two policies may be apart by chance.
const TIE: f64 = 0.005;
/// Whole batches that a fit needs: fewer are no sample of anything.
const LEAST_BATCHES: usize = 8;
/// Samples that a set needs over all batches that it is chosen for.
const LEAST_SAMPLES: usize = 5;
/// Half the interquartile range over the median, of the noisiest quarter of the races: beyond it something else was running.
const MOST_NOISE: f64 = 0.15;
/// Samples of a race that has a spread.
const SAMPLES_OF_A_SPREAD: usize = 3;

/// Why a selector should not be used; nothing if it may be.
pub fn doubts(recording: &Recording, analysis: &Analysis) -> Vec<String> {
    let rows = &recording.rows;
    let mut doubts = loses(&analysis.validation);
    doubts.extend(loses_executed(rows));
    doubts.extend(too_little(rows, analysis));
    doubts.extend(noise(rows));
    doubts
}

/// By what each set took on the held-out batches.
fn loses(validation: &Validation) -> Vec<String> {
    let mean = |name: &str| {
        let of = |policy: &str| policy.split(" (").next() == Some(name);
        validation.policies.iter().find(|policy| of(&policy.name)).map(|policy| policy.mean)
    };
    let Some(selector) = mean(SELECTOR) else { return Vec::new() };
    let judged = if validation.folds == 0 { "held-out batches" } else { "batches of other folds" };
    let others = [BEST_SINGLE_TILE, PAT_RULES];
    others.into_iter().filter_map(|other| lost(judged, selector, other, mean(other)?)).collect()
}

/// By what batches took that were executed under the selector.
fn loses_executed(rows: &[Measurement]) -> Vec<String> {
    let policies = batch_policies(rows);
    let Some(selector) = policies.iter().find(|policy| policy.name == SELECTOR) else { return Vec::new() };
    let others = policies.iter().filter(|policy| policy.name != SELECTOR);
    others
        .filter_map(|other| lost("batches executed under it", selector.mean, &other.name, other.mean))
        .collect()
}

fn lost(judged: &str, selector: f64, name: &str, other: f64) -> Option<String> {
    (selector > other + TIE).then(|| {
        let (selector, other) = (selector * 100.0, other * 100.0);
        format!("on {judged} the selector takes {selector:.2} % more than the best, {name} {other:.2} %")
    })
}

fn too_little(rows: &[Measurement], analysis: &Analysis) -> Vec<String> {
    let mut doubts = Vec::new();
    let batches = analysis.table.rows().len();
    if batches < LEAST_BATCHES {
        doubts.push(format!("it is fitted to {batches} whole batches; {LEAST_BATCHES} are the least"));
    }
    if analysis.validation.folds == 1 {
        doubts.push(
            "it is judged on the batches that it was fitted to: there were too few for folds".to_owned(),
        );
    }
    let mut samples: BTreeMap<TileSetBuf, usize> = BTreeMap::new();
    let raced = |row: &&Measurement| {
        row.level == Level::Batch
            && !row.held_out
            && row.selector_hash.is_empty()
            && row.status == Status::Correct
    };
    for row in rows.iter().filter(raced) {
        let (Some(batch), Ok(set)) = (row.batch, row.choice.parse::<TileSetBuf>()) else { continue };
        if analysis.model.choose(&batch) == set {
            *samples.entry(set).or_default() += row.samples_us.len();
        }
    }
    for (set, count) in samples.into_iter().filter(|(_, count)| *count < LEAST_SAMPLES) {
        doubts.push(format!("{set} is chosen on {count} samples; {LEAST_SAMPLES} are the least"));
    }
    doubts
}

fn noise(rows: &[Measurement]) -> Option<String> {
    let spread = |row: &Measurement| Some(row.spread_us()? / row.median_us()?);
    let timed = rows.iter().filter(|row| {
        row.level == Level::Batch && row.survived && row.samples_us.len() >= SAMPLES_OF_A_SPREAD
    });
    let spreads: Vec<f64> = timed.filter_map(spread).collect();
    let noisy = quantile(&spreads, 0.75)?;
    (noisy > MOST_NOISE).then(|| {
        format!(
            "times of the same batch and tile spread by {:.0} % and more in a quarter of the races: something else was running",
            noisy * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::PolicyRegret;

    fn validation(folds: usize, means: &[(&str, f64)]) -> Validation {
        let policy = |&(name, mean): &(&str, f64)| PolicyRegret {
            name: name.to_owned(),
            mean,
            p95: mean,
            worst: mean,
            count: 9,
            per_row: Vec::new(),
        };
        Validation { policies: means.iter().map(policy).collect(), absent: Vec::new(), folds }
    }

    #[test]
    fn a_selector_that_loses_is_doubted_by_name_and_number() {
        let tile = "best single tile (m64n64w4s2)";
        assert_eq!(
            loses(&validation(0, &[(SELECTOR, 0.02), (tile, 0.016), (PAT_RULES, 0.5)])),
            [""; 0],
            "a tie"
        );
        let found = loses(&validation(0, &[(SELECTOR, 0.212), (tile, 0.1), (PAT_RULES, 0.039)]));
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("held-out batches") && found[0].contains("21.20 %"), "{found:?}");
        assert!(found[1].contains("PAT's rules 3.90 %"), "{found:?}");
    }

    #[test]
    fn a_busy_machine_shows_in_the_spread() {
        let row = |samples: &[f64]| Measurement {
            level: Level::Batch,
            survived: true,
            ..crate::store::test_data::measurement("a", "m4n64w1s1", samples)
        };
        let quiet = [1.0, 1.01, 1.02, 1.01];
        let busy = [1.0, 2.0, 1.1, 2.2];
        assert_eq!(noise(&[]), None);
        assert_eq!(noise(&vec![row(&quiet); 8]), None);
        assert_eq!(noise(&[vec![row(&quiet); 7], vec![row(&busy); 1]].concat()), None, "one race may be hit");
        let found = noise(&[vec![row(&quiet); 4], vec![row(&busy); 4]].concat()).unwrap();
        assert!(found.contains("something else was running"), "{found}");
        assert_eq!(noise(&vec![row(&busy[..2]); 8]), None, "two samples have no spread");
    }
}
