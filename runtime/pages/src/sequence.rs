//! One request's pages: RESERVE, ASSIGN and GATHER, copy on write.

use super::{PageError, PagePool};
use std::ops::Range;

/// Where a token's K and V go, or are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The page.
    pub page: u32,
    /// The token's place in the page, from 0.
    pub slot: u32,
}

/// A copy that the engine has to make, in every layer, K and V, before it writes the tokens of the same append.
///
/// A page that is released by a copy may be handed out again at once. So copies are made in the order in which appends gave
/// them, before anything that later appends assigned is written; on one stream that is the order of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPage {
    /// The shared page, which stays as it is.
    pub from: u32,
    /// The request's own page from now on.
    pub to: u32,
    /// Tokens to copy, the first ones of the page.
    pub tokens: u32,
}

/// What an append gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// A copy to make first, if the last page was shared and not full.
    pub copy: Option<CopyPage>,
    /// The new tokens, as places in the request; `slots` says where they go.
    pub tokens: Range<u32>,
}

/// The tokens of one request and the pages that hold them. Several threads may each work on their own sequences of one pool.
///
/// It does not release its pages when dropped, for it does not hold the pool: call [`Sequence::free`].
#[derive(Debug)]
pub struct Sequence {
    page_size: u32,
    tokens: u32,
    /// Those in use, then those reserved ahead.
    pages: Vec<u32>,
}

impl Sequence {
    /// A request without tokens; `page_size` in tokens.
    ///
    /// # Errors
    /// A page size of 0.
    pub fn new(page_size: u32) -> Result<Self, PageError> {
        if page_size == 0 {
            return Err(PageError::NoPageSize);
        }
        Ok(Self { page_size, tokens: 0, pages: Vec::new() })
    }

    /// Its tokens.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Tokens that its pages have room for, those reserved ahead included.
    pub fn slots_held(&self) -> u64 {
        self.pages.len() as u64 * u64::from(self.page_size)
    }

    /// The pages of its tokens, in order (PagedFlex, Algorithm 1: GATHER; the kernel reads K and V through them).
    pub fn gather(&self) -> &[u32] {
        &self.pages[..self.pages_for(self.tokens)]
    }

    /// Makes sure that `more` tokens can be appended (PagedFlex, Algorithm 1: RESERVE).
    ///
    /// # Errors
    /// Out of pages, or too long.
    pub fn reserve(&mut self, pool: &PagePool, more: u32) -> Result<(), PageError> {
        let (wanted, _) = self.pages_wanted(pool, more)?;
        pool.reserve(wanted, &mut self.pages)
    }

    /// Gives `count` more tokens their places (PagedFlex, Algorithm 1: ASSIGN). Takes pages only where the tokens go beyond
    /// those it has. A shared page that is not full is replaced by a page of its own.
    ///
    /// # Errors
    /// Out of pages, or too long.
    pub fn append(&mut self, pool: &PagePool, count: u32) -> Result<Appended, PageError> {
        let (wanted, shared) = self.pages_wanted(pool, count)?;
        pool.reserve(wanted, &mut self.pages)?;
        let mut copy = None;
        if let Some(index) = shared
            && let Some(to) = self.pages.pop()
        {
            let from = std::mem::replace(&mut self.pages[index], to);
            pool.release(from)?;
            copy = Some(CopyPage { from, to, tokens: self.tokens % self.page_size });
        }
        let begin = self.tokens;
        self.tokens += count;
        Ok(Appended { copy, tokens: begin..self.tokens })
    }

    /// Where tokens are.
    ///
    /// # Errors
    /// The request has no such tokens.
    pub fn slots(&self, tokens: Range<u32>) -> Result<impl Iterator<Item = Slot> + '_, PageError> {
        if tokens.start > tokens.end || tokens.end > self.tokens {
            return Err(PageError::NoSuchTokens {
                begin: tokens.start,
                end: tokens.end,
                tokens: self.tokens,
            });
        }
        let page_size = self.page_size;
        Ok(tokens.map(move |token| Slot {
            page: self.pages[(token / page_size) as usize],
            slot: token % page_size,
        }))
    }

    /// A second request with the same tokens: all pages are shared, none is copied until one of both appends to it.
    ///
    /// # Errors
    /// A page has as many owners as can be counted.
    pub fn fork(&self, pool: &PagePool) -> Result<Self, PageError> {
        let mut fork = Self { page_size: self.page_size, tokens: 0, pages: Vec::new() };
        fork.fork_from(self, pool)?;
        Ok(fork)
    }

    /// Takes back all tokens but the first `tokens` ones (drafts that were rejected, beams that go back). Pages beyond them are
    /// released, those reserved ahead too; other owners keep theirs. If the last page that stays is shared and not full, the
    /// next append copies it, as after a fork.
    ///
    /// # Errors
    /// The request has fewer tokens: nothing is changed. Someone else released its pages: the request is shorter all the same.
    pub fn truncate(&mut self, pool: &PagePool, tokens: u32) -> Result<(), PageError> {
        if tokens > self.tokens {
            return Err(PageError::NoSuchTokens { begin: 0, end: tokens, tokens: self.tokens });
        }
        self.tokens = tokens;
        let keep = self.pages_for(tokens);
        // The last one first, as in `free`.
        self.pages[keep..].reverse();
        let outcome = pool.release_all(&self.pages[keep..]);
        self.pages.truncate(keep);
        outcome.map(drop)
    }

    /// Releases all pages, the last one first.
    ///
    /// # Errors
    /// Someone else released its pages; the sequence is empty all the same.
    pub fn free(&mut self, pool: &PagePool) -> Result<(), PageError> {
        self.truncate(pool, 0)
    }

    /// [`Sequence::fork`] into an empty sequence, whose memory is used again.
    pub(super) fn fork_from(&mut self, other: &Self, pool: &PagePool) -> Result<(), PageError> {
        for &page in other.gather() {
            if let Err(error) = pool.share(page) {
                self.free(pool)?;
                return Err(error);
            }
            self.pages.push(page);
        }
        self.tokens = other.tokens;
        Ok(())
    }

    /// Adds a full page, of which the caller owns a share; all pages so far are full.
    pub(super) fn push_full(&mut self, page: u32) {
        self.pages.push(page);
        self.tokens += self.page_size;
    }

    /// Puts another page with the same content in the place of one.
    pub(super) fn replace(&mut self, index: usize, page: u32) {
        self.pages[index] = page;
    }

    fn pages_for(&self, tokens: u32) -> usize {
        tokens.div_ceil(self.page_size) as usize
    }

    /// Pages to take for `more` tokens, and the index of the page to be copied.
    fn pages_wanted(&self, pool: &PagePool, more: u32) -> Result<(u32, Option<usize>), PageError> {
        let too_long = PageError::TooLong { tokens: self.tokens, more: u64::from(more) };
        let needed = self.pages_for(self.tokens.checked_add(more).ok_or(too_long)?);
        let shared = self.shared_end(pool, more)?;
        let needed = needed + usize::from(shared.is_some());
        Ok((needed.saturating_sub(self.pages.len()) as u32, shared))
    }

    /// The index of the page that tokens are appended to, if others own it too.
    ///
    /// Who sees that it is the only owner stays the only one: shares are made from sequences, and this one is borrowed.
    fn shared_end(&self, pool: &PagePool, count: u32) -> Result<Option<usize>, PageError> {
        if count == 0 || self.tokens.is_multiple_of(self.page_size) {
            return Ok(None);
        }
        let index = (self.tokens / self.page_size) as usize;
        Ok((pool.owners(self.pages[index])? > 1).then_some(index))
    }
}
