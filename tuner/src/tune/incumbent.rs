//! The selector that a workspace has for the device. It stays where a new one is not clearly better, in any part of its tree: two runs then choose alike, and a
//! module changes only where measurements say more than noise.

use crate::analysis::Analysis;
use crate::emit::{Heuristics, module_name};
use crate::fit::CostRow;
use crate::prior::{CLEARLY, Prior};
use crate::statistics::geometric_mean;
use crate::store::{Provenance, read};
use tilewright_heuristics::{BatchShape, Selector, TileSetBuf};

/// Part of the fitted batches of which the former selector's choice was raced; with fewer, the two cannot be compared.
const RACED: f64 = 0.98;

/// How many times as long the former selector takes as the new one on the fitted batches, if it stays.
pub(super) fn stays(heuristics: &Heuristics, provenance: &Provenance, analysis: &Analysis) -> Option<f64> {
    let module = module_name(&provenance.device);
    let former = read(&heuristics.measurements_path(&module)).ok()?.provenance;
    // Other kernels or other batches are other questions.
    let same = former.hashes == provenance.hashes && former.scenarios == provenance.scenarios;
    let selector = same.then(|| Selector::load(&heuristics.selector_path(&module)).ok()).flatten()?;
    // A part of the tree that is clearly better is so whatever the others are worth.
    let has_better_part =
        provenance.prior.as_ref().is_some_and(|prior| Prior::of(selector).as_ref() == Some(prior))
            && !analysis.keeps_prior();
    over_new(selector, analysis).filter(|over| *over <= 1.0 + CLEARLY && !has_better_part)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emit::TreeModel;
    use std::path::Path;

    #[test]
    fn a_selector_stays_for_the_same_kernels_and_batches() {
        let heuristics = Heuristics::at(Path::new(env!("CARGO_MANIFEST_DIR")).join("../heuristics"));
        let of_cpu = |path: &std::path::PathBuf| path.to_string_lossy().contains("cpu_");
        let path = heuristics.recordings().unwrap().into_iter().find(of_cpu).unwrap();
        let recording = read(&path).unwrap();
        let provenance = &recording.provenance;
        let analysis = Analysis::of(provenance, &recording.rows, &provenance.fit).unwrap();
        let over_new = stays(&heuristics, provenance, &analysis).expect("it is the same selector");
        assert!((over_new - 1.0).abs() < 1e-12, "{over_new}");

        // Of two alike ones that of a tree of which a part was clearly better replaces the former.
        let former = Selector::load(&heuristics.selector_path(&module_name(&provenance.device))).unwrap();
        let mut of_former = provenance.clone();
        of_former.prior = Prior::of(former);
        let mut unknown = provenance.clone();
        unknown.prior = None;
        let anew = Analysis::of(&unknown, &recording.rows, &provenance.fit).unwrap();
        assert!(!anew.keeps_prior());
        assert!(stays(&heuristics, &unknown, &anew).is_some(), "nothing is said of parts");
        assert_eq!(stays(&heuristics, &of_former, &anew), None);

        // The new selector may be a worse one: the former then takes less.
        let mut constant = analysis;
        let leaf = TreeModel::Leaf { ranked: vec![0], support: 0, regret: 0.0 };
        let tree = std::mem::replace(&mut constant.model.tree, leaf);
        let over_constant = stays(&heuristics, provenance, &constant).expect("it is better");
        assert!(over_constant < 0.99, "the tree is worth its questions: {over_constant}");

        // A workspace with that worse one gets the better one.
        let folder = tempfile::tempdir().unwrap();
        let other = Heuristics::at(folder.path());
        let module = module_name(&provenance.device);
        let put = |path: &Path, bytes: &[u8]| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        put(&other.measurements_path(&module), &std::fs::read(&path).unwrap());
        let emitted = constant.emitted(&recording, &provenance.fit);
        put(&other.selector_path(&module), emitted.json.as_bytes());
        assert!(stays(&other, provenance, &constant).is_some());
        constant.model.tree = tree;
        assert_eq!(stays(&other, provenance, &constant), None);

        // Other kernels, or other batches, are other questions.
        let mut other = provenance.clone();
        other.hashes.kernel = "0".repeat(16);
        assert_eq!(stays(&heuristics, &other, &constant), None);
        let mut other = provenance.clone();
        other.scenarios.pop();
        assert_eq!(stays(&heuristics, &other, &constant), None);
    }
}
