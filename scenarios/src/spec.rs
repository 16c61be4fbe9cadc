//! A batch before it is built: light enough to list thousands.

use crate::layout::MAX_REQUESTS;
use crate::{Batch, Layout, LayoutRequest, Provenance, ScenarioError, Tree};
use std::sync::Arc;
use tilewright_heuristics::{Dtype, Geometry};

/// What a batch is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A regular tree; each node of the last level is a request.
    Tree(Tree),
    /// Roots that requests share which are alike: identical, or each with tokens of its own.
    Packs {
        /// Roots.
        packs: u32,
        /// Requests of each root.
        requests: u32,
        /// Tokens of each root.
        kv_len: u32,
        /// Tokens that each request has for itself behind those of its root.
        own: u32,
    },
    /// Anything.
    Layout(Arc<Layout>),
}

impl Shape {
    /// Written out.
    pub(crate) fn layout(&self) -> Arc<Layout> {
        match self {
            Shape::Tree(tree) => Arc::new(tree_layout(tree)),
            &Shape::Packs { packs, requests, kv_len, own } => {
                let mut layout = Layout::default();
                for _ in 0..packs {
                    let root = layout.push(None, kv_len);
                    for _ in 0..requests {
                        let (node, tokens) =
                            if own > 0 { (layout.push(Some(root), own), own) } else { (root, kv_len) };
                        layout.requests.push(LayoutRequest { node, tokens });
                    }
                }
                Arc::new(layout)
            }
            Shape::Layout(layout) => Arc::clone(layout),
        }
    }

    /// Distinct tokens, without writing anything out where that can be avoided.
    pub(crate) fn unique_tokens(&self) -> u64 {
        match self {
            Shape::Tree(tree) => tree
                .nodes
                .iter()
                .zip(&tree.tokens)
                .map(|(&nodes, &tokens)| u64::from(nodes) * u64::from(tokens))
                .sum(),
            Shape::Packs { packs, requests, kv_len, own } => {
                u64::from(*packs) * (u64::from(*kv_len) + u64::from(*requests) * u64::from(*own))
            }
            Shape::Layout(layout) => layout.unique_tokens(),
        }
    }

    /// Requests.
    pub(crate) fn requests(&self) -> u64 {
        match self {
            Shape::Tree(tree) => u64::from(tree.nodes.last().copied().unwrap_or(0)),
            Shape::Packs { packs, requests, .. } => u64::from(*packs) * u64::from(*requests),
            Shape::Layout(layout) => layout.requests.len() as u64,
        }
    }
}

fn tree_layout(tree: &Tree) -> Layout {
    let mut layout = Layout::default();
    let mut above: Vec<u32> = Vec::new();
    for (&nodes, &tokens) in tree.nodes.iter().zip(&tree.tokens) {
        let share = |node: u32| above.get((node as usize * above.len()) / nodes as usize).copied();
        let level: Vec<Option<u32>> = (0..nodes).map(share).collect();
        above = level.into_iter().map(|parent| layout.push(parent, tokens)).collect();
    }
    let tokens = tree.tokens.last().copied().unwrap_or(0);
    layout.requests = above.into_iter().map(|node| LayoutRequest { node, tokens }).collect();
    layout
}

/// A batch that can be scaled and built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSpec {
    pub(crate) name: String,
    pub(crate) variant: String,
    pub(crate) geometry: Geometry,
    pub(crate) shape: Shape,
    pub(crate) provenance: Provenance,
    /// Where its scenario describes it.
    pub(crate) line: usize,
}

impl BatchSpec {
    /// The batch's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The attention layer's layout.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What a table calls the batch beside its layout: the tree, the trace's second or the pack; a mix by its scenario, tenants by
    /// scenario and number.
    pub fn variant(&self) -> &str {
        &self.variant
    }

    /// The same batch with pages of another size or elements of another type, where they are named. Its pages are scattered by the same
    /// seed, and its name tells what is another.
    #[must_use]
    pub fn with_layout(&self, page_size: Option<u32>, dtype: Option<Dtype>) -> Self {
        let mut spec = self.clone();
        if let Some(page_size) = page_size.filter(|&page_size| page_size != spec.geometry.page_size) {
            spec.geometry.page_size = page_size;
            spec.name += &format!("/p{page_size}");
        }
        if let Some(dtype) = dtype.filter(|&dtype| dtype != spec.geometry.dtype) {
            spec.geometry.dtype = dtype;
            spec.name += &format!("/{dtype}");
        }
        spec
    }

    /// Bytes of distinct K and V.
    pub fn unique_bytes(&self) -> u64 {
        self.shape.unique_tokens().saturating_mul(self.geometry.kv_bytes_per_token() as u64)
    }

    /// That the batch cannot be used, and why: with its scenario's file and line.
    pub fn error(&self, message: String) -> ScenarioError {
        let (path, line) = (self.provenance.file.clone(), self.line);
        ScenarioError::Batch { path, line, batch: self.name.clone(), message }
    }

    /// Builds the batch.
    ///
    /// # Errors
    /// Too large, or prefixes that do not fill whole pages.
    pub fn build(&self) -> Result<Batch, ScenarioError> {
        let error = |message| self.error(message);
        // Before it is written out: a typo must not eat all memory.
        if self.shape.requests() > MAX_REQUESTS {
            let message = format!("{} requests are more than {MAX_REQUESTS}", self.shape.requests());
            return Err(error(message));
        }
        let layout = self.shape.layout();
        layout.check(self.geometry.page_size).map_err(error)?;
        let pages =
            layout.used_tokens().iter().map(|&t| u64::from(t.div_ceil(self.geometry.page_size))).sum::<u64>();
        if pages > i32::MAX as u64 {
            return Err(error(format!("{pages} pages are more than a page table can name")));
        }
        Ok(Batch::of(self.name.clone(), self.geometry, &layout, self.provenance.clone()))
    }
}
