//! One layer's tensors as addresses and strides, which the Python half has checked against the plan.
#![expect(unsafe_code)]

use crate::errors::raised;
use crate::gpu::{self, KeepContext};
use crate::memory::{RowsOf, gather, scatter, slice, slice_mut};
use cudarc::driver::CudaContext;
use half::{bf16, f16};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;
use tilewright_runtime::cpu::Element;
use tilewright_runtime::cuda::{RawArgs, RawScales, RowStrides};
use tilewright_runtime::{
    Attention, AttentionError, Cpu, Cuda, Dtype, E4m3, E5m2, Fp8, Geometry, KvCache, KvLayout, KvStrides,
    PerRow, Planned,
};

/// What a call reads and writes. Addresses of the attention's device.
pub(crate) struct Layer {
    pub(crate) query: RowsOf,
    pub(crate) output: RowsOf,
    pub(crate) keys: usize,
    pub(crate) values: usize,
    /// Pages that the cache has.
    pub(crate) pages: usize,
    /// From page to page, token to token, head to head.
    pub(crate) kv_strides: (usize, usize, usize),
    /// f32 `[batch, query heads]`.
    pub(crate) lse: Option<usize>,
    /// f32 `[query heads]`.
    pub(crate) sinks: Option<usize>,
    /// f32 of K and of V, and how many each has: 1 or one a KV head.
    pub(crate) scales: Option<(usize, usize, usize)>,
    /// The stream, on a GPU.
    pub(crate) stream: usize,
}

/// The fields of [`Layer`], as the Python half gives them.
pub(crate) type LayerOf = (
    RowsOf,
    RowsOf,
    usize,
    usize,
    usize,
    (usize, usize, usize),
    Option<usize>,
    Option<usize>,
    Option<(usize, usize, usize)>,
    usize,
);

impl From<LayerOf> for Layer {
    fn from(given: LayerOf) -> Self {
        let (query, output, keys, values, pages, kv_strides, lse, sinks, scales, stream) = given;
        Self { query, output, keys, values, pages, kv_strides, lse, sinks, scales, stream }
    }
}

impl Layer {
    fn kv_strides(&self) -> KvStrides {
        let (page, token, head) = self.kv_strides;
        KvStrides { page, token, head }
    }

    /// Refuses a plan that reads beyond the cache.
    pub(crate) fn check_pages(&self, largest: Option<i32>) -> PyResult<()> {
        match largest.and_then(|page| usize::try_from(page).ok()) {
            Some(page) if page >= self.pages => Err(PyValueError::new_err(format!(
                "the plan reads page {page}, but `kv_cache` has {} pages: the page table names a page that is not there",
                self.pages
            ))),
            _ => Ok(()),
        }
    }

    /// Computes it on the CPU.
    ///
    /// # Safety
    /// All addresses point to memory as large as the plan and the strides say, which nothing writes meanwhile; outputs overlap nothing.
    pub(crate) unsafe fn run_on_cpu(
        &self,
        attention: &Attention<Cpu>,
        plan: &impl Planned<Cpu>,
        largest_page: Option<i32>,
    ) -> PyResult<()> {
        self.check_pages(largest_page)?;
        // SAFETY: the caller's promises.
        unsafe {
            match plan.plan().geometry().dtype.query() {
                Dtype::Bf16 => self.run_as::<bf16>(attention, plan),
                Dtype::F32 => self.run_as::<f32>(attention, plan),
                _ => self.run_as::<f16>(attention, plan),
            }
        }
    }

    /// # Safety
    /// As above; E is the type of query and output.
    unsafe fn run_as<E: Element>(
        &self,
        attention: &Attention<Cpu>,
        plan: &impl Planned<Cpu>,
    ) -> PyResult<()> {
        let geometry = *plan.plan().geometry();
        let (batch, heads, dim) =
            (plan.plan().batch(), geometry.q_heads as usize, geometry.head_dim as usize);
        let rows = batch * heads;
        let dense =
            |(_, query, head): RowsOf| (head == dim || heads == 1) && (query == heads * dim || batch <= 1);
        let gathered;
        let query = if dense(self.query) {
            // SAFETY: `rows` heads without gaps.
            unsafe { slice("q", self.query.0, rows * dim)? }
        } else {
            // SAFETY: rows at these strides.
            gathered = unsafe { gather::<E>(self.query, batch, heads, dim)? };
            &gathered
        };
        // SAFETY: as large as the caller says.
        let (lse, sinks) = unsafe {
            (
                self.lse.map(|lse| slice_mut("lse", lse, rows)).transpose()?,
                self.sinks.map(|sinks| slice("sinks", sinks, heads)).transpose()?,
            )
        };
        let per_row = PerRow { lse, sinks };
        if dense(self.output) {
            // SAFETY: `rows` heads without gaps, which overlap nothing.
            let output = unsafe { slice_mut("out", self.output.0, rows * dim)? };
            // SAFETY: the caller's promises.
            return unsafe { self.compute(attention, plan, query, output, per_row) };
        }
        let mut output = vec![E::from_f32(0.0); rows * dim];
        // SAFETY: the caller's promises; rows at these strides.
        unsafe {
            self.compute(attention, plan, query, &mut output, per_row)?;
            scatter(&output, self.output, batch, heads, dim)
        }
    }

    /// # Safety
    /// K, V and scales lie at their addresses.
    unsafe fn compute<E: Element>(
        &self,
        attention: &Attention<Cpu>,
        plan: &impl Planned<Cpu>,
        query: &[E],
        output: &mut [E],
        per_row: PerRow<'_, [f32]>,
    ) -> PyResult<()> {
        let geometry = *plan.plan().geometry();
        let strides = self.kv_strides();
        let last = i32::try_from(self.pages).unwrap_or(i32::MAX) - 1;
        let len = if last < 0 { 0 } else { strides.end_of_page(&geometry, last).unwrap_or(0) };
        let layout = KvLayout::Strides(strides);
        // SAFETY: the cache reaches as far as its last page ends; scales are as many as is said.
        let result = unsafe {
            match self.scales {
                None => {
                    let (keys, values) =
                        (slice::<E>("keys", self.keys, len)?, slice::<E>("values", self.values, len)?);
                    attention.run_with(plan, &(), query, &KvCache::new(keys, values, layout), output, per_row)
                }
                Some((key_scales, value_scales, count)) => {
                    let key_scales: &[f32] = slice("k_scale", key_scales, count)?;
                    let value_scales: &[f32] = slice("v_scale", value_scales, count)?;
                    if geometry.dtype.fp8() == Some(Fp8::E5m2) {
                        let (keys, values) =
                            (slice("keys", self.keys, len)?, slice("values", self.values, len)?);
                        let cache: KvCache<'_, [E5m2]> = KvCache::new(keys, values, layout);
                        let cache = cache.with_scales(key_scales, value_scales);
                        attention.run_with(plan, &(), query, &cache, output, per_row)
                    } else {
                        let (keys, values) =
                            (slice("keys", self.keys, len)?, slice("values", self.values, len)?);
                        let cache: KvCache<'_, [E4m3]> = KvCache::new(keys, values, layout);
                        let cache = cache.with_scales(key_scales, value_scales);
                        attention.run_with(plan, &(), query, &cache, output, per_row)
                    }
                }
            }
        };
        result.map_err(raised)
    }

    /// Queues it on the caller's stream.
    ///
    /// # Safety
    /// All addresses point to device memory as large as the plan and the strides say; the stream is one of the context, and lives as long as
    /// the attention.
    pub(crate) unsafe fn run_on_gpu(
        &self,
        attention: &Attention<Cuda>,
        context: &Arc<CudaContext>,
        plan: &impl Planned<Cuda>,
        largest_page: Option<i32>,
    ) -> PyResult<()> {
        self.check_pages(largest_page)?;
        let _keep = KeepContext::new();
        let args = self.raw(plan.plan().geometry());
        // SAFETY: the caller's promises.
        let result: Result<(), AttentionError> = unsafe {
            let stream = gpu::stream(context, self.stream);
            attention.run_raw(plan, &stream, &args)
        };
        result.map_err(raised)
    }

    /// The arguments of a launch.
    pub(crate) fn raw(&self, geometry: &Geometry) -> RawArgs {
        let rows = |(_, request, head): RowsOf| RowStrides { request, head };
        RawArgs {
            query: self.query.0 as u64,
            query_strides: rows(self.query),
            keys: self.keys as u64,
            values: self.values as u64,
            kv_strides: self.kv_strides(),
            output: self.output.0 as u64,
            output_strides: rows(self.output),
            lse: self.lse.map(|lse| lse as u64),
            sinks: self.sinks.map(|sinks| sinks as u64),
            scales: self.scales.map(|(keys, values, count)| RawScales {
                keys: keys as u64,
                values: values as u64,
                per_head: count != 1,
            }),
            ..RawArgs::dense(geometry)
        }
    }
}
