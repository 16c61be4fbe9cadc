//! Features as bins: what a tree can ask.

use super::CostTable;
use super::options::MAX_THRESHOLDS;
use super::search::Node;
use super::thresholds;
use std::collections::BTreeSet;

/// The bins of every row.
#[derive(Debug)]
pub(super) struct Grid {
    /// For each feature, the bin of each row: how many thresholds lie below its value.
    bins: Vec<Vec<u16>>,
    /// For each feature, its thresholds in order; a split after bin b asks for `value <= thresholds[b]`.
    thresholds: Vec<Vec<u64>>,
    /// A random number of each row: sets of rows are told apart by the sum of theirs.
    keys: Vec<u128>,
}

impl Grid {
    pub(super) fn new(features: impl Iterator<Item = Vec<u64>>, thresholds_per_feature: usize) -> Self {
        Self::with(features.map(|values| (thresholds::choose(&values, thresholds_per_feature), values)))
    }

    /// The grid of thresholds in order, beside the values of their feature.
    fn with(features: impl Iterator<Item = (Vec<u64>, Vec<u64>)>) -> Self {
        let (mut bins, mut thresholds, mut rows) = (Vec::new(), Vec::new(), 0);
        for (of_feature, values) in features {
            let bin = |value: &u64| of_feature.partition_point(|t| t < value) as u16;
            bins.push(values.iter().map(bin).collect());
            thresholds.push(of_feature);
            rows = values.len();
        }
        let mut state = 0;
        let keys = (0..rows).map(|_| u128::from(mixed(&mut state)) << 64 | u128::from(mixed(&mut state)));
        Self { bins, thresholds, keys: keys.collect() }
    }

    /// This grid with as many further thresholds as there can be.
    pub(super) fn finer(&self, table: &CostTable) -> Self {
        Self::with(self.thresholds.iter().enumerate().map(|(feature, own)| {
            let values = values(table, feature);
            let mut thresholds = thresholds::choose(&values, MAX_THRESHOLDS);
            thresholds.extend(own);
            thresholds.sort_unstable();
            thresholds.dedup();
            (thresholds, values)
        }))
    }

    /// A tree of this grid's bins in those of a finer one.
    pub(super) fn on(&self, finer: &Self, tree: &Node) -> Node {
        match tree {
            Node::Leaf => Node::Leaf,
            Node::Split { feature, bin, low, high } => {
                let threshold = self.threshold(*feature, *bin);
                let bin = finer.thresholds[*feature].partition_point(|&t| t < threshold) as u16;
                Node::split(*feature, bin, self.on(finer, low), self.on(finer, high))
            }
        }
    }

    /// Whether values of a feature share a bin, so that not every question about it can be asked.
    pub(super) fn is_cut(&self, table: &CostTable) -> bool {
        let distinct = |feature: usize| values(table, feature).into_iter().collect::<BTreeSet<_>>().len();
        (0..self.features()).any(|feature| self.bin_count(feature) < distinct(feature))
    }

    pub(super) fn features(&self) -> usize {
        self.bins.len()
    }

    pub(super) fn bin(&self, feature: usize, row: u32) -> u16 {
        self.bins[feature][row as usize]
    }

    /// Bins of a feature.
    pub(super) fn bin_count(&self, feature: usize) -> usize {
        self.thresholds[feature].len() + 1
    }

    /// Thresholds of the feature that has most.
    pub(super) fn most_thresholds(&self) -> usize {
        self.thresholds.iter().map(Vec::len).max().unwrap_or(0)
    }

    pub(super) fn threshold(&self, feature: usize, bin: u16) -> u64 {
        self.thresholds[feature][usize::from(bin)]
    }

    /// A number that other sets of rows do not have, but for a chance of 2^-128 a pair.
    pub(super) fn key(&self, rows: &[u32]) -> u128 {
        rows.iter().fold(0, |key, &row| key.wrapping_add(self.keys[row as usize]))
    }
}

/// What the rows have of a feature.
pub(super) fn values(table: &CostTable, feature: usize) -> Vec<u64> {
    table.rows().iter().map(|row| row.features[feature]).collect()
}

/// SplitMix64.
fn mixed(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
