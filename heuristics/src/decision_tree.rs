//! A decision tree as data: what a loaded selector chooses by. Emitted code is the same tree as `if`s.

use crate::{BatchShape, Follow};

/// A node of a [`DecisionTree`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Node {
    /// A batch whose feature is at most `threshold` goes to `low`.
    Split {
        /// Index into [`BatchShape::NAMES`].
        feature: usize,
        /// The largest value that goes to `low`.
        threshold: u32,
        /// Index of the next node for small values: larger than this one's.
        low: usize,
        /// Index of the next node for large values: larger than this one's.
        high: usize,
    },
    /// A ranking.
    Leaf {
        /// Indices into the selector's sets, the preferred one first.
        ranked: &'static [u8],
        /// Fitted batches that ended here.
        batches: u32,
        /// Their mean regret in percent.
        regret: f64,
    },
}

/// A decision tree over batches. The first node is the root.
#[derive(Clone, Copy, Debug)]
pub struct DecisionTree {
    /// The nodes: at least one; the last is a leaf, since questions lead to later nodes only.
    pub nodes: &'static [Node],
    /// For each class of kernels (head dimension, code of element types), the sets whose tiles can all run it, one bit each.
    pub feasible: &'static [((u32, u32), u64)],
}

impl DecisionTree {
    /// The ranking that a batch ends in.
    pub fn ranked(&self, batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
        let values = batch.values();
        let mut at = 0;
        loop {
            match self.nodes[at] {
                Node::Split { feature, threshold, low, high } => {
                    let is_low = path.at_most(BatchShape::NAMES[feature], values[feature], threshold);
                    at = if is_low { low } else { high };
                }
                Node::Leaf { ranked, batches, regret } => return path.leaf(ranked, batches, regret),
            }
        }
    }

    /// The sets whose tiles can all run the batch's kernels, one bit each.
    pub fn feasible(&self, batch: &BatchShape) -> u64 {
        let class = (batch.head_dim, batch.dtype);
        self.feasible.iter().find(|(known, _)| *known == class).map_or(0, |(_, sets)| *sets)
    }
}
