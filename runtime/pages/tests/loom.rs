//! The pool of pages under every order of a few calls that loom can find, with the weak memory of other processors too. The pool's source
//! is compiled here a second time, over loom's atomics.

#[allow(dead_code, unreachable_pub, reason = "compiled once more, and used in part")]
#[path = "../src/error.rs"]
mod error;
#[path = "../src/free_pages.rs"]
mod free_pages;
#[allow(dead_code, unreachable_pub, reason = "compiled once more, and used in part")]
#[path = "../src/pool.rs"]
mod pool;
mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use std::cell::Cell;

    loom::thread_local! {
        static INDEX: Cell<usize> = Cell::new(0);
    }

    /// The number that a test gave this thread, or 0.
    pub(super) fn thread_index() -> usize {
        INDEX.with(Cell::get)
    }

    pub(super) fn set_thread_index(index: usize) {
        INDEX.with(|own| own.set(index));
    }
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use pool::PagePool;

fn reserve(pool: &PagePool, count: u32) -> Vec<u32> {
    let mut pages = Vec::new();
    let _ = pool.reserve(count, &mut pages);
    assert!(pages.is_empty() || pages.len() as u32 == count, "all or nothing");
    pages
}

fn all_free(pool: &PagePool, total: u32) {
    assert_eq!(pool.available(), total);
    let mut pages = reserve(pool, total);
    pages.sort_unstable();
    assert!(pages.into_iter().eq(0..total), "every page is there, once");
}

#[test]
fn reserved_pages_are_distinct() {
    loom::model(|| {
        let pool = Arc::new(PagePool::new(4).unwrap());
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || reserve(&other, 2));
        let mut pages = reserve(&pool, 1);
        pages.extend(thread.join().unwrap());
        pages.sort_unstable();
        assert_eq!(pages, [0, 1, 2], "enough for both, so both get all");
        assert_eq!(pool.available(), 1);
    });
}

/// ABA: between a thread's look at the head and its swap, pages are taken and the first one comes back.
#[test]
fn a_page_that_comes_back_fools_no_thread() {
    loom::model(|| {
        let pool = Arc::new(PagePool::new(3).unwrap());
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || {
            let first = reserve(&other, 1);
            let second = reserve(&other, 1);
            other.release_all(&first).unwrap();
            second
        });
        let mine = reserve(&pool, 1);
        assert_eq!(mine.len(), 1, "the other never has more than two");
        let theirs = thread.join().unwrap();
        assert_ne!(mine, theirs);
        pool.release_all(&mine).unwrap();
        pool.release_all(&theirs).unwrap();
        all_free(&pool, 3);
    });
}

#[test]
fn releases_lose_no_page() {
    loom::model(|| {
        let pool = Arc::new(PagePool::new(3).unwrap());
        let pages = reserve(&pool, 3);
        let other = Arc::clone(&pool);
        let two = pages[..2].to_vec();
        let thread = thread::spawn(move || other.release_all(&two).unwrap());
        let freed = pool.release(pages[2]).map(|left| u32::from(left == 0)).unwrap();
        assert_eq!(freed + thread.join().unwrap(), 3);
        all_free(&pool, 3);
    });
}

/// Two owners write what they have to; the thread that reserves the page next sees both, and owns it alone.
#[test]
fn the_last_owner_frees_and_the_next_sees_what_was_done() {
    struct Page(UnsafeCell<()>);
    loom::model(|| {
        let pool = Arc::new(PagePool::new(1).unwrap());
        let content = Arc::new([Page(UnsafeCell::new(())), Page(UnsafeCell::new(()))]);
        let pages = reserve(&pool, 1);
        pool.share(pages[0]).unwrap();
        let owner = |half: usize| {
            let (pool, content) = (Arc::clone(&pool), Arc::clone(&content));
            move || {
                content[half].0.with_mut(|_| ());
                pool.release(0).unwrap();
            }
        };
        let threads = [thread::spawn(owner(0)), thread::spawn(owner(1))];
        let next = loop {
            let next = reserve(&pool, 1);
            if !next.is_empty() {
                break next;
            }
            thread::yield_now();
        };
        // Loom reports a race if an owner's write is not ordered before this one.
        content.iter().for_each(|page| page.0.with_mut(|_| ()));
        assert_eq!(pool.owners(0), Ok(1));
        pool.release(next[0]).unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        all_free(&pool, 1);
    });
}

/// Two of three pages are taken and come back the other way round: three are free, or one, but never two, although a link says so.
/// The count is taken by the spawned thread: loom lets it see any of the changes that the first one made meanwhile.
fn counts_are_ones_that_were(count: fn(&PagePool) -> u32) {
    loom::model(move || {
        let pool = Arc::new(PagePool::new(3).unwrap());
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || count(&other));
        let mut pages = reserve(&pool, 2);
        pages.reverse();
        pool.release_all(&pages).unwrap();
        let available = thread.join().unwrap();
        assert!(available == 3 || available == 1, "{available}");
        all_free(&pool, 3);
    });
}

#[test]
fn the_count_is_one_that_was() {
    counts_are_ones_that_were(PagePool::available);
}

#[test]
fn a_refusal_names_a_count_that_was() {
    counts_are_ones_that_were(|pool| match pool.reserve(4, &mut Vec::new()) {
        Err(error::PageError::OutOfPages { available, .. }) => available,
        other => panic!("{other:?}"),
    });
}

#[test]
fn out_of_pages_is_never_said_while_enough_are_free() {
    loom::model(|| {
        // The other takes one and gives it back: two of three are free at every moment.
        let pool = Arc::new(PagePool::new(3).unwrap());
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || {
            let pages = reserve(&other, 1);
            other.release_all(&pages).unwrap();
        });
        assert_eq!(reserve(&pool, 2).len(), 2);
        thread.join().unwrap();
        assert_eq!(pool.available(), 1);
    });
}

/// A pool of several shards, and a thread at its second one. Few changes of thread where they are not wanted find
/// most mistakes that were put in by way of trial, and take seconds rather than hours.
fn two_shards(
    pages: u32,
    preemptions: usize,
    first: impl Fn(&PagePool) + Send + Sync + 'static,
    second: impl Fn(&PagePool) + Send + Sync + Clone + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let pool = Arc::new(PagePool::with_shards(pages, 2).unwrap());
        let (other, second) = (Arc::clone(&pool), second.clone());
        let thread = thread::spawn(move || {
            sync::set_thread_index(1);
            second(&other);
        });
        first(&pool);
        thread.join().unwrap();
        all_free(&pool, pages);
    });
}

/// Owns pages for a moment, and finds that no other thread does.
fn own(pool: &PagePool, count: u32, must: bool) {
    let pages = reserve(pool, count);
    assert!(!must || pages.len() as u32 == count, "enough are free at every moment");
    // A page that was handed out twice has two owners too few when both are done.
    pages.iter().for_each(|&page| assert_eq!(pool.owners(page), Ok(1)));
    assert_eq!(pool.release_all(&pages), Ok(pages.len() as u32));
}

#[test]
fn a_thread_steals_what_its_shard_lacks() {
    // Each shard has one page. The first thread has both for a while; the second one has one, or finds none.
    two_shards(
        2,
        3,
        |pool| {
            let mut pages = reserve(pool, 1);
            pages.extend(reserve(pool, 1));
            pool.release_all(&pages).unwrap();
        },
        |pool| own(pool, 1, false),
    );
}

#[test]
fn a_page_that_stays_free_is_found_in_any_shard() {
    // Of four pages, one takes three, which no shard has, and the other one always finds one.
    two_shards(4, 2, |pool| own(pool, 3, true), |pool| own(pool, 1, true));
}

#[test]
fn a_call_that_is_refused_hides_no_page_from_others() {
    two_shards(3, 2, |pool| own(pool, 4, false), |pool| own(pool, 3, true));
}

#[test]
fn of_two_calls_over_all_shards_one_is_done() {
    use loom::sync::atomic::{AtomicU32, Ordering};
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let pool = Arc::new(PagePool::with_shards(4, 2).unwrap());
        let done = Arc::new(AtomicU32::new(0));
        let (other, count) = (Arc::clone(&pool), Arc::clone(&done));
        let thread = thread::spawn(move || {
            sync::set_thread_index(1);
            count.fetch_add(reserve(&other, 3).len() as u32, Ordering::Relaxed);
        });
        done.fetch_add(reserve(&pool, 3).len() as u32, Ordering::Relaxed);
        thread.join().unwrap();
        assert_eq!((done.load(Ordering::Relaxed), pool.available()), (3, 1));
    });
}

#[test]
fn a_count_over_shards_is_one_that_was() {
    // A page moves from the first shard to the second one: two are free, or one, but never none and never three.
    two_shards(
        2,
        3,
        |pool| {
            let available = pool.available();
            assert!(available == 1 || available == 2, "{available}");
        },
        |pool| {
            let own = reserve(pool, 1);
            pool.release_all(&own).unwrap();
            let stolen = reserve(pool, 1);
            pool.release_all(&stolen).unwrap();
        },
    );
}

#[test]
fn a_release_that_meets_frozen_shards_loses_nothing() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let pool = Arc::new(PagePool::with_shards(4, 2).unwrap());
        let page = reserve(&pool, 1);
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || assert_eq!(other.release_all(&page), Ok(1)));
        own(&pool, 3, true);
        thread.join().unwrap();
        all_free(&pool, 4);
    });
}
