//! K and V in device memory, and what their elements may be.

use cudarc::driver::{CudaSlice, DeviceRepr};
use half::{bf16, f16};
use tilewright_heuristics::{Dtype, Fp8};
use tilewright_plan::KvStrides;

/// An element type of the kernels.
pub trait CudaElement: DeviceRepr + Copy {
    /// Its name in plans.
    const DTYPE: Dtype;
}

impl CudaElement for f16 {
    const DTYPE: Dtype = Dtype::F16;
}

impl CudaElement for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}

/// The paged KV cache of one layer.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a, E> {
    /// K.
    pub keys: &'a CudaSlice<E>,
    /// V, laid out like K.
    pub values: &'a CudaSlice<E>,
    /// Where a page, token and head lies.
    pub strides: KvStrides,
}

/// The paged KV cache of one layer in FP8: a number is its byte's value times its head's scale. Plans for it are of a [`Dtype`] with FP8
/// K and V, which says whether the bytes are the bits of [`E4m3`](tilewright_plan::E4m3) or of [`E5m2`](tilewright_plan::E5m2).
#[derive(Clone, Copy, Debug)]
pub struct Fp8KvCache<'a> {
    /// K.
    pub keys: &'a CudaSlice<u8>,
    /// V, laid out like K.
    pub values: &'a CudaSlice<u8>,
    /// Where a page, token and head lies.
    pub strides: KvStrides,
    /// What the elements of K are multiplied by: one number for all heads, or `[kv_heads]`.
    pub key_scales: &'a CudaSlice<f32>,
    /// The same of V; of as many numbers.
    pub value_scales: &'a CudaSlice<f32>,
}

/// The paged KV cache of one layer, to be appended to.
#[derive(Debug)]
pub struct KvCacheMut<'a, E> {
    /// K.
    pub keys: &'a mut CudaSlice<E>,
    /// V, laid out like K.
    pub values: &'a mut CudaSlice<E>,
    /// Where a page, token and head lies.
    pub strides: KvStrides,
}

/// The paged KV cache of one layer in FP8, as [`Fp8KvCache`], to be appended to.
#[derive(Debug)]
pub struct Fp8KvCacheMut<'a> {
    /// K and V.
    pub pages: KvCacheMut<'a, u8>,
    /// What the numbers of K are divided by: one number for all heads, or `[kv_heads]`.
    pub key_scales: &'a CudaSlice<f32>,
    /// The same of V; of as many numbers.
    pub value_scales: &'a CudaSlice<f32>,
}

mod sealed {
    use super::{Fp8KvCache, Fp8KvCacheMut, KvCache, KvCacheMut};

    pub trait Pages {}
    impl<E> Pages for KvCache<'_, E> {}
    impl Pages for Fp8KvCache<'_> {}
    impl<E> Pages for KvCacheMut<'_, E> {}
    impl Pages for Fp8KvCacheMut<'_> {}
}

/// A cache that tokens of the type `E` can be appended to: [`KvCacheMut`] of the same type, or [`Fp8KvCacheMut`].
pub trait KvPagesMut<E>: sealed::Pages {
    /// Of K and V.
    type Stored: DeviceRepr;
    /// What a geometry of the cache has to say, where it says `planned`: bytes are of any format of FP8.
    fn dtype(planned: Dtype) -> Dtype;

    /// Pages as they are stored, and what numbers are divided by, if by anything.
    fn parts(&mut self) -> (KvCacheMut<'_, Self::Stored>, Option<ScaleSlices<'_>>);

    /// What numbers are divided by, if by anything.
    fn scales(&self) -> Option<ScaleSlices<'_>>;
}

impl<E: CudaElement> KvPagesMut<E> for KvCacheMut<'_, E> {
    type Stored = E;

    fn dtype(_: Dtype) -> Dtype {
        E::DTYPE
    }

    fn parts(&mut self) -> (KvCacheMut<'_, E>, Option<ScaleSlices<'_>>) {
        (KvCacheMut { keys: self.keys, values: self.values, strides: self.strides }, None)
    }

    fn scales(&self) -> Option<ScaleSlices<'_>> {
        None
    }
}

impl<E: CudaElement> KvPagesMut<E> for Fp8KvCacheMut<'_> {
    type Stored = u8;

    fn dtype(planned: Dtype) -> Dtype {
        E::DTYPE.with_kv(planned.fp8().unwrap_or(Fp8::E4m3))
    }

    fn parts(&mut self) -> (KvCacheMut<'_, u8>, Option<ScaleSlices<'_>>) {
        let KvCacheMut { keys, values, strides } = &mut self.pages;
        let scales = ScaleSlices { keys: self.key_scales, values: self.value_scales };
        (KvCacheMut { keys, values, strides: *strides }, Some(scales))
    }

    fn scales(&self) -> Option<ScaleSlices<'_>> {
        Some(ScaleSlices { keys: self.key_scales, values: self.value_scales })
    }
}

/// Slices of K or V's scales.
#[derive(Clone, Copy, Debug)]
pub struct ScaleSlices<'a> {
    /// Of K.
    pub keys: &'a CudaSlice<f32>,
    /// Of V.
    pub values: &'a CudaSlice<f32>,
}

/// A cache that queries of the type `E` can attend: [`KvCache`] of the same type, or [`Fp8KvCache`].
pub trait KvPages<E>: Copy + sealed::Pages {
    /// Of K and V.
    type Stored: DeviceRepr;
    /// What a plan has to be made for, where it is made for `planned`: bytes are of any format of FP8.
    fn dtype(planned: Dtype) -> Dtype;

    /// Pages as they are stored.
    fn stored(&self) -> KvCache<'_, Self::Stored>;

    /// What they are multiplied by, if by anything.
    fn scales(&self) -> Option<ScaleSlices<'_>>;
}

impl<E: CudaElement> KvPages<E> for KvCache<'_, E> {
    type Stored = E;

    fn dtype(_: Dtype) -> Dtype {
        E::DTYPE
    }

    fn stored(&self) -> KvCache<'_, E> {
        *self
    }

    fn scales(&self) -> Option<ScaleSlices<'_>> {
        None
    }
}

impl<E: CudaElement> KvPages<E> for Fp8KvCache<'_> {
    type Stored = u8;

    fn dtype(planned: Dtype) -> Dtype {
        E::DTYPE.with_kv(planned.fp8().unwrap_or(Fp8::E4m3))
    }

    fn stored(&self) -> KvCache<'_, u8> {
        KvCache { keys: self.keys, values: self.values, strides: self.strides }
    }

    fn scales(&self) -> Option<ScaleSlices<'_>> {
        Some(ScaleSlices { keys: self.key_scales, values: self.value_scales })
    }
}
