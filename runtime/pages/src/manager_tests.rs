//! The manager: single cases, then thousands of random steps against a simple model.

use super::{Csr, PageError, PageManager, PagePool, RequestId, Waste};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use tilewright_plan::PageTable;

fn manager(pages: u32, page_size: u32) -> PageManager {
    PageManager::new(Arc::new(PagePool::new(pages).unwrap()), page_size).unwrap()
}

/// A request that has computed all of `prompt`; returns it and what was cached.
fn prefilled(pages: &mut PageManager, prompt: &[u32]) -> (RequestId, u32) {
    let created = pages.create(0, prompt).unwrap();
    pages.append(created.request, &prompt[created.cached_tokens as usize..]).unwrap();
    pages.publish(created.request).unwrap();
    (created.request, created.cached_tokens)
}

#[test]
fn a_prompt_that_was_there_before_shares_its_full_pages() {
    let mut pages = manager(10, 4);
    let prompt: Vec<u32> = (0..10).collect();
    let (first, cached) = prefilled(&mut pages, &prompt);
    assert_eq!(cached, 0);
    let (second, cached) = prefilled(&mut pages, &prompt);
    assert_eq!(cached, 8);
    assert_eq!(pages.gather(first).unwrap()[..2], pages.gather(second).unwrap()[..2]);
    assert_ne!(pages.gather(first).unwrap()[2], pages.gather(second).unwrap()[2]);
    // Another second page; the first one is the same.
    let other: Vec<u32> = (0..4).chain(20..30).collect();
    assert_eq!(pages.lookup(0, &other), 4);
    assert_eq!(pages.lookup(1, &other), 0, "another namespace");
    // The same page after another prefix is another page.
    assert_eq!(pages.lookup(0, &prompt[4..]), 0);
    // One token is left to compute.
    assert_eq!((pages.lookup(0, &prompt[..8]), pages.lookup(0, &prompt[..9])), (4, 8));
    assert_eq!((pages.lookup(0, &[]), pages.lookup(0, &[0])), (0, 0));
}

#[test]
fn pages_are_known_when_they_are_written_and_not_before() {
    let mut pages = manager(10, 2);
    let first = pages.create(0, &[1, 2, 3]).unwrap().request;
    pages.append(first, &[1, 2, 3]).unwrap();
    assert_eq!(pages.lookup(0, &[1, 2, 3]), 0, "not computed yet");
    pages.append(first, &[4]).unwrap();
    assert_eq!(pages.lookup(0, &[1, 2, 3, 4, 5]), 2, "3 and 4 are not computed together yet");
    pages.discard(first).unwrap();
    assert_eq!((pages.lookup(0, &[1, 2, 3, 4, 5]), pages.available()), (2, 10));
    let second = pages.create(0, &[1, 2, 3]).unwrap();
    assert_eq!(second.cached_tokens, 2);
    pages.append(second.request, &[3, 4]).unwrap();
    pages.free(second.request).unwrap();
    assert_eq!(pages.lookup(0, &[1, 2, 3, 4, 5]), 4);
}

#[test]
fn requests_that_computed_the_same_at_once_share_it_afterwards() {
    let mut pages = manager(10, 2);
    let prompt = [1, 2, 3, 4, 5];
    let ids = [pages.create(0, &prompt).unwrap().request, pages.create(0, &prompt).unwrap().request];
    for id in ids {
        pages.append(id, &prompt).unwrap();
    }
    assert_eq!(pages.available(), 4);
    for id in ids {
        pages.append(id, &[6]).unwrap();
    }
    assert_eq!(pages.available(), 6);
    assert_eq!(pages.gather(ids[0]).unwrap()[..2], pages.gather(ids[1]).unwrap()[..2]);
}

#[test]
fn the_least_recently_used_pages_are_evicted_and_none_in_use() {
    let mut pages = manager(6, 2);
    let prompt = |first: u32| [first, first + 1, first + 2, first + 3];
    let (a, _) = prefilled(&mut pages, &prompt(10));
    let (b, _) = prefilled(&mut pages, &prompt(20));
    let (c, _) = prefilled(&mut pages, &prompt(30));
    let known = |pages: &PageManager, first| pages.lookup(0, &[&prompt(first)[..], &[0]].concat());
    pages.free(b).unwrap();
    pages.free(a).unwrap();
    assert_eq!((pages.available(), pages.cached_pages(), pages.unused_cached_pages()), (4, 6, 4));
    // b is older than a; its second page goes before its first one.
    let d = pages.create(0, &[0]).unwrap().request;
    pages.append(d, &[0]).unwrap();
    assert_eq!((known(&pages, 20), known(&pages, 10), known(&pages, 30)), (2, 4, 4));
    pages.append(d, &[1, 2]).unwrap();
    assert_eq!((known(&pages, 20), known(&pages, 10), known(&pages, 30)), (0, 4, 4));
    // Being used again makes a page young, and safe.
    let again = pages.create(0, &prompt(10)).unwrap();
    assert_eq!((again.cached_tokens, pages.available()), (2, 1));
    let refused = pages.append(d, &[3, 4, 5, 6]).unwrap_err();
    assert_eq!(refused, PageError::OutOfPages { wanted: 2, available: 1, total: 6 });
    assert_eq!(known(&pages, 10), 4, "what does not help is not evicted");
    pages.append(d, &[3, 4]).unwrap();
    assert_eq!((known(&pages, 10), known(&pages, 30)), (2, 4));
    assert_eq!((pages.evict(9), pages.tokens(c)), (Ok(0), Ok(4)));
}

#[test]
fn batches_are_written_as_page_table_and_as_compressed_rows() {
    let mut pages = manager(10, 4);
    let (a, _) = prefilled(&mut pages, &[1, 2, 3, 4, 5]);
    let b = pages.create(0, &[1]).unwrap().request;
    let c = pages.fork(a).unwrap();
    let batch = [a, b, c];
    let (mut entries, mut seq_lens) = ([-7; 9], [9; 3]);
    pages.write_page_table(&batch, 3, &mut entries, &mut seq_lens).unwrap();
    assert_eq!((entries, seq_lens), ([0, 1, -7, -7, -7, -7, 0, 1, -7], [5, 0, 5]));
    PageTable::new(&entries, 3, &seq_lens, 4).unwrap();
    let mut csr = Csr::default();
    for _ in 0..2 {
        pages.write_csr(&batch, &mut csr).unwrap();
        let Csr { indptr, indices, last_page_len } = &csr;
        assert_eq!(
            (&indptr[..], &indices[..], &last_page_len[..]),
            (&[0, 2, 2, 4][..], &[0, 1, 0, 1][..], &[1, 0, 1][..])
        );
    }
    let refused = pages.write_page_table(&batch, 1, &mut entries[..3], &mut seq_lens).unwrap_err();
    assert_eq!(refused, PageError::RowTooShort { row: 0, needed: 2, max_pages: 1 });
    let refused = pages.write_page_table(&batch, 3, &mut entries[..8], &mut seq_lens).unwrap_err();
    assert_eq!(refused, PageError::BufferSize { name: "entries", found: 8, needed: 9, batch: 3 });
    assert!(pages.write_page_table(&batch, 3, &mut entries, &mut seq_lens[..2]).is_err());
    pages.free(b).unwrap();
    assert!(matches!(pages.write_csr(&batch, &mut csr), Err(PageError::UnknownRequest { .. })));
}

#[test]
fn a_freed_request_is_unknown_also_when_its_place_is_taken() {
    let mut pages = manager(2, 4);
    let old = pages.create(0, &[1]).unwrap().request;
    pages.free(old).unwrap();
    let new = pages.create(0, &[1]).unwrap().request;
    assert_ne!(old, new);
    assert!(matches!(pages.append(old, &[1]), Err(PageError::UnknownRequest { index: 0, generation: 0 })));
    assert!(pages.free(old).is_err() && pages.fork(old).is_err() && pages.gather(old).is_err());
    assert!(pages.tokens(old).is_err() && pages.publish(old).is_err() && pages.reserve(old, 1).is_err());
    pages.append(new, &[1]).unwrap();
}

#[test]
fn sizes_without_sense_are_refused() {
    let pool = |pages| Arc::new(PagePool::new(pages).unwrap());
    assert_eq!(PageManager::new(pool(1), 0).unwrap_err(), PageError::NoPageSize);
    let refused = PageManager::new(pool(3), 1 << 31).unwrap_err();
    assert_eq!(refused, PageError::TooManyTokens { pages: 3, page_size: 1 << 31 });
    let mut none = manager(0, 16);
    let request = none.create(0, &[1; 40]).unwrap().request;
    assert!(matches!(none.append(request, &[1]), Err(PageError::OutOfPages { total: 0, .. })));
}

#[test]
fn a_manager_that_ends_gives_its_pages_back() {
    let pool = Arc::new(PagePool::new(8).unwrap());
    let mut pages = PageManager::new(Arc::clone(&pool), 2).unwrap();
    let (a, _) = prefilled(&mut pages, &[1, 2, 3, 4, 5]);
    pages.fork(a).unwrap();
    pages.free(a).unwrap();
    drop(pages);
    assert_eq!(pool.available(), 8);
}

#[test]
fn truncation_caches_known_pages_and_copies_the_cut_one() {
    let mut pages = manager(10, 4);
    let prompt: Vec<u32> = (0..11).collect();
    let (a, _) = prefilled(&mut pages, &prompt);
    let row = pages.gather(a).unwrap().to_vec();
    pages.truncate(a, 6).unwrap();
    assert_eq!((pages.tokens(a), pages.gather(a).unwrap()), (Ok(6), &row[..2]));
    // The cut page is in use, and known: the same prompt finds it, and it cannot be evicted.
    assert_eq!((pages.lookup(0, &prompt), pages.available(), pages.evict(9)), (8, 8, Ok(0)));
    let b = pages.fork(a).unwrap();
    let copy = pages.append(b, &[50]).unwrap().copy.unwrap();
    assert_eq!((copy.from, copy.tokens), (row[1], 2));
    assert_eq!(pages.append(a, &[6, 7]).unwrap().copy.map(|copy| copy.from), Some(row[1]));
    assert_eq!(pages.unused_cached_pages(), 1, "only the cache has the page now");
    // The same tokens again: the known page takes the place of the copy.
    pages.publish(a).unwrap();
    assert_eq!((pages.gather(a).unwrap(), pages.unused_cached_pages()), (&row[..2], 0));
    let other = [0, 1, 2, 3, 4, 5, 50, 60, 61];
    pages.append(b, &[60]).unwrap();
    pages.publish(b).unwrap();
    assert_eq!((pages.lookup(0, &other), pages.lookup(0, &prompt)), (8, 8));
    pages.truncate(b, 0).unwrap();
    assert_eq!((pages.gather(b).unwrap().len(), pages.unused_cached_pages()), (0, 1));
    let refused = pages.truncate(b, 1).unwrap_err();
    assert_eq!(refused, PageError::NoSuchTokens { begin: 0, end: 1, tokens: 0 });
    pages.append(b, &other).unwrap();
    pages.publish(b).unwrap();
    assert_eq!(pages.unused_cached_pages(), 0, "the page was found again from the beginning");
    pages.free(a).unwrap();
    pages.free(b).unwrap();
    assert!(matches!(pages.truncate(b, 0), Err(PageError::UnknownRequest { .. })));
    assert_eq!(pages.available(), 10);
}

#[test]
fn waste_counts_each_page_once() {
    let mut pages = manager(10, 4);
    assert_eq!(pages.waste().fraction(), 0.0);
    let (a, _) = prefilled(&mut pages, &[1, 2, 3, 4, 5]);
    let b = pages.fork(a).unwrap();
    assert_eq!(pages.waste(), Waste { tokens: 5, slots: 8, unshared_tokens: 10 });
    pages.append(b, &[6]).unwrap();
    assert_eq!(pages.waste(), Waste { tokens: 7, slots: 12, unshared_tokens: 11 });
    pages.reserve(b, 9).unwrap();
    assert_eq!(pages.waste(), Waste { tokens: 7, slots: 20, unshared_tokens: 11 });
    assert!((pages.waste().fraction() - 13.0 / 7.0).abs() < 1e-12);
    pages.free(b).unwrap();
    pages.free(a).unwrap();
    assert_eq!(pages.waste(), Waste::default());
}

/// What a test step does; the numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    /// Namespace, which of the prompts, how much of it.
    Create(u64, u32, usize),
    /// Which request, how many tokens, of what alphabet.
    Append(usize, usize, u32),
    Reserve(usize, u32),
    /// Which request, how many tokens are taken back.
    Truncate(usize, usize),
    Publish(usize),
    Fork(usize),
    Free(usize),
    Discard(usize),
    Evict(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let any = 0usize..64;
    prop_oneof![
        3 => (0u64..2, 0u32..6, 0usize..40).prop_map(|(space, seed, len)| Step::Create(space, seed, len)),
        12 => (any.clone(), 0usize..9, 1u32..3).prop_map(|(which, count, letters)| Step::Append(which, count, letters)),
        1 => (any.clone(), 0u32..20).prop_map(|(which, more)| Step::Reserve(which, more)),
        2 => (any.clone(), 0usize..12).prop_map(|(which, back)| Step::Truncate(which, back)),
        1 => any.clone().prop_map(Step::Publish),
        2 => any.clone().prop_map(Step::Fork),
        2 => any.clone().prop_map(Step::Free),
        1 => any.prop_map(Step::Discard),
        1 => (0u32..4).prop_map(Step::Evict),
    ]
}

/// A request as it should be: its tokens, and the K and V of each, a number that depends on all tokens before.
#[derive(Clone)]
struct Known {
    id: RequestId,
    namespace: u64,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    /// Tokens before the last append: those whose K and V are there for sure.
    written: usize,
}

fn kv(namespace: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(namespace + 1, |before, &token| {
        (before ^ u64::from(token).wrapping_add(0x9e37_79b9)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    })
}

/// Requests at once, made and then forked; so that there is room for both.
const MOST_CREATED: usize = 8;
const MOST_FORKED: usize = 12;

struct Model {
    pages: PageManager,
    total: u32,
    page_size: u32,
    /// What the engine wrote at each slot of each page.
    memory: HashMap<(u32, u32), u64>,
    requests: Vec<Known>,
    hits: u64,
    copies: u64,
    /// Copies of pages that a truncation cut, and that other requests do not have.
    cut_copies: u64,
    refusals: u64,
}

impl Model {
    fn new(total: u32, page_size: u32, shards: u32, hash_bits: Option<u32>) -> Self {
        let pool = Arc::new(PagePool::with_shards(total, shards).unwrap());
        let mut pages = PageManager::new(pool, page_size).unwrap();
        if let Some(bits) = hash_bits {
            pages.cache.weaken_hash(bits);
        }
        let (memory, requests) = (HashMap::new(), Vec::new());
        Self { pages, total, page_size, memory, requests, hits: 0, copies: 0, cut_copies: 0, refusals: 0 }
    }

    fn which(&self, which: usize) -> Option<usize> {
        (!self.requests.is_empty()).then(|| which % self.requests.len())
    }

    /// Everything that a refused call must leave alone.
    fn state(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let rows: Vec<Vec<u32>> =
            self.requests.iter().map(|known| self.pages.gather(known.id).unwrap().to_vec()).collect();
        let owners: Vec<u32> = (0..self.total).map(|page| self.pages.pool.owners(page).unwrap()).collect();
        let cached: Vec<bool> = (0..self.total).map(|page| self.pages.cache.contains(page)).collect();
        (rows, owners, cached, self.pages.available(), self.pages.waste())
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Create(namespace, seed, len) => {
                if self.requests.len() >= MOST_CREATED {
                    return;
                }
                let prompt: Vec<u32> = (0..len as u32).map(|place| (place * seed / 5) % 3).collect();
                let cached = self.pages.lookup(namespace, &prompt);
                let created = self.pages.create(namespace, &prompt).unwrap();
                assert_eq!(created.cached_tokens, cached);
                assert!(cached.is_multiple_of(self.page_size) && (cached == 0 || cached < len as u32));
                self.hits += u64::from(cached > 0);
                let tokens = prompt[..cached as usize].to_vec();
                let written = tokens.len();
                let id = created.request;
                self.requests.push(Known { id, namespace, prompt, tokens, written });
            }
            Step::Append(which, count, letters) => {
                let Some(at) = self.which(which) else { return };
                let before = self.state();
                let known = &mut self.requests[at];
                // First the prompt, then what the model says.
                let rest = known.prompt.get(known.tokens.len()..).unwrap_or(&[]);
                let new: Vec<u32> = if rest.is_empty() {
                    (0..count as u32).map(|place| place % letters).collect()
                } else {
                    rest[..rest.len().min(count * 2)].to_vec()
                };
                match self.pages.append(known.id, &new) {
                    Ok(appended) => {
                        let begin = known.tokens.len() as u32;
                        assert_eq!(appended.tokens, begin..begin + new.len() as u32);
                        known.written = known.tokens.len();
                        known.tokens.extend(&new);
                        if let Some(copy) = appended.copy {
                            self.copies += 1;
                            self.cut_copies += u64::from(self.pages.pool.owners(copy.from) == Ok(1));
                            assert_eq!(copy.tokens, begin % self.page_size);
                            for slot in 0..copy.tokens {
                                let value = self.memory[&(copy.from, slot)];
                                self.memory.insert((copy.to, slot), value);
                            }
                        }
                        for (slot, end) in
                            self.pages.slots(known.id, appended.tokens).unwrap().zip(begin + 1..)
                        {
                            let value = kv(known.namespace, &known.tokens[..end as usize]);
                            assert_eq!(
                                self.pages.pool.owners(slot.page),
                                Ok(1),
                                "tokens go to own pages only"
                            );
                            self.memory.insert((slot.page, slot.slot), value);
                        }
                    }
                    Err(PageError::OutOfPages { wanted, available, total }) => {
                        self.refusals += 1;
                        assert_eq!((available, total), (self.pages.available(), self.total));
                        assert!(wanted > available);
                        assert_eq!(self.state(), before);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Reserve(which, more) => {
                let Some(at) = self.which(which) else { return };
                let before = self.state();
                match self.pages.reserve(self.requests[at].id, more) {
                    Ok(()) => {
                        let slots = self.pages.sequence(self.requests[at].id).unwrap().slots_held();
                        assert!(slots >= self.requests[at].tokens.len() as u64 + u64::from(more));
                    }
                    Err(_) => assert_eq!(self.state(), before),
                }
            }
            Step::Truncate(which, back) => {
                let Some(at) = self.which(which) else { return };
                let known = &self.requests[at];
                let before = self.state();
                let tokens = known.tokens.len() as u32;
                let refused = PageError::NoSuchTokens { begin: 0, end: tokens + 1, tokens };
                assert_eq!(self.pages.truncate(known.id, tokens + 1), Err(refused));
                assert_eq!(self.state(), before);
                let known = &mut self.requests[at];
                let keep = known.tokens.len().saturating_sub(back);
                self.pages.truncate(known.id, keep as u32).unwrap();
                known.tokens.truncate(keep);
                known.written = known.written.min(keep);
                // What is generated from here on is not the prompt, even if that was not all there yet.
                known.prompt.truncate(keep);
                let sequence = self.pages.sequence(known.id).unwrap();
                let held = keep.next_multiple_of(self.page_size as usize);
                assert_eq!(sequence.slots_held(), held as u64, "pages beyond are released");
            }
            Step::Publish(which) => {
                let Some(at) = self.which(which) else { return };
                self.pages.publish(self.requests[at].id).unwrap();
                self.requests[at].written = self.requests[at].tokens.len();
            }
            Step::Fork(which) => {
                let Some(at) = self.which(which).filter(|_| self.requests.len() < MOST_FORKED) else {
                    return;
                };
                let id = self.pages.fork(self.requests[at].id).unwrap();
                assert_eq!(self.pages.gather(id), self.pages.gather(self.requests[at].id));
                self.requests[at].written = self.requests[at].tokens.len();
                self.requests.push(Known { id, ..self.requests[at].clone() });
            }
            Step::Free(which) | Step::Discard(which) => {
                let Some(at) = self.which(which) else { return };
                let known = self.requests.swap_remove(at);
                let mut longer = known.tokens;
                if matches!(step, Step::Free(_)) {
                    self.pages.free(known.id).unwrap();
                } else {
                    self.pages.discard(known.id).unwrap();
                    longer.truncate(known.written);
                }
                longer.push(0);
                let full = (longer.len() as u32 - 1) / self.page_size * self.page_size;
                assert_eq!(self.pages.lookup(known.namespace, &longer), full, "what was written is known");
            }
            Step::Evict(count) => {
                let (available, unused) = (self.pages.pool.available(), self.pages.unused_cached_pages());
                assert_eq!(self.pages.evict(count), Ok(count.min(unused)));
                assert_eq!(self.pages.pool.available(), available + count.min(unused));
            }
        }
    }

    fn check(&self) {
        let mut owners = vec![0u32; self.total as usize];
        for known in &self.requests {
            let sequence = self.pages.sequence(known.id).unwrap();
            assert_eq!(sequence.tokens() as usize, known.tokens.len());
            let pages = sequence.gather();
            assert_eq!(pages.len() as u32, sequence.tokens().div_ceil(self.page_size));
            pages.iter().for_each(|&page| owners[page as usize] += 1);
            for (token, slot) in sequence.slots(0..sequence.tokens()).unwrap().enumerate() {
                let expected = kv(known.namespace, &known.tokens[..=token]);
                assert_eq!(self.memory[&(slot.page, slot.slot)], expected, "token {token} of {:?}", known.id);
            }
        }
        let mut cached = 0;
        let mut unused = 0;
        for page in 0..self.total {
            if self.pages.cache.contains(page) {
                cached += 1;
                unused += u32::from(owners[page as usize] == 0);
                owners[page as usize] += 1;
            }
        }
        // Pages reserved ahead have an owner too, and are in no row.
        let ahead: u64 = self
            .requests
            .iter()
            .map(|known| self.pages.sequence(known.id).unwrap())
            .map(|sequence| {
                sequence.slots_held() / u64::from(self.page_size) - sequence.gather().len() as u64
            })
            .sum();
        let mut unseen = 0;
        for (page, &count) in owners.iter().enumerate() {
            let found = self.pages.pool.owners(page as u32).unwrap();
            if count == 0 {
                unseen += u64::from(found);
            } else {
                assert_eq!(found, count, "owners of page {page}");
            }
        }
        assert_eq!(unseen, ahead);
        let used = owners.iter().filter(|count| **count > 0).count() as u64 + ahead;
        assert_eq!(u64::from(self.pages.pool.available()) + used, u64::from(self.total));
        assert_eq!(self.pages.cached_pages(), cached);
        assert_eq!(self.pages.unused_cached_pages(), unused);
        let waste = self.pages.waste();
        assert!(waste.tokens <= waste.slots && waste.tokens <= waste.unshared_tokens);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_steps_keep_every_token_and_every_count(
        steps in prop::collection::vec(step(), 0..400),
        total in 1u32..40,
        page_size in 1u32..6,
        shards in 1u32..9,
        hash_bits in prop_oneof![Just(None), (0u32..3).prop_map(Some)],
    ) {
        let mut model = Model::new(total, page_size, shards, hash_bits);
        for step in &steps {
            model.take(step);
            model.check();
        }
        while let Some(known) = model.requests.pop() {
            model.pages.free(known.id).unwrap();
            model.check();
        }
        prop_assert_eq!(model.pages.available(), total);
        let cached = model.pages.cached_pages();
        prop_assert_eq!(model.pages.evict(u32::MAX), Ok(cached));
        prop_assert_eq!(model.pages.pool.available(), total);
    }
}

/// The random steps above are worth something only if they get everywhere.
#[test]
fn a_long_run_hits_copies_and_runs_out() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut model = Model::new(64, 4, 4, Some(1));
    for _ in 0..5000 {
        let step = step().new_tree(&mut runner).unwrap().current();
        model.take(&step);
        model.check();
    }
    assert!(
        model.hits > 50 && model.copies > 50 && model.cut_copies > 50 && model.refusals > 50,
        "{} {} {} {}",
        model.hits,
        model.copies,
        model.cut_copies,
        model.refusals
    );
}
