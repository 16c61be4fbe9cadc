//! Attention of one kind of layer on one device.

use crate::append::{Append, RotaryOf};
use crate::check_process;
use crate::errors::raised;
use crate::gpu::{self, KeepContext, OnGpu};
use crate::graph_plan::GraphPlan;
use crate::live_plan::LivePlan;
use crate::memory::{RowsOf, copied, slice};
use crate::plan::Plan;
use cudarc::driver::CudaContext;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use tilewright_runtime::{
    self as runtime, AttentionError, AttentionOptions, Cpu, CubinArchive, Cuda, Dtype, Heads, Mask, PageRows,
    PageTable, Queries, Selector,
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
pub(crate) enum TableOf {
    /// `indptr`, `indices`, `last_page_len`.
    Csr((usize, usize), (usize, usize), (usize, usize)),
    /// `block_tables` `[batch, max_pages]`: address and entries from row to row; columns; and `seq_lens`.
    Dense((usize, usize), usize, (usize, usize)),
    /// The same, and which rows are those of the batch.
    Ordered((usize, usize), usize, (usize, usize), (usize, usize)),
}

/// Block tables with a row for each request that there may be, by addresses: entries and numbers of rows are i32, lengths i32, writes u64.
pub(crate) struct BlockTables {
    pub(crate) entries: usize,
    pub(crate) stride: usize,
    pub(crate) columns: usize,
    pub(crate) rows: usize,
    pub(crate) seq_lens: usize,
    /// Requests, and numbers of rows, if there are some.
    pub(crate) batch: usize,
    pub(crate) order: usize,
    pub(crate) writes: usize,
}

impl BlockTables {
    /// The batch's rows where they lie.
    ///
    /// # Safety
    /// The addresses are of arrays with these lengths, which nobody writes to meanwhile.
    #[expect(unsafe_code)]
    pub(crate) unsafe fn rows<'a>(&self, page_size: u32) -> PyResult<PageRows<'a>> {
        let Self { stride, columns, rows, batch, .. } = *self;
        let entries = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
        // SAFETY: the caller's promise.
        let (entries, seq_lens, order, writes) = unsafe {
            (
                slice("block_tables", self.entries, entries)?,
                as_lengths(slice("seq_lens", self.seq_lens, batch)?)?,
                (self.order != 0).then(|| slice("order", self.order, batch)).transpose()?,
                slice("writes", self.writes, if self.writes == 0 { 0 } else { rows })?,
            )
        };
        let rows = match order {
            Some(order) => PageRows::ordered(entries, columns, stride, order, seq_lens, page_size),
            None => PageRows::dense(entries, columns, stride, seq_lens, page_size),
        };
        Ok(rows.map_err(raised)?.with_writes(writes))
    }
}

/// The page table of a batch.
pub(crate) enum Table {
    Csr { indptr: Vec<i32>, indices: Vec<i32>, last_page_len: Vec<i32> },
    Dense { entries: Vec<i32>, columns: usize, seq_lens: Vec<u32> },
}

impl TableOf {
    /// # Safety
    /// The addresses are of arrays of i32 with these lengths.
    #[expect(unsafe_code)]
    pub(crate) unsafe fn copied(self, page_size: u32) -> PyResult<Table> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(match self {
                Self::Csr(indptr, indices, last_page_len) => Table::Csr {
                    indptr: copied(indptr),
                    indices: copied(indices),
                    last_page_len: copied(last_page_len),
                },
                Self::Dense((address, stride), columns, seq_lens) => {
                    let rows = 0..seq_lens.1;
                    Table::gathered((address, stride), columns, &copied(seq_lens), rows, page_size)?
                }
                Self::Ordered((address, stride), columns, seq_lens, order) => {
                    let order: Vec<i32> = copied(order);
                    let rows = order.into_iter().map(|row| usize::try_from(row).unwrap_or(0));
                    Table::gathered((address, stride), columns, &copied(seq_lens), rows, page_size)?
                }
            })
        }
    }

    /// The rows where they lie: nothing is copied.
    ///
    /// # Safety
    /// The addresses are of arrays of i32 with these lengths, which nobody writes to meanwhile.
    #[expect(unsafe_code)]
    pub(crate) unsafe fn rows<'a>(&self, page_size: u32) -> PyResult<PageRows<'a>> {
        // SAFETY: the caller's promise.
        unsafe {
            match *self {
                Self::Csr(indptr, indices, last_page_len) => PageRows::csr(
                    slice("indptr", indptr.0, indptr.1)?,
                    slice("indices", indices.0, indices.1)?,
                    slice("last_page_len", last_page_len.0, last_page_len.1)?,
                    page_size,
                ),
                Self::Dense((address, stride), columns, seq_lens) => {
                    let rows = seq_lens.1;
                    let entries = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
                    PageRows::dense(
                        slice("block_tables", address, entries)?,
                        columns,
                        stride,
                        as_lengths(slice("seq_lens", seq_lens.0, rows)?)?,
                        page_size,
                    )
                }
                Self::Ordered((address, stride), columns, seq_lens, order) => {
                    let order: &[i32] = slice("order", order.0, order.1)?;
                    let last = order.iter().copied().max().and_then(|row| usize::try_from(row).ok());
                    let entries = last.map_or(0, |last| last * stride + columns);
                    PageRows::ordered(
                        slice("block_tables", address, entries)?,
                        columns,
                        stride,
                        order,
                        as_lengths(slice("seq_lens", seq_lens.0, seq_lens.1)?)?,
                        page_size,
                    )
                }
            }
        }
        .map_err(raised)
    }
}

impl Table {
    /// A copy of these rows, of the columns that the longest needs.
    ///
    /// # Safety
    /// The rows lie at these strides.
    #[expect(unsafe_code)]
    unsafe fn gathered(
        (address, stride): (usize, usize),
        columns: usize,
        seq_lens: &[i32],
        rows: impl Iterator<Item = usize>,
        page_size: u32,
    ) -> PyResult<Self> {
        let seq_lens = as_lengths(seq_lens)?.to_vec();
        let needed = seq_lens.iter().max().map_or(0, |&longest| longest.div_ceil(page_size.max(1)) as usize);
        let columns = columns.min(needed);
        let mut entries = Vec::with_capacity(seq_lens.len() * columns);
        for row in rows.take(seq_lens.len()) {
            // SAFETY: the caller's promise.
            entries.extend(unsafe { copied::<i32>((address + 4 * row * stride, columns)) });
        }
        Ok(Self::Dense { entries, columns, seq_lens })
    }

    pub(crate) fn view(&self, page_size: u32) -> PyResult<PageTable<'_>> {
        match self {
            Self::Csr { indptr, indices, last_page_len } => {
                PageTable::from_csr(indptr, indices, last_page_len, page_size)
            }
            Self::Dense { entries, columns, seq_lens } => {
                PageTable::new(entries, *columns, seq_lens, page_size)
            }
        }
        .map_err(raised)
    }

    /// Adds requests without tokens.
    pub(crate) fn pad_to(&mut self, rows: usize) -> PyResult<()> {
        let batch = match self {
            Self::Csr { last_page_len, .. } => last_page_len.len(),
            Self::Dense { seq_lens, .. } => seq_lens.len(),
        };
        if batch > rows {
            return Err(PyValueError::new_err(format!(
                "the batch has {batch} requests, the plan {rows} rows"
            )));
        }
        match self {
            Self::Csr { indptr, last_page_len, .. } => {
                let end = indptr.last().copied().unwrap_or(0);
                indptr.resize(indptr.len() + rows - batch, end);
                last_page_len.resize(rows, 0);
            }
            Self::Dense { entries, columns, seq_lens } => {
                entries.resize(entries.len() + (rows - batch) * *columns, -1);
                seq_lens.resize(rows, 0);
            }
        }
        Ok(())
    }
}

#[pymethods]
impl Attention {
    /// Heads are (query, kv, dim). `device` is None for the CPU.
    #[new]
    #[expect(clippy::too_many_arguments)]
    #[pyo3(signature = (heads, page_size, dtype, scale, window, softcap, threads, selector, cubins, invariant, fetch_nvrtc, device))]
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
        cubins: Option<PathBuf>,
        invariant: bool,
        fetch_nvrtc: bool,
        device: Option<usize>,
    ) -> PyResult<Self> {
        let (query, kv, dim) = heads;
        let heads = Heads { query, kv, dim };
        let dtype: Dtype = dtype.parse().map_err(invalid)?;
        let mask = Mask { window, softcap };
        mask.check().map_err(invalid)?;
        let selector = selector.map(|path| Selector::load(&path).map_err(invalid)).transpose()?;
        let cubins = cubins.map(|path| CubinArchive::load(&path).map_err(invalid)).transpose()?;
        let options =
            AttentionOptions { dtype, scale, mask, threads, selector, cubins, invariant, fetch_nvrtc };
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
    fn plan(&self, py: Python<'_>, table: TableOf, query_lens: Option<Vec<u32>>) -> PyResult<Plan> {
        check_process(self.process)?;
        // SAFETY: the Python half gives arrays of i32 with their lengths, and holds them.
        let table = unsafe { table.copied(self.page_size)? };
        py.detach(|| {
            let table = table.view(self.page_size)?;
            let mut memory = Queries::default();
            let table = match &query_lens {
                Some(query_lens) => table.with_queries(query_lens, &mut memory).map_err(raised)?,
                None => table,
            };
            Plan::new(&self.kind, &table, self.process)
        })
    }

    /// A plan with room for `rows` queries and `pages` entries of the page table, which begins with a batch, or is for any. Kernels read lengths
    /// at an address, or copies of them.
    #[expect(unsafe_code)]
    #[pyo3(signature = (table, rows, pages, lengths, stream))]
    fn graph_plan(
        &self,
        py: Python<'_>,
        table: Option<TableOf>,
        rows: usize,
        pages: u32,
        lengths: Option<u64>,
        stream: usize,
    ) -> PyResult<GraphPlan> {
        check_process(self.process)?;
        // SAFETY: the Python half gives arrays of i32 with their lengths, and holds them.
        let table = table.map(|table| unsafe { table.copied(self.page_size) }).transpose()?;
        let (room, at) = ((rows, pages), (lengths, stream));
        py.detach(|| GraphPlan::new(&self.kind, table, self.page_size, room, at, self.process))
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

/// An architecture, and how many kernels there are for it.
type KernelsOf = (String, usize);

/// What an archive of compiled kernels has: the version of the compiler, and the kernels of each architecture.
#[pyfunction]
pub(crate) fn compiled_kernels(path: PathBuf) -> PyResult<((u32, u32), Vec<KernelsOf>)> {
    let archive = CubinArchive::load(&path).map_err(invalid)?;
    let archs = archive.archs().into_iter().map(|(arch, kernels)| (arch.to_string(), kernels));
    Ok((archive.nvrtc(), archs.collect()))
}

fn invalid(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Tokens of requests, which i32 arrays have.
#[expect(unsafe_code)]
fn as_lengths(lengths: &[i32]) -> PyResult<&[u32]> {
    if lengths.iter().fold(0, |bits, &tokens| bits | tokens) < 0
        && let Some((request, tokens)) = lengths.iter().enumerate().find(|(_, tokens)| **tokens < 0)
    {
        return Err(PyValueError::new_err(format!(
            "request {request}: `seq_lens` is {tokens}, and no request has fewer than 0 tokens"
        )));
    }
    // SAFETY: a u32 has the size and the alignment of an i32, and numbers that are not negative are the same.
    Ok(unsafe { std::slice::from_raw_parts(lengths.as_ptr().cast(), lengths.len()) })
}
