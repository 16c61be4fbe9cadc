//! A slice that several threads write at once, each to places of its own.
#![allow(unsafe_code)]

use std::marker::PhantomData;

/// A mutable slice that can be written through a shared reference, range by range.
#[derive(Debug)]
pub(super) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a `SharedSlice` stands for a `&mut [T]` that is handed out in disjoint ranges (the contract of `range`), so sharing
// it among threads is as sound as sending the parts of a split slice to them.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}
// SAFETY: as for `Sync`.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements from `begin` on, `len` of them.
    ///
    /// # Safety
    /// As long as the returned slice lives, no other range that overlaps it may be in use.
    ///
    /// # Panics
    /// If the range is not inside of the slice.
    #[expect(clippy::mut_from_ref, reason = "the caller vouches for disjoint ranges")]
    pub(super) unsafe fn range(&self, begin: usize, len: usize) -> &mut [T] {
        assert!(begin.checked_add(len).is_some_and(|end| end <= self.len), "a range inside of the slice");
        // SAFETY: the range was checked to lie in the slice that `self` stands for, and the caller vouches that no other thread
        // uses it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(begin), len) }
    }
}
