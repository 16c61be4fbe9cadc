//! The GPU as tests get it: several at once, but what is timed has it alone.

use std::ops::Deref;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tilewright_cuda::CudaDevice;

/// How many have the GPU now; `ALONE` if one has it alone.
static USERS: Mutex<usize> = Mutex::new(0);
static RETURNED: Condvar = Condvar::new();
const ALONE: usize = usize::MAX;

/// A device until it is dropped.
pub(crate) struct Lent {
    device: CudaDevice,
}

impl Lent {
    /// Beside others. A test may have several: those that want to be alone wait for all.
    pub(crate) fn beside_others() -> Self {
        let device = open();
        let free = RETURNED.wait_while(users(), |users| *users == ALONE);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        Self { device }
    }

    /// Alone: a test with one must not ask for another.
    pub(crate) fn alone() -> Self {
        let device = open();
        let free = RETURNED.wait_while(users(), |users| *users > 0);
        *free.unwrap_or_else(PoisonError::into_inner) = ALONE;
        Self { device }
    }
}

impl Deref for Lent {
    type Target = CudaDevice;

    fn deref(&self) -> &CudaDevice {
        &self.device
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut users = users();
        *users = if *users == ALONE { 0 } else { *users - 1 };
        RETURNED.notify_all();
    }
}

/// A failed test gives its device back, too.
fn users() -> MutexGuard<'static, usize> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Before it is counted as lent: where there is no device, nobody waits for its return.
///
/// cudarc's slices record events on each use, which no other stream may wait for while a graph is captured: engines that capture turn
/// that off before they allocate, as this suite does.
#[allow(unsafe_code)]
fn open() -> CudaDevice {
    let device = CudaDevice::open(0).expect("this suite needs a GPU");
    // SAFETY: every slice of this suite is used on one stream only.
    unsafe { device.context().disable_event_tracking() };
    device
}
