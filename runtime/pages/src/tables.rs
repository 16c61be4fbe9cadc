//! The pages of a batch in the forms that kernels read.

use super::{PageError, PageManager, RequestId};

/// The pages of a batch in compressed rows, as FlashInfer reads them. Its memory is used again at the next step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csr {
    /// Where each request's pages begin in `indices`; batch + 1 entries.
    pub indptr: Vec<i32>,
    /// The pages of all requests, one request after the other.
    pub indices: Vec<i32>,
    /// Tokens in each request's last page; 0 for a request without tokens.
    pub last_page_len: Vec<i32>,
}

impl PageManager {
    /// Writes a page table `[batch, max_pages]` and the tokens of each request, as `PageTable` takes them.
    /// Entries past a request's pages are left as they are: they are never read. Takes no memory.
    ///
    /// # Errors
    /// Unknown request, buffers of the wrong size, or a request with more pages than a row has; earlier rows are written then.
    pub fn write_page_table(
        &self,
        requests: &[RequestId],
        max_pages: usize,
        entries: &mut [i32],
        seq_lens: &mut [u32],
    ) -> Result<(), PageError> {
        let batch = requests.len();
        let size = |name, found, needed| {
            if found == needed { Ok(()) } else { Err(PageError::BufferSize { name, found, needed, batch }) }
        };
        size("entries", entries.len(), batch.saturating_mul(max_pages))?;
        size("seq_lens", seq_lens.len(), batch)?;
        for (row, (&request, seq_len)) in requests.iter().zip(seq_lens).enumerate() {
            let sequence = self.sequence(request)?;
            let pages = sequence.gather();
            if pages.len() > max_pages {
                return Err(PageError::RowTooShort { row, needed: pages.len(), max_pages });
            }
            for (entry, &page) in entries[row * max_pages..].iter_mut().zip(pages) {
                *entry = page as i32;
            }
            *seq_len = sequence.tokens();
        }
        Ok(())
    }

    /// Writes the pages of a batch as compressed rows. Takes memory only for batches larger than any before.
    ///
    /// # Errors
    /// Unknown request, or more pages than i32 counts; what `csr` holds then is no batch.
    pub fn write_csr(&self, requests: &[RequestId], csr: &mut Csr) -> Result<(), PageError> {
        csr.indptr.clear();
        csr.indices.clear();
        csr.last_page_len.clear();
        csr.indptr.push(0);
        for &request in requests {
            let sequence = self.sequence(request)?;
            let pages = sequence.gather();
            csr.indices.extend(pages.iter().map(|&page| page as i32));
            csr.indptr.push(i32::try_from(csr.indices.len()).map_err(|_| PageError::TooManyEntries)?);
            let full = (pages.len() as u32).saturating_sub(1) * self.page_size();
            csr.last_page_len.push((sequence.tokens() - full) as i32);
        }
        Ok(())
    }
}
