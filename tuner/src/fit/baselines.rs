//! What a fitted tree is compared with: simpler ways to choose, fitted to the same rows.

use super::{CostRow, CostTable};
use linfa::DatasetBase;
use linfa::prelude::{Fit as _, Predict as _};
use linfa_trees::DecisionTree;
use ndarray::{Array1, Array2};
use tilewright_heuristics::{PackShape, Tile, analytic};

/// A way to choose a candidate: a ranking for each row.
pub(super) type Chooser = Box<dyn Fn(&CostRow) -> Vec<usize>>;

/// The candidate with the least mean regret alone, among those valid on most of the fitted rows: the safe default.
pub(super) fn best_single(safe_default: usize) -> Chooser {
    Box::new(move |_| vec![safe_default])
}

/// PAT's analytic rules over the candidates that are valid on a row; `None` unless candidates are tiles and the features say rows and
/// KV length.
pub(super) fn pat_rules(table: &CostTable) -> Option<Chooser> {
    let tiles: Vec<Tile> = table.candidates().iter().map(|name| name.parse().ok()).collect::<Option<_>>()?;
    let place = |wanted: &str| table.features().iter().position(|name| name == wanted);
    let (rows, kv_len) = (place("rows")?, place("kv_len")?);
    Some(Box::new(move |row| {
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let mut shape = PackShape::from_values([0; PackShape::COUNT]);
        shape.rows = narrow(row.features[rows]);
        shape.kv_len = narrow(row.features[kv_len]);
        let valid: Vec<Tile> =
            tiles.iter().zip(&row.costs).filter(|(_, cost)| cost.is_some()).map(|(tile, _)| *tile).collect();
        let chosen = analytic::pat(&valid, &shape);
        chosen.and_then(|chosen| tiles.iter().position(|tile| *tile == chosen)).into_iter().collect()
    }))
}

/// A classification tree on the label of each row's best candidate, of the same depth: what label accuracy is worth. `None` where the
/// library cannot fit the table.
pub(super) fn winner_label_cart(table: &CostTable, depth: usize) -> Option<Chooser> {
    let features = table.features().len();
    if features == 0 || depth == 0 {
        return None;
    }
    let values = |row: &CostRow| row.features.iter().map(|&value| value as f64).collect::<Vec<_>>();
    let records = Array2::from_shape_vec(
        (table.rows().len(), features),
        table.rows().iter().flat_map(values).collect(),
    )
    .ok()?;
    let labels: Vec<usize> = table.rows().iter().map(winner).collect();
    // With a single label there is nothing to learn.
    if labels.windows(2).all(|pair| pair[0] == pair[1]) {
        let label = *labels.first()?;
        return Some(Box::new(move |_| vec![label]));
    }
    let dataset = DatasetBase::new(records, Array1::from_vec(labels));
    let tree = DecisionTree::params().max_depth(Some(depth)).fit(&dataset).ok()?;
    Some(Box::new(move |row| {
        let record = Array2::from_shape_vec((1, features), values(row))
            .unwrap_or_else(|_| Array2::zeros((1, features)));
        tree.predict(&record).to_vec()
    }))
}

fn winner(row: &CostRow) -> usize {
    let valid = row.costs.iter().enumerate().filter_map(|(candidate, cost)| Some((candidate, (*cost)?)));
    valid.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(candidate, _)| candidate)
}
