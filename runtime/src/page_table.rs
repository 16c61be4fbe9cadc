//! What an engine hands over: which pages each request reads, and how many tokens of them.

use crate::PlanError;

/// A checked view of a page table of i32, `[batch, max_pages]` or compressed rows, and of each request's tokens.
///
/// Entries past a request's pages are never looked at; -1 and garbage are fine there.
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'a> {
    entries: &'a [i32],
    rows: Rows<'a>,
    seq_lens: &'a [u32],
    page_size: u32,
}

/// Where the rows begin.
#[derive(Clone, Copy, Debug)]
enum Rows<'a> {
    /// So many columns apart.
    Columns(usize),
    /// Each where this says, as in a compressed sparse row matrix.
    Begins(&'a [i32]),
}

impl<'a> PageTable<'a> {
    /// Checks that every request's tokens lie in pages of a table `[batch, max_pages]`.
    ///
    /// # Errors
    /// Wrong shape, a page size of 0, a length beyond the row, or a negative page within a length.
    pub fn new(
        entries: &'a [i32],
        max_pages: usize,
        seq_lens: &'a [u32],
        page_size: u32,
    ) -> Result<Self, PlanError> {
        check_page_size(page_size)?;
        let batch = seq_lens.len();
        if batch.checked_mul(max_pages) != Some(entries.len()) {
            return Err(PlanError::TableSize { found: entries.len(), batch, max_pages });
        }
        let table = Self { entries, rows: Rows::Columns(max_pages), seq_lens, page_size };
        for (request, &seq_len) in seq_lens.iter().enumerate() {
            let needed = seq_len.div_ceil(page_size) as usize;
            if needed > max_pages {
                return Err(PlanError::TooLong { request, seq_len, needed, max_pages });
            }
            table.check_pages(request)?;
        }
        Ok(table)
    }

    /// The same from compressed rows, as FlashInfer takes them: the pages of request i are `indices[indptr[i]..indptr[i + 1]]`, all full but
    /// the last, which holds `last_page_len[i]` tokens. A request without pages has no tokens. `seq_lens` is memory for their lengths, which
    /// is reused from step to step.
    ///
    /// # Errors
    /// Wrong shape, a page size of 0, a row outside of `indices`, a last page that holds nothing or too much, or a negative page.
    pub fn from_csr(
        indptr: &'a [i32],
        indices: &'a [i32],
        last_page_len: &[i32],
        page_size: u32,
        seq_lens: &'a mut Vec<u32>,
    ) -> Result<Self, PlanError> {
        check_page_size(page_size)?;
        let batch = last_page_len.len();
        if indptr.len() != batch + 1 {
            return Err(PlanError::Rows { found: indptr.len(), needed: batch + 1 });
        }
        seq_lens.clear();
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
            seq_lens.push(u32::try_from(tokens).map_err(|_| PlanError::TooLarge("tokens of a request"))?);
        }
        let table = Self { entries: indices, rows: Rows::Begins(indptr), seq_lens, page_size };
        (0..batch).try_for_each(|request| table.check_pages(request))?;
        Ok(table)
    }

    fn check_pages(&self, request: usize) -> Result<(), PlanError> {
        match self.pages(request).iter().enumerate().find(|(_, page)| **page < 0) {
            Some((column, &page)) => Err(PlanError::NegativePage { request, column, page }),
            None => Ok(()),
        }
    }

    /// Requests.
    pub const fn batch(&self) -> usize {
        self.seq_lens.len()
    }

    /// Tokens of each request.
    pub const fn seq_lens(&self) -> &'a [u32] {
        self.seq_lens
    }

    /// Tokens of a page.
    pub const fn page_size(&self) -> u32 {
        self.page_size
    }

    /// The pages that a request reads, in the order of its tokens.
    pub fn pages(&self, request: usize) -> &'a [i32] {
        let used = self.seq_lens[request].div_ceil(self.page_size) as usize;
        let begin = match self.rows {
            Rows::Columns(columns) => request * columns,
            // Checked: they are not negative.
            Rows::Begins(indptr) => indptr[request] as usize,
        };
        &self.entries[begin..][..used]
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
        let mut lengths = Vec::new();
        let table = PageTable::from_csr(&[0, 2, 2, 3], &[7, 8, 9], &[3, 0, 16], 16, &mut lengths).unwrap();
        assert_eq!(table.seq_lens(), [19, 0, 16]);
        let dense = PageTable::new(&[7, 8, -1, -1, 9, -1], 2, &[19, 0, 16], 16).unwrap();
        for request in 0..3 {
            assert_eq!(table.pages(request), dense.pages(request));
        }
    }

    #[test]
    fn compressed_rows_that_make_no_sense_are_refused() {
        let csr = |indptr: &[i32], last: &[i32]| {
            PageTable::from_csr(indptr, &[7, 8, -9], last, 16, &mut Vec::new()).map(drop).unwrap_err()
        };
        assert_eq!(csr(&[0, 1], &[1, 1]), PlanError::Rows { found: 2, needed: 3 });
        assert!(matches!(csr(&[0, 4], &[1]), PlanError::Row { end: 4, entries: 3, .. }));
        assert!(matches!(csr(&[2, 1], &[1]), PlanError::Row { begin: 2, .. }));
        assert!(matches!(csr(&[-1, 1], &[1]), PlanError::Row { begin: -1, .. }));
        assert!(matches!(csr(&[0, 1], &[17]), PlanError::LastPage { tokens: 17, .. }));
        assert!(matches!(csr(&[0, 1], &[0]), PlanError::LastPage { tokens: 0, .. }));
        assert_eq!(csr(&[0, 3], &[1]), PlanError::NegativePage { request: 0, column: 2, page: -9 });
    }
}
