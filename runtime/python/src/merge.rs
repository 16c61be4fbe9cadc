//! Attention over parts of the KV, merged by LSE.
#![expect(unsafe_code)]

use crate::errors::raised;
use crate::gpu::{self, KeepContext, OnGpu};
use crate::memory::{slice, slice_mut};
use half::{bf16, f16};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tilewright_runtime::cpu::{self, Element, State};
use tilewright_runtime::cuda::{Class, CudaBackend, CudaError, MAX_STATES, RawMergeStates, RawState};
use tilewright_runtime::{AttentionError, Dtype};

/// The kernels of each GPU that states were merged on, by its number.
static BACKENDS: Mutex<BTreeMap<usize, Arc<OnGpu<RwLock<CudaBackend>>>>> = Mutex::new(BTreeMap::new());

/// Merges states: addresses of output `[rows, head_dim]` and LSE f32 `[rows]` of each. The Python half has checked tensors, and that the result
/// overlaps none of them.
#[pyfunction]
#[expect(clippy::too_many_arguments)]
#[pyo3(signature = (states, rows, head_dim, dtype, output, lse, device, stream))]
pub(crate) fn merge_states(
    py: Python<'_>,
    states: Vec<(usize, usize)>,
    rows: usize,
    head_dim: u32,
    dtype: &str,
    output: usize,
    lse: Option<usize>,
    device: Option<usize>,
    stream: usize,
) -> PyResult<()> {
    let known = dtype.parse::<Dtype>();
    let dtype = known.map_err(|error| PyValueError::new_err(error.to_string()))?;
    py.detach(|| {
        // SAFETY: the Python half has checked the tensors, and holds them.
        unsafe {
            match (device, dtype) {
                (Some(device), _) => {
                    on_gpu(&states, rows, head_dim, dtype, output, lse, device, stream).map_err(raised)
                }
                (None, Dtype::F32) => on_cpu::<f32>(&states, rows, head_dim, output, lse),
                (None, Dtype::Bf16) => on_cpu::<bf16>(&states, rows, head_dim, output, lse),
                (None, _) => on_cpu::<f16>(&states, rows, head_dim, output, lse),
            }
        }
    })
}

/// # Safety
/// `rows` rows lie at all addresses, which nothing else writes; the result overlaps no state.
unsafe fn on_cpu<E: Element>(
    states: &[(usize, usize)],
    rows: usize,
    head_dim: u32,
    output: usize,
    lse: Option<usize>,
) -> PyResult<()> {
    let len = rows * head_dim as usize;
    // SAFETY: the caller's promises.
    let result = unsafe {
        let state = |&(output, lse): &(usize, usize)| -> PyResult<State<'_, E>> {
            Ok(State {
                output: slice("a state's output", output, len)?,
                lse: slice("a state's LSE", lse, rows)?,
            })
        };
        let states = states.iter().map(state).collect::<PyResult<Vec<_>>>()?;
        let output = slice_mut("out", output, len)?;
        let lse = lse.map(|lse| slice_mut("lse", lse, rows)).transpose()?;
        cpu::merge_states(&states, head_dim, output, lse)
    };
    result.map_err(|error| raised(CudaError::States(error)))
}

/// # Safety
/// As above, of device memory; the stream is one of the device's primary context.
#[expect(clippy::too_many_arguments)]
unsafe fn on_gpu(
    states: &[(usize, usize)],
    rows: usize,
    head_dim: u32,
    dtype: Dtype,
    output: usize,
    lse: Option<usize>,
    device: usize,
    stream: usize,
) -> Result<(), AttentionError> {
    let backend = backend_of(device)?;
    let _keep = KeepContext::new();
    let class = Class { head_dim, dtype };
    let states: Vec<RawState> =
        states.iter().map(|&(output, lse)| RawState { output: output as u64, lse: lse as u64 }).collect();
    let args =
        RawMergeStates { states: &states, rows, output: output as u64, lse: lse.map(|lse| lse as u64) };
    debug_assert!(states.len() <= MAX_STATES, "the Python half merges in groups");
    backend.write().unwrap_or_else(PoisonError::into_inner).prepare_merge_states(&class)?;
    let backend = backend.read().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller's promises.
    unsafe { backend.merge_states_raw(stream as cudarc::driver::sys::CUstream, &class, &args)? };
    Ok(())
}

fn backend_of(device: usize) -> Result<Arc<OnGpu<RwLock<CudaBackend>>>, CudaError> {
    let mut backends = BACKENDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(backend) = backends.get(&device) {
        return Ok(Arc::clone(backend));
    }
    let opened = gpu::open(device)?;
    let _keep = KeepContext::new();
    let backend = Arc::new(OnGpu::new(RwLock::new(CudaBackend::new(&opened)?)));
    backends.insert(device, Arc::clone(&backend));
    Ok(backend)
}
