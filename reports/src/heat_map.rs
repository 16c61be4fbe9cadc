//! (m, n) heat maps: the best time over all other parameters, relative to the best tile.

use crate::data::{ReportData, WorkloadResult};
use crate::format::{NOTHING, percent};
use std::collections::{BTreeMap, BTreeSet};

/// One map: a row for each m, a column for each n.
pub(crate) struct HeatMap {
    pub(crate) title: String,
    pub(crate) columns: Vec<u64>,
    pub(crate) rows: Vec<(u64, Vec<Cell>)>,
}

/// One cell: its figure and the step of the ramp, 0 (best) to 5.
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) step: u8,
}

/// Regrets up to which a cell has a step of the ramp.
const STEPS: [f64; 5] = [0.02, 0.10, 0.30, 1.0, 3.0];

/// The mean over all workloads first, then one map a workload.
pub(crate) fn heat_maps(data: &ReportData) -> Vec<HeatMap> {
    let place = |name: &str| data.parameters.iter().position(|parameter| parameter == name);
    let (Some(m), Some(n)) = (place("m"), place("n")) else { return Vec::new() };
    let maps: Vec<BTreeMap<(u64, u64), f64>> =
        data.workloads.iter().map(|workload| regrets(workload, m, n)).collect();
    let mut sums: BTreeMap<(u64, u64), Vec<f64>> = BTreeMap::new();
    for (cell, regret) in maps.iter().flatten() {
        sums.entry(*cell).or_default().push(*regret);
    }
    // A tile that some workload could not run is no candidate for all: only complete cells have a mean.
    let complete = sums.into_iter().filter(|(_, regrets)| regrets.len() == maps.len());
    let mean =
        complete.map(|(cell, regrets)| (cell, regrets.iter().sum::<f64>() / regrets.len() as f64)).collect();
    let mut all = vec![heat_map("All batches, mean".to_owned(), &mean)];
    all.extend(data.workloads.iter().zip(&maps).map(|(workload, map)| heat_map(workload.name.clone(), map)));
    all.retain(|map| !map.rows.is_empty());
    all
}

fn regrets(workload: &WorkloadResult, m: usize, n: usize) -> BTreeMap<(u64, u64), f64> {
    let mut best: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    for tile in &workload.tiles {
        let (Some(us), Some(&m), Some(&n)) = (tile.median_us, tile.tile.get(m), tile.tile.get(n)) else {
            continue;
        };
        if us.is_finite() && us > 0.0 {
            let cell = best.entry((m, n)).or_insert(us);
            *cell = cell.min(us);
        }
    }
    let oracle = best.values().copied().fold(f64::INFINITY, f64::min);
    best.into_iter().map(|(cell, us)| (cell, us / oracle - 1.0)).collect()
}

fn heat_map(title: String, regrets: &BTreeMap<(u64, u64), f64>) -> HeatMap {
    let columns: BTreeSet<u64> = regrets.keys().map(|cell| cell.1).collect();
    let rows: BTreeSet<u64> = regrets.keys().map(|cell| cell.0).collect();
    let cell = |m: u64, n: u64| match regrets.get(&(m, n)) {
        Some(&regret) => {
            let step = STEPS.iter().position(|&limit| regret <= limit).unwrap_or(STEPS.len());
            Cell { text: percent(regret), step: step as u8 }
        }
        None => Cell { text: NOTHING.to_owned(), step: u8::MAX },
    };
    let rows = rows.into_iter().map(|m| (m, columns.iter().map(|&n| cell(m, n)).collect())).collect();
    HeatMap { title, columns: columns.into_iter().collect(), rows }
}
