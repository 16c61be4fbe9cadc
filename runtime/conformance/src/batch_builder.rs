//! Drawing page tables: requests by length and by the pages that they share.

use super::random::Random;

/// Requests of a batch over logical pages, which become physical ones, out of order, at the end.
#[derive(Clone, Debug)]
pub(super) struct BatchBuilder {
    page_size: u32,
    /// Logical pages and tokens of each request.
    rows: Vec<(Vec<usize>, u32)>,
    pages: usize,
}

/// The page table of a sketch.
pub(super) struct Drawn {
    pub(super) page_table: Vec<i32>,
    pub(super) max_pages: usize,
    pub(super) seq_lens: Vec<u32>,
    pub(super) pages: usize,
}

/// Physical pages that no request uses: they are full of NaN, and the table names them past the requests' lengths.
const UNUSED: usize = 3;

impl BatchBuilder {
    pub(super) const fn new(page_size: u32) -> Self {
        Self { page_size, rows: Vec::new(), pages: 0 }
    }

    /// Requests of these lengths that share nothing.
    pub(super) fn own(mut self, lens: impl IntoIterator<Item = u32>) -> Self {
        for len in lens {
            self.push(Vec::new(), len);
        }
        self
    }

    /// Requests of these lengths whose first pages are the first `shared` of request `of`; a short one ends inside of them.
    pub(super) fn behind(mut self, of: usize, shared: usize, lens: impl IntoIterator<Item = u32>) -> Self {
        for len in lens {
            let pages = &self.rows[of].0;
            let prefix = pages[..shared.min(pages.len())].to_vec();
            self.push(prefix, len);
        }
        self
    }

    /// A request over exactly these pages.
    pub(super) fn row(mut self, pages: &[usize], len: u32) -> Self {
        self.pages = pages.iter().fold(self.pages, |most, &page| most.max(page + 1));
        self.push(pages.to_vec(), len);
        self
    }

    /// The last request drawn.
    pub(super) fn last(&self) -> usize {
        self.rows.len().saturating_sub(1)
    }

    /// Tokens of a page.
    pub(super) const fn page_size(&self) -> u32 {
        self.page_size
    }

    fn push(&mut self, mut pages: Vec<usize>, len: u32) {
        let used = len.div_ceil(self.page_size) as usize;
        pages.truncate(used);
        while pages.len() < used {
            pages.push(self.pages);
            self.pages += 1;
        }
        self.rows.push((pages, len));
    }

    pub(super) fn draw(&self, random: &mut Random) -> Drawn {
        let pages = self.pages + UNUSED;
        let mut physical: Vec<i32> = (0..pages as i32).collect();
        random.shuffle(&mut physical);
        let longest = self.rows.iter().map(|(pages, _)| pages.len()).max().unwrap_or(0);
        let max_pages = longest + 2;
        let mut page_table = Vec::with_capacity(self.rows.len() * max_pages);
        for (pages, _) in &self.rows {
            page_table.extend(pages.iter().map(|&page| physical[page]));
            // What lies behind a request's pages must never be looked at, whether it could be a page or not.
            let garbage = [-1, i32::MAX, i32::MIN, physical[self.pages]];
            page_table.extend((pages.len()..max_pages).map(|_| garbage[random.below(garbage.len())]));
        }
        Drawn { page_table, max_pages, seq_lens: self.rows.iter().map(|(_, len)| *len).collect(), pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_what_they_were_told_to_and_garbage_follows() {
        let sketch = BatchBuilder::new(16).own([40]).behind(0, 2, [50, 20, 32]).row(&[0, 0, 1], 33);
        let drawn = sketch.draw(&mut Random::new(5));
        assert_eq!((drawn.seq_lens.as_slice(), drawn.max_pages), (&[40, 50, 20, 32, 33][..], 6));
        let rows: Vec<&[i32]> = drawn.page_table.chunks(drawn.max_pages).collect();
        assert_eq!(rows[0][..2], rows[1][..2]);
        assert_eq!(rows[0][..2], rows[2][..2]);
        assert_ne!(rows[0][2], rows[1][2 + 1]);
        assert!(rows[4][0] == rows[0][0] && rows[4][1] == rows[0][0] && rows[4][2] == rows[0][1]);
        let used: Vec<i32> = rows[0][..3].iter().chain(&rows[1][2..4]).copied().collect();
        assert_eq!(used.len() + UNUSED, drawn.pages);
        for (row, &len) in rows.iter().zip(&drawn.seq_lens) {
            assert!(row[len.div_ceil(16) as usize..].iter().all(|page| !used.contains(page)));
        }
    }
}
