//! The cost table of whole batches: one row a batch, one candidate a set of tiles.

use crate::fit::{CostRow, CostTable, FitError};
use crate::statistics::median;
use crate::store::{Level, Measurement, Status, failed_since};
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::{BatchShape, Dtype, TileSetBuf};
use tilewright_kernel_templates::Class;

/// Which batches a table is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those that a selector is fitted to.
    Fit,
    /// Those that it is only judged on.
    HeldOut,
}

/// Makes the cost table of the batches of one part. The candidates are the sets that were measured on batches of either part.
///
/// A set that failed or was not measured on a batch is invalid there, also if a tile of it failed only with `cp.async`: a
/// selector does not know which pages a cache has. What was measured beside a fitted selector is left out: a fit that depended on it would
/// change once its selector is measured. Batches of one scenario that differ in nothing but heads or pages are not told
/// apart here: what is judged is kept in other scenarios.
///
/// # Errors
/// No batch of this part has a valid set.
pub fn from_batches(rows: &[Measurement], part: Part) -> Result<CostTable, FitError> {
    from_level(rows, Level::Batch, part)
}

/// The same of the batches of a class that the space was raced on ([`Level::Screen`]: which tiles are worth verifying; [`Level::FirstLook`]: which
/// are worth racing).
///
/// # Errors
/// As [`from_batches`].
pub fn from_screening(rows: &[Measurement], level: Level, class: &Class) -> Result<CostTable, FitError> {
    let of_class = |row: &&Measurement| {
        let dtype = |batch: &BatchShape| Dtype::from_code(batch.dtype);
        row.batch.is_some_and(|batch| (batch.head_dim, dtype(&batch)) == (class.head_dim, Some(class.dtype)))
    };
    let rows: Vec<Measurement> =
        rows.iter().filter(|row| row.level == level).filter(of_class).cloned().collect();
    from_level(&rows, level, Part::Fit)
}

fn from_level(rows: &[Measurement], level: Level, part: Part) -> Result<CostTable, FitError> {
    let failed = failed_since(rows);
    let may_be_returned = |batch: &BatchShape, set: &TileSetBuf| {
        let class = Dtype::from_code(batch.dtype).map(|dtype| Class { head_dim: batch.head_dim, dtype });
        let class = class.map(|class| class.to_string());
        class.is_none_or(|class| set.tiles().iter().all(|tile| !failed.contains(&(class.as_str(), *tile))))
    };
    type Sets<'a> = BTreeMap<TileSetBuf, Vec<&'a Measurement>>;
    let mut batches: BTreeMap<(&str, BatchShape), Sets<'_>> = BTreeMap::new();
    let mut candidates = BTreeSet::new();
    let raced = |row: &&Measurement| row.level == level && row.selector_hash.is_empty();
    for row in rows.iter().filter(raced).filter(|row| row.status == Status::Correct) {
        let (Some(batch), Ok(set)) = (row.batch, row.choice.parse::<TileSetBuf>()) else { continue };
        if row.samples_us.is_empty() || !may_be_returned(&batch, &set) {
            continue;
        }
        candidates.insert(set);
        if row.held_out == (part == Part::HeldOut) {
            batches.entry((&row.workload, batch)).or_default().entry(set).or_default().push(row);
        }
    }
    let cost_rows = batches.iter().enumerate().map(|(index, ((_, batch), sets))| CostRow {
        features: batch.values().iter().map(|&value| u64::from(value)).collect(),
        costs: candidates.iter().map(|set| sets.get(set).and_then(|rows| cost(rows))).collect(),
        weight: 1.0,
        noise: noise(sets.values().flatten().copied()),
        group: index as u32,
    });
    let features = BatchShape::NAMES.iter().map(|name| (*name).to_owned()).collect();
    CostTable::new(features, candidates.iter().map(TileSetBuf::to_string).collect(), cost_rows.collect())
}

/// Median over all samples of a tile on a workload, also where a union holds it twice.
fn cost(rows: &[&Measurement]) -> Option<f64> {
    let samples: Vec<f64> = rows.iter().flat_map(|row| &row.samples_us).copied().collect();
    median(&samples)
}

/// Relative standard error of the survivors' medians: that of their mean, times sqrt(pi / 2), for samples about normal.
fn noise<'a>(rows: impl Iterator<Item = &'a Measurement>) -> f64 {
    // Half the interquartile range of a normal distribution is 0.6745 standard deviations.
    const SPREAD_TO_DEVIATION: f64 = 1.4826;
    const MEAN_TO_MEDIAN: f64 = 1.2533;
    let errors: Vec<f64> = rows
        .filter(|row| row.survived && row.samples_us.len() > 1)
        .filter_map(|row| {
            let relative = row.spread_us()? / row.median_us()?;
            Some(relative * SPREAD_TO_DEVIATION * MEAN_TO_MEDIAN / (row.samples_us.len() as f64).sqrt())
        })
        .collect();
    median(&errors).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_data::measurement;

    fn on(workload: &str, requests: u32, held_out: bool, choice: &str, samples: &[f64]) -> Measurement {
        let batch = BatchShape { requests, head_dim: 128, ..BatchShape::from_values([1; BatchShape::COUNT]) };
        let batch = BatchShape { dtype: Dtype::F16.code(), ..batch };
        let row = measurement(workload, choice, samples);
        Measurement { level: Level::Batch, batch: Some(batch), held_out, ..row }
    }

    const SMALL: &str = "m16n64w4s2";
    const LARGE: &str = "m64n64w4s2";
    const BOTH: &str = "m16n64w4s2+m64n64w4s2";

    #[test]
    fn the_two_parts_have_the_same_candidates_and_other_rows() {
        let rows = [
            on("a", 4, false, SMALL, &[3.0, 5.0, 4.0]),
            on("a", 4, false, BOTH, &[2.0]),
            on("a", 4, false, "PAT's rules", &[1.0]),
            on("b", 8, true, LARGE, &[7.0]),
        ];
        let [fit, judged] = [Part::Fit, Part::HeldOut].map(|part| from_batches(&rows, part).unwrap());
        assert_eq!(fit.candidates(), [SMALL, BOTH, LARGE]);
        assert_eq!(judged.candidates(), fit.candidates());
        assert_eq!(fit.features(), BatchShape::NAMES);
        assert_eq!((fit.rows().len(), judged.rows().len()), (1, 1));
        assert_eq!(fit.rows()[0].costs, [Some(4.0), Some(2.0), None]);
        assert_eq!(
            (judged.rows()[0].costs.as_slice(), judged.rows()[0].features[0]),
            (&[None, None, Some(7.0)][..], 8)
        );
    }

    #[test]
    fn a_set_with_a_tile_that_failed_after_its_race_is_invalid() {
        let raced = [on("a", 4, false, SMALL, &[3.0]), on("a", 4, false, BOTH, &[2.0])];
        let candidates = |level, status| {
            let row = Measurement { level, status, ..measurement("head_dim 128 f16", LARGE, &[]) };
            let table = from_batches(&[raced.as_slice(), &[row]].concat(), Part::Fit).unwrap();
            table.candidates().to_vec()
        };
        // With `cp.async`, or with options; what was not verified has not failed.
        assert_eq!(candidates(Level::CpAsync, Status::Correctness), [SMALL]);
        assert_eq!(candidates(Level::Space, Status::Timeout), [SMALL]);
        for status in [Status::Correct, Status::Constraints, Status::Unverified] {
            assert_eq!(candidates(Level::Space, status), [SMALL, BOTH]);
        }
    }

    #[test]
    fn what_was_measured_beside_a_selector_changes_no_fit() {
        let rows = vec![on("a", 4, false, SMALL, &[3.0]), on("b", 8, true, SMALL, &[3.0])];
        let beside = [on("a", 4, false, LARGE, &[1.0]), on("b", 8, true, SMALL, &[9.0])];
        let beside = beside.map(|row| Measurement { selector_hash: "known".to_owned(), ..row });
        let both = [rows.clone(), beside.to_vec()].concat();
        for part in [Part::Fit, Part::HeldOut] {
            let [before, after] = [&rows, &both].map(|rows| from_batches(rows, part).unwrap());
            assert_eq!(
                (before.candidates(), before.rows()[0].costs.as_slice()),
                (&["m16n64w4s2".to_owned()][..], &[Some(3.0)][..])
            );
            assert_eq!((after.candidates(), after.rows()), (before.candidates(), before.rows()));
        }
    }

    #[test]
    fn a_part_without_batches_is_an_error() {
        assert!(from_batches(&[on("a", 4, false, SMALL, &[3.0])], Part::HeldOut).is_err());
    }
}
