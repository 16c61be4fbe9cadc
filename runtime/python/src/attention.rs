//! Attention of one kind of layer on one device.

use crate::append::{Append, RotaryOf};
use crate::check_process;
use crate::errors::raised;
use crate::gpu::{self, KeepContext, OnGpu};
use crate::live_plan::LivePlan;
use crate::memory::{RowsOf, copied};
use crate::plan::Plan;
use cudarc::driver::CudaContext;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use tilewright_runtime::{
    self as runtime, AttentionError, AttentionOptions, Cpu, Cuda, Dtype, Heads, Mask, PageTable, Queries,
    Selector,
};

/// On which device; cheap to clone.
pub(crate) enum Kind {
    Cpu(runtime::Attention<Cpu>),
    Cuda(OnGpu<(runtime::Attention<Cuda>, Arc<CudaContext>)>),
}

impl Kind {
    pub(crate) fn share(&self) -> Self {
        match self {
            Self::Cpu(attention) => Self::Cpu(attention.clone()),
            Self::Cuda(on_gpu) => Self::Cuda(OnGpu::new((**on_gpu).clone())),
        }
    }
}

/// See the Python half.
#[pyclass(frozen, module = "tilewright._native")]
pub(crate) struct Attention {
    kind: Kind,
    page_size: u32,
    process: u32,
}

/// The page table of a batch: addresses and lengths of i32.
#[derive(FromPyObject)]
enum Table {
    /// `indptr`, `indices`, `last_page_len`.
    Csr((usize, usize), (usize, usize), (usize, usize)),
    /// `block_tables` `[batch, max_pages]`, its columns, and `seq_lens`.
    Dense((usize, usize), usize, (usize, usize)),
}

#[pymethods]
impl Attention {
    /// Heads are (query, kv, dim). `device` is None for the CPU.
    #[new]
    #[expect(clippy::too_many_arguments)]
    #[pyo3(signature = (heads, page_size, dtype, scale, window, softcap, threads, selector, fetch_nvrtc, device))]
    fn new(
        py: Python<'_>,
        heads: (u32, u32, u32),
        page_size: u32,
        dtype: &str,
        scale: Option<f32>,
        window: Option<u32>,
        softcap: Option<f32>,
        threads: Option<u32>,
        selector: Option<PathBuf>,
        fetch_nvrtc: bool,
        device: Option<usize>,
    ) -> PyResult<Self> {
        let (query, kv, dim) = heads;
        let heads = Heads { query, kv, dim };
        let dtype: Dtype = dtype.parse().map_err(invalid)?;
        let mask = Mask { window, softcap };
        mask.check().map_err(invalid)?;
        let selector = selector.map(|path| Selector::load(&path).map_err(invalid)).transpose()?;
        let options = AttentionOptions { dtype, scale, mask, threads, selector, fetch_nvrtc };
        let kind = py.detach(|| match device {
            None => Ok(Kind::Cpu(runtime::Attention::cpu(heads, options)?)),
            Some(ordinal) => {
                let context = Arc::clone(gpu::open(ordinal)?.context());
                let _keep = KeepContext::new();
                let attention = runtime::Attention::cuda(Arc::clone(&context), heads, options)?;
                Ok(Kind::Cuda(OnGpu::new((attention, context))))
            }
        });
        let kind = kind.map_err(|error: AttentionError| raised(error))?;
        Ok(Self { kind, page_size, process: std::process::id() })
    }

    /// Compiles the kernels.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process)?;
        py.detach(|| match &self.kind {
            Kind::Cpu(attention) => attention.prepare(self.page_size),
            Kind::Cuda(on_gpu) => {
                let _keep = KeepContext::new();
                on_gpu.0.prepare(self.page_size)
            }
        })
        .map_err(raised)
    }

    /// Plans a batch. The addresses are read before the GIL is released.
    #[expect(unsafe_code)]
    fn plan(&self, py: Python<'_>, table: Table, query_lens: Option<Vec<u32>>) -> PyResult<Plan> {
        check_process(self.process)?;
        // SAFETY: the Python half gives arrays of i32 with their lengths, and holds them.
        let (entries, columns, lengths, indptr) = unsafe {
            match table {
                Table::Csr(indptr, indices, last_page_len) => {
                    (copied::<i32>(indices), 0, copied::<i32>(last_page_len), Some(copied::<i32>(indptr)))
                }
                Table::Dense(entries, columns, seq_lens) => {
                    (copied::<i32>(entries), columns, copied::<i32>(seq_lens), None)
                }
            }
        };
        let seq_lens = match &indptr {
            Some(_) => Vec::new(),
            None => lengths_of(&lengths)?,
        };
        py.detach(|| {
            let table = match &indptr {
                Some(indptr) => PageTable::from_csr(indptr, &entries, &lengths, self.page_size),
                None => PageTable::new(&entries, columns, &seq_lens, self.page_size),
            };
            let table = table.map_err(raised)?;
            let mut memory = Queries::default();
            let table = match &query_lens {
                Some(query_lens) => table.with_queries(query_lens, &mut memory).map_err(raised)?,
                None => table,
            };
            Plan::new(&self.kind, &table, self.process)
        })
    }

    /// Writes K and V of tokens to pages, or queues that. Slots are i64, positions i64, lengths i32.
    #[expect(clippy::too_many_arguments, unsafe_code)]
    #[pyo3(signature = (keys, values, tokens, slots, caches, pages, kv_strides, scales, rotary, stream))]
    fn append(
        &self,
        py: Python<'_>,
        keys: RowsOf,
        values: RowsOf,
        tokens: usize,
        slots: usize,
        caches: (usize, usize),
        pages: usize,
        kv_strides: (usize, usize, usize),
        scales: Option<(usize, usize, usize)>,
        rotary: Option<RotaryOf>,
        stream: usize,
    ) -> PyResult<()> {
        check_process(self.process)?;
        let append =
            Append { keys, values, tokens, slots, caches, pages, kv_strides, scales, rotary, stream };
        py.detach(|| match &self.kind {
            Kind::Cpu(attention) => {
                // SAFETY: the Python half has checked tensors against the attention's heads, and holds them.
                unsafe { append.run_on_cpu(&attention.geometry(self.page_size)) }
            }
            Kind::Cuda(on_gpu) => {
                // SAFETY: as above; the caller keeps tensors until the stream has passed, as torch's allocator does for its own streams.
                unsafe { append.run_on_gpu(&on_gpu.0, &on_gpu.1, self.page_size) }
            }
        })
    }

    /// A plan that follows a batch.
    fn live_plan(&self, py: Python<'_>) -> PyResult<LivePlan> {
        check_process(self.process)?;
        py.detach(|| LivePlan::new(&self.kind, self.page_size, self.process))
    }
}

fn invalid(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Tokens of requests, which i32 arrays have.
fn lengths_of(lengths: &[i32]) -> PyResult<Vec<u32>> {
    let length = |(request, &tokens): (usize, &i32)| {
        u32::try_from(tokens).map_err(|_| {
            PyValueError::new_err(format!(
                "request {request}: `seq_lens` is {tokens}, and no request has fewer than 0 tokens"
            ))
        })
    };
    lengths.iter().enumerate().map(length).collect()
}
