//! PAT's TreeHeuristic (PAT, Algorithm 1). Sizes are requests and lengths tokens, as there; a node's length is that of its own pages.

use super::Packs;
use crate::PrefixTree;

/// Whether a child of `size` requests takes the pages of its parent along, which has `length` tokens of its own: where partials of
/// these requests cost more than reading the pages again.
#[inline]
pub(super) fn takes_along(size: u32, length: u64) -> bool {
    4 * u64::from(size) >= length
}

impl Packs {
    /// Appends the packs of all trees, each behind those whose pages come before its own. `push_requests` appends the requests of a node
    /// and of those below, in depth-first order.
    pub(super) fn push_pats<T: PrefixTree>(
        &mut self,
        tree: &T,
        page_size: u32,
        stack: &mut Vec<(u32, u32)>,
        mut push_requests: impl FnMut(&T, u32, &mut Vec<u32>),
    ) {
        // A node, and the first column that it takes along from its ancestors.
        stack.clear();
        stack.extend(tree.roots().map(|root| (root, 0)));
        stack.reverse();
        while let Some((node, start)) = stack.pop() {
            let columns = tree.columns(node);
            let length = columns.len() as u64 * u64::from(page_size);
            let merges = |child: u32| takes_along(tree.size(child), length);
            let first = self.requests.len();
            self.requests.extend_from_slice(tree.ending(node));
            for child in tree.children(node).filter(|&child| !merges(child)) {
                push_requests(tree, child, &mut self.requests);
            }
            self.close_pack(first, start..columns.end);
            stack.extend(
                tree.children(node)
                    .rev()
                    .map(|child| (child, if merges(child) { start } else { columns.end })),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Packing, Packs};
    use crate::{Forest, LiveForest, PageTable};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_packs_of_a_live_forest_are_those_of_its_page_table(
            rows in prop::collection::vec(prop::collection::vec(0i32..3, 0..6), 0..12),
            page_size in 1u32..9,
        ) {
            let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0);
            let mut entries = vec![-1; rows.len() * max_pages];
            let mut live = LiveForest::default();
            for (request, row) in rows.iter().enumerate().rev() {
                entries[request * max_pages..][..row.len()].copy_from_slice(row);
                live.add(request as u32, row).unwrap();
            }
            let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * page_size).collect();
            let table = PageTable::new(&entries, max_pages, &seq_lens, page_size).unwrap();
            let mut packs = Packs::default();
            packs.rebuild_live(&live, page_size, &mut Vec::new(), &mut Vec::new());
            prop_assert_eq!(&packs, &Packs::build(&Forest::build(&table), &table, Packing::Pat).unwrap());
            for pack in packs.packs() {
                let mut pages = vec![7];
                live.extend_with_pages(packs.requests_of(pack)[0], pack.columns.clone(), &mut pages);
                let row = &rows[packs.requests_of(pack)[0] as usize];
                prop_assert_eq!(&pages[1..], &row[pack.columns.start as usize..pack.columns.end as usize]);
            }
        }
    }
}
