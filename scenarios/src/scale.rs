//! Scaling a batch down to a device, keeping its shape as long as possible.

use crate::spec::{BatchSpec, Shape};
use crate::{Layout, Tree};
use std::sync::Arc;

/// Fewer requests than these are not halved further: below, tokens are.
const FEW_REQUESTS: u64 = 4;

impl BatchSpec {
    /// The batch with at most `max_unique_bytes` of distinct K and V, or as near as it gets.
    ///
    /// First KV heads are halved (with the query heads, so that the ratio stays), then requests and what they share, then tokens.
    /// The provenance says in words what was done.
    #[must_use]
    pub fn scaled(&self, max_unique_bytes: u64) -> Self {
        let mut spec = self.clone();
        let (mut heads, mut requests, mut tokens) = (1u64, 1u64, 1u64);
        while spec.unique_bytes() > max_unique_bytes {
            if spec.geometry.kv_heads.is_multiple_of(2) {
                spec.geometry.kv_heads /= 2;
                spec.geometry.q_heads /= 2;
                heads *= 2;
            } else if let Some(shape) = spec.shape.with_half_the_requests() {
                spec.shape = shape;
                requests *= 2;
            } else if let Some(shape) = spec.shape.with_half_the_tokens(spec.geometry.page_size) {
                spec.shape = shape;
                tokens *= 2;
            } else {
                break;
            }
        }
        let parts = [("heads", heads), ("requests", requests), ("tokens", tokens)];
        let words: Vec<String> =
            parts.into_iter().filter(|(_, by)| *by > 1).map(|(what, by)| format!("{what} / {by}")).collect();
        spec.provenance.scaling = words.join(", ");
        spec
    }
}

impl Shape {
    /// Half the requests and half of what several of them share; `None` when there are few.
    fn with_half_the_requests(&self) -> Option<Self> {
        match self {
            &Shape::Packs { packs, requests, kv_len, own } if packs > 1 => {
                Some(Shape::Packs { packs: packs / 2, requests, kv_len, own })
            }
            Shape::Packs { .. } => None,
            _ if self.requests() < 2 * FEW_REQUESTS => None,
            Shape::Tree(tree) => Some(Shape::Tree(with_half_the_widest_branching(tree))),
            Shape::Layout(layout) => {
                let mut layout = Layout::clone(layout);
                layout.halve_requests();
                Some(Shape::Layout(Arc::new(layout)))
            }
        }
    }

    /// Half the tokens, in whole pages; `None` when nothing gets shorter.
    fn with_half_the_tokens(&self, page_size: u32) -> Option<Self> {
        let half = |tokens: u32| (tokens / 2 / page_size).max(1) * page_size;
        let shorter = match self {
            &Shape::Packs { packs, requests, kv_len, own } => {
                Shape::Packs { packs, requests, kv_len: half(kv_len).min(kv_len), own: half(own).min(own) }
            }
            Shape::Tree(tree) => {
                let tokens = tree.tokens.iter().map(|&tokens| half(tokens).min(tokens)).collect();
                Shape::Tree(Tree { nodes: tree.nodes.clone(), tokens })
            }
            Shape::Layout(layout) => {
                let mut layout = Layout::clone(layout);
                layout.halve_tokens(page_size);
                Shape::Layout(Arc::new(layout))
            }
        };
        (shorter.unique_tokens() < self.unique_tokens()).then_some(shorter)
    }
}

/// Halves the number of children of the level where it is largest, the lowest such level: everything below gets fewer with it.
fn with_half_the_widest_branching(tree: &Tree) -> Tree {
    let mut above = 1;
    let mut children: Vec<u32> = Vec::with_capacity(tree.nodes.len());
    for &nodes in &tree.nodes {
        children.push(nodes / above);
        above = nodes;
    }
    let widest = children.iter().copied().max().unwrap_or(1);
    if let Some(level) = children.iter().rposition(|&count| count == widest) {
        children[level] = (widest / 2).max(1);
    }
    let mut above = 1;
    let nodes = children.into_iter().map(|count| {
        above *= count;
        above
    });
    Tree { nodes: nodes.collect(), tokens: tree.tokens.clone() }
}
