//! The plan of a batch, and what it runs.

use crate::attention::Kind;
use crate::check_process;
use crate::errors::raised;
use crate::gpu::{self, KeepContext, OnGpu};
use crate::layer::{Layer, LayerOf};
use cudarc::driver::CudaContext;
use pyo3::prelude::*;
use std::sync::{Arc, PoisonError, RwLock};
use tilewright_runtime::{Attention, AttentionPlan, Cpu, Cuda, PageTable, Planned};

/// A plan with the attention that runs it.
pub(crate) enum Of<C, G> {
    Cpu { attention: Attention<Cpu>, plan: C },
    Cuda(OnGpu<OfGpu<G>>),
}

/// The same on a GPU.
pub(crate) struct OfGpu<G> {
    pub(crate) attention: Attention<Cuda>,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) plan: G,
}

/// See the Python half.
#[pyclass(frozen, module = "tilewright._native")]
pub(crate) struct Plan {
    of: Of<RwLock<AttentionPlan<Cpu>>, RwLock<AttentionPlan<Cuda>>>,
    batch: usize,
    /// Requests that grow inside their pages leave it as it is.
    largest_page: Option<i32>,
    process: u32,
}

impl Plan {
    /// Called without the GIL.
    pub(crate) fn new(kind: &Kind, table: &PageTable<'_>, process: u32) -> PyResult<Self> {
        let facts = |plan: &tilewright_runtime::plan::Plan| (plan.batch(), plan.largest_page());
        let (of, (batch, largest_page)) = match kind.share() {
            Kind::Cpu(attention) => {
                let plan = attention.plan(table).map_err(raised)?;
                let facts = facts(plan.plan());
                (Of::Cpu { attention, plan: RwLock::new(plan) }, facts)
            }
            Kind::Cuda(on_gpu) => {
                let _keep = KeepContext::new();
                let (attention, context) = (*on_gpu).clone();
                let plan = attention.plan(table).map_err(raised)?;
                let facts = facts(plan.plan());
                (Of::Cuda(OnGpu::new(OfGpu { attention, context, plan: RwLock::new(plan) })), facts)
            }
        };
        Ok(Self { of, batch, largest_page, process })
    }
}

#[pymethods]
impl Plan {
    /// Queries of the batch.
    #[getter]
    const fn batch(&self) -> usize {
        self.batch
    }

    /// Computes or queues one layer.
    #[expect(unsafe_code)]
    fn run(&self, py: Python<'_>, layer: LayerOf) -> PyResult<()> {
        check_process(self.process)?;
        let layer = Layer::from(layer);
        py.detach(|| match &self.of {
            Of::Cpu { attention, plan } => {
                let plan = plan.read().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: the Python half has checked tensors against the plan's geometry and batch, and holds them.
                unsafe { layer.run_on_cpu(attention, &*plan, self.largest_page) }
            }
            Of::Cuda(on_gpu) => {
                let plan = on_gpu.plan.read().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: as above; the caller keeps tensors until the stream has passed, as torch's allocator does for its own streams.
                unsafe { layer.run_on_gpu(&on_gpu.attention, &on_gpu.context, &*plan, self.largest_page) }
            }
        })
    }

    /// Requests have grown inside their last pages.
    fn set_lengths(&self, py: Python<'_>, seq_lens: Vec<u32>) -> PyResult<()> {
        check_process(self.process)?;
        py.detach(|| match &self.of {
            Of::Cpu { plan, .. } => {
                plan.write().unwrap_or_else(PoisonError::into_inner).set_lengths(&seq_lens)
            }
            Of::Cuda(on_gpu) => {
                on_gpu.plan.write().unwrap_or_else(PoisonError::into_inner).set_lengths(&seq_lens)
            }
        })
        .map_err(raised)
    }

    /// Copies the plan to the device.
    #[expect(unsafe_code)]
    fn upload(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        check_process(self.process)?;
        py.detach(|| match &self.of {
            Of::Cpu { .. } => Ok(()),
            Of::Cuda(on_gpu) => {
                let _keep = KeepContext::new();
                let plan = on_gpu.plan.read().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: the caller's stream.
                let stream = unsafe { gpu::stream(&on_gpu.context, stream) };
                on_gpu.attention.upload(&*plan, &stream)
            }
        })
        .map_err(raised)
    }
}
