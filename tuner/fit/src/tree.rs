//! A fitted tree.

use serde::Serialize;

/// Whole-number questions, and a ranking of candidates at each leaf.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tree {
    /// A question.
    Split {
        /// Index of the feature.
        feature: usize,
        /// `value <= threshold` goes to `low`.
        threshold: u64,
        /// Where small values go.
        low: Box<Tree>,
        /// Where large values go.
        high: Box<Tree>,
    },
    /// A choice.
    Leaf {
        /// Candidates of the table, the preferred one first; further ones only where it is invalid on a row.
        ranked: Vec<usize>,
        /// Fitted rows that end here.
        support: usize,
        /// Their mean regret.
        regret: f64,
    },
}

impl Tree {
    /// The ranking for a workload.
    ///
    /// # Panics
    /// If there are fewer features than the tree asks for.
    pub fn choose(&self, features: &[u64]) -> &[usize] {
        let mut node = self;
        loop {
            match node {
                Tree::Split { feature, threshold, low, high } => {
                    node = if features[*feature] <= *threshold { low } else { high };
                }
                Tree::Leaf { ranked, .. } => return ranked,
            }
        }
    }

    /// Questions on the longest path.
    pub fn depth(&self) -> usize {
        match self {
            Tree::Split { low, high, .. } => 1 + low.depth().max(high.depth()),
            Tree::Leaf { .. } => 0,
        }
    }

    /// Leaves.
    pub fn leaves(&self) -> usize {
        match self {
            Tree::Split { low, high, .. } => low.leaves() + high.leaves(),
            Tree::Leaf { .. } => 1,
        }
    }
}
