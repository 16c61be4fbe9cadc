//! The native half of the Python package `tilewright`: it takes addresses, shapes and strides that the Python half has checked, releases the
//! GIL, and plans and computes. It links neither CUDA nor torch.

mod append;
mod attention;
mod errors;
mod gpu;
mod graph_plan;
mod layer;
mod live_plan;
mod logs;
mod memory;
mod merge;
mod plan;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    use super::logs;
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::attention::Attention;
    #[pymodule_export]
    use super::attention::compiled_kernels;
    #[pymodule_export]
    use super::errors::CudaError;
    #[pymodule_export]
    use super::graph_plan::GraphPlan;
    #[pymodule_export]
    use super::live_plan::LivePlan;
    #[pymodule_export]
    use super::merge::merge_states;
    #[pymodule_export]
    use super::plan::Plan;

    /// Touches neither the driver nor threads: a process that only imports the package may fork.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        logs::to_python();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Refuses what a child inherits of its parent but cannot use: threads, and the driver's state.
fn check_process(made_in: u32) -> PyResult<()> {
    if made_in == std::process::id() {
        return Ok(());
    }
    Err(pyo3::exceptions::PyRuntimeError::new_err(
        "this was made before the process forked, and its threads are the parent's: make the Attention in the child process",
    ))
}
