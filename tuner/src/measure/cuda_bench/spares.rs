//! Memory of plans that are over, for the next ones: a batch is planned some thirty times, and the driver takes longer to allocate and free
//! than to launch.

use super::CudaBench;
use tilewright_cuda::{CudaError, DeviceMemory, DevicePlan, LaunchMode, Mix};

/// A plan's memory on the device, of which no graph is left.
#[derive(Debug)]
pub(super) struct Spare {
    launch_mode: LaunchMode,
    mix: Option<Mix>,
    pub(super) uploaded: DevicePlan,
    pub(super) workspace: DeviceMemory,
}

/// Spares that are kept: as many as a batch has plans, about.
const MOST: usize = 64;

impl CudaBench {
    /// A plan to upload to, launched in this way: one that is spare, or a new one.
    pub(super) fn plan_memory(
        &mut self,
        launch_mode: LaunchMode,
        mix: Option<&Mix>,
    ) -> Result<Spare, CudaError> {
        let serves = |spare: &Spare| spare.launch_mode == launch_mode && spare.mix.as_ref() == mix;
        if let Some(found) = self.spares.iter().position(serves) {
            return Ok(self.spares.swap_remove(found));
        }
        let uploaded = match mix {
            Some(mix) => DevicePlan::with_mix(&self.device, mix, launch_mode.merge),
            None => DevicePlan::with_launch_mode(&self.device, launch_mode),
        };
        let workspace = DeviceMemory::new(self.device.context(), 0)?;
        Ok(Spare { launch_mode, mix: mix.cloned(), uploaded, workspace })
    }

    /// Takes memory back. Nothing that was launched on it is still running: samples are waited for.
    pub(super) fn keep(&mut self, spare: Spare) {
        if self.spares.len() < MOST {
            self.spares.push(spare);
        }
    }
}
