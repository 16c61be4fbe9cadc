//! What can go wrong with pages. Unless a call says otherwise, pages and requests are as before it.

/// Why a call about pages was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// Page tables name pages by i32.
    #[error("a pool of {pages} pages: page ids are i32, so have at most {} pages, or larger ones", i32::MAX)]
    TooManyPages {
        /// Pages asked for.
        pages: u32,
    },
    /// Pages of no tokens.
    #[error("page_size is 0: a page holds at least 1 token")]
    NoPageSize,
    /// Room for more tokens than the prefix cache keeps.
    #[error(
        "{pages} pages of {page_size} tokens hold more than {} tokens, which no cache does; correct the sizes",
        u32::MAX
    )]
    TooManyTokens {
        /// Pages of the pool.
        pages: u32,
        /// Tokens of a page.
        page_size: u32,
    },
    /// Not enough pages are free, and not enough cached ones can be evicted.
    #[error(
        "out of pages: {wanted} wanted, {available} of {total} are to be had; free or preempt a request, or make the pool larger"
    )]
    OutOfPages {
        /// Pages that the call needs.
        wanted: u32,
        /// Pages that it could have had.
        available: u32,
        /// Pages of the pool.
        total: u32,
    },
    /// A page id beyond the pool.
    #[error("page {page} does not exist, the pool has {total}; pass ids that this pool gave out")]
    NoSuchPage {
        /// The page.
        page: u32,
        /// Pages of the pool.
        total: u32,
    },
    /// A page without an owner was shared or released.
    #[error("page {page} is free: it was released once too often, or never reserved")]
    NotInUse {
        /// The page.
        page: u32,
    },
    /// A page has as many owners as can be counted.
    #[error("page {page} has {} owners, no more can be counted; reserve a page and copy it", u32::MAX)]
    TooManyOwners {
        /// The page.
        page: u32,
    },
    /// A request that was freed, or is another manager's.
    #[error(
        "request {index} (generation {generation}) is not known: it was freed, or made by another manager"
    )]
    UnknownRequest {
        /// Its place.
        index: u32,
        /// How many requests had the place before it.
        generation: u32,
    },
    /// More requests at once than 32 bits count.
    #[error("there are 2^32 requests at once; free some")]
    TooManyRequests,
    /// A request beyond 32 bits.
    #[error("a request of {tokens} tokens and {more} more: lengths are u32; end the request")]
    TooLong {
        /// Its tokens.
        tokens: u32,
        /// Tokens to be added.
        more: u64,
    },
    /// Tokens were asked for that a request does not have.
    #[error("tokens {begin}..{end} were asked for of a request that has {tokens}")]
    NoSuchTokens {
        /// First token.
        begin: u32,
        /// One past the last token.
        end: u32,
        /// Tokens of the request.
        tokens: u32,
    },
    /// A buffer for a page table has the wrong size.
    #[error("`{name}` has {found} entries, {needed} are needed for a batch of {batch}")]
    BufferSize {
        /// The argument.
        name: &'static str,
        /// Its entries.
        found: usize,
        /// What is needed.
        needed: usize,
        /// Requests.
        batch: usize,
    },
    /// A request has more pages than a row of the page table.
    #[error("row {row}: the request has {needed} pages, max_pages is {max_pages}; make the page table wider")]
    RowTooShort {
        /// The row, from 0.
        row: usize,
        /// Pages of the request.
        needed: usize,
        /// Columns of the page table.
        max_pages: usize,
    },
    /// The page table of a batch has more entries than i32 counts.
    #[error("the batch has more than {} pages, which CSR cannot count in i32; split the batch", i32::MAX)]
    TooManyEntries,
}
