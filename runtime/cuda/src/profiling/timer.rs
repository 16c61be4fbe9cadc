//! Time on the device, by events.

use crate::CudaError;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use std::sync::Arc;

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
