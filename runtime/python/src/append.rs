//! K and V of new tokens as addresses, which the Python half has checked.
#![expect(unsafe_code)]

use crate::errors::raised;
use crate::gpu::{self, KeepContext};
use crate::memory::{RowsOf, copied, gather, slice, slice_mut};
use cudarc::driver::CudaContext;
use half::{bf16, f16};
use pyo3::prelude::*;
use std::sync::Arc;
use tilewright_runtime::cpu::{self, Element, Number};
use tilewright_runtime::cuda::{RawAppend, RawPositions, RawRotary, RawScales, RowStrides};
use tilewright_runtime::plan::Scale;
use tilewright_runtime::{
    Attention, AttentionError, Cuda, Dtype, E4m3, E5m2, Geometry, KvStrides, RotaryPairs,
};

/// Rotary position embedding of K: address, rows and columns of the table, whether pairs are interleaved, and the address of positions (i64) or,
/// if they are lengths, of i32.
pub(crate) type RotaryOf = (usize, usize, u32, bool, usize, bool);

/// K and V of new tokens, and the pages that they go to. Addresses of the attention's device.
pub(crate) struct Append {
    /// `[tokens, KV heads, dim]`.
    pub(crate) keys: RowsOf,
    pub(crate) values: RowsOf,
    pub(crate) tokens: usize,
    /// i64: page times `page_size` plus the place in the page, for each token.
    pub(crate) slots: usize,
    /// Pages of K and of V.
    pub(crate) caches: (usize, usize),
    pub(crate) pages: usize,
    pub(crate) kv_strides: (usize, usize, usize),
    /// f32 of K and of V, and how many each has: 1 or one a KV head.
    pub(crate) scales: Option<(usize, usize, usize)>,
    pub(crate) rotary: Option<RotaryOf>,
    /// The stream, on a GPU.
    pub(crate) stream: usize,
}

const fn pairs(interleaved: bool) -> RotaryPairs {
    if interleaved { RotaryPairs::Interleaved } else { RotaryPairs::Halves }
}

impl Append {
    const fn strides(&self) -> KvStrides {
        let (page, token, head) = self.kv_strides;
        KvStrides { page, token, head }
    }

    /// Writes them on the CPU.
    ///
    /// # Safety
    /// All addresses point to memory as large as the geometry and the strides say; nothing else reaches the cache meanwhile.
    pub(crate) unsafe fn run_on_cpu(&self, geometry: &Geometry) -> PyResult<()> {
        // SAFETY: the caller's promises.
        unsafe {
            match geometry.dtype {
                Dtype::F16 => self.run_as::<f16, f16>(geometry),
                Dtype::Bf16 => self.run_as::<bf16, bf16>(geometry),
                Dtype::F32 => self.run_as::<f32, f32>(geometry),
                Dtype::Fp8F16 => self.run_as::<f16, E4m3>(geometry),
                Dtype::Fp8Bf16 => self.run_as::<bf16, E4m3>(geometry),
                Dtype::Fp8F32 => self.run_as::<f32, E4m3>(geometry),
                Dtype::E5m2F16 => self.run_as::<f16, E5m2>(geometry),
                Dtype::E5m2Bf16 => self.run_as::<bf16, E5m2>(geometry),
                Dtype::E5m2F32 => self.run_as::<f32, E5m2>(geometry),
            }
        }
    }

    /// # Safety
    /// As above; E is the type of the tokens, S of the cache.
    unsafe fn run_as<E: Element, S: Number>(&self, geometry: &Geometry) -> PyResult<()> {
        let (count, strides) = (self.tokens, self.strides());
        let (heads, dim) = (geometry.kv_heads as usize, geometry.head_dim as usize);
        let last = i32::try_from(self.pages).unwrap_or(i32::MAX) - 1;
        let len = if last < 0 { 0 } else { strides.end_of_page(geometry, last).unwrap_or(0) };
        // SAFETY: the cache reaches as far as its last page ends; all else is as long as is said. What decides where is written is copied, so
        // that nobody changes it after it was checked.
        unsafe {
            let slots: Vec<i64> = copied((self.slots, count));
            let (positions, lengths): (Vec<i64>, Vec<i32>);
            let rotary = match self.rotary {
                None => None,
                Some((table, rows, dim, interleaved, given, of_lengths)) => {
                    let positions = if of_lengths {
                        lengths = copied((given, count));
                        cpu::Positions::OfLengths(&lengths)
                    } else {
                        positions = copied((given, count));
                        cpu::Positions::Given(&positions)
                    };
                    let table = slice::<f32>("cos_sin", table, rows * dim as usize)?;
                    Some(cpu::Rotary { table, dim, pairs: pairs(interleaved), positions })
                }
            };
            for (name, tokens, cache, scale, rotary) in [
                ("K", self.keys, self.caches.0, self.scales.map(|(keys, _, count)| (keys, count)), rotary),
                (
                    "V",
                    self.values,
                    self.caches.1,
                    self.scales.map(|(_, values, count)| (values, count)),
                    None,
                ),
            ] {
                let tokens = gather::<E>(tokens, count, heads, dim)?;
                let cache = slice_mut::<S>(name, cache, len)?;
                let scale = match scale {
                    None => Scale::Tensor(1.0),
                    Some((address, 1)) => Scale::Tensor(slice::<f32>("scale", address, 1)?[0]),
                    Some((address, count)) => Scale::Heads(slice("scale", address, count)?),
                };
                cpu::append(geometry, &tokens, &slots, cache, &strides, scale, rotary.as_ref())
                    .map_err(|error| raised(AttentionError::Cpu(error)))?;
            }
        }
        Ok(())
    }

    /// Queues it on the caller's stream.
    ///
    /// # Safety
    /// All addresses point to device memory as large as the geometry and the strides say; the stream is one of the context, and lives as long as
    /// the attention.
    pub(crate) unsafe fn run_on_gpu(
        &self,
        attention: &Attention<Cuda>,
        context: &Arc<CudaContext>,
        page_size: u32,
    ) -> PyResult<()> {
        let _keep = KeepContext::new();
        let rows = |(_, request, head): RowsOf| RowStrides { request, head };
        let args = RawAppend {
            tokens: self.tokens,
            keys: self.keys.0 as u64,
            key_strides: rows(self.keys),
            values: self.values.0 as u64,
            value_strides: rows(self.values),
            slots: self.slots as u64,
            key_pages: self.caches.0 as u64,
            value_pages: self.caches.1 as u64,
            kv_strides: self.strides(),
            pages: self.pages,
            scales: self.scales.map(|(keys, values, count)| RawScales {
                keys: keys as u64,
                values: values as u64,
                per_head: count != 1,
            }),
            rotary: self.rotary.map(|(table, rows, dim, interleaved, given, of_lengths)| RawRotary {
                table: table as u64,
                rows,
                dim,
                pairs: pairs(interleaved),
                positions: match of_lengths {
                    true => RawPositions::OfLengths(given as u64),
                    false => RawPositions::Given(given as u64),
                },
            }),
        };
        // SAFETY: the caller's promises.
        let result = unsafe {
            let stream = gpu::stream(context, self.stream);
            attention.append_raw(page_size, &stream, &args)
        };
        result.map_err(raised)
    }
}
