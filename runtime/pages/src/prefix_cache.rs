//! Full pages, known by what is in them and before them.

use std::hash::{DefaultHasher, Hasher};

/// No page.
const NONE: u32 = u32::MAX;

/// What a full page is known by: a hash of its tokens and all before them, and the page before.
///
/// The hash only says where to look. An entry is a hit if the page before it is the same cached page and all its own tokens are
/// equal; by induction, everything before is equal too. So pages with equal hashes (SipHash-1-3 with fixed keys, 64 bits: of a
/// million cached pages, some two have equal hashes once in 30 million times) cost a comparison and never a wrong result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    /// Whose prefixes may be shared, a number that the engine chooses.
    namespace: u64,
    /// The page before.
    parent: u32,
    /// Hash of the tokens up to here.
    hash: u64,
}

impl Prefix {
    /// What comes before the first page.
    pub(super) fn root(namespace: u64) -> Self {
        Self { namespace, parent: NONE, hash: namespace }
    }

    /// What comes before the first page of whatever this is a part of.
    pub(super) fn beginning(self) -> Self {
        Self::root(self.namespace)
    }

    /// What comes before the page after `page`, which holds the last tokens of `self`.
    pub(super) fn on(self, page: u32) -> Self {
        Self { parent: page, ..self }
    }
}

/// A page's place in the cache.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// What it is known by, beside its tokens.
    key: Prefix,
    /// Whether the page is in the cache at all.
    cached: bool,
    /// Requests that use it now.
    users: u32,
    /// Cached pages that come after it.
    children: u32,
    /// Next page of the same bucket.
    next_in_bucket: u32,
    /// Neighbours in the order of eviction, if it has no owner.
    older: u32,
    newer: u32,
}

/// The cache. All of its memory is taken at the start, 48 + 4 x `page_size` + 4 to 8 bytes a page; tokens that were never written take
/// none of the machine's.
///
/// Pages that no request uses are in a list, least recently used first. A request that uses a page uses those before it, and stops using
/// them later; so a page is always evicted before the page it follows, and `parent` always names a page that is still the same.
#[derive(Debug)]
pub(super) struct PrefixCache {
    page_size: usize,
    entries: Box<[Entry]>,
    tokens: Box<[u32]>,
    buckets: Box<[u32]>,
    /// Ends of the list of pages without an owner.
    oldest: u32,
    newest: u32,
    evictable: u32,
    cached: u32,
    /// Bits of the hash that count: all, but in tests, which want collisions.
    hash_mask: u64,
}

impl PrefixCache {
    pub(super) fn new(pages: u32, page_size: u32) -> Self {
        let entry = Entry {
            key: Prefix::root(0),
            cached: false,
            users: 0,
            children: 0,
            next_in_bucket: NONE,
            older: NONE,
            newer: NONE,
        };
        Self {
            page_size: page_size as usize,
            entries: vec![entry; pages as usize].into(),
            tokens: vec![0; pages as usize * page_size as usize].into(),
            buckets: vec![NONE; (pages as usize).next_power_of_two()].into(),
            oldest: NONE,
            newest: NONE,
            evictable: 0,
            cached: 0,
            hash_mask: u64::MAX,
        }
    }

    #[cfg(test)]
    pub(super) fn weaken_hash(&mut self, bits: u32) {
        self.hash_mask = (1 << bits) - 1;
    }

    /// Pages without an owner.
    pub(super) fn evictable(&self) -> u32 {
        self.evictable
    }

    /// Pages known by content, in use or not.
    pub(super) fn cached(&self) -> u32 {
        self.cached
    }

    /// Whether a page is known by content.
    #[cfg(test)]
    pub(super) fn contains(&self, page: u32) -> bool {
        self.entries[page as usize].cached
    }

    /// What a page of `tokens` after `before` is known by.
    pub(super) fn key(&self, before: Prefix, tokens: &[u32]) -> Prefix {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(before.hash);
        for &token in tokens {
            hasher.write_u32(token);
        }
        Prefix { hash: hasher.finish() & self.hash_mask, ..before }
    }

    /// The page that is known by `key` and holds `tokens`.
    pub(super) fn find(&self, key: Prefix, tokens: &[u32]) -> Option<u32> {
        let mut page = self.buckets[self.bucket(key.hash)];
        while page != NONE {
            let entry = &self.entries[page as usize];
            if entry.key == key && self.tokens[self.range(page)] == *tokens {
                return Some(page);
            }
            page = entry.next_in_bucket;
        }
        None
    }

    /// What a cached page is known by, and its tokens.
    pub(super) fn content(&self, page: u32) -> (Prefix, &[u32]) {
        debug_assert!(self.entries[page as usize].cached, "a page in use is not evicted");
        (self.entries[page as usize].key, &self.tokens[self.range(page)])
    }

    /// Makes a full page known, with one user. The caller has made sure that [`PrefixCache::find`] does not find the content.
    pub(super) fn insert(&mut self, key: Prefix, tokens: &[u32], page: u32) {
        debug_assert!(!self.entries[page as usize].cached, "a page has one content");
        let bucket = self.bucket(key.hash);
        let range = self.range(page);
        self.tokens[range].copy_from_slice(tokens);
        self.entries[page as usize] = Entry {
            key,
            cached: true,
            users: 1,
            children: 0,
            next_in_bucket: self.buckets[bucket],
            older: NONE,
            newer: NONE,
        };
        self.buckets[bucket] = page;
        if let Some(parent) = self.entries.get_mut(key.parent as usize) {
            parent.children += 1;
        }
        self.cached += 1;
    }

    /// Counts one more user of a cached page.
    pub(super) fn acquire(&mut self, page: u32) {
        let entry = &mut self.entries[page as usize];
        entry.users += 1;
        if entry.users == 1 {
            self.unlink(page);
        }
    }

    /// Counts one user of a cached page less. A request lets go of its pages from the last to the first.
    pub(super) fn let_go(&mut self, page: u32) {
        let newest = self.newest;
        let entry = &mut self.entries[page as usize];
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        (entry.older, entry.newer) = (newest, NONE);
        match self.entries.get_mut(newest as usize) {
            Some(before) => before.newer = page,
            None => self.oldest = page,
        }
        self.newest = page;
        self.evictable += 1;
    }

    /// Forgets the page that was used least recently, of those without an owner. The caller releases it.
    pub(super) fn evict(&mut self) -> Option<u32> {
        let page = self.oldest;
        let Entry { key, children, .. } = *self.entries.get(page as usize)?;
        debug_assert_eq!(children, 0, "a page is evicted before the page it follows");
        self.unlink(page);
        if let Some(parent) = self.entries.get_mut(key.parent as usize) {
            parent.children -= 1;
        }
        let bucket = self.bucket(key.hash);
        let next = self.entries[page as usize].next_in_bucket;
        if self.buckets[bucket] == page {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket];
            while self.entries[before as usize].next_in_bucket != page {
                before = self.entries[before as usize].next_in_bucket;
            }
            self.entries[before as usize].next_in_bucket = next;
        }
        self.entries[page as usize].cached = false;
        self.cached -= 1;
        Some(page)
    }

    /// Takes a page out of the list of those without an owner.
    fn unlink(&mut self, page: u32) {
        let Entry { older, newer, .. } = self.entries[page as usize];
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        self.evictable -= 1;
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn range(&self, page: u32) -> std::ops::Range<usize> {
        let begin = page as usize * self.page_size;
        begin..begin + self.page_size
    }
}
