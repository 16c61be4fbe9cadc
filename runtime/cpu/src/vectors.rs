//! K or V of neighbouring tokens, wherever their pages lie.
#![allow(unsafe_code)]

use super::level::Level;
use super::load::Load;

/// Vectors of `head_dim` elements, each checked to lie inside of the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors<'a, K> {
    elements: &'a [K],
    offsets: &'a [usize],
    head_dim: usize,
}

impl<'a, K: Load> Vectors<'a, K> {
    /// The vectors that begin at these offsets and `first`.
    ///
    /// # Panics
    /// If one does not lie inside of the elements.
    #[inline(always)]
    pub(super) fn new(elements: &'a [K], offsets: &'a [usize], first: usize, head_dim: usize) -> Self {
        let elements = elements.get(first..).unwrap_or(&[]);
        let last = elements.len().checked_sub(head_dim).expect("a cache with a vector");
        // Without a way out of the loop it vectorises.
        let outside = offsets.iter().fold(false, |outside, &offset| outside | (offset > last));
        assert!(!outside, "every vector lies inside of the cache");
        Self { elements, offsets, head_dim }
    }

    /// How many.
    #[inline(always)]
    pub(super) const fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Elements of each; a multiple of 16.
    #[inline(always)]
    pub(super) const fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Where a vector's elements from `column` on lie: all that are left of it can be read there.
    ///
    /// # Safety
    /// `index` is below [`Vectors::len`], and `column` at most the head dimension.
    #[inline(always)]
    pub(super) unsafe fn at(&self, index: usize, column: usize) -> *const K {
        debug_assert!(column <= self.head_dim);
        // SAFETY: there is such an offset, and from it on `head_dim` elements lie inside of the slice.
        unsafe { self.elements.as_ptr().add(self.offsets.get_unchecked(index) + column) }
    }

    /// Some lanes of a vector, as f32.
    ///
    /// # Safety
    /// `index` is below [`Vectors::len`], and [`Level::LANES`] elements of the vector follow `column`.
    #[inline(always)]
    pub(super) unsafe fn load<L: Level>(&self, level: L, index: usize, column: usize) -> L::Vector {
        debug_assert!(column + L::LANES <= self.head_dim);
        // SAFETY: the caller has such a vector with as many elements.
        unsafe { K::load(level, self.at(index, column)) }
    }

    /// Writes all of them as f32, one behind the other.
    #[inline(always)]
    pub(super) fn widen<L: Level>(&self, level: L, wide: &mut [f32]) {
        assert!(wide.len() >= self.len() * self.head_dim);
        for index in 0..self.len() {
            for column in (0..self.head_dim).step_by(L::LANES) {
                // SAFETY: the vector has as many elements, and so has `wide` at its place, as was checked.
                unsafe {
                    let vector = self.load(level, index, column);
                    level.store(wide.as_mut_ptr().add(index * self.head_dim + column), vector);
                }
            }
        }
    }
}
