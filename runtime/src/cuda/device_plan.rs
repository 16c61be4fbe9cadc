//! A plan on the device: filled again for each step, without an allocation once it has seen the largest.
#![allow(unsafe_code)]

use super::memory::{DeviceMemory, PinnedWords};
use super::{CudaDevice, CudaError, PlanImage};
use crate::Plan;
use cudarc::driver::sys::{CUevent_flags, CUstream};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use std::sync::Arc;
use tilewright_heuristics::{Dtype, Geometry};
use tilewright_kernel_templates::cuda::Arguments;

/// Copies that may be on their way while the host writes the next.
const BUFFERS: usize = 2;

/// A plan in device memory.
#[derive(Debug)]
pub struct DevicePlan {
    context: Arc<CudaContext>,
    image: PlanImage,
    geometry: Geometry,
    memory: Option<DeviceMemory>,
    staging: [Option<Staging>; BUFFERS],
    next: usize,
}

/// A block of pinned memory, and when its last copy is done.
#[derive(Debug)]
struct Staging {
    words: PinnedWords,
    copied: CudaEvent,
}

impl DevicePlan {
    /// Without a plan yet, and without memory.
    pub fn new(device: &CudaDevice) -> Self {
        Self {
            context: Arc::clone(device.context()),
            image: PlanImage::default(),
            geometry: Geometry { q_heads: 1, kv_heads: 1, head_dim: 64, page_size: 1, dtype: Dtype::F16 },
            memory: None,
            staging: [const { None }; BUFFERS],
            next: 0,
        }
    }

    /// Starts the copy of a plan on the stream. Launches of the plan before must be on the same stream, or be done.
    ///
    /// Allocates only when the plan is larger than every one before, and waits only if both earlier copies are still on their way.
    ///
    /// # Errors
    /// The driver's.
    pub fn upload(&mut self, plan: &Plan, stream: &CudaStream) -> Result<(), CudaError> {
        self.image.fill(plan);
        self.geometry = *plan.geometry();
        self.copy(stream.cu_stream())
    }

    /// As [`DevicePlan::upload`], on the caller's raw stream.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The stream belongs to the device's context.
    pub unsafe fn upload_raw(&mut self, plan: &Plan, stream: CUstream) -> Result<(), CudaError> {
        self.image.fill(plan);
        self.geometry = *plan.geometry();
        self.copy(stream)
    }

    fn copy(&mut self, stream: CUstream) -> Result<(), CudaError> {
        let words = self.image.words();
        let bytes = size_of_val(words);
        if self.memory.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            // The old block is freed when the device no longer uses it; the driver sees to that.
            self.memory = None;
            self.memory = Some(DeviceMemory::new(&self.context, bytes.next_power_of_two())?);
        }
        let Some(memory) = &self.memory else { return Ok(()) };
        let slot = &mut self.staging[self.next];
        self.next = (self.next + 1) % BUFFERS;
        if slot.as_ref().is_none_or(|staging| staging.words.len() < words.len()) {
            if let Some(old) = slot.take() {
                old.copied.synchronize().map_err(CudaError::driver("cannot wait for an upload"))?;
            }
            let event = self
                .context
                .new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING))
                .map_err(CudaError::driver("cannot make an event"))?;
            let len = words.len().next_power_of_two();
            *slot = Some(Staging { words: PinnedWords::new(&self.context, len)?, copied: event });
        }
        let Some(staging) = slot else { return Ok(()) };
        staging.copied.synchronize().map_err(CudaError::driver("cannot wait for an upload"))?;
        staging.words.as_mut_slice()[..words.len()].copy_from_slice(words);
        self.context.bind_to_thread().map_err(CudaError::driver("cannot use the device"))?;
        // SAFETY: the words stay as they are until the event says that the copy is done; the memory has room for them.
        unsafe {
            staging.words.copy_to(memory.address(), words.len(), stream)?;
            result::event::record(staging.copied.cu_event(), stream)
                .map_err(CudaError::driver("cannot record an event"))
        }
    }

    /// Writes the lengths of the requests, when the stream has done what was queued before.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If there are more lengths than requests.
    pub fn set_lengths(&self, lengths: &[u32], stream: &CudaStream) -> Result<(), CudaError> {
        assert!(lengths.len() <= self.batch(), "a length a request");
        stream.synchronize().map_err(CudaError::driver("cannot wait for the stream"))?;
        match &self.memory {
            Some(memory) => memory.write((self.lengths() - memory.address()) as usize, lengths),
            None => Ok(()),
        }
    }

    /// The layout that the plan was made for.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Requests of the batch.
    pub const fn batch(&self) -> usize {
        self.image.batch
    }

    /// The largest page id; `None` without pages.
    pub const fn largest_page(&self) -> Option<i32> {
        if self.image.largest_page < 0 { None } else { Some(self.image.largest_page) }
    }

    /// Bytes that the partials of the plan need. At least 1, so that a workspace can be allocated.
    pub const fn workspace_bytes(&self) -> usize {
        let bytes = self.image.workspace_bytes(&self.geometry);
        if bytes == 0 { 1 } else { bytes }
    }

    /// Where the lengths of the requests lie on the device: i32 `[batch]`. A step that only appends tokens inside pages may write them
    /// there and keep the plan.
    pub fn lengths(&self) -> u64 {
        self.arguments(0).lengths
    }

    /// Executes all items with another tile of the same m, on which alone of a tile a plan depends.
    pub(crate) fn retile(&mut self, tile: &tilewright_heuristics::Tile) {
        self.image.retile(tile);
    }

    pub(super) const fn image(&self) -> &PlanImage {
        &self.image
    }

    pub(super) fn arguments(&self, workspace: u64) -> Arguments {
        let base = self.memory.as_ref().map_or(0, DeviceMemory::address);
        self.image.arguments(&self.geometry, base, workspace)
    }
}
