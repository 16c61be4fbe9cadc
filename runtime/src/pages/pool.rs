//! The pool: which pages are free, and how many owners the others have. Lock-free.

use super::error::PageError;
use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Pages that one compare-and-swap gives back. More are given back in several steps, so that a long list does not lose its race
/// against short ones for ever.
const RELEASE_STEP: usize = 64;

/// Page ids 0..n, free or owned. Any thread may call anything at any time.
///
/// The free pages are a stack, linked by index (Treiber's). Its head has a tag that every change increments, in all bits that
/// the index leaves: a head that was seen twice with the same tag was not changed in between. So a chain of k pages that was
/// walked below an unchanged head is the chain, and one compare-and-swap takes all of it: RESERVE is all or nothing, without
/// a moment when others see a part of it taken. A thread is only ever sent round again by another one that got on. With a
/// pool of a million pages the tag has 43 bits, and a thread would have to sleep between two instructions for exactly a
/// multiple of 2^43 changes to be fooled.
#[derive(Debug)]
pub struct PagePool {
    /// `tag << index_bits | page`, the page is `len` when nothing is free.
    head: AtomicU64,
    /// Of each free page: how many pages are free from it downwards (upper half), and the page below it (lower half).
    links: Box<[AtomicU64]>,
    /// Owners of each page, 0 if it is free.
    owners: Box<[AtomicU32]>,
    index_bits: u32,
}

impl PagePool {
    /// A pool of `pages` free pages. The first one reserved is page 0.
    ///
    /// # Errors
    /// More pages than i32 names.
    pub fn new(pages: u32) -> Result<Self, PageError> {
        if i32::try_from(pages).is_err() {
            return Err(PageError::TooManyPages { pages });
        }
        let link = |page| AtomicU64::new(pack(pages - page, page + 1));
        Ok(Self {
            head: AtomicU64::new(0),
            links: (0..pages).map(link).collect(),
            owners: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            index_bits: u32::BITS - pages.leading_zeros(),
        })
    }

    /// Pages of the pool, free or owned.
    pub fn total(&self) -> u32 {
        self.links.len() as u32
    }

    /// Free pages. Exact for some moment during the call.
    pub fn available(&self) -> u32 {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let free = self.depth(self.index(head));
            let again = self.head.load(Ordering::Acquire);
            if again == head {
                return free;
            }
            head = again;
        }
    }

    /// Takes `count` free pages, each with one owner, and appends their ids to `pages`. All or nothing (PagedFlex,
    /// Algorithm 1: RESERVE).
    ///
    /// # Errors
    /// Fewer are free; `pages` and the pool are unchanged.
    pub fn reserve(&self, count: u32, pages: &mut Vec<u32>) -> Result<(), PageError> {
        if count == 0 {
            return Ok(());
        }
        let start = pages.len();
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let mut page = self.index(head);
            let available = self.depth(page);
            if available < count {
                let again = self.head.load(Ordering::Acquire);
                if again == head {
                    return Err(PageError::OutOfPages { wanted: count, available, total: self.total() });
                }
                head = again;
                continue;
            }
            // Others may change the links meanwhile: the walk then leads anywhere in the pool, or to its end, and is thrown away.
            for _ in 0..count {
                let Some(link) = self.links.get(page as usize) else { break };
                pages.push(page);
                page = next(link.load(Ordering::Acquire));
            }
            match self.swap_head(head, page) {
                Ok(()) => {
                    for &page in &pages[start..] {
                        self.owners[page as usize].store(1, Ordering::Relaxed);
                    }
                    return Ok(());
                }
                Err(found) => {
                    pages.truncate(start);
                    head = found;
                }
            }
        }
    }

    /// Counts one more owner of a page; returns how many it has now.
    ///
    /// # Errors
    /// The page is free, does not exist, or has as many owners as can be counted.
    pub fn share(&self, page: u32) -> Result<u32, PageError> {
        // Relaxed, as in `Arc`: who shares a page owns it, and hands the new share on by its own means.
        self.count(page, Ordering::Relaxed, |owners| {
            owners.checked_add(1).ok_or(PageError::TooManyOwners { page })
        })
    }

    /// Counts one owner of a page less; returns how many it has left. The page is free when it has none.
    ///
    /// # Errors
    /// The page is free already, or does not exist.
    pub fn release(&self, page: u32) -> Result<u32, PageError> {
        let left = self.drop_owner(page)?;
        if left == 0 {
            self.push(&[page]);
        }
        Ok(left)
    }

    /// Releases pages, faster than one by one. Returns how many became free.
    ///
    /// # Errors
    /// A page is free already, or does not exist. Those before it have been released, it and those after it have not.
    pub fn release_all(&self, pages: &[u32]) -> Result<u32, PageError> {
        let mut freed = 0;
        for step in pages.chunks(RELEASE_STEP) {
            let mut free = [0; RELEASE_STEP];
            let mut len = 0;
            let mut outcome = Ok(());
            for &page in step {
                match self.drop_owner(page) {
                    Ok(0) => {
                        free[len] = page;
                        len += 1;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
            }
            self.push(&free[..len]);
            freed += len as u32;
            outcome?;
        }
        Ok(freed)
    }

    /// Owners of a page, 0 if it is free.
    ///
    /// # Errors
    /// The page does not exist.
    pub fn owners(&self, page: u32) -> Result<u32, PageError> {
        Ok(self.owners_of(page)?.load(Ordering::Acquire))
    }

    fn drop_owner(&self, page: u32) -> Result<u32, PageError> {
        // What the owners did with the page happens before it is free: each releases, the last one acquires.
        self.count(page, Ordering::AcqRel, |owners| owners.checked_sub(1).ok_or(PageError::NotInUse { page }))
    }

    fn count(
        &self,
        page: u32,
        order: Ordering,
        change: impl Fn(u32) -> Result<u32, PageError>,
    ) -> Result<u32, PageError> {
        let counter = self.owners_of(page)?;
        let mut owners = counter.load(Ordering::Relaxed);
        loop {
            if owners == 0 {
                return Err(PageError::NotInUse { page });
            }
            let changed = change(owners)?;
            match counter.compare_exchange_weak(owners, changed, order, Ordering::Relaxed) {
                Ok(_) => return Ok(changed),
                Err(found) => owners = found,
            }
        }
    }

    fn owners_of(&self, page: u32) -> Result<&AtomicU32, PageError> {
        self.owners.get(page as usize).ok_or(PageError::NoSuchPage { page, total: self.total() })
    }

    /// Puts pages that the caller alone owns onto the stack, the first one on top.
    fn push(&self, pages: &[u32]) {
        let Some(&top) = pages.first() else { return };
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let mut below = self.index(head);
            let mut depth = self.depth(below);
            for &page in pages.iter().rev() {
                depth = depth.saturating_add(1);
                // Release: who reads this link, and took it for an older one, is sure to see the newer head too.
                self.links[page as usize].store(pack(depth, below), Ordering::Release);
                below = page;
            }
            match self.swap_head(head, top) {
                Ok(()) => return,
                Err(found) => head = found,
            }
        }
    }

    /// Replaces a head that nobody changed since; otherwise returns the one that is there.
    fn swap_head(&self, head: u64, page: u32) -> Result<(), u64> {
        let tag = (head >> self.index_bits).wrapping_add(1);
        let new = tag << self.index_bits | u64::from(page);
        self.head.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    fn index(&self, head: u64) -> u32 {
        (head & ((1 << self.index_bits) - 1)) as u32
    }

    /// Free pages from `page` downwards, as far as the stack stays as it is.
    fn depth(&self, page: u32) -> u32 {
        self.links.get(page as usize).map_or(0, |link| (link.load(Ordering::Acquire) >> 32) as u32)
    }
}

fn pack(depth: u32, next: u32) -> u64 {
    u64::from(depth) << 32 | u64::from(next)
}

fn next(link: u64) -> u32 {
    link as u32
}
