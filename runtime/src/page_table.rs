//! What an engine hands over: which pages each request reads, and how many tokens of them.

use crate::PlanError;

/// A checked view of a page table `[batch, max_pages]` of i32 and of each request's tokens.
///
/// Entries past a request's pages are never looked at; -1 and garbage are fine there.
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'a> {
    entries: &'a [i32],
    max_pages: usize,
    seq_lens: &'a [u32],
    page_size: u32,
}

impl<'a> PageTable<'a> {
    /// Checks that every request's tokens lie in pages.
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
        if page_size == 0 {
            return Err(tilewright_heuristics::GeometryError::Zero("page_size").into());
        }
        if batch.checked_mul(max_pages) != Some(entries.len()) {
            return Err(PlanError::TableSize { found: entries.len(), batch, max_pages });
        }
        let table = Self { entries, max_pages, seq_lens, page_size };
        for (request, &seq_len) in seq_lens.iter().enumerate() {
            let needed = seq_len.div_ceil(page_size) as usize;
            if needed > max_pages {
                return Err(PlanError::TooLong { request, seq_len, needed, max_pages });
            }
            if let Some((column, &page)) =
                table.pages(request).iter().enumerate().find(|(_, page)| **page < 0)
            {
                return Err(PlanError::NegativePage { request, column, page });
            }
        }
        Ok(table)
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
        &self.entries[request * self.max_pages..][..used]
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
}
