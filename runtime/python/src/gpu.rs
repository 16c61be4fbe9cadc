//! GPUs of the process, in their primary contexts: those that torch and CuPy use.
#![expect(unsafe_code)]

use cudarc::driver::sys::{CUcontext, CUstream};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use tilewright_runtime::cuda::{CudaDevice, CudaError};

/// Makes the thread's context again what it was, none included: torch asks for it when it asks for the current device.
pub(crate) struct KeepContext(Result<Option<CUcontext>, DriverError>);

impl KeepContext {
    /// Only where the driver is present, and started.
    pub(crate) fn new() -> Self {
        Self(result::ctx::get_current())
    }
}

impl Drop for KeepContext {
    fn drop(&mut self) {
        if let Ok(before) = self.0
            && result::ctx::get_current() != Ok(before)
        {
            // SAFETY: it was this thread's current context a moment ago. If its owner has destroyed it, the driver refuses.
            let _ = unsafe { result::ctx::set_current(before.unwrap_or(std::ptr::null_mut())) };
        }
    }
}

/// What belongs to a GPU: freeing it changes no thread's current device.
pub(crate) struct OnGpu<T>(ManuallyDrop<T>);

impl<T> OnGpu<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T> Deref for OnGpu<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for OnGpu<T> {
    fn drop(&mut self) {
        let _keep = KeepContext::new();
        // SAFETY: dropped here and nowhere else, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// The primary context of a device.
pub(crate) fn open(ordinal: usize) -> Result<CudaDevice, CudaError> {
    // Asked first: without a driver there is no context to keep.
    if CudaDevice::count() == 0 {
        return CudaDevice::open(ordinal);
    }
    let _keep = KeepContext::new();
    let device = CudaDevice::open(ordinal)?;
    // SAFETY: the only slices that the extension allocates are workspaces; each is used on the one stream that it was allocated on. Events
    // would keep workspaces from being captured.
    unsafe { device.context().disable_event_tracking() };
    Ok(device)
}

/// The caller's stream.
///
/// # Safety
/// It is a stream of the context, or 0, 1 or 2 (the default streams), and lives as long as what is made with it.
pub(crate) unsafe fn stream(context: &Arc<CudaContext>, raw: usize) -> Arc<CudaStream> {
    // SAFETY: the caller's promise.
    unsafe { context.wrap_borrowed_stream(raw as CUstream) }
}
