//! Errors as Python exceptions: `ValueError` for what the caller gave, `CudaError` for the GPU, its driver and its compiler.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use tilewright_runtime::AttentionError;
use tilewright_runtime::cuda;

create_exception!(
    tilewright,
    CudaError,
    PyRuntimeError,
    "A GPU, its driver or the compiler of its kernels is missing or refused something."
);

/// As an exception, with the text that the error has.
pub(crate) fn raised(error: impl Into<AttentionError>) -> PyErr {
    let error = error.into();
    let text = error.to_string();
    match error {
        AttentionError::Cuda(
            cuda::CudaError::Dtype { .. }
            | cuda::CudaError::Length { .. }
            | cuda::CudaError::Misaligned { .. }
            | cuda::CudaError::States(_)
            | cuda::CudaError::Append(_)
            | cuda::CudaError::Plan(_)
            | cuda::CudaError::Option { .. },
        )
        | AttentionError::Heads(_)
        | AttentionError::InvariantPages { .. }
        | AttentionError::Plan(_)
        | AttentionError::Lengths(_)
        | AttentionError::Live(_)
        | AttentionError::Cpu(_) => PyValueError::new_err(text),
        AttentionError::Captured { what } => CudaError::new_err(format!(
            "the stream is being captured and {what}: run once before the capture, and call `upload()` of each plan that is captured"
        )),
        AttentionError::Cuda(_) => CudaError::new_err(text),
        AttentionError::NoTile => PyRuntimeError::new_err(text),
    }
}
