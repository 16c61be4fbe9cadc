//! A tree that was there before the fit: it stays unless the fitted one is clearly better.
//!
//! Many trees are nearly as good as the best one, and noise decides which of them a search finds. With a tree to stay with, two runs over the
//! same workloads end with the same tree.

use super::apart::{Bounds, of_parts};
use super::regrets::Regrets;
use super::{CostTable, Fit, FitOptions, Tree};

/// A fit whose tree is the prior one, in some of its parts or in all.
#[derive(Clone, Debug, PartialEq)]
pub struct Stayed {
    /// The fit, with that tree; its proof is about the tree that was fitted.
    pub fit: Fit,
    /// What the prior tree takes over the fitted one where it stays, by geometric mean over the rows: below 1 where it is the better one.
    pub over_fitted: f64,
    /// Parts of the table in which it stays,
    pub parts: usize,
    /// and all parts.
    pub of: usize,
}

/// How many times as much a fitted tree has to save in a small part of a table, at most.
const SMALL_PART: f64 = 2.0;

impl Fit {
    /// This fit with the tree `prior`, whose leaves rank candidates of `table`, in those parts of the table in which it takes at most `clearly` more than the
    /// fitted tree by geometric mean (0.005: 0.5 %), and answers on every row on which the fitted one does. Of few rows a fitted tree saves more by
    /// chance: there it has to save up to twice as much.
    pub fn stay_with(
        &self,
        prior: &Tree,
        table: &CostTable,
        options: &FitOptions,
        clearly: f64,
    ) -> Option<Stayed> {
        let cost = |tree: &Tree, row: usize| {
            let row = &table.rows()[row];
            let ranked = tree.choose(&row.features).iter().chain([&self.safe_default]);
            ranked.copied().find_map(|candidate| row.costs[candidate])
        };
        // Sums of logarithms over the fitted tree, and weights.
        let over = |rows: &[usize]| {
            let (mut sum, mut weights) = (0.0, 0.0);
            for &at in rows {
                let Some(fitted) = cost(&self.tree, at) else { continue };
                let weight = table.rows()[at].weight;
                sum += weight * (cost(prior, at)? / fitted).ln();
                weights += weight;
            }
            (weights > 0.0).then_some((sum, weights))
        };
        let (mut stays, mut parts, mut of) = ((0.0, 0.0), 0, 0);
        let all: Vec<usize> = (0..table.rows().len()).collect();
        let tree = of_parts(table, &all, &options.apart, &Bounds::default(), &mut |rows, bounds| {
            of += 1;
            let enough = clearly * (all.len() as f64 / rows.len() as f64).sqrt().min(SMALL_PART);
            match over(rows).filter(|(sum, weights)| (sum / weights).exp() <= 1.0 + enough) {
                Some((sum, weights)) => {
                    parts += 1;
                    stays = (stays.0 + sum, stays.1 + weights);
                    bounds.without_known(prior)
                }
                None => bounds.without_known(&self.tree),
            }
        });
        if parts == 0 {
            return None;
        }
        let regrets = Regrets::of(table, options.noise);
        let tree = counted(&tree, table, &regrets, &all, self.safe_default);
        let regret = regrets.mean_of(|row| tree.choose(&table.rows()[row].features), self.safe_default);
        let mut portfolio = Vec::new();
        named(&tree, &mut portfolio);
        portfolio.sort_unstable();
        portfolio.dedup();
        let fit = Fit { regret, tree, portfolio, ..self.clone() };
        Some(Stayed { fit, over_fitted: (stays.0 / stays.1).exp(), parts, of })
    }
}

/// The tree with the rows that end in its leaves, and their mean regret there.
fn counted(tree: &Tree, table: &CostTable, regrets: &Regrets, rows: &[usize], safe_default: usize) -> Tree {
    match tree {
        Tree::Split { feature, threshold, low, high } => {
            let goes_low = |row: &usize| table.rows()[*row].features[*feature] <= *threshold;
            let (below, above): (Vec<usize>, Vec<usize>) = rows.iter().partition(|row| goes_low(row));
            let side = |tree, rows: &[usize]| Box::new(counted(tree, table, regrets, rows, safe_default));
            Tree::Split {
                feature: *feature,
                threshold: *threshold,
                low: side(low, &below),
                high: side(high, &above),
            }
        }
        Tree::Leaf { ranked, .. } => {
            let weight: f64 = rows.iter().map(|&row| regrets.weight(row)).sum();
            let regret = |&row: &usize| regrets.weight(row) * regrets.of_ranking(row, ranked, safe_default);
            let regret = rows.iter().map(regret).sum::<f64>() / weight;
            let regret = if weight > 0.0 { regret } else { 0.0 };
            Tree::Leaf { ranked: ranked.clone(), support: rows.len(), regret }
        }
    }
}

/// Adds the candidates that leaves name.
fn named(tree: &Tree, candidates: &mut Vec<usize>) {
    match tree {
        Tree::Split { low, high, .. } => {
            named(low, candidates);
            named(high, candidates);
        }
        Tree::Leaf { ranked, .. } => candidates.extend(ranked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CostRow, fit};

    /// Small values want candidate 0, others candidate 1; candidate 2 is 0.2 % behind the best everywhere, 3 can run nothing large.
    fn table() -> CostTable {
        let row = |value: u64| {
            let (near, far) = if value <= 10 { (1.0, 2.0) } else { (2.0, 1.0) };
            let large = (value <= 10).then_some(1.5);
            CostRow {
                features: vec![value],
                costs: vec![Some(near), Some(far), Some(1.002), large],
                weight: 1.0,
                noise: 0.0,
                group: value as u32,
            }
        };
        let candidates = ["small", "large", "all", "some"].map(str::to_owned).to_vec();
        CostTable::new(vec!["value".to_owned()], candidates, (1..=20).map(row).collect()).unwrap()
    }

    fn leaf(ranked: &[usize]) -> Tree {
        Tree::Leaf { ranked: ranked.to_vec(), support: 0, regret: 0.0 }
    }

    fn options() -> FitOptions {
        FitOptions { max_depth: 1, noise: 0.0, min_leaf_rows: 1, leaf_price: 0.0, ..FitOptions::default() }
    }

    #[test]
    fn a_tree_that_is_not_clearly_worse_stays() {
        let (table, options) = (table(), options());
        let fitted = fit(&table, &options).unwrap();
        assert_eq!(fitted.regret, 0.0);
        let stayed = fitted.stay_with(&leaf(&[2]), &table, &options, 0.005).unwrap();
        assert!((stayed.over_fitted - 1.002).abs() < 1e-9, "{stayed:?}");
        let Tree::Leaf { ranked, support, regret } = &stayed.fit.tree else { panic!("{stayed:?}") };
        assert_eq!((&ranked[..], *support), (&[2][..], 20));
        assert!((regret - 0.002).abs() < 1e-9 && (stayed.fit.regret - 0.002).abs() < 1e-9, "{stayed:?}");
        assert_eq!(stayed.fit.portfolio, [2]);
        assert_eq!(fitted.stay_with(&leaf(&[2]), &table, &options, 0.001), None);
        assert_eq!(fitted.stay_with(&leaf(&[0]), &table, &options, 0.005), None);
    }

    #[test]
    fn a_better_tree_stays_in_any_case() {
        let (table, options) = (table(), FitOptions { max_depth: 0, ..options() });
        let fitted = fit(&table, &options).unwrap();
        let split = Tree::Split {
            feature: 0,
            threshold: 10,
            low: Box::new(leaf(&[0])),
            high: Box::new(leaf(&[3, 1])),
        };
        let stayed = fitted.stay_with(&split, &table, &options, 0.0).unwrap();
        assert!((stayed.over_fitted - 1.0 / 1.002).abs() < 1e-9, "{stayed:?}");
        assert_eq!((stayed.fit.tree.leaves(), stayed.fit.regret), (2, 0.0));
    }

    #[test]
    fn a_tree_is_judged_by_what_would_run() {
        let (table, options) = (table(), options());
        let fitted = fit(&table, &options).unwrap();
        // Large rows cannot run candidate 3: they get the safe default, as they would of a selector.
        let over = fitted.stay_with(&leaf(&[3]), &table, &options, 1.0).unwrap().over_fitted;
        let by_default = table.rows()[19].costs[fitted.safe_default].unwrap();
        assert!((over - (1.5_f64 * by_default).sqrt()).abs() < 1e-9, "{over}");
    }
}
