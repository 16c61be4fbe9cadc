//! Time on the device: events around a captured graph.
#![allow(unsafe_code)]

use super::CudaError;
use cudarc::driver::sys::{
    CUevent_flags, CUgraph, CUgraphExec, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
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
        // SAFETY: the graph is instantiated; whoever captured it keeps what it names.
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

/// A pair of events.
#[derive(Debug)]
pub struct Timer {
    begin: CudaEvent,
    end: CudaEvent,
}

impl Timer {
    /// Events that keep time.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let event = || {
            context
                .new_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
                .map_err(CudaError::driver("cannot make an event"))
        };
        Ok(Self { begin: event()?, end: event()? })
    }

    /// Waits until what `queue` queues is done; its time on the device in µs. What is queued before hides the host's part, if it takes
    /// longer than that.
    ///
    /// # Errors
    /// What `queue` says, or the driver: an error of a kernel shows here.
    pub fn time_us(
        &self,
        stream: &CudaStream,
        queue: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        let fail = || CudaError::driver("cannot time a launch");
        self.begin.record(stream).map_err(fail())?;
        queue()?;
        self.end.record(stream).map_err(fail())?;
        self.end.synchronize().map_err(CudaError::driver("a kernel failed"))?;
        Ok(f64::from(self.begin.elapsed_ms(&self.end).map_err(fail())?) * 1e3)
    }
}
