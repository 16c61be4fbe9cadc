//! K or V of new tokens as addresses, which the Python half has checked.
#![expect(unsafe_code)]

use crate::errors::raised;
use crate::memory::{RowsOf, gather, slice, slice_mut};
use half::{bf16, f16};
use pyo3::prelude::*;
use tilewright_runtime::cpu::{Element, Number, append};
use tilewright_runtime::plan::Scale;
use tilewright_runtime::{AttentionError, Dtype, E4m3, Geometry, KvStrides};

/// K or V of new tokens, and the pages that they go to.
pub(crate) struct Append {
    /// `[tokens, KV heads, dim]`.
    pub(crate) tokens: RowsOf,
    /// Page times `page_size` plus the place in the page, for each token.
    pub(crate) slots: Vec<i64>,
    pub(crate) cache: usize,
    pub(crate) pages: usize,
    pub(crate) kv_strides: (usize, usize, usize),
    /// f32, and how many.
    pub(crate) scale: Option<(usize, usize)>,
}

impl Append {
    /// Writes them.
    ///
    /// # Safety
    /// All addresses point to memory as large as the geometry and the strides say; nothing else reaches the cache meanwhile.
    pub(crate) unsafe fn run(&self, geometry: &Geometry) -> PyResult<()> {
        // SAFETY: the caller's promises.
        unsafe {
            match (geometry.dtype.query(), geometry.dtype.has_fp8_kv()) {
                (Dtype::Bf16, false) => self.run_as::<bf16, bf16>(geometry),
                (Dtype::Bf16, true) => self.run_as::<bf16, E4m3>(geometry),
                (Dtype::F32, false) => self.run_as::<f32, f32>(geometry),
                (Dtype::F32, true) => self.run_as::<f32, E4m3>(geometry),
                (_, false) => self.run_as::<f16, f16>(geometry),
                (_, true) => self.run_as::<f16, E4m3>(geometry),
            }
        }
    }

    /// # Safety
    /// As above; E is the type of the tokens, S of the cache.
    unsafe fn run_as<E: Element, S: Number>(&self, geometry: &Geometry) -> PyResult<()> {
        let (page, token, head) = self.kv_strides;
        let strides = KvStrides { page, token, head };
        let (heads, dim) = (geometry.kv_heads as usize, geometry.head_dim as usize);
        let last = i32::try_from(self.pages).unwrap_or(i32::MAX) - 1;
        let len = if last < 0 { 0 } else { strides.end_of_page(geometry, last).unwrap_or(0) };
        // SAFETY: the cache reaches as far as its last page ends; tokens and scales are as many as is said.
        unsafe {
            let tokens = gather::<E>(self.tokens, self.slots.len(), heads, dim)?;
            let cache = slice_mut::<S>("kv_cache", self.cache, len)?;
            let scale = match self.scale {
                None => Scale::Tensor(1.0),
                Some((address, 1)) => Scale::Tensor(slice::<f32>("scale", address, 1)?[0]),
                Some((address, count)) => Scale::Heads(slice("scale", address, count)?),
            };
            append(geometry, &tokens, &self.slots, cache, &strides, scale)
                .map_err(|error| raised(AttentionError::Cpu(error)))
        }
    }
}
