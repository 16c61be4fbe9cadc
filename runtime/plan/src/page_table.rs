//! What an engine hands over: which pages each request reads, and how many tokens of them.

use crate::{PlanError, Queries};
use std::ops::Range;

/// A checked view of a page table of i32, `[batch, max_pages]` or compressed rows, and of each request's tokens.
///
/// Entries past a request's pages are never read; -1 and garbage are fine there.
///
/// A plan is made of queries. By default each request has one, its last token; [`PageTable::with_queries`] gives it others.
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'a> {
    entries: &'a [i32],
    rows: Rows<'a>,
    page_size: u32,
    queries: Option<&'a Queries>,
}

/// Where the rows begin, and how many tokens they have.
#[derive(Clone, Copy, Debug)]
enum Rows<'a> {
    /// A row begins this many entries behind the one before.
    Dense { stride: usize, seq_lens: &'a [u32] },
    /// Compressed sparse rows, all pages full but the last.
    Csr { indptr: &'a [i32], last_page_len: &'a [i32] },
    /// As dense ones, with as many pages as is said: queries have all pages of their request, whatever they see of them.
    Counted { stride: usize, pages: &'a [u32], seq_lens: &'a [u32] },
}

impl<'a> PageTable<'a> {
    /// Checks that every request's tokens lie in pages of a table `[batch, max_pages]`, as vLLM's block tables are.
    ///
    /// # Errors
    /// Wrong shape, a page size of 0, a length beyond the row, or a negative page within a length.
    pub fn new(
        entries: &'a [i32],
        max_pages: usize,
        seq_lens: &'a [u32],
        page_size: u32,
    ) -> Result<Self, PlanError> {
        let batch = seq_lens.len();
        if batch.checked_mul(max_pages) != Some(entries.len()) {
            check_page_size(page_size)?;
            return Err(PlanError::TableSize { found: entries.len(), batch, max_pages });
        }
        PageRows::dense(entries, max_pages, max_pages, seq_lens, page_size)?.check()
    }

    /// The same from compressed rows, as FlashInfer takes them: the pages of request i are `indices[indptr[i]..indptr[i + 1]]`, all full but
    /// the last, which holds `last_page_len[i]` tokens. A request without pages has no tokens.
    ///
    /// # Errors
    /// Wrong shape, a page size of 0, a row outside of `indices`, a last page that holds nothing or too much, or a negative page.
    pub fn from_csr(
        indptr: &'a [i32],
        indices: &'a [i32],
        last_page_len: &'a [i32],
        page_size: u32,
    ) -> Result<Self, PlanError> {
        PageRows::csr(indptr, indices, last_page_len, page_size)?.check()
    }

    /// The same table where each request brings several query tokens instead of one, as speculative decoding does. The cache holds K and V
    /// of all of them already, at the request's end: query j of q (from 0 on) of a request with `seq_len` tokens sees the first
    /// `seq_len - q + j + 1` of them. Query and output are then `[queries, q_heads, head_dim]` and the LSE `[queries, q_heads]`, the
    /// queries of a request in the order of its tokens, and one request behind the other.
    ///
    /// A request of 0 queries is not computed in this step, and has no place in query and output. Requests may have any number up to their
    /// tokens, but each query is computed as a row set of its own, which suits 1 to some 16: a prompt wants a kernel for prefill.
    /// `memory` is reused from step to step.
    ///
    /// ```
    /// use tilewright_plan::{PageTable, Queries};
    ///
    /// # fn main() -> Result<(), tilewright_plan::PlanError> {
    /// // The first request checks two drafted tokens behind its last one, the second request has none.
    /// let (entries, seq_lens, query_lens) = ([0, 1, 0, 2], [19, 20], [3, 1]);
    /// let mut memory = Queries::default(); // kept from step to step
    /// let table = PageTable::new(&entries, 2, &seq_lens, 16)?.with_queries(&query_lens, &mut memory)?;
    /// assert_eq!((table.requests(), table.batch()), (2, 4));
    /// assert!(table.seq_lens().eq([17, 18, 19, 20])); // what each query sees
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another number of counts than requests, a request of more queries than tokens, or more queries than 31 bits count.
    pub fn with_queries(self, query_lens: &[u32], memory: &'a mut Queries) -> Result<Self, PlanError> {
        memory.fill(self.request_lens(), query_lens)?;
        Ok(Self { queries: Some(memory), ..self })
    }

    /// As [`PageTable::with_queries`], where the queries of the same requests were found before.
    pub const fn with_known_queries(self, queries: &'a Queries) -> Self {
        Self { queries: Some(queries), ..self }
    }

    /// Rows that were checked before, with as many pages as is said.
    pub(crate) const fn of_checked(
        entries: &'a [i32],
        stride: usize,
        pages: &'a [u32],
        seq_lens: &'a [u32],
        page_size: u32,
    ) -> Self {
        Self { entries, rows: Rows::Counted { stride, pages, seq_lens }, page_size, queries: None }
    }

    /// Queries: as many as requests, without [`PageTable::with_queries`].
    pub fn batch(&self) -> usize {
        self.queries.map_or(self.requests(), |queries| queries.visible().len())
    }

    /// Requests, those without queries among them.
    pub const fn requests(&self) -> usize {
        match self.rows {
            Rows::Dense { seq_lens, .. } | Rows::Counted { seq_lens, .. } => seq_lens.len(),
            Rows::Csr { last_page_len, .. } => last_page_len.len(),
        }
    }

    /// Tokens that a query sees: all of its request, without [`PageTable::with_queries`].
    #[inline]
    pub fn seq_len(&self, query: usize) -> u32 {
        self.queries.map_or_else(|| self.request_len(query), |queries| queries.visible()[query])
    }

    /// [`PageTable::seq_len`] of every query.
    pub fn seq_lens(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        (0..self.batch()).map(|query| self.seq_len(query))
    }

    /// The slot of each query's own token: its page times the page size plus its place in the page, or -1 where a request has no token. K and V
    /// of new tokens are appended there.
    ///
    /// ```
    /// let (entries, seq_lens) = ([7, 8, 9, -1, 5, -1], [17, 0, 1]);
    /// let table = tilewright_plan::PageTable::new(&entries, 2, &seq_lens, 16)?;
    /// assert!(table.slots().eq([8 * 16, -1, 5 * 16]));
    /// # Ok::<(), tilewright_plan::PlanError>(())
    /// ```
    pub fn slots(&self) -> impl ExactSizeIterator<Item = i64> + '_ {
        (0..self.batch()).map(|query| match self.seq_len(query).checked_sub(1) {
            Some(last) => {
                let page = self.pages(query)[(last / self.page_size) as usize];
                i64::from(page) * i64::from(self.page_size) + i64::from(last % self.page_size)
            }
            None => -1,
        })
    }

    fn request_lens(&self) -> impl ExactSizeIterator<Item = u32> + Clone + '_ {
        (0..self.requests()).map(|request| self.request_len(request))
    }

    /// Tokens of a request.
    #[inline]
    fn request_len(&self, request: usize) -> u32 {
        match self.rows {
            Rows::Dense { seq_lens, .. } | Rows::Counted { seq_lens, .. } => seq_lens[request],
            Rows::Csr { last_page_len, .. } => match self.pages_of(request).len() as u32 {
                0 => 0,
                pages => (pages - 1) * self.page_size + last_page_len[request] as u32,
            },
        }
    }

    /// The request of a query: the query's own number, without [`PageTable::with_queries`].
    #[inline]
    pub fn request_of(&self, query: usize) -> usize {
        self.queries.map_or(query, |queries| queries.requests()[query] as usize)
    }

    /// Whether some request has several queries.
    pub(crate) fn has_several_queries(&self) -> bool {
        self.queries.is_some_and(|queries| queries.requests().windows(2).any(|pair| pair[0] == pair[1]))
    }

    /// Tokens of a page.
    pub const fn page_size(&self) -> u32 {
        self.page_size
    }

    /// The pages of a query's request, in the order of its tokens. All queries of a request have all of its pages, the very same slice;
    /// an early one sees nothing of the last of them.
    // Always: as a call, it makes finding a forest take 2 % longer.
    #[inline(always)]
    pub fn pages(&self, query: usize) -> &'a [i32] {
        self.pages_of(self.request_of(query))
    }

    #[inline(always)]
    fn pages_of(&self, request: usize) -> &'a [i32] {
        match self.rows {
            Rows::Dense { stride, seq_lens } => {
                let used = seq_lens[request].div_ceil(self.page_size) as usize;
                &self.entries[request * stride..][..used]
            }
            // Checked: bounds are not negative, and rows lie in `indices`.
            Rows::Csr { indptr, .. } => &self.entries[indptr[request] as usize..indptr[request + 1] as usize],
            Rows::Counted { stride, pages, .. } => {
                &self.entries[request * stride..][..pages[request] as usize]
            }
        }
    }

    /// Some of the columns of [`Self::pages`], which the caller knows to be there: no division finds out how many there are.
    #[inline]
    pub(crate) fn columns(&self, query: usize, columns: Range<u32>) -> &'a [i32] {
        let request = self.request_of(query);
        let begin = match self.rows {
            Rows::Dense { stride, .. } | Rows::Counted { stride, .. } => request * stride,
            Rows::Csr { indptr, .. } => indptr[request] as usize,
        };
        &self.entries[begin..][columns.start as usize..columns.end as usize]
    }
}

/// A page table whose shape was checked, and whose pages were not looked at yet: what a [`FollowingPlanner`](crate::FollowingPlanner) takes, which
/// looks at those that are others than before.
#[derive(Clone, Copy, Debug)]
pub struct PageRows<'a> {
    table: PageTable<'a>,
    /// Which row of the entries, and how far apart they begin, each request has; its own number if absent.
    order: Option<(&'a [i32], usize)>,
    /// For each row of the entries, what its last write was.
    writes: &'a [u64],
}

impl<'a> PageRows<'a> {
    /// Rows of `max_pages` columns, each of which begins `stride` entries behind the one before, as in a slice of a wider table.
    ///
    /// # Errors
    /// A table that ends before its last row, rows that overlap, a page size of 0, or a length beyond the row.
    pub fn dense(
        entries: &'a [i32],
        max_pages: usize,
        stride: usize,
        seq_lens: &'a [u32],
        page_size: u32,
    ) -> Result<Self, PlanError> {
        check_page_size(page_size)?;
        let batch = seq_lens.len();
        let needed = match batch {
            0 => Some(0),
            _ => (batch - 1).checked_mul(stride).and_then(|begin| begin.checked_add(max_pages)),
        };
        if max_pages > stride && batch > 1 || needed.is_none_or(|needed| needed > entries.len()) {
            return Err(PlanError::TableSize { found: entries.len(), batch, max_pages });
        }
        Self::check_lengths(max_pages, seq_lens, page_size)?;
        let rows = Rows::Dense { stride, seq_lens };
        Ok(Self { table: PageTable { entries, rows, page_size, queries: None }, order: None, writes: &[] })
    }

    /// As [`PageRows::dense`], of a table with a row for each request that there may be: those of the batch are the rows `order`.
    ///
    /// # Errors
    /// As there, another number of rows than lengths, or a row that is not there.
    pub fn ordered(
        entries: &'a [i32],
        max_pages: usize,
        stride: usize,
        order: &'a [i32],
        seq_lens: &'a [u32],
        page_size: u32,
    ) -> Result<Self, PlanError> {
        if order.len() != seq_lens.len() {
            return Err(PlanError::Order { found: order.len(), needed: seq_lens.len() });
        }
        let rows = match entries.len().checked_sub(max_pages) {
            Some(behind) => behind / stride.max(1) + 1,
            None => 0,
        };
        let is_there = |row: i32| usize::try_from(row).is_ok_and(|row| row < rows);
        if let Some((request, &row)) = order.iter().enumerate().find(|(_, row)| !is_there(**row)) {
            return Err(PlanError::OrderRow { request, row, rows });
        }
        // As a table of one row for all: the others were looked at.
        let all = Self::dense(entries, max_pages, 0, &[], page_size)?;
        Self::check_lengths(max_pages, seq_lens, page_size)?;
        let table = PageTable { rows: Rows::Dense { stride, seq_lens }, ..all.table };
        Ok(Self { table, order: Some((order, stride)), writes: &[] })
    }

    fn check_lengths(max_pages: usize, seq_lens: &[u32], page_size: u32) -> Result<(), PlanError> {
        let longest = seq_lens.iter().fold(0, |longest, &seq_len| seq_len.max(longest));
        if longest.div_ceil(page_size) as usize > max_pages {
            let needed = |seq_len: u32| seq_len.div_ceil(page_size) as usize;
            let mut lens = seq_lens.iter().copied().enumerate();
            if let Some((request, seq_len)) = lens.find(|&(_, seq_len)| needed(seq_len) > max_pages) {
                return Err(PlanError::TooLong { request, seq_len, needed: needed(seq_len), max_pages });
            }
        }
        Ok(())
    }

    /// Compressed rows, as in [`PageTable::from_csr`].
    ///
    /// # Errors
    /// As there, but for negative pages.
    pub fn csr(
        indptr: &'a [i32],
        indices: &'a [i32],
        last_page_len: &'a [i32],
        page_size: u32,
    ) -> Result<Self, PlanError> {
        check_page_size(page_size)?;
        let batch = last_page_len.len();
        if indptr.len() != batch + 1 {
            return Err(PlanError::Rows { found: indptr.len(), needed: batch + 1 });
        }
        for (request, (row, &last)) in indptr.windows(2).zip(last_page_len).enumerate() {
            let bad = || PlanError::Row { request, begin: row[0], end: row[1], entries: indices.len() };
            let begin = usize::try_from(row[0]).map_err(|_| bad())?;
            let end = usize::try_from(row[1]).map_err(|_| bad())?;
            let pages = end.checked_sub(begin).filter(|_| end <= indices.len()).ok_or_else(bad)?;
            let last = match u32::try_from(last) {
                Ok(_) if pages == 0 => 0,
                Ok(last) if (1..=page_size).contains(&last) => last,
                _ => return Err(PlanError::LastPage { request, tokens: last, page_size }),
            };
            let tokens = (pages as u64).saturating_sub(1) * u64::from(page_size) + u64::from(last);
            u32::try_from(tokens).map_err(|_| PlanError::TooLarge("tokens of a request"))?;
        }
        let rows = Rows::Csr { indptr, last_page_len };
        Ok(Self {
            table: PageTable { entries: indices, rows, page_size, queries: None },
            order: None,
            writes: &[],
        })
    }

    /// Says which write each row of the entries is of, for tables whose every write is counted: a row with the number that it had before is the same
    /// as it was, and but for its last page is not read. No two writes have the same number, whatever table they are to; 0 says nothing, as does a row behind the numbers.
    #[must_use]
    pub const fn with_writes(self, writes: &'a [u64]) -> Self {
        Self { writes, ..self }
    }

    /// Whether rows are those of queries.
    pub(crate) const fn has_queries(&self) -> bool {
        self.table.queries.is_some()
    }

    /// Which write the row of a query's request is of; 0 if nobody knows.
    #[inline]
    pub(crate) fn writes(&self, query: usize) -> u64 {
        let row = match self.order {
            None if self.has_queries() => return 0,
            None => query,
            // Checked: it is not negative.
            Some((order, _)) => order[query] as usize,
        };
        self.writes.get(row).copied().unwrap_or(0)
    }

    /// Looks at all pages of rows in their own order.
    fn check(self) -> Result<PageTable<'a>, PlanError> {
        let table = self.table;
        (0..table.requests()).try_for_each(|request| check_pages(request, 0, table.pages_of(request)))?;
        Ok(table)
    }

    /// Queries: as many as requests, unless it is of a table with several.
    pub fn batch(&self) -> usize {
        self.table.batch()
    }

    /// Tokens of a page.
    pub const fn page_size(&self) -> u32 {
        self.table.page_size
    }

    /// Tokens that a query sees.
    #[inline]
    pub(crate) fn seq_len(&self, query: usize) -> u32 {
        self.table.seq_len(query)
    }

    /// The pages of a query's request, of any number.
    #[inline]
    pub(crate) fn pages(&self, query: usize) -> &'a [i32] {
        match self.order {
            None => self.table.pages(query),
            // Checked: all of them are there.
            Some((order, stride)) => {
                let used = self.table.seq_len(query).div_ceil(self.table.page_size) as usize;
                &self.table.entries[order[query] as usize * stride..][..used]
            }
        }
    }
}

impl<'a> From<PageTable<'a>> for PageRows<'a> {
    fn from(table: PageTable<'a>) -> Self {
        Self { table, order: None, writes: &[] }
    }
}

/// Refuses negative pages among those of a request from a column on.
pub(crate) fn check_pages(request: usize, column: usize, pages: &[i32]) -> Result<(), PlanError> {
    // All bits at once, which the compiler does for several pages together; which page it is, is asked of those that are refused.
    if pages.iter().fold(0, |bits, &page| bits | page) >= 0 {
        return Ok(());
    }
    match pages.iter().zip(column..).find(|(page, _)| **page < 0) {
        Some((&page, column)) => Err(PlanError::NegativePage { request, column, page }),
        None => Ok(()),
    }
}

/// A page of no tokens holds nothing.
fn check_page_size(page_size: u32) -> Result<(), PlanError> {
    match page_size {
        0 => Err(tilewright_heuristics::GeometryError::Zero("page_size").into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_past_the_length_is_fine_and_within_it_an_error() {
        let entries = [3, 4, -1, i32::MIN];
        assert!(PageTable::new(&entries, 2, &[17, 0], 16).is_ok());
        let negative = PageTable::new(&entries, 2, &[17, 1], 16).unwrap_err();
        assert_eq!(negative, PlanError::NegativePage { request: 1, column: 0, page: -1 });
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        assert!(matches!(
            PageTable::new(&[1, 2, 3], 2, &[1, 1], 16),
            Err(PlanError::TableSize { found: 3, .. })
        ));
        assert!(matches!(PageTable::new(&[1, 2], 2, &[33], 16), Err(PlanError::TooLong { needed: 3, .. })));
        assert!(PageTable::new(&[1], 1, &[1], 0).is_err());
        assert!(PageTable::new(&[], usize::MAX, &[1, 1], 16).is_err());
        assert!(PageTable::new(&[], 0, &[], 16).is_ok());
    }

    #[test]
    fn compressed_rows_are_the_same_table() {
        let table = PageTable::from_csr(&[0, 2, 2, 3], &[7, 8, 9], &[3, 0, 16], 16).unwrap();
        assert!(table.seq_lens().eq([19, 0, 16]));
        let dense = PageTable::new(&[7, 8, -1, -1, 9, -1], 2, &[19, 0, 16], 16).unwrap();
        for request in 0..3 {
            assert_eq!(table.pages(request), dense.pages(request));
        }
    }

    #[test]
    fn rows_of_a_wider_table_in_any_order_are_the_same_table() {
        let entries = [7, 8, -1, 99, 9, -1, -1, 99, 4, 5, 6];
        let rows = PageRows::dense(&entries, 3, 4, &[19, 0, 33], 16).unwrap();
        let found =
            |rows: PageRows<'_>| (0..rows.batch()).map(|i| rows.pages(i).to_vec()).collect::<Vec<_>>();
        assert_eq!(found(rows), [vec![7, 8], vec![], vec![4, 5, 6]]);
        let ordered =
            |order: &[i32], lens: &[u32]| PageRows::ordered(&entries, 3, 4, order, lens, 16).map(found);
        assert_eq!(
            ordered(&[2, 1, 2, 0], &[48, 3, 16, 17]),
            Ok(vec![vec![4, 5, 6], vec![9], vec![4], vec![7, 8]])
        );
        assert_eq!(ordered(&[], &[]), Ok(vec![]));
        assert_eq!(ordered(&[0], &[1, 2]), Err(PlanError::Order { found: 1, needed: 2 }));
        for row in [-1, 3] {
            assert_eq!(ordered(&[1, row], &[1, 2]), Err(PlanError::OrderRow { request: 1, row, rows: 3 }));
        }
        assert!(matches!(ordered(&[0], &[49]), Err(PlanError::TooLong { needed: 4, .. })));
        let dense =
            |columns, stride, lens: &[u32]| PageRows::dense(&entries, columns, stride, lens, 16).map(drop);
        assert!(matches!(dense(4, 4, &[1, 1, 1]), Err(PlanError::TableSize { found: 11, .. })));
        assert!(matches!(dense(4, 3, &[1, 1]), Err(PlanError::TableSize { .. })), "rows overlap");
        assert_eq!(dense(11, 0, &[176]), Ok(()));
    }

    #[test]
    fn compressed_rows_that_make_no_sense_are_refused() {
        let csr = |indptr: &[i32], last: &[i32]| {
            PageTable::from_csr(indptr, &[7, 8, -9], last, 16).map(drop).unwrap_err()
        };
        assert_eq!(csr(&[0, 1], &[1, 1]), PlanError::Rows { found: 2, needed: 3 });
        assert!(matches!(csr(&[0, 4], &[1]), PlanError::Row { end: 4, entries: 3, .. }));
        assert!(matches!(csr(&[2, 1], &[1]), PlanError::Row { begin: 2, .. }));
        assert!(matches!(csr(&[-1, 1], &[1]), PlanError::Row { begin: -1, .. }));
        assert!(matches!(csr(&[0, 1], &[17]), PlanError::LastPage { tokens: 17, .. }));
        assert!(matches!(csr(&[0, 1], &[0]), PlanError::LastPage { tokens: 0, .. }));
        assert_eq!(csr(&[0, 3], &[1]), PlanError::NegativePage { request: 0, column: 2, page: -9 });
    }

    #[test]
    fn queries_share_pages_in_both_kinds_of_table() {
        let entries = [7, 8, -1, 9, -1, -1, 4, 5, 6];
        let dense = PageTable::new(&entries, 3, &[19, 16, 33], 16).unwrap();
        let (mut memory, mut again) = (Queries::default(), Queries::default());
        let indptr = [0, 2, 3, 6];
        let csr = PageTable::from_csr(&indptr, &[7, 8, 9, 4, 5, 6], &[3, 16, 1], 16).unwrap();
        let queries = [4, 0, 2];
        let (dense, csr) = (
            dense.with_queries(&queries, &mut memory).unwrap(),
            csr.with_queries(&queries, &mut again).unwrap(),
        );
        for table in [dense, csr] {
            assert_eq!((table.requests(), table.batch()), (3, 6));
            assert!(table.seq_lens().eq([16, 17, 18, 19, 32, 33]));
            let rows: Vec<(usize, &[i32])> =
                (0..6).map(|query| (table.request_of(query), table.pages(query))).collect();
            let (first, last) = ((0, &[7, 8][..]), (2, &[4, 5, 6][..]));
            assert_eq!(rows, [first, first, first, first, last, last]);
            assert!(std::ptr::eq(rows[0].1, rows[3].1));
            let slots = [7 * 16 + 15, 8 * 16, 8 * 16 + 1, 8 * 16 + 2, 5 * 16 + 15, 6 * 16];
            assert!(table.slots().eq(slots));
        }
    }

    #[test]
    fn queries_that_no_request_can_have_are_refused() {
        let table = PageTable::new(&[7, 8], 1, &[5, 0], 16).unwrap();
        let with = |query_lens: &[u32]| {
            table.with_queries(query_lens, &mut Queries::default()).map(|table| table.batch())
        };
        assert_eq!(with(&[5, 0]), Ok(5));
        assert_eq!(with(&[0, 0]), Ok(0));
        assert_eq!(with(&[1]), Err(PlanError::QueryLens { found: 1, needed: 2 }));
        assert_eq!(with(&[6, 0]), Err(PlanError::QueryLen { request: 0, query_len: 6, seq_len: 5 }));
        assert_eq!(with(&[1, 1]), Err(PlanError::QueryLen { request: 1, query_len: 1, seq_len: 0 }));
    }
}
