//! The cost table of measured pack shapes: one row a workload, one candidate a tile. It says which tiles are worth measuring on batches.

use crate::fit::{CostRow, CostTable, FitError};
use crate::statistics::median;
use crate::store::{Level, Measurement, Status, failed_cp_async};
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::{Dtype, PackShape, Tile};
use tilewright_kernel_templates::Class;

/// Makes the cost table of all pack-level measurements.
///
/// A tile that was rejected, failed or was not measured on a workload is invalid there, also if it failed only with `cp.async`: a
/// selector does not know which pages a cache has. The noise of a row is the standard
/// error of its survivors' medians. Workloads that differ in nothing but the number of packs are one group, so that a
/// cross-validation never fits the neighbour of what it judges.
///
/// # Errors
/// No workload has a valid tile.
pub fn from_measurements(rows: &[Measurement]) -> Result<CostTable, FitError> {
    let failed = failed_cp_async(rows);
    let runs_by_cp_async = |shape: &PackShape, tile: Tile| {
        let class = Dtype::from_code(shape.dtype).map(|dtype| Class { head_dim: shape.head_dim, dtype });
        class.is_none_or(|class| !failed.contains_key(&(class.to_string().as_str(), tile)))
    };
    let mut by_shape: BTreeMap<PackShape, BTreeMap<Tile, Vec<&Measurement>>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.level == Level::Pack && row.status == Status::Correct) {
        let (Some(shape), Some(tile)) = (row.shape, row.tile) else { continue };
        if !row.samples_us.is_empty() && runs_by_cp_async(&shape, tile) {
            by_shape.entry(shape).or_default().entry(tile).or_default().push(row);
        }
    }
    let tiles: Vec<Tile> =
        by_shape.values().flat_map(BTreeMap::keys).copied().collect::<BTreeSet<_>>().into_iter().collect();
    let mut groups = BTreeMap::new();
    let cost_rows = by_shape
        .iter()
        .map(|(shape, measured)| {
            let next = groups.len() as u32;
            let family = PackShape { packs: 0, items: 0, all_rows: 0, ..*shape };
            CostRow {
                features: shape.values().iter().map(|&value| u64::from(value)).collect(),
                costs: tiles.iter().map(|tile| measured.get(tile).and_then(|rows| cost(rows))).collect(),
                weight: 1.0,
                noise: noise(measured.values().flatten().copied()),
                group: *groups.entry(family).or_insert(next),
            }
        })
        .collect();
    let features = PackShape::NAMES.iter().map(|name| (*name).to_owned()).collect();
    CostTable::new(features, tiles.iter().map(Tile::to_string).collect(), cost_rows)
}

/// Median over all samples of a tile on a workload, also where a union holds it twice.
pub(super) fn cost(rows: &[&Measurement]) -> Option<f64> {
    let samples: Vec<f64> = rows.iter().flat_map(|row| &row.samples_us).copied().collect();
    median(&samples)
}

/// Relative standard error of the survivors' medians: that of their mean, times sqrt(pi / 2), for samples about normal.
pub(super) fn noise<'a>(rows: impl Iterator<Item = &'a Measurement>) -> f64 {
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

    fn on(shape: [u32; PackShape::COUNT], choice: &str, samples: &[f64]) -> Measurement {
        Measurement { shape: Some(PackShape::from_values(shape)), ..measurement("w", choice, samples) }
    }

    #[test]
    fn failed_and_unmeasured_tiles_are_invalid() {
        let wrong = Measurement {
            status: Status::Correctness,
            ..on([4, 64, 0, 1, 1, 1, 4, 4, 128, 32, 0], "m8n64w1s1", &[1.0])
        };
        let rows = [
            on([4, 64, 0, 1, 1, 1, 4, 4, 128, 32, 0], "m4n64w1s1", &[3.0, 5.0, 4.0]),
            wrong,
            on([8, 64, 0, 1, 1, 1, 8, 4, 128, 32, 0], "m8n64w1s1", &[7.0]),
        ];
        let table = from_measurements(&rows).unwrap();
        assert_eq!(table.candidates(), ["m4n64w1s1", "m8n64w1s1"]);
        assert_eq!(table.rows()[0].costs, [Some(4.0), None]);
        assert_eq!(table.rows()[1].costs, [None, Some(7.0)]);
    }

    #[test]
    fn a_tile_that_failed_with_cp_async_is_invalid_in_its_class() {
        let shape = |head_dim| [4, 64, 0, 1, 1, 1, 4, 4, head_dim, 32, 0];
        let choices = ["m4n64w1s1", "m8n64w1s1"];
        let mut rows: Vec<Measurement> = [64, 128]
            .into_iter()
            .flat_map(|dim| choices.map(|choice| on(shape(dim), choice, &[2.0])))
            .collect();
        let by_cp_async = |choice, status| Measurement {
            level: Level::CpAsync,
            status,
            ..measurement("head_dim 128 f16", choice, &[])
        };
        rows.push(by_cp_async(choices[0], Status::Correct));
        rows.push(by_cp_async(choices[1], Status::Correctness));
        let table = from_measurements(&rows).unwrap();
        let costs: Vec<_> = table.rows().iter().map(|row| row.costs.clone()).collect();
        assert_eq!(costs, [[Some(2.0), Some(2.0)], [Some(2.0), None]]);
    }

    #[test]
    fn neighbours_in_the_number_of_packs_are_one_group() {
        let rows = [
            on([4, 64, 0, 1, 1, 1, 4, 4, 128, 32, 0], "m4n64w1s1", &[1.0]),
            on([4, 64, 0, 16, 1, 16, 64, 4, 128, 32, 0], "m4n64w1s1", &[1.0]),
            on([4, 512, 0, 1, 1, 1, 4, 4, 128, 32, 0], "m4n64w1s1", &[1.0]),
        ];
        let groups: Vec<u32> = from_measurements(&rows).unwrap().rows().iter().map(|row| row.group).collect();
        assert_eq!(groups[0], groups[1]);
        assert_ne!(groups[0], groups[2]);
    }

    #[test]
    fn noise_is_measured_from_the_survivors() {
        let steady =
            from_measurements(&[on([4, 64, 0, 1, 1, 1, 4, 4, 128, 32, 0], "m4n64w1s1", &[10.0; 8])]).unwrap();
        assert_eq!(steady.rows()[0].noise, 0.0);
        let noisy = [9.0, 11.0, 9.0, 11.0, 9.0, 11.0, 9.0, 11.0];
        let noisy =
            from_measurements(&[on([4, 64, 0, 1, 1, 1, 4, 4, 128, 32, 0], "m4n64w1s1", &noisy)]).unwrap();
        assert!((0.05..0.1).contains(&noisy.rows()[0].noise), "{}", noisy.rows()[0].noise);
    }

    #[test]
    fn nothing_measured_is_an_error() {
        assert!(from_measurements(&[]).is_err());
    }
}
