//! The pool: which pages are free, and how many owners the others have. Lock-free.

use super::error::PageError;
use super::free_pages::{FreePages, MAX_SHARDS};
use super::sync::{AtomicU32, Ordering};

/// Pages that one compare-and-swap gives back. More are given back in several steps, so that a long list does not lose its race
/// against short ones for ever.
const RELEASE_STEP: usize = 64;

/// Pages of a shard, at least, where the pool chooses how many shards it has.
const SHARD_PAGES: u32 = 64;

/// Page ids 0..n, free or owned. Any thread may call anything at any time.
///
/// Free pages are in shards, so that threads do not have to agree about one word of memory. A thread reserves from its own
/// shard and releases to it; it takes from other shards what its own lacks. No call waits for another thread, each is done at
/// one moment, and nothing is ever out of sight in between: a call that is refused has found, at one moment, fewer free pages in the
/// whole pool than it wanted.
///
/// A call takes time in proportion to its pages, and to the shards if it looks beyond its own; there are at most 64.
#[derive(Debug)]
pub struct PagePool {
    free: FreePages,
    /// Owners of each page, 0 if it is free.
    owners: Box<[AtomicU32]>,
}

impl PagePool {
    /// A pool of `pages` free pages, with about as many shards as the machine runs threads at once; fewer if a shard would have less
    /// than 64 pages.
    ///
    /// # Errors
    /// More pages than i32 names.
    pub fn new(pages: u32) -> Result<Self, PageError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let most = u32::try_from(threads).unwrap_or(u32::MAX).min(MAX_SHARDS as u32).next_power_of_two();
        // The largest power of two that leaves each shard enough.
        let room = (pages / SHARD_PAGES).checked_ilog2().map_or(1, |bits| 1 << bits);
        Self::with_shards(pages, most.min(room))
    }

    /// A pool of `pages` free pages in `shards` shards, or in the next power of two, up to 64. In a pool with one shard, pages
    /// are reserved in order, and the one that was released last comes first again.
    ///
    /// # Errors
    /// More pages than i32 names.
    pub fn with_shards(pages: u32, shards: u32) -> Result<Self, PageError> {
        if i32::try_from(pages).is_err() {
            return Err(PageError::TooManyPages { pages });
        }
        let shards = shards.clamp(1, MAX_SHARDS as u32).next_power_of_two() as usize;
        Ok(Self {
            free: FreePages::new(pages, shards),
            owners: (0..pages).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// Pages of the pool, free or owned.
    pub fn total(&self) -> u32 {
        self.free.total()
    }

    /// Shards that the free pages are in.
    pub fn shards(&self) -> u32 {
        self.free.shards() as u32
    }

    /// Free pages. Exact for some moment during the call.
    pub fn available(&self) -> u32 {
        self.free.count()
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
        let refused = |available| PageError::OutOfPages { wanted: count, available, total: self.total() };
        self.free.take(count, pages).map_err(refused)?;
        for &page in &pages[start..] {
            self.owners[page as usize].store(1, Ordering::Relaxed);
        }
        Ok(())
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
            self.free.put(&[page]);
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
            self.free.put(&free[..len]);
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
}
