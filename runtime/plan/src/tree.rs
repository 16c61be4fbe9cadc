//! Prefix trees as packing and planning see them, whether they were built at once or follow a batch step by step.

use crate::Forest;
use std::ops::Range;

/// The prefix trees of a batch.
///
/// A node is a segment of consecutive pages that the same requests share. Siblings come in the order of their first pages, and the requests
/// that end with a node in the order of their numbers, so that trees of the same batch are walked in the same order however they came about.
pub trait PrefixTree {
    /// All nodes are numbers below this; not all of them have to be in use.
    fn capacity(&self) -> usize;
    /// How many nodes there are: those that can be reached from the roots.
    fn node_count(&self) -> usize;
    /// The nodes that nothing comes before.
    fn roots(&self) -> impl Iterator<Item = u32> + '_;
    /// The node whose pages come before these; `None` for a root.
    fn parent(&self, node: u32) -> Option<u32>;
    /// The nodes that go on from here.
    fn children(&self, node: u32) -> impl DoubleEndedIterator<Item = u32> + '_;
    /// The requests that end with this node's last page.
    fn ending(&self, node: u32) -> &[u32];
    /// Columns of the page table that the node's pages stand in.
    fn columns(&self, node: u32) -> Range<u32>;
    /// Requests that share the node: those that end here or in a node below.
    fn size(&self, node: u32) -> u32;
}

impl PrefixTree for Forest {
    fn capacity(&self) -> usize {
        self.nodes().len()
    }

    #[inline]
    fn node_count(&self) -> usize {
        self.nodes().len()
    }

    fn roots(&self) -> impl Iterator<Item = u32> + '_ {
        Self::roots(self)
    }

    #[inline]
    fn parent(&self, node: u32) -> Option<u32> {
        self.nodes()[node as usize].parent
    }

    #[inline]
    fn children(&self, node: u32) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.nodes()[node as usize].children.clone()
    }

    #[inline]
    fn ending(&self, node: u32) -> &[u32] {
        let node = &self.nodes()[node as usize];
        &self.requests(node)[..node.ending as usize]
    }

    #[inline]
    fn columns(&self, node: u32) -> Range<u32> {
        self.nodes()[node as usize].columns.clone()
    }

    #[inline]
    fn size(&self, node: u32) -> u32 {
        self.nodes()[node as usize].size()
    }
}
