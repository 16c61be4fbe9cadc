//! A page manager over a long time: random arrivals, growth, forks, truncations and departures, against a simple model.
//!
//! The ordinary test takes 200 000 steps. For more, say how many, and wait for the optimised build:
//!
//! ```sh
//! TILEWRIGHT_STEPS=10000000 cargo test --release -p tilewright-runtime --test pages_long_run
//! ```
//!
//! After each step, the request that was concerned is compared with the model in its length, its pages and its last token. Every 1000
//! steps, everything is: K and V of every token of every request, the owners of every page, the free pages. At the end all pages
//! are free.

use std::sync::Arc;
use tilewright_pages::{Appended, PageError, PageManager, PagePool, RequestId};

const TOTAL: u32 = 192;
const PAGE_SIZE: u32 = 8;
/// Requests at once. With the longest prompts and answers, they want more pages than there are.
const REQUESTS: usize = 40;
const LONGEST_PROMPT: u64 = 200;
/// Steps from one full comparison to the next.
const FULL: u64 = 1000;

fn steps() -> u64 {
    match std::env::var("TILEWRIGHT_STEPS") {
        Ok(text) => text.parse().expect("TILEWRIGHT_STEPS is a number of steps, such as 10000000"),
        Err(_) => 200_000,
    }
}

/// Marsaglia's xorshift: the same steps every time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}

/// K and V of a token, a number that depends on all tokens before.
fn kv(before: u64, token: u32) -> u64 {
    (before ^ u64::from(token).wrapping_add(0x9e37_79b9)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
}

struct Request {
    id: RequestId,
    namespace: u64,
    /// The prompt, as far as it was not appended yet.
    rest: Vec<u32>,
    /// K and V of each token.
    values: Vec<u64>,
}

impl Request {
    fn add(&mut self, token: u32) -> u64 {
        let before = self.values.last().copied().unwrap_or(self.namespace + 1);
        self.values.push(kv(before, token));
        kv(before, token)
    }
}

/// How often what was tested happened.
#[derive(Debug, Default)]
struct Happened {
    arrivals: u64,
    hits: u64,
    forks: u64,
    copies: u64,
    truncations: u64,
    departures: u64,
    refusals: u64,
}

struct Run {
    pool: Arc<PagePool>,
    pages: PageManager,
    requests: Vec<Request>,
    /// What the engine wrote at each slot of each page.
    memory: Vec<u64>,
    random: Random,
    happened: Happened,
}

impl Run {
    fn new() -> Self {
        let pool = Arc::new(PagePool::with_shards(TOTAL, 4).unwrap());
        Self {
            pages: PageManager::new(Arc::clone(&pool), PAGE_SIZE).unwrap(),
            pool,
            requests: Vec::new(),
            memory: vec![0; (TOTAL * PAGE_SIZE) as usize],
            random: Random(0x1234_5678_9abc_def1),
            happened: Happened::default(),
        }
    }

    fn step(&mut self) {
        let what = self.random.below(100);
        if self.requests.is_empty() || what < 5 {
            self.arrive();
            return;
        }
        let at = self.random.index(self.requests.len());
        match what {
            5..83 => self.grow(at),
            83..87 => self.fork(at),
            87..94 => self.truncate(at),
            94.. => self.depart(at, what == 99),
            _ => unreachable!("those are arrivals"),
        }
    }

    fn arrive(&mut self) {
        if self.requests.len() >= REQUESTS {
            return;
        }
        // Prompts of few kinds, each a prefix of an endless one: they share pages. Some end in tokens of their own.
        let (kind, namespace) = (self.random.below(6) as u32, self.random.below(2));
        let len = self.random.below(LONGEST_PROMPT) as u32;
        let own = self.random.below(4) * u64::from(len) / 3;
        let token = |place: u32| {
            if u64::from(place) < own { place * kind } else { place * kind + len }
        };
        let prompt: Vec<u32> = (0..len).map(token).collect();
        let expected = self.pages.lookup(namespace, &prompt);
        let created = self.pages.create(namespace, &prompt).unwrap();
        let cached = created.cached_tokens as usize;
        assert_eq!(expected, created.cached_tokens);
        let rest = prompt[cached..].to_vec();
        let mut request = Request { id: created.request, namespace, rest, values: Vec::new() };
        for &token in &prompt[..cached] {
            request.add(token);
        }
        self.requests.push(request);
        self.happened.arrivals += 1;
        self.happened.hits += u64::from(cached > 0);
        self.compare_tokens(self.requests.len() - 1, 0);
    }

    /// First the prompt, then what the model says.
    fn grow(&mut self, at: usize) {
        let most = if self.random.below(8) == 0 { 24 } else { 2 };
        let count = self.random.below(most) as usize;
        let request = &mut self.requests[at];
        let tokens: Vec<u32> = if request.rest.is_empty() {
            (0..count).map(|_| self.random.below(3) as u32).collect()
        } else {
            request.rest.drain(..request.rest.len().min(count * 8)).collect()
        };
        match self.pages.append(request.id, &tokens) {
            Ok(appended) => self.write(at, &tokens, &appended),
            Err(PageError::OutOfPages { wanted, available, total }) => {
                assert!(wanted > available && available == self.pages.available() && total == TOTAL);
                self.happened.refusals += 1;
                self.compare(at);
                self.depart(at, true);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// What an engine does with an append.
    fn write(&mut self, at: usize, tokens: &[u32], appended: &Appended) {
        let request = &mut self.requests[at];
        let begin = request.values.len() as u32;
        assert_eq!(appended.tokens, begin..begin + tokens.len() as u32);
        if let Some(copy) = appended.copy {
            self.happened.copies += 1;
            assert_eq!(copy.tokens, begin % PAGE_SIZE);
            let from = (copy.from * PAGE_SIZE) as usize;
            self.memory.copy_within(from..from + copy.tokens as usize, (copy.to * PAGE_SIZE) as usize);
        }
        let slots = self.pages.slots(request.id, appended.tokens.clone()).unwrap();
        for (slot, &token) in slots.zip(tokens) {
            assert_eq!(self.pool.owners(slot.page), Ok(1), "tokens go to own pages only");
            self.memory[(slot.page * PAGE_SIZE + slot.slot) as usize] = request.add(token);
        }
        self.compare(at);
    }

    fn fork(&mut self, at: usize) {
        if self.requests.len() >= REQUESTS {
            return;
        }
        let request = &self.requests[at];
        let id = self.pages.fork(request.id).unwrap();
        let (namespace, rest, values) = (request.namespace, request.rest.clone(), request.values.clone());
        self.requests.push(Request { id, namespace, rest, values });
        self.happened.forks += 1;
        self.compare(self.requests.len() - 1);
    }

    /// Mostly a few drafts, sometimes any length.
    fn truncate(&mut self, at: usize) {
        let request = &mut self.requests[at];
        let len = request.values.len();
        let most = if self.random.below(8) == 0 { len } else { len.min(6) };
        let keep = len - self.random.index(most + 1);
        self.pages.truncate(request.id, keep as u32).unwrap();
        request.values.truncate(keep);
        if keep < len {
            request.rest.clear();
        }
        self.happened.truncations += 1;
        self.compare(at);
    }

    fn depart(&mut self, at: usize, early: bool) {
        let request = self.requests.swap_remove(at);
        if early { self.pages.discard(request.id) } else { self.pages.free(request.id) }.unwrap();
        assert!(self.pages.tokens(request.id).is_err());
        self.happened.departures += 1;
    }

    /// The cheap comparison.
    fn compare(&self, at: usize) {
        self.compare_tokens(at, self.requests[at].values.len().saturating_sub(1) as u32);
        assert!(self.pages.available() <= TOTAL);
    }

    fn compare_tokens(&self, at: usize, begin: u32) {
        let request = &self.requests[at];
        let tokens = self.pages.tokens(request.id).unwrap();
        assert_eq!(tokens as usize, request.values.len());
        assert_eq!(self.pages.gather(request.id).unwrap().len() as u32, tokens.div_ceil(PAGE_SIZE));
        let slots = self.pages.slots(request.id, begin..tokens).unwrap();
        for (slot, value) in slots.zip(&request.values[begin as usize..]) {
            let found = self.memory[(slot.page * PAGE_SIZE + slot.slot) as usize];
            assert_eq!(found, *value, "slot {slot:?} of {:?}", request.id);
        }
    }

    fn compare_all(&self) {
        let mut rows = vec![0u32; TOTAL as usize];
        for at in 0..self.requests.len() {
            self.compare_tokens(at, 0);
            let pages = self.pages.gather(self.requests[at].id).unwrap();
            pages.iter().for_each(|&page| rows[page as usize] += 1);
        }
        let (mut free, mut cached, mut unused) = (0, 0, 0);
        for (page, &rows) in rows.iter().enumerate() {
            let owners = self.pool.owners(page as u32).unwrap();
            assert!(owners == rows || owners == rows + 1, "page {page}: {owners} owners, {rows} rows");
            free += u32::from(owners == 0);
            cached += owners - rows;
            unused += u32::from(rows == 0 && owners == 1);
        }
        assert_eq!(self.pool.available(), free);
        assert_eq!((self.pages.cached_pages(), self.pages.unused_cached_pages()), (cached, unused));
        assert_eq!(self.pages.available(), free + unused);
    }
}

#[test]
fn a_long_run_keeps_to_the_model_and_loses_no_page() {
    let steps = steps();
    let mut run = Run::new();
    let begin = std::time::Instant::now();
    for step in 0..steps {
        run.step();
        if step % FULL == 0 {
            run.compare_all();
        }
    }
    println!("{steps} steps in {:.2?}: {:?}", begin.elapsed(), run.happened);
    run.compare_all();
    while !run.requests.is_empty() {
        run.depart(0, false);
    }
    run.compare_all();
    assert_eq!(run.pages.available(), TOTAL, "only the cache has pages");
    let cached = run.pages.cached_pages();
    assert_eq!((run.pages.evict(u32::MAX), run.pool.available()), (Ok(cached), TOTAL));
    let Happened { arrivals, hits, forks, copies, truncations, departures, refusals } = run.happened;
    assert_eq!(arrivals + forks, departures);
    // The run is worth something only if it gets everywhere.
    let seldom = [hits, forks, copies, truncations, refusals].into_iter().min().unwrap_or(0);
    assert!(seldom >= steps / 2000, "{:?}", run.happened);
}
