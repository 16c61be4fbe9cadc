//! Appends on a GPU.
#![allow(unsafe_code)]

use crate::attention::Attention;
use crate::on_cuda::refuse_capture;
use crate::{AttentionError, Cuda, DeviceScales, KvCacheMut, NewTokens, Positions};
use cudarc::driver::{CudaSlice, CudaStream};
use std::sync::{Arc, PoisonError};
use tilewright_cuda::{AppendArgs, CudaElement, Fp8KvCacheMut, KvPagesMut, RawAppend, TunedBackend};
use tilewright_heuristics::Geometry;
use tilewright_kernel_templates::{Class, RotaryPairs};

/// A cache in device memory that tokens of `E` can be appended to: of the same type, or FP8 (`CudaSlice<u8>`) with scales.
pub trait DeviceCacheMut<E: CudaElement> {
    #[doc(hidden)]
    fn pages(&mut self, geometry: &Geometry) -> impl KvPagesMut<E>;
}

impl<E: CudaElement> DeviceCacheMut<E> for KvCacheMut<'_, CudaSlice<E>> {
    fn pages(&mut self, geometry: &Geometry) -> impl KvPagesMut<E> {
        let strides = self.layout.strides(geometry);
        tilewright_cuda::KvCacheMut { keys: self.keys, values: self.values, strides }
    }
}

impl<E: CudaElement> DeviceCacheMut<E> for KvCacheMut<'_, CudaSlice<u8>, DeviceScales<'_>> {
    fn pages(&mut self, geometry: &Geometry) -> impl KvPagesMut<E> {
        let strides = self.layout.strides(geometry);
        let pages = tilewright_cuda::KvCacheMut { keys: &mut *self.keys, values: &mut *self.values, strides };
        Fp8KvCacheMut { pages, key_scales: self.scales.0, value_scales: self.scales.1 }
    }
}

impl Attention<Cuda> {
    /// Compiles the kernel of [`Attention::append`], which its first call does otherwise: before a graph is captured, for example.
    ///
    /// # Errors
    /// A head dimension that there is no kernel for, or a kernel that cannot be compiled or loaded.
    pub fn prepare_append(&self, rotary: Option<RotaryPairs>) -> Result<(), AttentionError> {
        self.append_kernel(rotary, None)
    }

    /// Queues the copy of K and V of new tokens to the pages of a cache, before the step that attends them: one launch, which a graph may capture.
    ///
    /// The numbers are those that the CPU backend writes, to the bit. Slots and positions are read on the device, where nothing can be refused:
    /// a token whose slot is in no page or whose position is not in the table is not written. Which of tokens with one slot stays is not defined.
    ///
    /// # Errors
    /// Lengths or types that do not fit, a kernel that cannot be compiled, or the driver's.
    pub fn append<E: CudaElement>(
        &self,
        page_size: u32,
        stream: &Arc<CudaStream>,
        tokens: &NewTokens<'_, Cuda, E>,
        cache: &mut impl DeviceCacheMut<E>,
    ) -> Result<(), AttentionError> {
        let geometry = self.geometry(page_size);
        geometry.validate()?;
        self.append_kernel(tokens.rotary.as_ref().map(|rotary| rotary.pairs), Some(stream))?;
        let rotary = tokens.rotary.as_ref().map(|rotary| tilewright_cuda::Rotary {
            table: rotary.table,
            dim: rotary.dim,
            pairs: rotary.pairs,
            positions: match rotary.positions {
                Positions::Given(positions) => tilewright_cuda::Positions::Given(positions),
                Positions::OfLengths(lengths) => tilewright_cuda::Positions::OfLengths(lengths),
            },
        });
        let NewTokens { keys, values, slots, .. } = *tokens;
        let args = AppendArgs { keys, values, slots, cache: cache.pages(&geometry), rotary };
        Ok(self.with_kernels(|tuned| tuned.backend().append(stream, &geometry, args))?)
    }

    /// As [`Attention::append`], from addresses: tensors of other libraries, in any strides.
    ///
    /// # Errors
    /// Addresses or strides that are not aligned, missing scales, a kernel that cannot be compiled, or the driver's.
    ///
    /// # Safety
    /// All addresses point to device memory as large as tokens, pages and strides say, which stays until the stream has passed this point.
    /// Pages overlap nothing that is read.
    pub unsafe fn append_raw(
        &self,
        page_size: u32,
        stream: &Arc<CudaStream>,
        args: &RawAppend,
    ) -> Result<(), AttentionError> {
        let geometry = self.geometry(page_size);
        geometry.validate()?;
        self.append_kernel(args.rotary.map(|rotary| rotary.pairs), Some(stream))?;
        // SAFETY: the caller's promises.
        let append =
            |tuned: &TunedBackend| unsafe { tuned.backend().append_raw(stream.cu_stream(), &geometry, args) };
        Ok(self.with_kernels(append)?)
    }

    /// `stream` is what is launched on next, if anything is.
    fn append_kernel(
        &self,
        rotary: Option<RotaryPairs>,
        stream: Option<&CudaStream>,
    ) -> Result<(), AttentionError> {
        let class = Class::of(&self.geometry(1));
        if self.with_kernels(|tuned| tuned.backend().can_append(&class, rotary)) {
            return Ok(());
        }
        stream.map_or(Ok(()), |stream| refuse_capture(stream, "a kernel is to be compiled"))?;
        let mut tuned = self.backend.tuned.write().unwrap_or_else(PoisonError::into_inner);
        Ok(tuned.prepare_append(&class, rotary)?)
    }
}
