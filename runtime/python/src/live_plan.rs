//! A plan that follows a batch by its changes.

use crate::attention::Kind;
use crate::check_process;
use crate::errors::raised;
use crate::gpu::{self, KeepContext, OnGpu};
use crate::layer::{Layer, LayerOf};
use crate::plan::{Of, OfGpu};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tilewright_runtime::{self as runtime, AttentionError, Backend, Cpu, Cuda};

/// A plan, and what it is as of the last `update`.
struct State<B: Backend> {
    plan: runtime::LivePlan<B>,
    batch: usize,
    largest_page: Option<i32>,
    /// The batch has changed since.
    stale: bool,
}

/// See the Python half.
#[pyclass(frozen, module = "tilewright._native")]
pub(crate) struct LivePlan {
    of: Of<Mutex<State<Cpu>>, Mutex<State<Cuda>>>,
    process: u32,
}

impl<B: Backend> State<B> {
    const fn new(plan: runtime::LivePlan<B>) -> Mutex<Self> {
        Mutex::new(Self { plan, batch: 0, largest_page: None, stale: true })
    }

    fn update(&mut self) -> Result<(), AttentionError> {
        let plan = self.plan.update()?;
        (self.batch, self.largest_page) = (plan.batch(), plan.largest_page());
        self.stale = false;
        Ok(())
    }

    fn check_updated(&self) -> PyResult<()> {
        if self.stale {
            let text =
                "the batch has changed since it was planned: call `update()` once a step, after its changes";
            return Err(PyRuntimeError::new_err(text));
        }
        Ok(())
    }

    /// Refuses tensors that were checked against the batch as it was before another thread changed it.
    fn check_run(&self, batch: usize) -> PyResult<()> {
        self.check_updated()?;
        if self.batch != batch {
            return Err(PyRuntimeError::new_err("another thread updated the plan while it was run"));
        }
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Result<(), AttentionError> {
        let plan = &mut self.plan;
        match change {
            Change::Add(request, pages, tokens) => plan.add(*request, pages, *tokens),
            Change::Remove(request) => plan.remove(*request),
            Change::Append(request, pages, tokens) => plan.append(*request, pages, *tokens),
            Change::Truncate(request, pages, tokens) => plan.truncate(*request, *pages, *tokens),
            Change::Rename(from, to) => plan.rename(*from, *to),
            Change::Grow(request, tokens) => plan.grow(*request, *tokens),
            Change::GrowAll(tokens) => plan.grow_all(tokens),
        }?;
        self.stale = true;
        Ok(())
    }
}

/// What happens to a batch.
enum Change {
    Add(u32, Vec<i32>, u32),
    Remove(u32),
    Append(u32, Vec<i32>, u32),
    Truncate(u32, u32, u32),
    Rename(u32, u32),
    Grow(u32, u32),
    GrowAll(Vec<u32>),
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LivePlan {
    /// Called without the GIL.
    pub(crate) fn new(kind: &Kind, page_size: u32, process: u32) -> PyResult<Self> {
        let of = match kind.share() {
            Kind::Cpu(attention) => {
                let plan = State::new(attention.live_plan(page_size).map_err(raised)?);
                Of::Cpu { attention, plan }
            }
            Kind::Cuda(on_gpu) => {
                let _keep = KeepContext::new();
                let (attention, context) = (*on_gpu).clone();
                let plan = State::new(attention.live_plan(page_size).map_err(raised)?);
                Of::Cuda(OnGpu::new(OfGpu { attention, context, plan }))
            }
        };
        Ok(Self { of, process })
    }

    fn changed(&self, py: Python<'_>, change: &Change) -> PyResult<()> {
        check_process(self.process)?;
        py.detach(|| match &self.of {
            Of::Cpu { plan, .. } => lock(plan).change(change),
            Of::Cuda(on_gpu) => lock(&on_gpu.plan).change(change),
        })
        .map_err(raised)
    }
}

#[pymethods]
impl LivePlan {
    fn add(&self, py: Python<'_>, request: u32, pages: Vec<i32>, tokens: u32) -> PyResult<()> {
        self.changed(py, &Change::Add(request, pages, tokens))
    }

    fn remove(&self, py: Python<'_>, request: u32) -> PyResult<()> {
        self.changed(py, &Change::Remove(request))
    }

    fn append(&self, py: Python<'_>, request: u32, new_pages: Vec<i32>, tokens: u32) -> PyResult<()> {
        self.changed(py, &Change::Append(request, new_pages, tokens))
    }

    fn truncate(&self, py: Python<'_>, request: u32, pages_kept: u32, tokens: u32) -> PyResult<()> {
        self.changed(py, &Change::Truncate(request, pages_kept, tokens))
    }

    fn rename(&self, py: Python<'_>, from: u32, to: u32) -> PyResult<()> {
        self.changed(py, &Change::Rename(from, to))
    }

    fn grow(&self, py: Python<'_>, request: u32, tokens: u32) -> PyResult<()> {
        self.changed(py, &Change::Grow(request, tokens))
    }

    fn grow_all(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<()> {
        self.changed(py, &Change::GrowAll(tokens))
    }

    /// Plans what has changed; the rows of the batch.
    fn update(&self, py: Python<'_>) -> PyResult<usize> {
        fn update<B: Backend>(state: &Mutex<State<B>>) -> Result<usize, AttentionError> {
            let mut state = lock(state);
            if state.stale {
                state.update()?;
            }
            Ok(state.batch)
        }
        check_process(self.process)?;
        py.detach(|| match &self.of {
            Of::Cpu { plan, .. } => update(plan),
            Of::Cuda(on_gpu) => {
                let _keep = KeepContext::new();
                update(&on_gpu.plan)
            }
        })
        .map_err(raised)
    }

    /// Computes or queues one layer.
    #[expect(unsafe_code)]
    fn run(&self, py: Python<'_>, layer: LayerOf, batch: usize) -> PyResult<()> {
        check_process(self.process)?;
        let layer = Layer::from(layer);
        py.detach(|| match &self.of {
            Of::Cpu { attention, plan } => {
                let state = lock(plan);
                state.check_run(batch)?;
                // SAFETY: the Python half has checked tensors against the plan's geometry and this batch, and holds them.
                unsafe { layer.run_on_cpu(attention, &state.plan, state.largest_page) }
            }
            Of::Cuda(on_gpu) => {
                let state = lock(&on_gpu.plan);
                state.check_run(batch)?;
                // SAFETY: as above; the caller keeps tensors until the stream has passed, as torch's allocator does for its own streams.
                unsafe {
                    layer.run_on_gpu(&on_gpu.attention, &on_gpu.context, &state.plan, state.largest_page)
                }
            }
        })
    }

    /// Copies the plan to the device.
    #[expect(unsafe_code)]
    fn upload(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        check_process(self.process)?;
        py.detach(|| match &self.of {
            Of::Cpu { plan, .. } => lock(plan).check_updated(),
            Of::Cuda(on_gpu) => {
                let _keep = KeepContext::new();
                let state = lock(&on_gpu.plan);
                state.check_updated()?;
                // SAFETY: the caller's stream.
                let stream = unsafe { gpu::stream(&on_gpu.context, stream) };
                on_gpu.attention.upload(&state.plan, &stream).map_err(raised)
            }
        })
    }
}
