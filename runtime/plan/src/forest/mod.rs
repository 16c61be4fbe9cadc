//! The prefix trees of a batch: longest common runs of page ids.

mod error;
mod live;
mod neighbours;
mod slab;
mod touches;

#[cfg(test)]
mod live_cases;
#[cfg(test)]
mod live_tests;

pub use error::ForestError;
pub use live::LiveForest;
pub(crate) use neighbours::Neighbours;
pub use touches::Touched;

use crate::PageTable;
use std::ops::Range;

/// A segment of consecutive pages that the same requests share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node whose pages come before these; `None` for a root.
    pub parent: Option<u32>,
    /// Columns of the page table, equal in the rows of all its requests.
    pub columns: Range<u32>,
    /// The requests that share it, as a range of [`Forest::order`]. Those that end here come first.
    pub requests: Range<u32>,
    /// How many requests end with this node's last page.
    pub ending: u32,
    /// The nodes that go on from here, as a range of [`Forest::nodes`].
    pub children: Range<u32>,
}

impl Node {
    /// Whether no request goes on from here.
    pub fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    /// Pages of the segment.
    pub fn pages(&self) -> u32 {
        self.columns.end - self.columns.start
    }

    /// Requests that share the segment.
    pub fn size(&self) -> u32 {
        self.requests.end - self.requests.start
    }
}

/// The prefix trees of a batch: any number of roots, any depth. Parents come before their children.
///
/// Two requests share a node as long as their rows name the same pages in the same columns. A request may end inside the last
/// page of a node that others fill further: it counts as sharing that page, and its length masks the rest. Requests without
/// tokens are in no node. Of a table with several queries a request ([`PageTable::with_queries`]), each query counts as a request.
/// Building takes time linear in the entries of the page table, but for sorting siblings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forest {
    nodes: Vec<Node>,
    order: Vec<u32>,
}

impl Forest {
    /// Finds the prefix trees of a page table.
    pub fn build(table: &PageTable<'_>) -> Self {
        let mut forest = Self::default();
        forest.rebuild(table, &mut Neighbours::default());
        forest
    }

    /// Becomes the forest of another page table, in the same memory.
    pub(crate) fn rebuild(&mut self, table: &PageTable<'_>, neighbours: &mut Neighbours) {
        self.nodes.clear();
        neighbours.start(table, &mut self.order);
        if !self.order.is_empty() {
            self.push_children(table, None, 0..self.order.len() as u32, 0, neighbours);
        }
        // Children are appended behind, so that this walks the trees breadth first.
        let mut next = 0;
        while next < self.nodes.len() {
            self.extend(table, next as u32, neighbours);
            next += 1;
        }
        if table.batch() > self.order.len() {
            self.expand(table, neighbours.memory());
        }
    }

    /// Puts all queries of a request into the place of its first one.
    fn expand(&mut self, table: &PageTable<'_>, places: &mut Vec<u32>) {
        places.clear();
        let mut total = 0u32;
        for &first in &self.order {
            let request = table.request_of(first as usize);
            let count =
                (first as usize..table.batch()).take_while(|&query| table.request_of(query) == request);
            places.push(total);
            total += count.count() as u32;
        }
        places.push(total);
        let place = |index: u32| places[index as usize];
        for node in &mut self.nodes {
            let Range { start, end } = node.requests;
            node.ending = place(start + node.ending) - place(start);
            node.requests = place(start)..place(end);
        }
        let requests = self.order.len();
        self.order.resize(total as usize, 0);
        // From the end, so that nothing is overwritten that is still to be read.
        for index in (0..requests).rev() {
            let (first, begin, end) = (self.order[index], places[index], places[index + 1]);
            for (place, query) in self.order[begin as usize..end as usize].iter_mut().zip(first..) {
                *place = query;
            }
        }
    }

    /// The nodes, parents before children.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The requests in the order that makes each node's requests neighbours.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// The roots.
    pub fn roots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.nodes.len() as u32).take_while(|&node| self.nodes[node as usize].parent.is_none())
    }

    /// The requests that share a node.
    pub fn requests(&self, node: &Node) -> &[u32] {
        &self.order[node.requests.start as usize..node.requests.end as usize]
    }

    /// Groups requests by their page in `column`; each group becomes a node, whose end is known only if it is one request. Returns
    /// how many have no page there: these come first, and are in no group.
    fn push_children(
        &mut self,
        table: &PageTable<'_>,
        parent: Option<u32>,
        requests: Range<u32>,
        column: u32,
        neighbours: &mut Neighbours,
    ) -> u32 {
        let mut begin = requests.start;
        let mut ending = 0;
        let mut before = None;
        for stretch in neighbours.sort(table, &mut self.order, requests, column) {
            if stretch.ends() {
                ending += 1;
            } else if before.is_some_and(|before| stretch.begins_as(before))
                && let Some(node) = self.nodes.last_mut()
            {
                node.requests.end = stretch.end;
            } else {
                self.nodes.push(Node {
                    parent,
                    columns: column..stretch.row_pages,
                    requests: begin..stretch.end,
                    ending: 1,
                    children: 0..0,
                });
            }
            begin = stretch.end;
            before = Some(stretch);
        }
        ending
    }

    /// Gives a node its pages, and its children.
    fn extend(&mut self, table: &PageTable<'_>, node: u32, neighbours: &mut Neighbours) {
        let children = self.nodes.len() as u32;
        let this = &mut self.nodes[node as usize];
        this.children = children..children;
        if this.size() > 1 {
            let requests = this.requests.clone();
            let end = neighbours.common(&requests);
            let ending = self.push_children(table, Some(node), requests, end, neighbours);
            let children = children..self.nodes.len() as u32;
            let this = &mut self.nodes[node as usize];
            (this.columns.end, this.ending, this.children) = (end, ending, children);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn forest(rows: &[&[i32]], page_size: u32) -> (Forest, Vec<i32>, Vec<u32>, usize) {
        let max_pages = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let mut entries = Vec::new();
        for row in rows {
            entries.extend_from_slice(row);
            entries.extend(std::iter::repeat_n(-1, max_pages - row.len()));
        }
        let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * page_size).collect();
        let table = PageTable::new(&entries, max_pages, &seq_lens, page_size).unwrap();
        (Forest::build(&table), entries, seq_lens.clone(), max_pages)
    }

    fn segments(forest: &Forest) -> Vec<(Range<u32>, Vec<u32>, u32)> {
        forest
            .nodes()
            .iter()
            .map(|node| (node.columns.clone(), forest.requests(node).to_vec(), node.ending))
            .collect()
    }

    #[test]
    fn shared_segments_become_nodes_and_own_pages_leaves() {
        let (forest, ..) = forest(&[&[1, 2, 3], &[1, 2, 4, 5], &[9]], 16);
        assert_eq!(
            segments(&forest),
            [(0..2, vec![0, 1], 0), (0..1, vec![2], 1), (2..3, vec![0], 1), (2..4, vec![1], 1)]
        );
        assert_eq!(forest.roots().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(forest.nodes()[0].children, 2..4);
    }

    #[test]
    fn requests_may_end_inside_what_others_share_and_be_identical() {
        let (forest, ..) = forest(&[&[1, 2, 3, 4], &[1, 2], &[1, 2, 3, 4], &[]], 16);
        assert_eq!(segments(&forest), [(0..2, vec![1, 0, 2], 1), (2..4, vec![0, 2], 2)]);
    }

    #[test]
    fn one_request_and_none() {
        assert_eq!(segments(&forest(&[&[7, 7, 8]], 1).0), [(0..3, vec![0], 1)]);
        assert!(forest(&[], 16).0.nodes().is_empty());
        assert!(forest(&[&[]], 16).0.nodes().is_empty());
    }

    #[test]
    fn queries_of_a_request_share_all_its_nodes() {
        let entries = [1, 2, 3, 4, 1, 2, 5, -1, 9, -1, -1, -1, 1, 2, -1, -1];
        let mut memory = crate::Queries::default();
        let table = PageTable::new(&entries, 4, &[55, 40, 16, 32], 16).unwrap();
        let table = table.with_queries(&[2, 3, 0, 1], &mut memory).unwrap();
        let expected = [(0..2, vec![5, 0, 1, 2, 3, 4], 1), (2..4, vec![0, 1], 2), (2..3, vec![2, 3, 4], 3)];
        assert_eq!(segments(&Forest::build(&table)), expected);
    }

    #[test]
    fn a_chain_as_deep_as_the_batch_is_no_problem() {
        let rows: Vec<Vec<i32>> = (1..=2000).map(|len| (0..len).collect()).collect();
        let rows: Vec<&[i32]> = rows.iter().map(Vec::as_slice).collect();
        let (forest, ..) = forest(&rows, 1);
        assert_eq!(forest.nodes().len(), 2000);
        assert!(forest.nodes().iter().all(|node| node.ending == 1 && node.pages() == 1));
    }

    proptest! {
        #[test]
        fn the_nodes_of_a_request_are_its_row(
            rows in prop::collection::vec(prop::collection::vec(0i32..3, 0..6), 0..12)
        ) {
            let rows: Vec<&[i32]> = rows.iter().map(Vec::as_slice).collect();
            let (forest, entries, seq_lens, max_pages) = forest(&rows, 16);
            let table = PageTable::new(&entries, max_pages, &seq_lens, 16).unwrap();
            let mut covered = vec![0u32; rows.len()];
            for node in forest.nodes() {
                prop_assert!(node.pages() > 0);
                let members = forest.requests(node);
                let columns = node.columns.start as usize..node.columns.end as usize;
                let first = &table.pages(members[0] as usize)[columns.clone()];
                for &request in members {
                    prop_assert_eq!(&table.pages(request as usize)[columns.clone()], first);
                    prop_assert_eq!(covered[request as usize], node.columns.start, "parents come first");
                    covered[request as usize] = node.columns.end;
                }
                let pages: Vec<i32> = node.children.clone().map(|child| {
                    let child = &forest.nodes()[child as usize];
                    table.pages(forest.requests(child)[0] as usize)[child.columns.start as usize]
                }).collect();
                prop_assert!(pages.windows(2).all(|pair| pair[0] < pair[1]), "siblings differ in their first page");
                prop_assert!(node.children.len() != 1 || node.ending > 0, "an only child belongs to its parent");
            }
            for (request, &end) in covered.iter().enumerate() {
                prop_assert_eq!(end as usize, rows[request].len());
            }
        }
    }
}
