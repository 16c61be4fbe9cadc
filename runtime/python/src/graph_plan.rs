//! A plan that CUDA graphs capture once.

use crate::attention::{BlockTables, Kind, Table, TableOf};
use crate::check_process;
use crate::errors::raised;
use crate::gpu::{self, KeepContext, OnGpu};
use crate::layer::{Layer, LayerOf};
use cudarc::driver::CudaContext;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::cell::OnceCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard, TryLockError};
use tilewright_runtime::cuda::CudaError;
use tilewright_runtime::{
    self as runtime, Attention, AttentionError, Cpu, FollowingPlan, PageRows, PageTable, Planned,
};

enum Of {
    Cpu(Box<(Attention<Cpu>, Locked<FollowingPlan<Cpu>>)>),
    Cuda(Box<OnGpu<(Arc<CudaContext>, Locked<runtime::GraphPlan>)>>),
}

type Locked<P> = RwLock<State<P>>;

/// A plan, and how often its batch was compared with another or got other lengths.
struct State<P> {
    plan: P,
    changes: u64,
}

impl<P> State<P> {
    const fn new(plan: P) -> Locked<P> {
        RwLock::new(Self { plan, changes: 0 })
    }

    /// Compares a batch while the GIL keeps others from changing it; its number.
    fn compare(
        py: Python<'_>,
        state: &RwLock<Self>,
        mut compare: impl FnMut(&mut P) -> PyResult<()>,
    ) -> PyResult<u64>
    where
        P: Send + Sync,
    {
        loop {
            let mut found = match state.try_write() {
                Ok(found) => found,
                Err(TryLockError::Poisoned(found)) => found.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    // Who has it may wait for the GIL, to log something.
                    py.detach(|| drop(state.write()));
                    continue;
                }
            };
            compare(&mut found.plan)?;
            found.changes += 1;
            return Ok(found.changes);
        }
    }

    /// The plan, to get other lengths.
    fn changed(state: &RwLock<Self>) -> RwLockWriteGuard<'_, Self> {
        let mut found = state.write().unwrap_or_else(PoisonError::into_inner);
        found.changes += 1;
        found
    }

    /// The plan, to be updated by the batch of this number.
    fn of_batch(state: &RwLock<Self>, number: u64) -> PyResult<RwLockWriteGuard<'_, Self>> {
        let found = state.write().unwrap_or_else(PoisonError::into_inner);
        if found.changes != number {
            return Err(PyRuntimeError::new_err("another thread updated the plan at the same time"));
        }
        Ok(found)
    }
}

/// See the Python half.
#[pyclass(frozen, module = "tilewright._native")]
pub(crate) struct GraphPlan {
    of: Of,
    page_size: u32,
    rows: usize,
    /// Pages of the smallest cache that it was run with on a GPU: what was captured reads no page behind them.
    cache_pages: AtomicUsize,
    process: u32,
}

impl GraphPlan {
    /// A plan with room for `rows` queries and `pages` entries of the page table, which begins with a batch, or is for any.
    #[expect(unsafe_code)]
    pub(crate) fn new(
        kind: &Kind,
        table: Option<Table>,
        page_size: u32,
        (rows, pages): (usize, u32),
        (lengths, stream): (Option<u64>, usize),
        process: u32,
    ) -> PyResult<Self> {
        let any = table.is_none();
        let mut table =
            table.unwrap_or(Table::Dense { entries: Vec::new(), columns: 0, seq_lens: Vec::new() });
        table.pad_to(rows)?;
        let table: PageTable<'_> = table.view(page_size)?;
        let of = match kind.share() {
            Kind::Cpu(attention) => {
                let mut plan = attention.following_plan(page_size).map_err(raised)?;
                plan.compare(&PageRows::from(table), rows).map_err(raised)?;
                plan.update().map_err(raised)?;
                Of::Cpu(Box::new((attention, State::new(plan))))
            }
            Kind::Cuda(on_gpu) => {
                let _keep = KeepContext::new();
                let (attention, context) = (*on_gpu).clone();
                // SAFETY: the caller's stream.
                let stream = unsafe { gpu::stream(&context, stream) };
                let queries = u32::try_from(rows).unwrap_or(u32::MAX);
                let plan = match any {
                    true => attention.graph_plan_for_any(page_size, queries, pages, &stream),
                    false => attention.graph_plan(&table, pages, &stream),
                };
                let mut plan = plan.map_err(raised)?;
                if let Some(address) = lengths {
                    // SAFETY: the Python half holds i32 of as many rows; it was not run yet; the caller keeps lengths there.
                    plan = unsafe { plan.with_lengths_at(address) };
                }
                Of::Cuda(Box::new(OnGpu::new((context, State::new(plan)))))
            }
        };
        Ok(Self { of, page_size, rows, cache_pages: AtomicUsize::new(usize::MAX), process })
    }

    /// Refuses a batch that reads beyond a cache that graphs have captured: a replay is not checked. Pages of the batch before were.
    fn check_pages(&self, largest: Option<i32>) -> PyResult<()> {
        let pages = self.cache_pages.load(Ordering::Relaxed);
        match largest.and_then(|page| usize::try_from(page).ok()) {
            Some(page) if page >= pages => Err(PyValueError::new_err(format!(
                "the batch reads page {page}, but `kv_cache` of a layer that was run has {pages} pages: the page table names a page that is not there",
            ))),
            _ => Ok(()),
        }
    }

    /// Follows the batch; false if there is too little room for it.
    fn follow(&self, py: Python<'_>, rows: &PageRows<'_>, stream: usize) -> PyResult<bool> {
        let batch = rows.batch();
        if batch > self.rows {
            return Err(PyValueError::new_err(format!(
                "the batch has {batch} requests, the plan {} rows",
                self.rows
            )));
        }
        match &self.of {
            Of::Cpu(on_cpu) => {
                let state = &on_cpu.1;
                let number = State::compare(py, state, |plan| plan.compare(rows, self.rows).map_err(raised))?;
                py.detach(|| {
                    State::of_batch(state, number)?.plan.update().map_err(raised)?;
                    Ok(true)
                })
            }
            Of::Cuda(on_gpu) => {
                let (context, state) = &***on_gpu;
                let mut copies_nothing = false;
                let number = State::compare(py, state, |plan| {
                    plan.compare(rows, self.rows).map_err(raised)?;
                    copies_nothing = plan.copies_nothing();
                    self.check_pages(plan.largest_new_page())
                })?;
                let update = || update(&mut *State::of_batch(state, number)?, context, stream);
                // Letting others have the GIL takes longer than this.
                if copies_nothing { update() } else { py.detach(update) }
            }
        }
    }
}

/// Updates a plan to the batch that was compared; false if there is too little room for it. The driver is asked for the thread's context only
/// where something is copied.
#[expect(unsafe_code)]
fn update(
    state: &mut State<runtime::GraphPlan>,
    context: &Arc<CudaContext>,
    stream: usize,
) -> PyResult<bool> {
    let keep = OnceCell::new();
    let stream = || {
        keep.get_or_init(KeepContext::new);
        // SAFETY: the caller's stream.
        unsafe { gpu::stream(context, stream) }
    };
    match state.plan.update_compared(stream) {
        Ok(()) => Ok(true),
        Err(AttentionError::Cuda(CudaError::Fit(_))) => Ok(false),
        Err(error) => Err(raised(error)),
    }
}

#[pymethods]
impl GraphPlan {
    /// Plans another batch; false if there is too little room for it.
    #[expect(unsafe_code)]
    fn update(&self, py: Python<'_>, table: TableOf, stream: usize) -> PyResult<bool> {
        check_process(self.process)?;
        // SAFETY: the Python half gives arrays of i32 with their lengths, and holds them. They are read before the GIL is released.
        let rows = unsafe { table.rows(self.page_size)? };
        self.follow(py, &rows, stream)
    }

    /// As `update`, of block tables: their address, the entries from row to row, columns and rows; `seq_lens` and how many; the address of the
    /// rows' numbers, 0 if they are in order; the address of the number of each row's last write, 0 if nobody counts them. Numbers alone are
    /// converted sooner than a table is told apart from others.
    #[expect(clippy::too_many_arguments, unsafe_code)]
    #[pyo3(signature = (entries, stride, columns, table_rows, seq_lens, batch, order, writes, stream, /))]
    fn update_rows(
        &self,
        py: Python<'_>,
        entries: usize,
        stride: usize,
        columns: usize,
        table_rows: usize,
        seq_lens: usize,
        batch: usize,
        order: usize,
        writes: usize,
        stream: usize,
    ) -> PyResult<bool> {
        check_process(self.process)?;
        let table =
            BlockTables { entries, stride, columns, rows: table_rows, seq_lens, batch, order, writes };
        // SAFETY: the Python half gives the addresses of arrays of these lengths, and holds them. They are read before the GIL is released.
        let rows = unsafe { table.rows(self.page_size)? };
        self.follow(py, &rows, stream)
    }

    /// Requests have grown inside their last pages.
    #[expect(unsafe_code)]
    fn set_lengths(&self, py: Python<'_>, mut seq_lens: Vec<u32>, stream: usize) -> PyResult<()> {
        check_process(self.process)?;
        if seq_lens.len() > self.rows {
            let (found, rows) = (seq_lens.len(), self.rows);
            return Err(PyValueError::new_err(format!(
                "`seq_lens` has {found} numbers, the plan {rows} rows"
            )));
        }
        seq_lens.resize(self.rows, 0);
        py.detach(|| match &self.of {
            Of::Cpu(on_cpu) => State::changed(&on_cpu.1).plan.set_lengths(&seq_lens),
            Of::Cuda(on_gpu) => {
                let _keep = KeepContext::new();
                let (context, state) = &***on_gpu;
                // SAFETY: the caller's stream.
                let stream = unsafe { gpu::stream(context, stream) };
                State::changed(state).plan.set_lengths(&seq_lens, &stream)
            }
        })
        .map_err(raised)
    }

    /// Computes or queues one layer.
    #[expect(unsafe_code)]
    fn run(&self, py: Python<'_>, layer: LayerOf) -> PyResult<()> {
        check_process(self.process)?;
        let layer = Layer::from(layer);
        py.detach(|| match &self.of {
            Of::Cpu(on_cpu) => {
                let (attention, state) = &**on_cpu;
                let plan = &state.read().unwrap_or_else(PoisonError::into_inner).plan;
                let largest = plan.plan().largest_page();
                // SAFETY: the Python half has checked tensors against the plan's geometry and rows, and holds them.
                unsafe { layer.run_on_cpu(attention, plan, largest) }
            }
            Of::Cuda(on_gpu) => {
                let _keep = KeepContext::new();
                let (context, state) = &***on_gpu;
                let plan = &state.read().unwrap_or_else(PoisonError::into_inner).plan;
                layer.check_pages(plan.largest_page())?;
                self.cache_pages.fetch_min(layer.pages, Ordering::Relaxed);
                // SAFETY: as above; the caller keeps tensors until the stream, or the graph that captures this, has passed.
                let result = unsafe {
                    let stream = gpu::stream(context, layer.stream);
                    plan.run_raw(&stream, &layer.raw(plan.geometry()))
                };
                result.map_err(raised)
            }
        })
    }
}
