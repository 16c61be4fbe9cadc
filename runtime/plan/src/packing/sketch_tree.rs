//! Prefix trees for tests: drawn at random, changed a step at a time, and turned into page tables.

use crate::{Forest, PageTable, PrefixTree};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

#[derive(Clone, Debug)]
struct Sketched {
    parent: Option<u32>,
    children: Vec<u32>,
    ending: Vec<u32>,
    pages: u32,
}

/// Trees whose nodes come and go; numbers that were freed are used again.
#[derive(Clone, Debug, Default)]
pub(super) struct SketchTree {
    nodes: Vec<Option<Sketched>>,
    free: Vec<u32>,
    next_request: u32,
    pub(super) changed: Vec<u32>,
    pub(super) freed: Vec<u32>,
}

/// A number up to `most` whose order of magnitude is drawn first.
pub(super) fn log_uniform(rng: &mut ChaCha8Rng, most: u32) -> u32 {
    let top = rng.random_range(0.0..=f64::from(most).log2());
    (top.exp2() as u32).clamp(1, most)
}

impl SketchTree {
    /// Up to `nodes` nodes of up to `pages` pages, each leaf with up to `requests` requests.
    pub(super) fn random(rng: &mut ChaCha8Rng, nodes: u32, pages: u32, requests: u32) -> Self {
        let mut tree = Self::default();
        for node in 0..rng.random_range(1..=nodes) {
            let is_root = node == 0 || rng.random_bool(0.1);
            let parent = (!is_root).then(|| rng.random_range(node.saturating_sub(6)..node));
            let pages = log_uniform(rng, pages);
            tree.add(parent, pages, 0);
        }
        for node in 0..tree.nodes.len() as u32 {
            let children = tree.node(node).children.len();
            if children == 0 || rng.random_bool(0.2) || children == 1 {
                let count = log_uniform(rng, requests);
                tree.end(node, count);
            }
        }
        tree
    }

    fn node(&self, node: u32) -> &Sketched {
        self.nodes[node as usize].as_ref().unwrap()
    }

    fn node_mut(&mut self, node: u32) -> &mut Sketched {
        self.nodes[node as usize].as_mut().unwrap()
    }

    fn in_use(&self) -> Vec<u32> {
        (0..self.nodes.len() as u32).filter(|&node| self.nodes[node as usize].is_some()).collect()
    }

    pub(super) fn add(&mut self, parent: Option<u32>, pages: u32, requests: u32) -> u32 {
        let sketched = Sketched { parent, children: Vec::new(), ending: Vec::new(), pages };
        let node = self.free.pop().unwrap_or(self.nodes.len() as u32);
        if node as usize == self.nodes.len() {
            self.nodes.push(None);
        }
        self.nodes[node as usize] = Some(sketched);
        if let Some(parent) = parent {
            self.node_mut(parent).children.push(node);
        }
        self.changed.push(node);
        self.end(node, requests);
        node
    }

    pub(super) fn end(&mut self, node: u32, requests: u32) {
        let from = self.next_request;
        self.next_request += requests;
        self.node_mut(node).ending.extend(from..from + requests);
        self.changed.push(node);
    }

    /// Something that happens to a batch: requests come, go, grow, or leave a node somewhere inside.
    pub(super) fn change(&mut self, rng: &mut ChaCha8Rng) {
        let nodes = self.in_use();
        let pages = log_uniform(rng, 300);
        if nodes.is_empty() || rng.random_bool(0.1) {
            self.add(None, pages, 1);
            return;
        }
        let node = nodes[rng.random_range(0..nodes.len())];
        match rng.random_range(0..6) {
            0 => {
                let requests = log_uniform(rng, 40);
                self.add(Some(node), pages, requests);
            }
            1 => {
                let requests = log_uniform(rng, 40);
                self.end(node, requests);
            }
            2 => {
                self.node_mut(node).pages = pages;
                // The columns of all nodes below move.
                let mut moved = vec![node];
                while let Some(node) = moved.pop() {
                    moved.extend(self.node(node).children.iter().copied());
                    self.changed.push(node);
                }
            }
            3 if self.node(node).pages > 1 => self.split(node, rng),
            4 => {
                self.node_mut(node).ending.clear();
                self.changed.push(node);
                self.prune(node);
            }
            _ => {
                self.node_mut(node).ending.truncate(1);
                self.changed.push(node);
            }
        }
        self.changed.retain(|&node| self.nodes[node as usize].is_some());
    }

    /// A leaf comes, of one request or several.
    pub(super) fn grow(&mut self, rng: &mut ChaCha8Rng) {
        let nodes = self.in_use();
        let parent =
            (!nodes.is_empty() && rng.random_bool(0.9)).then(|| nodes[rng.random_range(0..nodes.len())]);
        let (pages, requests) = (log_uniform(rng, 300), log_uniform(rng, 40));
        self.add(parent, pages, requests);
    }

    /// All requests that end with some leaf leave.
    pub(super) fn shrink(&mut self, rng: &mut ChaCha8Rng) {
        let mut leaves = self.in_use();
        leaves.retain(|&node| self.node(node).children.is_empty());
        if leaves.is_empty() {
            return;
        }
        let leaf = leaves[rng.random_range(0..leaves.len())];
        self.node_mut(leaf).ending.clear();
        self.prune(leaf);
        self.changed.retain(|&node| self.nodes[node as usize].is_some());
    }

    /// Cuts a node in two: a new node takes the first of its pages and a request of its own.
    fn split(&mut self, node: u32, rng: &mut ChaCha8Rng) {
        let Sketched { parent, pages, .. } = *self.node(node);
        let upper = rng.random_range(1..pages);
        if let Some(parent) = parent {
            self.node_mut(parent).children.retain(|&child| child != node);
        }
        let new = self.add(parent, upper, 1);
        self.node_mut(new).children.push(node);
        self.node_mut(node).parent = Some(new);
        self.node_mut(node).pages -= upper;
        self.changed.push(node);
    }

    /// Frees a node without requests, and those above that have none then.
    fn prune(&mut self, node: u32) {
        let mut next = Some(node);
        while let Some(node) = next {
            let sketched = self.node(node);
            if !sketched.ending.is_empty() || !sketched.children.is_empty() {
                break;
            }
            next = sketched.parent;
            self.nodes[node as usize] = None;
            self.free.push(node);
            self.freed.push(node);
            if let Some(parent) = next {
                self.node_mut(parent).children.retain(|&child| child != node);
                self.changed.push(parent);
            }
        }
    }

    /// The page table that has these trees, and its forest.
    pub(super) fn with_table<T>(
        &self,
        page_size: u32,
        use_it: impl FnOnce(&Forest, &PageTable<'_>) -> T,
    ) -> T {
        let mut rows: Vec<Vec<i32>> = vec![Vec::new(); self.next_request as usize];
        for node in self.in_use() {
            let mut path = vec![node];
            while let Some(parent) = self.parent(path[path.len() - 1]) {
                path.push(parent);
            }
            let pages = path.iter().rev().flat_map(|&node| {
                (0..self.node(node).pages).map(move |page| i32::try_from(node * 10_000 + page).unwrap())
            });
            let row: Vec<i32> = pages.collect();
            self.node(node).ending.iter().for_each(|&request| rows[request as usize].clone_from(&row));
        }
        let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0);
        let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * page_size).collect();
        let mut entries = Vec::with_capacity(rows.len() * max_pages);
        for row in &rows {
            entries.extend_from_slice(row);
            entries.extend(std::iter::repeat_n(-1, max_pages - row.len()));
        }
        let table = PageTable::new(&entries, max_pages, &seq_lens, page_size).unwrap();
        use_it(&Forest::build(&table), &table)
    }
}

impl PrefixTree for SketchTree {
    fn capacity(&self) -> usize {
        self.nodes.len()
    }

    fn node_count(&self) -> usize {
        self.in_use().len()
    }

    fn roots(&self) -> impl Iterator<Item = u32> + '_ {
        self.in_use().into_iter().filter(|&node| self.node(node).parent.is_none())
    }

    fn parent(&self, node: u32) -> Option<u32> {
        self.node(node).parent
    }

    fn children(&self, node: u32) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.node(node).children.iter().copied()
    }

    fn ending(&self, node: u32) -> &[u32] {
        &self.node(node).ending
    }

    fn columns(&self, node: u32) -> Range<u32> {
        let start = self.parent(node).map_or(0, |parent| self.columns(parent).end);
        start..start + self.node(node).pages
    }

    fn size(&self, node: u32) -> u32 {
        let node = self.node(node);
        node.ending.len() as u32 + node.children.iter().map(|&child| self.size(child)).sum::<u32>()
    }
}
