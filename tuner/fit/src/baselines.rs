//! What a fitted tree is compared with: simpler policies, fitted to the same rows.

use super::label_tree::LabelTree;
use super::{CostRow, CostTable};
use tilewright_heuristics::{PackShape, Tile, analytic};

/// A policy a candidate: a ranking for each row.
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
        let chosen = analytic::pat(valid.iter().copied(), &shape);
        chosen.and_then(|chosen| tiles.iter().position(|tile| *tile == chosen)).into_iter().collect()
    }))
}

/// A classification tree on the label of each row's best candidate, of the same depth: what label accuracy is worth. `None` where
/// there is nothing to ask.
pub(super) fn winner_label_cart(table: &CostTable, depth: usize) -> Option<Chooser> {
    if table.features().is_empty() || depth == 0 {
        return None;
    }
    let rows: Vec<(&[u64], usize)> =
        table.rows().iter().map(|row| (row.features.as_slice(), winner(row))).collect();
    let tree = LabelTree::grow(&rows, depth)?;
    Some(Box::new(move |row| vec![tree.predict(&row.features)]))
}

fn winner(row: &CostRow) -> usize {
    let valid = row.costs.iter().enumerate().filter_map(|(candidate, cost)| Some((candidate, (*cost)?)));
    valid.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(candidate, _)| candidate)
}
