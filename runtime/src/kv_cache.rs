//! The paged KV cache of a layer, on any backend.

use tilewright_heuristics::Geometry;
use tilewright_plan::KvStrides;

/// The order of the elements of K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvLayout {
    /// `[page, token, head, element]`.
    Nhd,
    /// `[page, head, token, element]`.
    Hnd,
    /// Any other.
    Strides(KvStrides),
}

impl KvLayout {
    pub(crate) const fn strides(self, geometry: &Geometry) -> KvStrides {
        match self {
            Self::Nhd => KvStrides::nhd(geometry),
            Self::Hnd => KvStrides::hnd(geometry),
            Self::Strides(strides) => strides,
        }
    }
}

/// The paged KV cache of one layer. `T` is a slice of elements on the CPU, a `CudaSlice` on a GPU; `S` is `()`, or the scales of an FP8 cache.
#[derive(Debug)]
pub struct KvCache<'a, T: ?Sized, S = ()> {
    pub(crate) keys: &'a T,
    pub(crate) values: &'a T,
    pub(crate) layout: KvLayout,
    pub(crate) scales: S,
}

impl<'a, T: ?Sized> KvCache<'a, T> {
    /// K and V `[page, token, head, element]`.
    pub const fn nhd(keys: &'a T, values: &'a T) -> Self {
        Self::new(keys, values, KvLayout::Nhd)
    }

    /// K and V `[page, head, token, element]`.
    pub const fn hnd(keys: &'a T, values: &'a T) -> Self {
        Self::new(keys, values, KvLayout::Hnd)
    }

    /// K and V in any layout, both in the same.
    pub const fn new(keys: &'a T, values: &'a T, layout: KvLayout) -> Self {
        Self { keys, values, layout, scales: () }
    }

    /// An FP8 cache: a number is its byte's value times its scale, one for all heads or `[kv heads]`.
    pub const fn with_scales<F: ?Sized>(self, keys: &'a F, values: &'a F) -> KvCache<'a, T, (&'a F, &'a F)> {
        KvCache { keys: self.keys, values: self.values, layout: self.layout, scales: (keys, values) }
    }
}

/// The paged KV cache of one layer, to be appended to: as [`KvCache`], of slices that are written.
#[derive(Debug)]
pub struct KvCacheMut<'a, T: ?Sized, S = ()> {
    pub(crate) keys: &'a mut T,
    pub(crate) values: &'a mut T,
    pub(crate) layout: KvLayout,
    pub(crate) scales: S,
}

impl<'a, T: ?Sized> KvCacheMut<'a, T> {
    /// K and V `[page, token, head, element]`.
    pub const fn nhd(keys: &'a mut T, values: &'a mut T) -> Self {
        Self::new(keys, values, KvLayout::Nhd)
    }

    /// K and V `[page, head, token, element]`.
    pub const fn hnd(keys: &'a mut T, values: &'a mut T) -> Self {
        Self::new(keys, values, KvLayout::Hnd)
    }

    /// K and V in any layout, both in the same.
    pub const fn new(keys: &'a mut T, values: &'a mut T, layout: KvLayout) -> Self {
        Self { keys, values, layout, scales: () }
    }

    /// An FP8 cache: a number becomes the byte nearest to it divided by its scale, one for all heads or `[kv heads]`.
    pub fn with_scales<F: ?Sized>(self, keys: &'a F, values: &'a F) -> KvCacheMut<'a, T, (&'a F, &'a F)> {
        KvCacheMut { keys: self.keys, values: self.values, layout: self.layout, scales: (keys, values) }
    }
}
