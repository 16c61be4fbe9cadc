//! A plan that CUDA graphs capture once, for all batches of a bucket.

use crate::check_process;
use crate::errors::raised;
use crate::gpu::{self, KeepContext, OnGpu};
use crate::layer::Layer;
use crate::memory::RowsOf;
use cudarc::driver::CudaContext;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tilewright_runtime::{self as runtime, Attention, Cuda, Planned};

/// See the Python half.
#[pyclass(frozen, module = "tilewright._native")]
pub(crate) struct GraphPlan {
    of: OnGpu<(runtime::GraphPlan, Arc<CudaContext>)>,
    pages: Mutex<Pages>,
    process: u32,
}

struct Pages {
    /// Those of the smallest cache that was run.
    least: usize,
    /// The largest one of the plan that was uploaded last.
    largest: Option<i32>,
}

impl GraphPlan {
    /// For plans like this one. Called without the GIL.
    pub(crate) fn new(
        attention: &Attention<Cuda>,
        context: &Arc<CudaContext>,
        plan: &impl Planned<Cuda>,
        room: (Option<u32>, Option<u32>),
        process: u32,
    ) -> PyResult<Self> {
        let _keep = KeepContext::new();
        let (requests, pages) = room;
        let (batch, page_size) = (plan.plan().batch() as u32, plan.plan().geometry().page_size);
        let entries = plan
            .plan()
            .seq_lens()
            .iter()
            .fold(0u32, |sum, tokens| sum.saturating_add(tokens.div_ceil(page_size)));
        // Requests grow.
        let pages = pages.unwrap_or_else(|| entries.saturating_mul(2));
        let made =
            attention.graph_plan(plan, requests.unwrap_or(batch).max(1), pages.max(1)).map_err(raised)?;
        let pages = Mutex::new(Pages { least: usize::MAX, largest: None });
        Ok(Self { of: OnGpu::new((made, Arc::clone(context))), pages, process })
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a plan does not fit, if it does not.
    pub(crate) fn misfit(&self, plan: &impl Planned<Cuda>) -> Option<String> {
        self.of.0.check(plan).err().map(|error| error.to_string())
    }

    /// Queues the copy of a plan on the caller's stream. Called without the GIL.
    pub(crate) fn upload(&self, plan: &impl Planned<Cuda>, stream: usize) -> PyResult<()> {
        check_process(self.process)?;
        let _keep = KeepContext::new();
        let mut pages = self.pages();
        let largest = plan.plan().largest_page();
        if let Some(page) =
            largest.filter(|&page| usize::try_from(page).is_ok_and(|page| page >= pages.least))
        {
            return Err(PyValueError::new_err(format!(
                "the plan reads page {page}, but `kv_cache` of a captured layer has {} pages: the page table names a page that is not there",
                pages.least
            )));
        }
        #[expect(unsafe_code)]
        // SAFETY: the caller's stream.
        let stream = unsafe { gpu::stream(&self.of.1, stream) };
        self.of.0.upload(plan, &stream).map_err(raised)?;
        pages.largest = largest;
        Ok(())
    }
}

#[pymethods]
impl GraphPlan {
    /// Queries that there is room for.
    #[getter]
    fn batch(&self) -> u32 {
        self.of.0.bucket().capacities().requests
    }

    /// Entries of the page table that there is room for.
    #[getter]
    fn page_entries(&self) -> u32 {
        self.of.0.bucket().capacities().page_entries
    }

    /// Queues or captures one layer.
    #[expect(clippy::too_many_arguments, unsafe_code)]
    #[pyo3(signature = (query, output, keys, values, pages, kv_strides, lse, sinks, scales, stream))]
    fn run(
        &self,
        py: Python<'_>,
        query: RowsOf,
        output: RowsOf,
        keys: usize,
        values: usize,
        pages: usize,
        kv_strides: (usize, usize, usize),
        lse: Option<usize>,
        sinks: Option<usize>,
        scales: Option<(usize, usize, usize)>,
        stream: usize,
    ) -> PyResult<()> {
        check_process(self.process)?;
        let layer = Layer { query, output, keys, values, pages, kv_strides, lse, sinks, scales, stream };
        py.detach(|| {
            let mut known = self.pages();
            layer.check_pages(known.largest)?;
            let _keep = KeepContext::new();
            let (plan, context) = &*self.of;
            let args = layer.raw(plan.bucket().geometry());
            // SAFETY: the Python half has checked tensors against the geometry and the room for requests, and holds them; pages are checked at each
            // upload. The caller keeps tensors as long as a graph names them.
            unsafe { plan.run_raw(&gpu::stream(context, stream), &args) }.map_err(raised)?;
            known.least = known.least.min(pages);
            Ok(())
        })
    }
}
