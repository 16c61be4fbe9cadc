//! What the pages of running requests hold, and what of them is empty.

use super::PageManager;

/// Tokens and slots of the pages that requests own, each page counted once.
///
/// Only the end of a request's last page is empty, and pages that it reserved ahead: less than a page for each request that has an
/// end of its own. Cached pages that no request uses are full, and free to be taken: they are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waste {
    /// Tokens in those pages.
    pub tokens: u64,
    /// Tokens that those pages have room for.
    pub slots: u64,
    /// Tokens of all requests, each with its whole prefix: what the cache would hold if nothing was shared.
    pub unshared_tokens: u64,
}

impl Waste {
    /// Empty slots over tokens, 0 without tokens or slots. (PagedFlex asks for less than 0.05.)
    pub fn fraction(&self) -> f64 {
        let empty = self.slots - self.tokens;
        if empty == 0 { 0.0 } else { empty as f64 / self.tokens as f64 }
    }
}

impl PageManager {
    /// Counts tokens and slots. Takes time in proportion to all pages of all requests: for reports, not for every step.
    pub fn waste(&self) -> Waste {
        let page_size = self.page_size();
        let mut waste = Waste::default();
        let mut filled = vec![0u32; self.pool.total() as usize];
        for request in self.live() {
            let sequence = &request.sequence;
            waste.unshared_tokens += u64::from(sequence.tokens());
            let pages = sequence.gather();
            waste.slots += sequence.slots_held() - pages.len() as u64 * u64::from(page_size);
            for (index, &page) in pages.iter().enumerate() {
                let tokens = (sequence.tokens() - index as u32 * page_size).min(page_size);
                let filled = &mut filled[page as usize];
                if *filled == 0 {
                    waste.slots += u64::from(page_size);
                }
                // Requests that share an unfinished page may have seen different parts of it.
                waste.tokens += u64::from(tokens.saturating_sub(*filled));
                *filled = tokens.max(*filled);
            }
        }
        waste
    }
}
