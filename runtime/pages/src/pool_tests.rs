//! The pool: what each call gives, and many threads at once. `tests/pages_loom.rs` tries all orders of a few calls.

use super::{PageError, PagePool};
use proptest::prelude::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn pages_are_reserved_all_or_none() {
    let pool = PagePool::new(5).unwrap();
    let mut pages = vec![99];
    pool.reserve(3, &mut pages).unwrap();
    assert_eq!(pages, [99, 0, 1, 2]);
    let refused = pool.reserve(3, &mut pages).unwrap_err();
    assert_eq!(refused, PageError::OutOfPages { wanted: 3, available: 2, total: 5 });
    assert!(refused.to_string().contains("3 wanted, 2 of 5"), "{refused}");
    assert_eq!((pages.len(), pool.available()), (4, 2));
    pool.reserve(2, &mut pages).unwrap();
    assert_eq!(pool.available(), 0);
    assert!(pool.reserve(1, &mut pages).is_err());
    pool.reserve(0, &mut pages).unwrap();
    assert_eq!(pool.release_all(&pages[1..]).unwrap(), 5);
    assert_eq!(pool.available(), 5);
}

#[test]
fn a_page_is_free_when_its_last_owner_releases_it() {
    let pool = PagePool::new(2).unwrap();
    let mut pages = Vec::new();
    pool.reserve(1, &mut pages).unwrap();
    assert_eq!(pool.share(0), Ok(2));
    assert_eq!(pool.release(0), Ok(1));
    assert_eq!((pool.owners(0), pool.available()), (Ok(1), 1));
    assert_eq!(pool.release(0), Ok(0));
    assert_eq!((pool.owners(0), pool.available()), (Ok(0), 2));
}

#[test]
fn misuse_is_an_error_and_changes_nothing() {
    let pool = PagePool::new(3).unwrap();
    assert_eq!(pool.release(0), Err(PageError::NotInUse { page: 0 }));
    assert_eq!(pool.share(2), Err(PageError::NotInUse { page: 2 }));
    for result in [pool.share(3), pool.release(u32::MAX), pool.owners(7)] {
        assert!(matches!(result, Err(PageError::NoSuchPage { total: 3, .. })), "{result:?}");
    }
    let mut pages = Vec::new();
    pool.reserve(2, &mut pages).unwrap();
    // Those before the bad one are released.
    assert_eq!(pool.release_all(&[0, 2, 1]), Err(PageError::NotInUse { page: 2 }));
    assert_eq!((pool.available(), pool.owners(1)), (2, Ok(1)));
}

#[test]
fn the_smallest_and_the_largest_pool() {
    let empty = PagePool::new(0).unwrap();
    assert_eq!(empty.available(), 0);
    assert!(matches!(empty.reserve(1, &mut Vec::new()), Err(PageError::OutOfPages { .. })));
    assert!(matches!(empty.release(0), Err(PageError::NoSuchPage { .. })));
    assert!(matches!(PagePool::new(1 << 31), Err(PageError::TooManyPages { .. })));
    for total in [1, 2, 3, 64, 65, 1000] {
        let pool = PagePool::new(total).unwrap();
        let mut pages = Vec::new();
        pool.reserve(total, &mut pages).unwrap();
        pages.sort_unstable();
        assert!(pages.iter().copied().eq(0..total));
        assert_eq!(pool.release_all(&pages).unwrap(), total);
        assert_eq!(pool.available(), total);
    }
}

proptest! {
    /// Against a list of owner counts. A step is (what, which).
    #[test]
    fn the_pool_is_a_table_of_owners(
        steps in prop::collection::vec((0u8..4, 0u32..20), 0..400),
        shards in 1u32..20,
    ) {
        const TOTAL: u32 = 16;
        let pool = PagePool::with_shards(TOTAL, shards).unwrap();
        let mut owners = vec![0u32; TOTAL as usize];
        for (what, which) in steps {
            let count = owners.get(which as usize).copied();
            match what {
                0 => {
                    let mut pages = vec![];
                    let free = owners.iter().filter(|count| **count == 0).count() as u32;
                    match pool.reserve(which, &mut pages) {
                        Ok(()) => prop_assert_eq!(pages.len() as u32, which),
                        Err(error) => {
                            let refused = PageError::OutOfPages { wanted: which, available: free, total: TOTAL };
                            prop_assert_eq!(error, refused);
                            prop_assert!(which > free && pages.is_empty());
                        }
                    }
                    for page in pages {
                        prop_assert_eq!(std::mem::replace(&mut owners[page as usize], 1), 0);
                    }
                }
                1 => match pool.share(which) {
                    Ok(now) => {
                        owners[which as usize] += 1;
                        prop_assert_eq!(now, owners[which as usize]);
                        prop_assert!(now > 1);
                    }
                    Err(_) => prop_assert!(count.is_none_or(|count| count == 0)),
                },
                2 => match pool.release(which) {
                    Ok(left) => {
                        owners[which as usize] -= 1;
                        prop_assert_eq!(left, owners[which as usize]);
                    }
                    Err(_) => prop_assert!(count.is_none_or(|count| count == 0)),
                },
                _ => {
                    let pages: Vec<u32> = (0..which.min(TOTAL)).filter(|&page| owners[page as usize] > 0).collect();
                    let mut freed = 0;
                    for &page in &pages {
                        owners[page as usize] -= 1;
                        freed += u32::from(owners[page as usize] == 0);
                    }
                    prop_assert_eq!(pool.release_all(&pages), Ok(freed));
                }
            }
            for (page, count) in owners.iter().enumerate() {
                prop_assert_eq!(pool.owners(page as u32), Ok(*count));
            }
            prop_assert_eq!(pool.available() as usize, owners.iter().filter(|count| **count == 0).count());
        }
    }
}

/// Every page has a word in which its owner puts its name: who finds another's there was given an owned page.
#[test]
fn many_threads_never_own_the_same_page() {
    for shards in [1, 2, 8, 64] {
        threads_never_own_the_same_page(shards);
    }
}

fn threads_never_own_the_same_page(shards: u32) {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 10_000;
    const TOTAL: u32 = 11;
    let pool = PagePool::with_shards(TOTAL, shards).unwrap();
    let names: Vec<AtomicU64> = (0..TOTAL).map(|_| AtomicU64::new(0)).collect();
    let refused = AtomicU64::new(0);
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 1..=THREADS {
            let (pool, names, refused, start) = (&pool, &names, &refused, &start);
            scope.spawn(move || {
                start.wait();
                let mut random = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut mine: Vec<u32> = Vec::new();
                for _ in 0..ROUNDS {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let before = mine.len();
                    if pool.reserve((random % 7) as u32, &mut mine).is_err() {
                        refused.fetch_add(1, Ordering::Relaxed);
                        assert_eq!(mine.len(), before);
                    }
                    for &page in &mine[before..] {
                        assert_eq!(names[page as usize].swap(thread, Ordering::Relaxed), 0);
                        // A share that comes and goes frees nothing.
                        assert_eq!(pool.share(page), Ok(2));
                        assert_eq!(pool.release(page), Ok(1));
                    }
                    let keep = (random >> 32) as usize % (mine.len() + 1);
                    for &page in &mine[keep..] {
                        assert_eq!(names[page as usize].swap(0, Ordering::Relaxed), thread);
                    }
                    if random & 1 << 20 == 0 {
                        assert_eq!(pool.release_all(&mine[keep..]), Ok((mine.len() - keep) as u32));
                    } else {
                        mine[keep..].iter().for_each(|&page| assert_eq!(pool.release(page), Ok(0)));
                    }
                    mine.truncate(keep);
                    assert!(pool.available() <= TOTAL);
                }
                for &page in &mine {
                    assert_eq!(names[page as usize].swap(0, Ordering::Relaxed), thread);
                }
                pool.release_all(&mine).unwrap();
            });
        }
    });
    assert!(refused.into_inner() > 0, "the pool was never short of pages");
    assert_eq!(pool.available(), TOTAL);
    let mut all = Vec::new();
    pool.reserve(TOTAL, &mut all).unwrap();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..TOTAL));
}

/// The page is free exactly once, whichever owner comes last.
#[test]
fn the_last_of_many_owners_frees_the_page() {
    let pool = PagePool::new(1).unwrap();
    for _ in 0..500 {
        let mut pages = Vec::new();
        pool.reserve(1, &mut pages).unwrap();
        assert_eq!((0..3).map(|_| pool.share(0).unwrap()).max(), Some(4));
        let freed: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| u32::from(pool.release(0).unwrap() == 0))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((freed, pool.available()), (1, 1));
    }
}

#[test]
fn one_thread_reserves_what_many_others_released() {
    const TOTAL: u32 = 1000;
    for shards in [1, 4, 32] {
        for one_by_one in [false, true] {
            let pool = PagePool::with_shards(TOTAL, shards).unwrap();
            let mut all = Vec::new();
            pool.reserve(TOTAL, &mut all).unwrap();
            assert_eq!(pool.available(), 0);
            std::thread::scope(|scope| {
                let pool = &pool;
                for part in all.chunks(TOTAL as usize / 40) {
                    scope.spawn(move || assert_eq!(pool.release_all(part), Ok(part.len() as u32)));
                }
            });
            all.clear();
            let step = if one_by_one { 1 } else { TOTAL };
            (0..TOTAL / step).for_each(|_| pool.reserve(step, &mut all).unwrap());
            let refused = pool.reserve(1, &mut Vec::new()).unwrap_err();
            assert_eq!(refused, PageError::OutOfPages { wanted: 1, available: 0, total: TOTAL });
            all.sort_unstable();
            assert!(all.into_iter().eq(0..TOTAL));
        }
    }
}

/// Of 48 pages, seven threads never have more than 5 each: the eighth one's 13 are there at every moment, mostly over several shards.
#[test]
fn calls_over_shards_succeed_while_enough_pages_are_free() {
    const TOTAL: u32 = 48;
    let pool = PagePool::with_shards(TOTAL, 8).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..7u32 {
            let (pool, done) = (&pool, &done);
            scope.spawn(move || {
                let (mut round, mut pages) = (thread, Vec::new());
                while !done.load(Ordering::Relaxed) {
                    round = round.wrapping_add(1);
                    pool.reserve(1 + round % 5, &mut pages).unwrap();
                    pool.release_all(&pages).unwrap();
                    pages.clear();
                }
            });
        }
        let mut pages = Vec::new();
        for _ in 0..20_000 {
            let outcome = pool.reserve(13, &mut pages).and_then(|()| pool.release_all(&pages));
            if outcome != Ok(13) {
                done.store(true, Ordering::Relaxed);
            }
            assert_eq!(outcome, Ok(13));
            pages.clear();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(pool.available(), TOTAL);
}

#[test]
fn shards_are_powers_of_two_and_small_pools_have_few() {
    let shards = |pages, shards| PagePool::with_shards(pages, shards).unwrap().shards();
    assert_eq!((shards(0, 0), shards(1, 3), shards(9, 8), shards(9, u32::MAX)), (1, 4, 8, 64));
    for pages in [0, 1, 127] {
        assert_eq!(PagePool::new(pages).unwrap().shards(), 1);
    }
    let large = PagePool::new(1 << 16).unwrap().shards();
    assert!(large.is_power_of_two() && large <= 64, "{large}");
    assert!(PagePool::new(256).unwrap().shards() <= 4);
    assert!(matches!(PagePool::with_shards(1 << 31, 2), Err(PageError::TooManyPages { .. })));
}
