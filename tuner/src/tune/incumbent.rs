//! The selector that a workspace has for the device. It stays where a new one is not clearly better: two runs then choose alike, and a module
//! changes only where measurements say more than noise.

use crate::analysis::Analysis;
use crate::emit::{Heuristics, module_name};
use crate::fit::CostRow;
use crate::statistics::geometric_mean;
use crate::store::{Provenance, read};
use tilewright_heuristics::{BatchShape, Selector, TileSetBuf};

/// What a new selector has to save on the fitted batches, by geometric mean.
const CLEARLY: f64 = 0.005;
/// Part of the fitted batches of which the former selector's choice was raced; with fewer, the two cannot be compared.
const RACED: f64 = 0.98;

/// How many times as long the former selector takes as the new one on the fitted batches, if it stays.
pub(super) fn stays(heuristics: &Heuristics, provenance: &Provenance, analysis: &Analysis) -> Option<f64> {
    let module = module_name(&provenance.device);
    let former = read(&heuristics.measurements_path(&module)).ok()?.provenance;
    // Other kernels or other batches are other questions.
    let same = former.hashes == provenance.hashes && former.scenarios == provenance.scenarios;
    let selector = same.then(|| Selector::load(&heuristics.selector_path(&module)).ok()).flatten()?;
    over_new(selector, analysis).filter(|over| *over <= 1.0 + CLEARLY)
}

/// The former selector's time over the new one's, on the batches that were fitted. `None` where too few can be compared.
fn over_new(selector: &Selector, analysis: &Analysis) -> Option<f64> {
    let table = &analysis.table;
    let cost = |row: &CostRow, set: &TileSetBuf| {
        let candidate = table.candidates().iter().position(|name| name.parse() == Ok(*set))?;
        row.costs[candidate]
    };
    let over = |row: &CostRow| {
        let values: Vec<u32> = row.features.iter().filter_map(|&value| value.try_into().ok()).collect();
        let batch = BatchShape::from_values(values.try_into().ok()?);
        let former = TileSetBuf::of(selector.select(&batch).tiles())?;
        Some(cost(row, &former)? / cost(row, &analysis.model.select(&batch))?)
    };
    let ratios: Vec<f64> = table.rows().iter().filter_map(over).collect();
    (ratios.len() as f64 >= RACED * table.rows().len() as f64).then(|| geometric_mean(&ratios)).flatten()
}
