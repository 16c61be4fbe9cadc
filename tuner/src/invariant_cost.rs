//! What batch-invariant plans take over the selector, on the batches that were executed under both.

use crate::batch_regrets::samples_by_choice;
use crate::choice::{BATCH_INVARIANT, SELECTOR};
use crate::statistics::{geometric_mean, median, quantile};
use crate::store::{Level, Measurement, Status};
use std::collections::BTreeMap;
use tilewright_reports::InvariantCost;

/// The cost; `None` where no batch was executed with such plans.
pub fn invariant_cost(rows: &[Measurement]) -> Option<InvariantCost> {
    let mut batches: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.level == Level::Batch) {
        batches.entry(&row.workload).or_default().push(row);
    }
    let over_selector = |rows: &Vec<&Measurement>| {
        let samples = samples_by_choice(rows.iter().copied());
        let time = |choice| samples.get(choice).and_then(|samples| median(samples));
        Some(time(BATCH_INVARIANT)? / time(SELECTOR)?)
    };
    let ratios: BTreeMap<&str, f64> =
        batches.iter().filter_map(|(name, rows)| Some((*name, over_selector(rows)?))).collect();
    let failed = rows.iter().filter(|row| {
        row.level == Level::Batch && row.choice == BATCH_INVARIANT && row.status != Status::Correct
    });
    // A batch that was measured again may have both.
    let failed: BTreeMap<&str, &str> = failed
        .filter(|row| !ratios.contains_key(row.workload.as_str()))
        .map(|row| (row.workload.as_str(), row.message.as_str()))
        .collect();
    if ratios.is_empty() && failed.is_empty() {
        return None;
    }
    let all: Vec<f64> = ratios.values().copied().collect();
    let worst = ratios.iter().max_by(|a, b| a.1.total_cmp(b.1));
    Some(InvariantCost {
        over_selector: geometric_mean(&all),
        p95: quantile(&all, 0.95),
        worst: worst.map(|(_, ratio)| *ratio),
        worst_batch: worst.map_or(String::new(), |(name, _)| (*name).to_owned()),
        batches: all.len() as u64,
        failed: failed.len() as u64,
        failure: failed.values().next().map_or(String::new(), |message| (*message).to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_regrets::{batch_policies, batch_times};
    use crate::store::test_data::measurement;

    fn batch(workload: &str, choice: &str, samples_us: &[f64]) -> Measurement {
        Measurement { level: Level::Batch, ..measurement(workload, choice, samples_us) }
    }

    #[test]
    fn the_cost_is_over_the_selector_where_both_were_measured() {
        let rows = [
            batch("a", SELECTOR, &[10.0, 9.0, 11.0]),
            batch("a", BATCH_INVARIANT, &[20.0]),
            batch("b", SELECTOR, &[10.0]),
            batch("b", BATCH_INVARIANT, &[5.0]),
            batch("c", SELECTOR, &[1.0]),
            batch("d", SELECTOR, &[1.0]),
            Measurement {
                status: Status::Compile,
                message: "no registers".to_owned(),
                ..batch("d", BATCH_INVARIANT, &[])
            },
        ];
        let cost = invariant_cost(&rows).unwrap();
        assert!((cost.over_selector.unwrap() - 1.0).abs() < 1e-12);
        assert_eq!((cost.worst, cost.worst_batch.as_str(), cost.batches), (Some(2.0), "a", 2));
        assert_eq!((cost.failed, cost.failure.as_str()), (1, "no registers"));
        let failed = invariant_cost(&rows[5..]).unwrap();
        assert_eq!((failed.over_selector, failed.batches, failed.failed), (None, 0, 1));
        assert_eq!(invariant_cost(&rows[..1]), None);
        assert_eq!(invariant_cost(&[]), None);
    }

    #[test]
    fn no_other_policy_is_compared_with_it() {
        let with = [
            batch("a", SELECTOR, &[10.0]),
            batch("a", "m4n16w1s1", &[8.0]),
            batch("a", BATCH_INVARIANT, &[5.0]),
        ];
        assert!(!batch_times(&with)["a"].contains_key(BATCH_INVARIANT));
        assert_eq!(batch_policies(&with), batch_policies(&with[..2]));
        assert_eq!(batch_policies(&with)[0].mean, 0.25);
    }
}
