//! One request's pages without a manager.

use super::{CopyPage, PageError, PagePool, Sequence, Slot};

fn slots(sequence: &Sequence, tokens: std::ops::Range<u32>) -> Vec<(u32, u32)> {
    sequence.slots(tokens).unwrap().map(|Slot { page, slot }| (page, slot)).collect()
}

#[test]
fn pages_are_taken_only_at_their_boundaries() {
    let pool = PagePool::new(3).unwrap();
    let mut sequence = Sequence::new(4).unwrap();
    assert_eq!(sequence.append(&pool, 0).unwrap().tokens, 0..0);
    assert_eq!(pool.available(), 3);
    assert_eq!(sequence.append(&pool, 6).unwrap().tokens, 0..6);
    assert_eq!(sequence.gather(), [0, 1]);
    assert_eq!(slots(&sequence, 3..6), [(0, 3), (1, 0), (1, 1)]);
    sequence.append(&pool, 2).unwrap();
    assert_eq!(pool.available(), 1);
    let refused = sequence.append(&pool, 5).unwrap_err();
    assert_eq!(refused, PageError::OutOfPages { wanted: 2, available: 1, total: 3 });
    assert_eq!((sequence.tokens(), sequence.gather(), pool.available()), (8, &[0, 1][..], 1));
    sequence.append(&pool, 4).unwrap();
    sequence.free(&pool).unwrap();
    assert_eq!((sequence.tokens(), pool.available()), (0, 3));
}

#[test]
fn a_fork_copies_the_last_page_when_it_appends() {
    let pool = PagePool::new(4).unwrap();
    let mut first = Sequence::new(4).unwrap();
    first.append(&pool, 6).unwrap();
    let mut second = first.fork(&pool).unwrap();
    assert_eq!((second.gather(), pool.available()), (&[0, 1][..], 2));
    let copy = second.append(&pool, 1).unwrap().copy;
    assert_eq!(copy, Some(CopyPage { from: 1, to: 2, tokens: 2 }));
    assert_eq!((first.gather(), second.gather()), (&[0, 1][..], &[0, 2][..]));
    assert_eq!(first.append(&pool, 1).unwrap().copy, None, "it is alone with its page now");
    // Full pages are never copied.
    first.append(&pool, 1).unwrap();
    let mut third = first.fork(&pool).unwrap();
    assert_eq!(third.append(&pool, 1).unwrap().copy, None);
    assert_eq!(third.gather(), [0, 1, 3]);
    for sequence in [&mut first, &mut second, &mut third] {
        sequence.free(&pool).unwrap();
    }
    assert_eq!(pool.available(), 4);
}

#[test]
fn a_copy_that_finds_no_page_changes_nothing() {
    let pool = PagePool::new(1).unwrap();
    let mut first = Sequence::new(4).unwrap();
    first.append(&pool, 2).unwrap();
    let mut second = first.fork(&pool).unwrap();
    let refused = second.append(&pool, 1).unwrap_err();
    assert_eq!(refused, PageError::OutOfPages { wanted: 1, available: 0, total: 1 });
    assert_eq!((second.tokens(), second.gather(), pool.owners(0)), (2, &[0][..], Ok(2)));
}

#[test]
fn what_was_reserved_cannot_run_out() {
    let pool = PagePool::new(5).unwrap();
    let mut first = Sequence::new(4).unwrap();
    first.append(&pool, 3).unwrap();
    let mut second = first.fork(&pool).unwrap();
    // One page for the copy, and one more for tokens 4 to 7; twice is no more than once.
    second.reserve(&pool, 5).unwrap();
    second.reserve(&pool, 5).unwrap();
    assert_eq!((second.slots_held(), pool.available()), (12, 2));
    assert_eq!(second.gather().len(), 1, "pages that hold nothing are not read");
    // A fork has no part in what was reserved.
    let mut third = second.fork(&pool).unwrap();
    pool.reserve(2, &mut Vec::new()).unwrap();
    assert!(second.append(&pool, 5).unwrap().copy.is_some());
    assert_eq!((second.slots_held(), second.gather().len()), (8, 2));
    assert!(third.append(&pool, 1).is_err());
    third.free(&pool).unwrap();
    second.free(&pool).unwrap();
    first.free(&pool).unwrap();
    assert_eq!(pool.available(), 3);
}

#[test]
fn truncation_releases_the_rest_and_copies_a_shared_end() {
    let pool = PagePool::with_shards(8, 1).unwrap();
    let mut first = Sequence::new(4).unwrap();
    first.append(&pool, 10).unwrap();
    let mut second = first.fork(&pool).unwrap();
    second.reserve(&pool, 9).unwrap();
    second.truncate(&pool, 6).unwrap();
    assert_eq!((second.tokens(), second.gather(), second.slots_held()), (6, &[0, 1][..], 8));
    assert_eq!((first.gather(), pool.available()), (&[0, 1, 2][..], 5));
    assert_eq!((pool.owners(1), pool.owners(2)), (Ok(2), Ok(1)));
    let refused = second.truncate(&pool, 7).unwrap_err();
    assert_eq!(refused, PageError::NoSuchTokens { begin: 0, end: 7, tokens: 6 });
    second.truncate(&pool, 6).unwrap();
    let copy = second.append(&pool, 1).unwrap().copy;
    assert_eq!(copy.map(|copy| (copy.from, copy.tokens)), Some((1, 2)));
    assert_eq!((first.gather(), pool.owners(1)), (&[0, 1, 2][..], Ok(1)));
    // An end of its own is written again where it is; a full one is left alone.
    first.truncate(&pool, 9).unwrap();
    assert_eq!(first.append(&pool, 1).unwrap().copy, None);
    assert_eq!(first.gather(), [0, 1, 2]);
    second.truncate(&pool, 4).unwrap();
    assert_eq!((second.append(&pool, 1).unwrap().copy, pool.owners(0)), (None, Ok(2)));
    second.truncate(&pool, 0).unwrap();
    first.free(&pool).unwrap();
    assert_eq!((second.gather().len(), pool.available()), (0, 8));
}

#[test]
fn bad_input_is_refused() {
    let pool = PagePool::new(1).unwrap();
    assert_eq!(Sequence::new(0).unwrap_err(), PageError::NoPageSize);
    let mut sequence = Sequence::new(4).unwrap();
    sequence.append(&pool, 3).unwrap();
    let too_long = PageError::TooLong { tokens: 3, more: u64::from(u32::MAX) };
    assert_eq!(sequence.append(&pool, u32::MAX).unwrap_err(), too_long);
    assert_eq!(sequence.reserve(&pool, u32::MAX).unwrap_err(), too_long);
    assert!(sequence.slots(2..4).is_err());
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = sequence.slots(2..1).map(drop);
    assert_eq!(reversed, Err(PageError::NoSuchTokens { begin: 2, end: 1, tokens: 3 }));
}

/// Every thread forks, appends and frees its own sequences; a prefix is shared by all. At the end, all pages are back.
#[test]
fn threads_work_on_their_own_sequences_of_one_pool() {
    let pool = PagePool::new(40).unwrap();
    let mut prefix = Sequence::new(4).unwrap();
    prefix.append(&pool, 10).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6u32 {
            let (pool, prefix) = (&pool, &prefix);
            scope.spawn(move || {
                for round in 0..3000u32 {
                    let mut sequence = prefix.fork(pool).unwrap();
                    for step in 0..8 {
                        let Ok(appended) = sequence.append(pool, (thread + round + step) % 4) else { break };
                        if let Some(copy) = appended.copy {
                            assert_eq!((copy.from, copy.tokens), (prefix.gather()[2], 2));
                        }
                        if sequence.tokens() > 10 {
                            let own = &sequence.gather()[2..];
                            assert!(own.iter().all(|&page| pool.owners(page) == Ok(1)));
                        }
                    }
                    assert_eq!(sequence.gather()[..2], prefix.gather()[..2]);
                    sequence.free(pool).unwrap();
                }
            });
        }
    });
    assert_eq!(pool.available(), 37);
    prefix.free(&pool).unwrap();
    assert_eq!(pool.available(), 40);
}
