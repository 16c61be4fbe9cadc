//! How fine a search asks, so that it comes to an end.
//!
//! The work of a search for trees of four levels grows with the fourth power of the questions that there are. A search over all of them that
//! ends early has found worse trees than one over fewer that is complete, and has proved nothing of use: of 3 000 noisy rows with 12 features
//! it found 11.94 % with 64 thresholds a feature (no tree below 0.29 %), and 11.65 % with 16, which is the best of these. `polish` then moves
//! the thresholds where all of them are seen.

use super::CostTable;
use super::depth_two::WORK_LANES;
use super::grid::Grid;
use super::problem::grid;
use super::search::SEARCHED_DEPTH;
use std::sync::Arc;

/// Thresholds a feature that are tried, the most first. Fewer than the last are too coarse to be worth a proof.
const STEPS: [usize; 8] = [64, 48, 32, 24, 20, 16, 12, 10];

/// The grid with most thresholds a feature, `most` at the most, over which trees of `depth` that choose from `lanes` candidates can be searched
/// within `work`; if there is none, that with `most`: then the search goes as far as it can.
pub(super) fn affordable(table: &CostTable, most: usize, depth: usize, lanes: usize, work: u64) -> Arc<Grid> {
    let whole = grid(table, most);
    let rows = table.rows().len();
    let needed = |grid: &Grid| needed(grid, rows, depth) * lanes.div_ceil(WORK_LANES) as f64;
    if needed(&whole) <= work as f64 {
        return whole;
    }
    let fewer = STEPS.iter().filter(|&&thresholds| thresholds < most);
    let mut grids = fewer.map(|&thresholds| grid(table, thresholds));
    grids.find(|grid| needed(grid) <= work as f64).unwrap_or(whole)
}

/// The work of a search for trees of `depth`, in steps of `depth_two` for few lanes, if no bound ever helps: each pair of questions leaves four
/// sets of rows, for which trees of two levels are solved.
fn needed(grid: &Grid, rows: usize, depth: usize) -> f64 {
    let thresholds: Vec<f64> =
        (0..grid.features()).map(|feature| (grid.bin_count(feature) - 1) as f64).collect();
    let questions: f64 = thresholds.iter().sum();
    let squares: f64 = thresholds.iter().map(|t| t * t).sum();
    let features = thresholds.iter().filter(|&&t| t > 0.0).count() as f64;
    let cells = (questions * questions - squares) / 2.0;
    let pairs = features * (features - 1.0) / 2.0;
    let two_levels = |sets: f64| cells + pairs * rows as f64 / sets;
    match depth.min(SEARCHED_DEPTH) {
        0..=2 => two_levels(1.0),
        3 => 2.0 * questions * two_levels(2.0),
        _ => 2.0 * questions * questions * two_levels(4.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::table;
    use super::*;

    /// Rows of different values in each of `features` features.
    fn distinct(rows: u64, features: u64) -> CostTable {
        let values: Vec<Vec<u64>> =
            (0..rows).map(|row| (0..features).map(|f| (row * (2 * f + 1)) % rows).collect()).collect();
        let values: Vec<&[u64]> = values.iter().map(Vec::as_slice).collect();
        table(&values, &vec![&[Some(1.0), Some(2.0)][..]; values.len()])
    }

    #[test]
    fn a_search_asks_as_finely_as_its_work_allows() {
        let table = distinct(512, 8);
        let bins = |work| affordable(&table, 64, 4, 2, work).bin_count(0);
        assert_eq!(bins(u64::MAX), 65);
        let coarse = bins(1_000_000_000);
        assert!((11..65).contains(&coarse), "{coarse}");
        assert!(needed(&grid(&table, coarse - 1), 512, 4) <= 1e9);
        // Two levels take little, whatever is asked.
        assert_eq!(affordable(&table, 64, 2, 2, 1_000_000_000).bin_count(0), 65);
        // What cannot be afforded at all is begun with every threshold.
        assert_eq!(bins(1000), 65);
    }
}
