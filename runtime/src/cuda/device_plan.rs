//! A plan on the device: filled again for each step, without an allocation once it has seen the largest.
#![allow(unsafe_code)]

use super::memory::{DeviceMemory, PinnedWords};
use super::{CudaDevice, CudaError, PlanImage};
use crate::Plan;
use cudarc::driver::sys::{CUevent_flags, CUstream};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use std::ops::Range;
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
        let all = 0..self.image.words().len();
        self.start_copy(all, stream).inspect_err(|_| {
            // The device does not have what the image says: nothing may be launched with it.
            self.image = PlanImage::default();
        })
    }

    /// Starts the copy of some of the image's words to their place.
    fn start_copy(&mut self, range: Range<usize>, stream: CUstream) -> Result<(), CudaError> {
        let bytes = size_of_val(self.image.words());
        if self.memory.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            // The old block is freed when the device no longer uses it; the driver sees to that.
            self.memory = None;
            self.memory = Some(DeviceMemory::new(&self.context, bytes.next_power_of_two())?);
        }
        let Some(memory) = &self.memory else { return Ok(()) };
        let (target, words) = (memory.address() + 4 * range.start as u64, &self.image.words()[range]);
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
            staging.words.copy_to(target, words.len(), stream)?;
            result::event::record(staging.copied.cu_event(), stream)
                .map_err(CudaError::driver("cannot record an event"))
        }
    }

    /// Starts the copy of the requests' lengths on the stream. A step that only appends tokens inside pages needs no more than that: the plan
    /// holds as long as no request needs another page.
    ///
    /// # Errors
    /// Another number of lengths than requests, or the driver's.
    pub fn update_lengths(&mut self, lengths: &[u32], stream: &CudaStream) -> Result<(), CudaError> {
        self.copy_lengths(lengths, stream.cu_stream())
    }

    /// As [`DevicePlan::update_lengths`], on the caller's raw stream.
    ///
    /// # Errors
    /// As [`DevicePlan::update_lengths`].
    ///
    /// # Safety
    /// The stream belongs to the device's context.
    pub unsafe fn update_lengths_raw(&mut self, lengths: &[u32], stream: CUstream) -> Result<(), CudaError> {
        self.copy_lengths(lengths, stream)
    }

    fn copy_lengths(&mut self, lengths: &[u32], stream: CUstream) -> Result<(), CudaError> {
        if lengths.len() != self.batch() {
            return Err(CudaError::Length { name: "lengths", found: lengths.len(), needed: self.batch() });
        }
        let range = self.image.set_lengths(lengths);
        self.start_copy(range, stream)
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

    /// Where the lengths of the requests lie on the device: i32 `[batch]`, for engines that write them by a kernel of their own.
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
