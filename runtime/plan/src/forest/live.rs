//! The prefix trees of a batch that changes a little at every step.

use super::slab::{Slab, SlabNode};
use super::touches::Touched;
use crate::{Forest, ForestError, PageTable, PrefixTree};
use std::ops::Range;

/// What is known of a request's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// No request has it.
    Absent,
    /// The request has no pages.
    Outside,
    /// The request ends with this node.
    End(u32),
}

/// The prefix trees of a batch, kept up to date by its changes instead of built anew; [`Forest`] is the same at once.
///
/// At every moment the trees are those that [`Forest::build`] makes of the page table with the same rows: radix trees over page ids,
/// where siblings differ in their first page and an only child of a node where no request ends belongs to its parent. Nodes have
/// other numbers than there, and keep them: a change gives and takes few. [`LiveForest::touched`] names them.
///
/// | change | time |
/// |---|---|
/// | `append` to a request that has its last node for itself | pages appended |
/// | `append` otherwise, `add` | pages given, and for each node passed the logarithm of its children |
/// | `truncate` within the last node of the request alone | constant |
/// | `truncate` otherwise, `remove` | depth |
/// | `rename` | constant |
///
/// To this comes, where a node is cut or joined with its child, a copy of their pages, and wherever a list of siblings, or of requests
/// that end with the same node, gets longer or shorter, one move of the rest of that list. Freed nodes keep their memory for later ones,
/// so that a batch that stays about as large as it was needs no new memory.
///
/// ```
/// use tilewright_plan::{LiveForest, PrefixTree};
///
/// # fn main() -> Result<(), tilewright_plan::ForestError> {
/// let mut forest = LiveForest::default();
/// forest.add(0, &[7, 8, 1])?;
/// forest.add(5, &[7, 8, 2, 3])?;
/// let root = forest.roots().next().expect("two requests");
/// assert_eq!((forest.pages(root), forest.size(root)), (&[7, 8][..], 2));
///
/// forest.clear_touched();
/// forest.append(5, &[4])?; // a step of decoding filled page 3
/// assert_eq!(forest.touched().grown.len(), 1);
/// assert!(forest.touched().changed.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct LiveForest {
    trees: Slab,
    places: Vec<Place>,
}

impl LiveForest {
    /// Numbers of requests given to [`Self::add`] and [`Self::rename`] are below this: they are rows of a batch, and index a list.
    pub const MAX_REQUESTS: u32 = 1 << 20;

    /// The forest of a page table, whose rows become the requests 0, 1, …; in linear time, but for sorting siblings. All its nodes
    /// count as changed. Of a table with several queries a request, each query becomes a request.
    pub fn from_table(table: &PageTable<'_>) -> Self {
        let forest = Forest::build(table);
        let mut live = Self { trees: Slab::default(), places: vec![Place::Outside; table.batch()] };
        for node in forest.nodes() {
            let members = forest.requests(node);
            let ending = &members[..node.ending as usize];
            let columns = node.columns.start as usize..node.columns.end as usize;
            let pages = &table.pages(members[0] as usize)[columns];
            // Breadth first on both sides, so that numbers agree.
            let id = live.trees.push(node.parent, node.columns.start, pages, ending, node.size());
            ending.iter().for_each(|&request| live.places[request as usize] = Place::End(id));
        }
        live
    }

    /// A request arrives. Without pages, it has no tokens yet and is in no node.
    ///
    /// # Errors
    /// The number is taken or too large, or a page is negative. The forest is then as it was.
    pub fn add(&mut self, request: u32, pages: &[i32]) -> Result<(), ForestError> {
        self.check_free(request)?;
        check_pages(request, 0, pages)?;
        *self.take(request) = match pages {
            [] => Place::Outside,
            _ => Place::End(self.trees.advance(request, None, pages)),
        };
        Ok(())
    }

    /// A request leaves.
    ///
    /// # Errors
    /// There is no such request.
    pub fn remove(&mut self, request: u32) -> Result<(), ForestError> {
        if let Some(node) = self.end(request)? {
            self.trees.retreat(request, node, 0);
        }
        self.places[request as usize] = Place::Absent;
        Ok(())
    }

    /// A request gains pages, behind those that it has.
    ///
    /// # Errors
    /// There is no such request, a page is negative, or the columns exceed 32 bits. The forest is then as it was.
    pub fn append(&mut self, request: u32, pages: &[i32]) -> Result<(), ForestError> {
        let end = self.end(request)?;
        check_pages(request, self.pages_up_to(end), pages)?;
        if !pages.is_empty() {
            self.places[request as usize] = Place::End(self.trees.advance(request, end, pages));
        }
        Ok(())
    }

    /// A request keeps only its first pages. Followed by [`Self::append`], this replaces its last ones, as copy on write does.
    ///
    /// # Errors
    /// There is no such request, or it has fewer pages. The forest is then as it was.
    pub fn truncate(&mut self, request: u32, pages_kept: u32) -> Result<(), ForestError> {
        let end = self.end(request)?;
        let pages = self.pages_up_to(end);
        if pages_kept > pages {
            return Err(ForestError::Truncate { request, pages, kept: pages_kept });
        }
        if let Some(node) = end
            && pages_kept < pages
        {
            let end = self.trees.retreat(request, node, pages_kept);
            self.places[request as usize] = end.map_or(Place::Outside, Place::End);
        }
        Ok(())
    }

    /// A request gets another number, as when an engine moves its last slot into a hole.
    ///
    /// # Errors
    /// There is no request `from`, or the number `to` is taken or too large. The forest is then as it was.
    pub fn rename(&mut self, from: u32, to: u32) -> Result<(), ForestError> {
        let end = self.end(from)?;
        if from == to {
            return Ok(());
        }
        self.check_free(to)?;
        if let Some(node) = end {
            self.trees.rename(node, from, to);
        }
        *self.take(to) = end.map_or(Place::Outside, Place::End);
        self.places[from as usize] = Place::Absent;
        Ok(())
    }

    /// All requests leave.
    pub fn clear(&mut self) {
        self.trees.clear();
        self.places.clear();
    }

    /// How many pages a request has; `None` if there is no such request.
    pub fn request_pages(&self, request: u32) -> Option<u32> {
        self.end(request).ok().map(|end| self.pages_up_to(end))
    }

    /// The pages of a node, one for each of its columns; none if the number is not in use.
    pub fn pages(&self, node: u32) -> &[i32] {
        &self.node(node).pages
    }

    /// Appends a request's pages in these columns, as far as it has any there.
    pub(crate) fn extend_with_pages(&self, request: u32, columns: Range<u32>, pages: &mut Vec<i32>) {
        let mut next = self.end(request).ok().flatten();
        let end = columns.end.min(self.pages_up_to(next));
        let first = pages.len();
        pages.resize(first + end.saturating_sub(columns.start) as usize, 0);
        // From the last to the first, as nodes know their parents.
        while let Some(node) = next
            && let own = self.columns(node)
            && own.end > columns.start
        {
            let common = own.start.max(columns.start)..own.end.min(end);
            if !common.is_empty() {
                let to = first + (common.start - columns.start) as usize;
                let from = (common.start - own.start) as usize;
                pages[to..to + common.len()].copy_from_slice(&self.pages(node)[from..from + common.len()]);
            }
            next = self.parent(node);
        }
    }

    /// What the changes since [`Self::clear_touched`] touched.
    pub fn touched(&self) -> Touched<'_> {
        self.trees.touches.view()
    }

    /// Forgets what was touched.
    pub fn clear_touched(&mut self) {
        self.trees.touches.clear();
    }

    fn node(&self, node: u32) -> &SlabNode {
        self.trees.nodes.get(node as usize).unwrap_or(SlabNode::UNUSED)
    }

    /// The node that a request ends with.
    fn end(&self, request: u32) -> Result<Option<u32>, ForestError> {
        match self.places.get(request as usize) {
            Some(Place::End(node)) => Ok(Some(*node)),
            Some(Place::Outside) => Ok(None),
            Some(Place::Absent) | None => Err(ForestError::UnknownRequest { request }),
        }
    }

    fn pages_up_to(&self, end: Option<u32>) -> u32 {
        end.map_or(0, |node| self.columns(node).end)
    }

    fn check_free(&self, request: u32) -> Result<(), ForestError> {
        if self.end(request).is_ok() {
            return Err(ForestError::RequestPresent { request });
        }
        let limit = Self::MAX_REQUESTS;
        if request >= limit { Err(ForestError::RequestNumber { request, limit }) } else { Ok(()) }
    }

    /// The place of a number that is now taken.
    fn take(&mut self, request: u32) -> &mut Place {
        let index = request as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, Place::Absent);
        }
        &mut self.places[index]
    }
}

/// Checks pages that come into the columns from `column` on.
fn check_pages(request: u32, column: u32, pages: &[i32]) -> Result<(), ForestError> {
    let has_columns = u32::try_from(pages.len()).is_ok_and(|count| column.checked_add(count).is_some());
    if !has_columns {
        return Err(ForestError::TooManyPages { request, has: column, given: pages.len() });
    }
    match pages.iter().zip(column..).find(|(page, _)| **page < 0) {
        Some((&page, column)) => Err(ForestError::NegativePage { request, column, page }),
        None => Ok(()),
    }
}

/// A number that is not in use stands for a node without pages, children or requests.
impl PrefixTree for LiveForest {
    #[inline]
    fn capacity(&self) -> usize {
        self.trees.nodes.len()
    }

    #[inline]
    fn node_count(&self) -> usize {
        self.trees.in_use()
    }

    fn roots(&self) -> impl Iterator<Item = u32> + '_ {
        self.trees.roots.iter().map(|(_, node)| *node)
    }

    #[inline]
    fn parent(&self, node: u32) -> Option<u32> {
        self.node(node).parent
    }

    #[inline]
    fn children(&self, node: u32) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.node(node).children.iter().map(|(_, child)| *child)
    }

    #[inline]
    fn ending(&self, node: u32) -> &[u32] {
        &self.node(node).ending
    }

    #[inline]
    fn columns(&self, node: u32) -> Range<u32> {
        self.node(node).columns()
    }

    #[inline]
    fn size(&self, node: u32) -> u32 {
        self.node(node).size
    }
}
