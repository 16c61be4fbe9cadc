//! A captured CUDA graph.
#![allow(unsafe_code)]

use super::CudaError;
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream, result};
use std::sync::Arc;

/// Launches that were captured once and are replayed as one.
#[derive(Debug)]
pub struct Graph {
    context: Arc<CudaContext>,
    graph: CUgraph,
    exec: CUgraphExec,
}

impl Graph {
    /// Captures what `launch` queues on the stream; nothing runs yet.
    ///
    /// # Errors
    /// What `launch` says, or the driver: synchronisation and allocation cannot be captured.
    ///
    /// # Safety
    /// All memory and kernels that the captured launches name stay until the graph is dropped and its last replay is done.
    pub unsafe fn capture(
        stream: &CudaStream,
        launch: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        let fail = || CudaError::driver("cannot capture a graph");
        let context = stream.context();
        context.bind_to_thread().map_err(fail())?;
        // SAFETY: the stream is alive, and the capture is ended below in any case.
        unsafe {
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            result::stream::begin_capture(stream.cu_stream(), mode).map_err(fail())?;
            let launched = launch();
            let graph = result::stream::end_capture(stream.cu_stream()).map_err(fail());
            let graph = match (launched, graph) {
                (Ok(()), graph) => graph?,
                (Err(error), graph) => {
                    if let Ok(graph) = graph {
                        let _ = result::graph::destroy(graph);
                    }
                    return Err(error);
                }
            };
            match result::graph::instantiate(graph, CUgraphInstantiate_flags(0)) {
                Ok(exec) => Ok(Self { context: Arc::clone(context), graph, exec }),
                Err(error) => {
                    let _ = result::graph::destroy(graph);
                    Err(fail()(error))
                }
            }
        }
    }

    /// Queues one replay.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self, stream: &CudaStream) -> Result<(), CudaError> {
        // SAFETY: the graph is instantiated; its owner keeps what it names.
        unsafe { result::graph::launch(self.exec, stream.cu_stream()) }
            .map_err(CudaError::driver("cannot replay a graph"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: both were made in `capture`, and are destroyed once.
            unsafe {
                let _ = result::graph::exec_destroy(self.exec);
                let _ = result::graph::destroy(self.graph);
            }
        }
    }
}
