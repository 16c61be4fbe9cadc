//! What the pool knows of threads: atomics, and a number for each. The test with loom puts loom's in their place.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A number for this thread, in the order in which threads first ask.
pub(super) fn thread_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static INDEX: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    INDEX.with(|index| {
        if index.get() == usize::MAX {
            index.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        index.get()
    })
}
