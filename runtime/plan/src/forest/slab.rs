//! Nodes that come and go: the trees of [`crate::LiveForest`] and how they are cut and joined.

use super::touches::{Touch, Touches};
use std::ops::Range;

/// Pages that a leaf has room for beyond those that come, so that it rarely needs memory while its request grows.
const SPARE_PAGES: usize = 16;

/// A segment of pages, in use while its size is not 0.
#[derive(Clone, Debug, Default)]
pub(super) struct SlabNode {
    pub(super) parent: Option<u32>,
    /// Column of the first page.
    start: u32,
    /// Requests that end here or below.
    pub(super) size: u32,
    pub(super) pages: Vec<i32>,
    /// First page and number of each, in the order of the first pages.
    pub(super) children: Vec<(i32, u32)>,
    /// The requests that end here, in their order.
    pub(super) ending: Vec<u32>,
}

impl SlabNode {
    /// What a number stands for that is not in use.
    pub(super) const UNUSED: &'static Self = &Self {
        parent: None,
        start: 0,
        size: 0,
        pages: Vec::new(),
        children: Vec::new(),
        ending: Vec::new(),
    };

    /// Columns of the page table. They fit 32 bits: [`crate::LiveForest`] takes no more pages.
    pub(super) fn columns(&self) -> Range<u32> {
        self.start..self.start + self.pages.len() as u32
    }

    /// Whether it belongs to one request. Its pages may then change at the end, and no other node is concerned.
    fn is_own_leaf(&self) -> bool {
        self.size == 1
    }
}

/// The nodes, in use and free, and the roots.
///
/// Two rules keep the cost of a change low. The lower part of a node that is cut keeps the node's number, and so does the lower of two
/// nodes that are joined: neither the nodes below nor the requests that end there have to hear of it. And a node that is freed keeps
/// its memory for the next one that gets its number.
#[derive(Clone, Debug, Default)]
pub(super) struct Slab {
    pub(super) nodes: Vec<SlabNode>,
    /// First page and number of each, in the order of the first pages.
    pub(super) roots: Vec<(i32, u32)>,
    free: Vec<u32>,
    pub(super) touches: Touches,
}

impl Slab {
    /// Adds a node as part of trees that are given whole; the caller names its parent before its children.
    pub(super) fn push(
        &mut self,
        parent: Option<u32>,
        start: u32,
        pages: &[i32],
        ending: &[u32],
        size: u32,
    ) -> u32 {
        let id = self.create();
        let node = &mut self.nodes[id as usize];
        (node.parent, node.start, node.size) = (parent, start, size);
        extend_pages(&mut node.pages, pages, if size == 1 { SPARE_PAGES } else { 0 });
        node.ending.extend_from_slice(ending);
        let siblings = self.siblings_mut(parent);
        // Whole trees come in order, so that this is a push.
        let at = siblings.partition_point(|(first, _)| *first < pages[0]);
        siblings.insert(at, (pages[0], id));
        id
    }

    /// A request goes on from `from`, where it was already counted, with these pages (at least one); `None`: it comes in at a root.
    /// Returns the node that it ends with now.
    pub(super) fn advance(&mut self, request: u32, from: Option<u32>, pages: &[i32]) -> u32 {
        if let Some(node) = from {
            if self.nodes[node as usize].is_own_leaf() {
                self.grow(node, pages);
                return node;
            }
            remove_sorted(&mut self.nodes[node as usize].ending, request);
            self.touches.touch(node, Touch::Changed);
        }
        let end = self.descend(request, from, pages);
        if let Some(node) = from {
            self.join_only_child(node);
        }
        end
    }

    /// A request that ends with `from` keeps its first `kept` pages only, fewer than it has. Returns the node that it ends with now.
    pub(super) fn retreat(&mut self, request: u32, from: u32, kept: u32) -> Option<u32> {
        let node = &mut self.nodes[from as usize];
        if node.is_own_leaf() && kept > node.start {
            node.pages.truncate((kept - node.start) as usize);
            self.touches.touch(from, Touch::Grown);
            return Some(from);
        }
        remove_sorted(&mut node.ending, request);
        let mut at = Some(from);
        while let Some(node) = at
            && self.nodes[node as usize].start >= kept
        {
            self.nodes[node as usize].size -= 1;
            self.touches.touch(node, Touch::Changed);
            at = self.nodes[node as usize].parent;
        }
        let end = at.map(|node| self.end_inside(request, node, kept));
        // Only here can a node have become empty or an only child: those above have another one that keeps them apart.
        if self.nodes[from as usize].size > 0 {
            self.join_only_child(from);
        } else if let Some(parent) = self.remove_leaf(from) {
            self.join_only_child(parent);
        }
        end
    }

    /// A request of `node` gets another number.
    pub(super) fn rename(&mut self, node: u32, from: u32, to: u32) {
        let ending = &mut self.nodes[node as usize].ending;
        remove_sorted(ending, from);
        insert_sorted(ending, to);
        self.touches.touch(node, Touch::Changed);
    }

    /// Frees all nodes.
    pub(super) fn clear(&mut self) {
        for id in 0..self.nodes.len() as u32 {
            if self.nodes[id as usize].size > 0 {
                self.release(id);
            }
        }
        self.roots.clear();
        // The lowest numbers are taken first again.
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Walks down along the pages of a request that is not yet counted there, cutting a node where they diverge. `from` counts as changed
    /// already.
    fn descend(&mut self, request: u32, mut from: Option<u32>, mut pages: &[i32]) -> u32 {
        while let Ok(at) = find(self.siblings(from), pages[0]) {
            let (_, child) = self.siblings(from)[at];
            let segment = &self.nodes[child as usize].pages;
            let common = segment.iter().zip(pages).take_while(|(a, b)| a == b).count();
            let shared = if common < segment.len() { self.cut(child, common) } else { child };
            self.touches.touch(shared, Touch::Changed);
            let node = &mut self.nodes[shared as usize];
            node.size += 1;
            pages = &pages[common..];
            if pages.is_empty() {
                insert_sorted(&mut node.ending, request);
                return shared;
            }
            from = Some(shared);
        }
        let start = from.map_or(0, |node| self.nodes[node as usize].columns().end);
        self.push(from, start, pages, &[request], 1)
    }

    /// Makes a request, which is counted in `node` and all above, end before column `end` of it.
    fn end_inside(&mut self, request: u32, node: u32, end: u32) -> u32 {
        let columns = self.nodes[node as usize].columns();
        let upper = if end < columns.end {
            let upper = self.cut(node, (end - columns.start) as usize);
            self.nodes[node as usize].size -= 1;
            upper
        } else {
            node
        };
        self.touches.touch(upper, Touch::Changed);
        insert_sorted(&mut self.nodes[upper as usize].ending, request);
        upper
    }

    /// Adds pages to a leaf of one request.
    fn grow(&mut self, leaf: u32, pages: &[i32]) {
        extend_pages(&mut self.nodes[leaf as usize].pages, pages, SPARE_PAGES);
        self.touches.touch(leaf, Touch::Grown);
    }

    /// Cuts a node into its first `count` pages, which become a new node, and the others, with all that ends or hangs there.
    fn cut(&mut self, lower: u32, count: usize) -> u32 {
        let upper = self.create();
        let mut all = std::mem::take(&mut self.nodes[lower as usize].pages);
        let mut chunk = std::mem::take(&mut self.nodes[upper as usize].pages);
        // The longer part stays where it is, unless it has to move to the front.
        let (above, below) = if count > all.len() / 2 {
            chunk.extend_from_slice(&all[count..]);
            all.truncate(count);
            (all, chunk)
        } else {
            chunk.extend_from_slice(&all[..count]);
            all.drain(..count);
            (chunk, all)
        };
        let (first, next) = (above[0], below[0]);
        let node = &mut self.nodes[lower as usize];
        let (parent, start, size) = (node.parent, node.start, node.size);
        (node.parent, node.start, node.pages) = (Some(upper), start + count as u32, below);
        let node = &mut self.nodes[upper as usize];
        (node.parent, node.start, node.size, node.pages) = (parent, start, size, above);
        node.children.push((next, lower));
        self.replace_child(parent, first, upper);
        self.touches.touch(lower, Touch::Changed);
        upper
    }

    /// Joins a node where no request ends with the only node that goes on from it.
    fn join_only_child(&mut self, upper: u32) {
        let node = &mut self.nodes[upper as usize];
        let &[(_, lower)] = node.children.as_slice() else { return };
        if !node.ending.is_empty() {
            return;
        }
        let (parent, start) = (node.parent, node.start);
        let mut pages = std::mem::take(&mut node.pages);
        let first = pages[0];
        let node = &mut self.nodes[lower as usize];
        pages.extend_from_slice(&node.pages);
        std::mem::swap(&mut pages, &mut node.pages);
        (node.parent, node.start) = (parent, start);
        self.nodes[upper as usize].pages = pages;
        self.replace_child(parent, first, lower);
        self.touches.touch(lower, Touch::Changed);
        self.release(upper);
    }

    /// Frees a leaf that no request ends with any more. Returns its parent.
    fn remove_leaf(&mut self, leaf: u32) -> Option<u32> {
        let SlabNode { parent, ref pages, .. } = self.nodes[leaf as usize];
        let first = pages[0];
        let siblings = self.siblings_mut(parent);
        if let Ok(at) = find(siblings, first) {
            siblings.remove(at);
        }
        if let Some(parent) = parent {
            self.touches.touch(parent, Touch::Changed);
        }
        self.release(leaf);
        parent
    }

    /// Another node begins with the page that one of `parent`'s children began with.
    fn replace_child(&mut self, parent: Option<u32>, first: i32, child: u32) {
        let siblings = self.siblings_mut(parent);
        if let Ok(at) = find(siblings, first) {
            siblings[at].1 = child;
        }
        if let Some(parent) = parent {
            self.touches.touch(parent, Touch::Changed);
        }
    }

    /// How many nodes are in use.
    pub(super) fn in_use(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// A node with nothing in it.
    fn create(&mut self) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(SlabNode::default());
            self.touches.push_node();
            // A forest has at most two nodes a request.
            self.nodes.len() as u32 - 1
        });
        self.touches.touch(id, Touch::Changed);
        id
    }

    /// Takes a node out of use.
    fn release(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        (node.parent, node.start, node.size) = (None, 0, 0);
        node.pages.clear();
        node.children.clear();
        node.ending.clear();
        self.free.push(id);
        self.touches.touch(id, Touch::Freed);
    }

    fn siblings(&self, parent: Option<u32>) -> &[(i32, u32)] {
        parent.map_or(&self.roots, |parent| &self.nodes[parent as usize].children)
    }

    fn siblings_mut(&mut self, parent: Option<u32>) -> &mut Vec<(i32, u32)> {
        match parent {
            Some(parent) => &mut self.nodes[parent as usize].children,
            None => &mut self.roots,
        }
    }
}

/// Where the node that begins with a page is, or would be.
fn find(siblings: &[(i32, u32)], page: i32) -> Result<usize, usize> {
    siblings.binary_search_by_key(&page, |(first, _)| *first)
}

/// Adds pages; if that needs memory, then enough for `spare` more.
fn extend_pages(segment: &mut Vec<i32>, pages: &[i32], spare: usize) {
    if segment.capacity() - segment.len() < pages.len() {
        segment.reserve(pages.len() + spare);
    }
    segment.extend_from_slice(pages);
}

fn insert_sorted(requests: &mut Vec<u32>, request: u32) {
    let at = requests.partition_point(|other| *other < request);
    requests.insert(at, request);
}

fn remove_sorted(requests: &mut Vec<u32>, request: u32) {
    if let Ok(at) = requests.binary_search(&request) {
        requests.remove(at);
    }
}
