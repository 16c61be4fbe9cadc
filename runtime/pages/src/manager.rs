//! The requests of an engine, over one pool, with the prefix cache.

use super::prefix_cache::{Prefix, PrefixCache};
use super::{Appended, PageError, PagePool, Sequence, Slot};
use std::ops::Range;
use std::sync::Arc;

/// A request of a [`PageManager`]. It is never given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    index: u32,
    generation: u32,
}

/// What a new request begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The request.
    pub request: RequestId,
    /// Tokens of its prompt whose K and V are in the cache already. The engine appends, and computes, the others.
    pub cached_tokens: u32,
}

/// Pages, requests and the prefix cache of one engine.
///
/// A step: [`PageManager::create`] new requests, [`PageManager::append`] tokens, make the copies that appends ask for, run the
/// model, which writes K and V at [`PageManager::slots`] and reads them through [`PageManager::write_page_table`] or
/// [`PageManager::write_csr`].
///
/// The prefix cache needs no calls of its own. A full page becomes known once its K and V are there: with the request's next
/// append or fork, as these follow the step that wrote them, when it is freed, or by [`PageManager::publish`]. If the same content is
/// known already from another request, that page takes the place of this one's, which is released: requests that computed the
/// same prompt at once share its pages from then on. Pages that no request uses stay known until they are needed for something else,
/// and are evicted least recently used first. A page that is in use is never evicted.
///
/// A manager belongs to one thread at a time; several may share a pool, each with a cache of its own.
#[derive(Debug)]
pub struct PageManager {
    pub(super) pool: Arc<PagePool>,
    pub(super) cache: PrefixCache,
    page_size: u32,
    pub(super) places: Vec<Place>,
    vacant: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Place {
    generation: u32,
    live: bool,
    pub(super) request: Request,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) sequence: Sequence,
    /// What its next page to become known comes after.
    pub(super) prefix: Prefix,
    /// Full pages that are known.
    pub(super) published: u32,
    /// Tokens from there on.
    pub(super) unpublished: Vec<u32>,
    /// Whether the page after those is known too: one that was cut by a truncation, and has not been written again since. The
    /// request is one of its users, and the cache one of its owners, so that the next append copies it.
    pub(super) cut: bool,
}

impl Request {
    /// The pages of which it is a user in the cache.
    pub(super) fn in_cache(&self) -> &[u32] {
        &self.sequence.gather()[..self.published as usize + usize::from(self.cut)]
    }
}

impl PageManager {
    /// A manager of the pages of `pool`, each of `page_size` tokens. Takes the cache's memory: about 60 bytes a page and 4 a token.
    ///
    /// # Errors
    /// A page size of 0, or more tokens than 32 bits count.
    pub fn new(pool: Arc<PagePool>, page_size: u32) -> Result<Self, PageError> {
        let pages = pool.total();
        if page_size == 0 {
            return Err(PageError::NoPageSize);
        }
        pages.checked_mul(page_size).ok_or(PageError::TooManyTokens { pages, page_size })?;
        Ok(Self {
            cache: PrefixCache::new(pages, page_size),
            pool,
            page_size,
            places: Vec::new(),
            vacant: Vec::new(),
        })
    }

    /// Tokens of a page.
    pub fn page_size(&self) -> u32 {
        self.page_size
    }

    /// Pages that appends can have: free ones, and cached ones without an owner.
    pub fn available(&self) -> u32 {
        self.pool.available() + self.cache.evictable()
    }

    /// Pages that are known by their content, in use or not.
    pub fn cached_pages(&self) -> u32 {
        self.cache.cached()
    }

    /// Cached pages without an owner: those that can be evicted.
    pub fn unused_cached_pages(&self) -> u32 {
        self.cache.evictable()
    }

    /// Tokens of a prompt whose K and V are cached, in whole pages. At least one token is always left to compute, for the model's
    /// output is that of the last one.
    pub fn lookup(&self, namespace: u64, prompt: &[u32]) -> u32 {
        self.cached_prefix(namespace, prompt).count() as u32 * self.page_size
    }

    /// A new request that shares the longest cached prefix of its prompt. It takes no page: append the rest of the prompt.
    ///
    /// Prefixes are shared within a `namespace` only. Give requests different ones if their K and V differ for equal tokens (adapters,
    /// images), or if they must not learn from the time taken what others asked (tenants).
    ///
    /// # Errors
    /// A page has as many owners as can be counted, or there are 2^32 requests.
    pub fn create(&mut self, namespace: u64, prompt: &[u32]) -> Result<Created, PageError> {
        let id = self.open(namespace)?;
        let request = &mut self.places[id.index as usize].request;
        for tokens in prompt[..prompt.len().saturating_sub(1)].chunks_exact(self.page_size as usize) {
            let key = self.cache.key(request.prefix, tokens);
            let Some(page) = self.cache.find(key, tokens) else { break };
            if let Err(error) = self.pool.share(page) {
                self.discard(id)?;
                return Err(error);
            }
            self.cache.acquire(page);
            request.sequence.push_full(page);
            request.published += 1;
            request.prefix = key.on(page);
        }
        Ok(Created { request: id, cached_tokens: request.sequence.tokens() })
    }

    /// Makes sure that `more` tokens can be appended to a request (PagedFlex, Algorithm 1: RESERVE); evicts cached pages if none are
    /// free.
    ///
    /// # Errors
    /// Unknown request, too long, or out of pages; nothing is changed then.
    pub fn reserve(&mut self, request: RequestId, more: u32) -> Result<(), PageError> {
        let index = self.index(request)?;
        self.take_pages(index, |sequence, pool| sequence.reserve(pool, more))
    }

    /// Gives tokens their places, and takes pages where they are needed; evicts cached pages if none are free.
    ///
    /// The K and V of the request's earlier tokens are written by now: full pages of them become known.
    ///
    /// # Errors
    /// Unknown request, too long, or out of pages; nothing is changed then.
    pub fn append(&mut self, request: RequestId, tokens: &[u32]) -> Result<Appended, PageError> {
        let index = self.index(request)?;
        let before = self.places[index].request.sequence.tokens();
        let more = tokens.len() as u64;
        let count = u32::try_from(more).map_err(|_| PageError::TooLong { tokens: before, more })?;
        let appended = self.take_pages(index, |sequence, pool| sequence.append(pool, count))?;
        if let Some(copy) = appended.copy
            && std::mem::take(&mut self.places[index].request.cut)
        {
            self.cache.let_go(copy.from);
        }
        self.publish_at(index)?;
        self.places[index].request.unpublished.extend_from_slice(tokens);
        Ok(appended)
    }

    /// Makes the full pages of a request known: K and V of all its tokens are written, or will be before anything reads them.
    /// Pages may be replaced by known ones with equal content: write the page table afterwards.
    ///
    /// # Errors
    /// Unknown request.
    pub fn publish(&mut self, request: RequestId) -> Result<(), PageError> {
        let index = self.index(request)?;
        self.publish_at(index)
    }

    /// A second request with the same tokens (parallel samples, beams). It shares all pages; the last one is copied when one of
    /// both appends to it. K and V of all its tokens are written by now: full pages of them become known.
    ///
    /// # Errors
    /// Unknown request, or a page has as many owners as can be counted.
    pub fn fork(&mut self, request: RequestId) -> Result<RequestId, PageError> {
        let index = self.index(request)?;
        // So full pages in several rows are always known ones, and who has one has the known ones before it: eviction relies on it.
        self.publish_at(index)?;
        let id = self.open(0)?;
        let [place, fork] = self
            .places
            .get_disjoint_mut([index, id.index as usize])
            .expect("both are places, and a request's place is not vacant");
        let (request, fork) = (&place.request, &mut fork.request);
        if let Err(error) = fork.sequence.fork_from(&request.sequence, &self.pool) {
            self.discard(id)?;
            return Err(error);
        }
        (fork.prefix, fork.published, fork.cut) = (request.prefix, request.published, request.cut);
        fork.unpublished.extend_from_slice(&request.unpublished);
        for &page in request.in_cache() {
            self.cache.acquire(page);
        }
        Ok(id)
    }

    /// Ends a request. Its full pages stay cached until they are needed for something else.
    ///
    /// # Errors
    /// Unknown request.
    pub fn free(&mut self, request: RequestId) -> Result<(), PageError> {
        let index = self.index(request)?;
        let published = self.publish_at(index);
        self.discard(request)?;
        published
    }

    /// Ends a request whose last append was not computed: pages that are not known yet do not become so.
    ///
    /// # Errors
    /// Unknown request.
    pub fn discard(&mut self, request: RequestId) -> Result<(), PageError> {
        let index = self.index(request)?;
        let place = &mut self.places[index];
        place.live = false;
        place.generation = place.generation.wrapping_add(1);
        self.vacant.push(index as u32);
        let request = &mut place.request;
        // From the last to the first: a page is then evicted before the page it follows.
        for &page in request.in_cache().iter().rev() {
            self.cache.let_go(page);
        }
        (request.published, request.cut) = (0, false);
        request.unpublished.clear();
        request.sequence.free(&self.pool)
    }

    /// Forgets up to `count` cached pages without an owner, least recently used first, and makes them free. Returns how many.
    ///
    /// # Errors
    /// Someone else released a page.
    pub fn evict(&mut self, count: u32) -> Result<u32, PageError> {
        let mut evicted = 0;
        while evicted < count
            && let Some(page) = self.cache.evict()
        {
            self.pool.release(page)?;
            evicted += 1;
        }
        Ok(evicted)
    }

    /// Tokens of a request.
    ///
    /// # Errors
    /// Unknown request.
    pub fn tokens(&self, request: RequestId) -> Result<u32, PageError> {
        Ok(self.sequence(request)?.tokens())
    }

    /// The pages of a request's tokens, in order (PagedFlex, Algorithm 1: GATHER).
    ///
    /// # Errors
    /// Unknown request.
    pub fn gather(&self, request: RequestId) -> Result<&[u32], PageError> {
        Ok(self.sequence(request)?.gather())
    }

    /// Where tokens of a request are: for those of an append, where to write them.
    ///
    /// # Errors
    /// Unknown request, or it has no such tokens.
    pub fn slots(
        &self,
        request: RequestId,
        tokens: Range<u32>,
    ) -> Result<impl Iterator<Item = Slot> + '_, PageError> {
        self.sequence(request)?.slots(tokens)
    }

    pub(super) fn sequence(&self, request: RequestId) -> Result<&Sequence, PageError> {
        Ok(&self.places[self.index(request)?].request.sequence)
    }

    /// The requests that have not been freed.
    pub(super) fn live(&self) -> impl Iterator<Item = &Request> + '_ {
        self.places.iter().filter(|place| place.live).map(|place| &place.request)
    }

    fn cached_prefix<'a>(&'a self, namespace: u64, prompt: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let mut prefix = Prefix::root(namespace);
        prompt[..prompt.len().saturating_sub(1)].chunks_exact(self.page_size as usize).map_while(
            move |tokens| {
                let key = self.cache.key(prefix, tokens);
                let page = self.cache.find(key, tokens)?;
                prefix = key.on(page);
                Some(page)
            },
        )
    }

    pub(super) fn index(&self, request: RequestId) -> Result<usize, PageError> {
        let RequestId { index, generation } = request;
        let place = self.places.get(index as usize);
        let known = place.is_some_and(|place| place.live && place.generation == generation);
        known.then_some(index as usize).ok_or(PageError::UnknownRequest { index, generation })
    }

    /// A place for a new request: one that was left, with its memory, or a new one.
    fn open(&mut self, namespace: u64) -> Result<RequestId, PageError> {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.places.len()).map_err(|_| PageError::TooManyRequests)?;
                let request = Request {
                    sequence: Sequence::new(self.page_size)?,
                    prefix: Prefix::root(namespace),
                    published: 0,
                    unpublished: Vec::new(),
                    cut: false,
                };
                self.places.push(Place { generation: 0, live: false, request });
                index
            }
        };
        let place = &mut self.places[index as usize];
        place.live = true;
        place.request.prefix = Prefix::root(namespace);
        Ok(RequestId { index, generation: place.generation })
    }

    /// Lets a request take pages; when too few are free, evicts what is missing and tries again.
    fn take_pages<T>(
        &mut self,
        index: usize,
        take: impl Fn(&mut Sequence, &PagePool) -> Result<T, PageError>,
    ) -> Result<T, PageError> {
        loop {
            match take(&mut self.places[index].request.sequence, &self.pool) {
                Err(PageError::OutOfPages { wanted, available, total }) => {
                    let (short, evictable) = (wanted - available, self.cache.evictable());
                    if evictable < short {
                        let available = available + evictable;
                        return Err(PageError::OutOfPages { wanted, available, total });
                    }
                    self.evict(short)?;
                }
                outcome => return outcome,
            }
        }
    }

    /// Makes the full pages of a request's written tokens known, or replaces them by known ones.
    fn publish_at(&mut self, index: usize) -> Result<(), PageError> {
        let Self { pool, cache, page_size, places, .. } = self;
        let Request { sequence, prefix, published, unpublished, .. } = &mut places[index].request;
        let before = *published;
        let mut publish = |tokens: &[u32]| {
            let place = *published as usize;
            let page = sequence.gather()[place];
            let key = cache.key(*prefix, tokens);
            let known = cache.find(key, tokens);
            match known {
                Some(known) if known == page => cache.acquire(page),
                Some(known) => {
                    pool.share(known)?;
                    cache.acquire(known);
                    sequence.replace(place, known);
                    pool.release(page)?;
                }
                None => {
                    // The cache is an owner too.
                    pool.share(page)?;
                    cache.insert(key, tokens, page);
                }
            }
            *prefix = key.on(known.unwrap_or(page));
            *published += 1;
            Ok(())
        };
        let outcome = unpublished.chunks_exact(*page_size as usize).try_for_each(&mut publish);
        unpublished.drain(..((*published - before) * *page_size) as usize);
        outcome
    }
}

/// Gives all pages back to the pool, which may outlive the manager.
impl Drop for PageManager {
    fn drop(&mut self) {
        for index in 0..self.places.len() as u32 {
            let Place { generation, live, .. } = self.places[index as usize];
            if live {
                // An error means that someone else released the pages: then there is nothing left to give back.
                let _ = self.discard(RequestId { index, generation });
            }
        }
        let _ = self.evict(u32::MAX);
    }
}
