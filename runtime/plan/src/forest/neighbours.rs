//! Requests in a row: how many pages each has in common with the one before it, and how they are put in order by it.

use crate::PageTable;
use std::ops::Range;

/// How many pages neighbours have in common, which tells where nodes begin and end without another look at the pages. The rest is
/// kept from batch to batch for its memory.
///
/// This is the array of longest common prefixes that goes with a suffix array (Manber and Myers, 1993), here of whole rows. Engines
/// mostly list requests that share pages one behind the other, so that a group is few stretches, which change places as a whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neighbours {
    /// By place in the order: pages, from the first on. The first place of a node's requests does not count there.
    common: Vec<u32>,
    stretches: Vec<Stretch>,
    /// Requests and what they have in common, while they change places.
    moved: Vec<(u32, u32)>,
}

/// Neighbours in the order, of a node's requests, that go on with the same page; or one that ends there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// That page plus one; 0 for a request that ends.
    page: u32,
    /// The first place in the order.
    begin: u32,
    /// One past the last.
    pub(super) end: u32,
    /// Pages of the first request.
    pub(super) row_pages: u32,
}

impl Stretch {
    /// Whether its request has no page there.
    pub(super) const fn ends(&self) -> bool {
        self.page == 0
    }

    /// Whether both go on with the same page.
    pub(super) const fn begins_as(&self, other: &Self) -> bool {
        self.page == other.page
    }
}

impl Neighbours {
    /// Memory for a tree without neighbours to find.
    pub(super) const fn memory(&mut self) -> &mut Vec<u32> {
        &mut self.common
    }

    /// Lists the requests of a table that have pages, in the order of their numbers. Queries of a request have the same row: the first one
    /// stands for all of them until the trees are there.
    pub(super) fn start(&mut self, table: &PageTable<'_>, order: &mut Vec<u32>) {
        self.common.clear();
        order.clear();
        let mut before: &[i32] = &[];
        for query in 0..table.batch() {
            let row = table.pages(query);
            let first = query == 0 || table.request_of(query - 1) != table.request_of(query);
            if first && !row.is_empty() {
                order.push(query as u32);
                self.common.push(common_pages(before, row) as u32);
                before = row;
            }
        }
    }

    /// The columns that the requests in these places, at least two, have in common.
    pub(super) fn common(&self, places: &Range<u32>) -> u32 {
        let inside = &self.common[places.start as usize + 1..places.end as usize];
        inside.iter().copied().min().unwrap_or(0)
    }

    /// Sorts requests that have all columns before `column` in common by their pages in that column, those that have none first, and
    /// equals as they were. Returns the stretches that they are then, so that several in a row may begin with the same page.
    pub(super) fn sort(
        &mut self,
        table: &PageTable<'_>,
        order: &mut [u32],
        places: Range<u32>,
        column: u32,
    ) -> &[Stretch] {
        self.find_stretches(table, order, places.clone(), column);
        let key = |stretch: &Stretch| u64::from(stretch.page) << 32 | u64::from(stretch.begin);
        if !self.stretches.is_sorted_by_key(key) {
            self.stretches.sort_unstable_by_key(key);
            self.rearrange(order, places);
        }
        for pair in self.stretches.windows(2).filter(|pair| pair[1].begins_as(&pair[0]) && !pair[1].ends()) {
            // Neighbours only now.
            let place = pair[1].begin as usize;
            let [before, row] =
                [place - 1, place].map(|place| &table.pages(order[place] as usize)[column as usize..]);
            self.common[place] = column + common_pages(before, row) as u32;
        }
        &self.stretches
    }

    fn find_stretches(&mut self, table: &PageTable<'_>, order: &[u32], places: Range<u32>, column: u32) {
        self.stretches.clear();
        for place in places.clone() {
            if place > places.start && self.common[place as usize] > column {
                continue;
            }
            if let Some(last) = self.stretches.last_mut() {
                last.end = place;
            }
            let row = table.pages(order[place as usize] as usize);
            // No page is negative.
            let page = row.get(column as usize).map_or(0, |page| page.unsigned_abs() + 1);
            let row_pages = row.len() as u32;
            self.stretches.push(Stretch { page, begin: place, end: places.end, row_pages });
        }
    }

    /// Moves the requests of sorted stretches to where their stretches are.
    fn rearrange(&mut self, order: &mut [u32], places: Range<u32>) {
        let range = places.start as usize..places.end as usize;
        let (order, common) = (&mut order[range.clone()], &mut self.common[range]);
        self.moved.clear();
        self.moved.extend(order.iter().copied().zip(common.iter().copied()));
        let mut to = order.iter_mut().zip(common);
        let mut begin = places.start;
        for stretch in &mut self.stretches {
            let from = (stretch.begin - places.start) as usize..(stretch.end - places.start) as usize;
            for (moved, (request, common)) in self.moved[from].iter().zip(&mut to) {
                (*request, *common) = *moved;
            }
            let end = begin + (stretch.end - stretch.begin);
            (stretch.begin, stretch.end) = (begin, end);
            begin = end;
        }
    }
}

/// How many pages two rows have in common, from their first on. Eight at a time: rows that share anything mostly share many pages.
fn common_pages(a: &[i32], b: &[i32]) -> usize {
    let (eights, other_eights) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    let whole = 8 * eights.iter().zip(other_eights).take_while(|(a, b)| a == b).count();
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Forest;
    use proptest::prelude::*;

    fn row() -> impl Strategy<Value = Vec<i32>> {
        // Long shared beginnings, so that rows diverge before, at and behind the eighth page.
        (0usize..30, prop::collection::vec(0i32..3, 0..4))
            .prop_map(|(same, rest)| std::iter::repeat_n(1, same).chain(rest).collect())
    }

    proptest! {
        #[test]
        fn common_pages_are_those_before_the_first_difference(a in row(), b in row()) {
            let first = (0..).find(|&column| a.get(column).is_none_or(|page| b.get(column) != Some(page)));
            prop_assert_eq!(Some(common_pages(&a, &b)), first);
        }

        #[test]
        fn requests_are_ordered_by_rows_then_by_number(
            rows in prop::collection::vec(row(), 0..20)
        ) {
            let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
            let pad = |row: &Vec<i32>| row.iter().copied().chain(std::iter::repeat_n(-1, columns - row.len())).collect::<Vec<_>>();
            let entries: Vec<i32> = rows.iter().flat_map(pad).collect();
            let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32).collect();
            let forest = Forest::build(&PageTable::new(&entries, columns, &seq_lens, 1).unwrap());
            let mut sorted: Vec<(&[i32], u32)> =
                rows.iter().map(Vec::as_slice).zip(0..).filter(|(row, _)| !row.is_empty()).collect();
            sorted.sort_unstable();
            let sorted: Vec<u32> = sorted.into_iter().map(|(_, request)| request).collect();
            // Siblings are in the order of their pages, and those that end come before those that go on.
            prop_assert_eq!(forest.order(), sorted);
        }
    }
}
