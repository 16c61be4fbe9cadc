//! A classification tree on the label of each row's best candidate, as CART grows it: what label accuracy is worth.
//!
//! Splits lower the weighted Gini impurity most; of equals the first feature and the lowest threshold win, so the same table gives
//! the same tree.

use std::collections::BTreeMap;

/// A classification tree.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LabelTree {
    /// `value <= threshold` goes to `low`.
    Split { feature: usize, threshold: u64, low: Box<LabelTree>, high: Box<LabelTree> },
    /// The most frequent label.
    Leaf(usize),
}

/// A row: its features, and its label.
pub(super) type Labelled<'a> = (&'a [u64], usize);

impl LabelTree {
    /// Grows a tree of at most `depth` questions; absent without rows.
    pub(super) fn grow(rows: &[Labelled<'_>], depth: usize) -> Option<Self> {
        let counts = counts(rows);
        // The first of the most frequent.
        let (&label, _) = counts.iter().rev().max_by_key(|(_, count)| **count)?;
        if depth == 0 || counts.len() == 1 {
            return Some(Self::Leaf(label));
        }
        let Some((feature, threshold)) = best_split(rows, &counts) else { return Some(Self::Leaf(label)) };
        let (low, high): (Vec<Labelled<'_>>, Vec<Labelled<'_>>) =
            rows.iter().partition(|(features, _)| features[feature] <= threshold);
        let grow = |rows: &[Labelled<'_>]| Self::grow(rows, depth - 1).map(Box::new);
        Some(Self::Split { feature, threshold, low: grow(&low)?, high: grow(&high)? })
    }

    /// The label of a row.
    pub(super) fn predict(&self, features: &[u64]) -> usize {
        match self {
            Self::Leaf(label) => *label,
            Self::Split { feature, threshold, low, high } => {
                if features[*feature] <= *threshold {
                    low.predict(features)
                } else {
                    high.predict(features)
                }
            }
        }
    }
}

fn counts(rows: &[Labelled<'_>]) -> BTreeMap<usize, u64> {
    let mut counts = BTreeMap::new();
    for (_, label) in rows {
        *counts.entry(*label).or_insert(0) += 1;
    }
    counts
}

/// The split with the least impurity, if it is less than that of all rows together. Impurity times rows is rows - sum of squares / rows,
/// so the split with the greatest sum of squares / rows of both sides is wanted.
fn best_split(rows: &[Labelled<'_>], counts: &BTreeMap<usize, u64>) -> Option<(usize, u64)> {
    let squares = |counts: &BTreeMap<usize, u64>| counts.values().map(|&n| (n as f64).powi(2)).sum::<f64>();
    let total = rows.len();
    let mut best = (squares(counts) / total as f64 * (1.0 + 1e-12), None);
    for feature in 0..rows.first()?.0.len() {
        let mut order: Vec<&Labelled<'_>> = rows.iter().collect();
        order.sort_by_key(|(features, _)| features[feature]);
        let (mut low, mut high) = (BTreeMap::new(), counts.clone());
        let (mut low_squares, mut high_squares) = (0.0, squares(counts));
        for (below, pair) in order.windows(2).enumerate() {
            let label = pair[0].1;
            // (n + 1)² - n² on one side, n² - (n - 1)² on the other.
            let count: &mut u64 = low.entry(label).or_insert(0);
            low_squares += (2 * *count + 1) as f64;
            *count += 1;
            let count = high.entry(label).or_insert(0);
            high_squares -= (2 * *count - 1) as f64;
            *count -= 1;
            let [value, next] = [pair[0].0[feature], pair[1].0[feature]];
            if value < next {
                let gain = low_squares / (below + 1) as f64 + high_squares / (total - below - 1) as f64;
                if gain > best.0 {
                    // Between the two, as CART does.
                    best = (gain, Some((feature, value + (next - value) / 2)));
                }
            }
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_tree_asks_what_parts_the_labels_best() {
        let rows: Vec<([u64; 2], usize)> = (0..12)
            .map(|i| {
                (
                    [i % 2, i],
                    if i < 4 {
                        7
                    } else if i < 9 {
                        3
                    } else {
                        5
                    },
                )
            })
            .collect();
        let rows: Vec<Labelled<'_>> = rows.iter().map(|(features, label)| (&features[..], *label)).collect();
        let tree = LabelTree::grow(&rows, 2).unwrap();
        assert!(rows.iter().all(|(features, label)| tree.predict(features) == *label), "{tree:?}");
        assert_eq!(LabelTree::grow(&rows, 0), Some(LabelTree::Leaf(3)));
        assert_eq!(LabelTree::grow(&[], 3), None);
    }

    #[test]
    fn equal_splits_are_decided_by_the_first_feature() {
        let rows: Vec<([u64; 2], usize)> = (0..8).map(|i| ([i, i], usize::from(i > 3))).collect();
        let rows: Vec<Labelled<'_>> = rows.iter().map(|(features, label)| (&features[..], *label)).collect();
        let expected = LabelTree::Split {
            feature: 0,
            threshold: 3,
            low: Box::new(LabelTree::Leaf(0)),
            high: Box::new(LabelTree::Leaf(1)),
        };
        assert_eq!(LabelTree::grow(&rows, 5), Some(expected));
    }
}
