//! A plan on the device: filled again for each step, without an allocation once it has seen the largest.
#![allow(unsafe_code)]

use super::lengths::LengthBuffers;
use super::memory::{DeviceMemory, PinnedWords};
use super::side_streams::SideStreams;
use super::{Bucket, CudaDevice, CudaError, Launch, LaunchMode, MergeBy, Mix, PackedPlan};
use cudarc::driver::sys::{CUevent_flags, CUstream};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tilewright_heuristics::{Dtype, Geometry};
use tilewright_kernel_templates::cuda::Arguments;
use tilewright_plan::Plan;

/// Copies that may be on their way while the host writes the next.
const BUFFERS: usize = 2;

/// A plan in device memory, laid out for the way it is launched.
///
/// Where the last CTA merges ([`MergeBy::LastCta`]), the plan owns a counter for each merge and KV head. They are zero when they are
/// allocated, and every launch leaves them zero. After a launch that failed they may be anything: the plan is then refused until its next
/// upload, which sets them to zero.
#[derive(Debug)]
pub struct DevicePlan {
    context: Arc<CudaContext>,
    packed: PackedPlan,
    l2_bytes: u64,
    geometry: Geometry,
    invariant: bool,
    launch_mode: LaunchMode,
    /// What single launches are compiled of; the tiles of each plan, if absent.
    mix: Option<Mix>,
    bucket: Option<Bucket>,
    memory: Option<DeviceMemory>,
    arrivals: Option<DeviceMemory>,
    side: Option<SideStreams>,
    staging: [Option<Staging>; BUFFERS],
    next: usize,
    lengths: Option<LengthBuffers>,
    /// The device does not have what the packed plan says: an upload failed.
    broken: AtomicBool,
    /// The counters of what has arrived may not be zero: a launch failed.
    unclean: AtomicBool,
}

/// A block of pinned memory, and when its last copy is done.
#[derive(Debug)]
struct Staging {
    words: PinnedWords,
    copied: CudaEvent,
}

impl Staging {
    fn new(context: &Arc<CudaContext>, words: usize) -> Result<Self, CudaError> {
        let copied = context
            .new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING))
            .map_err(CudaError::driver("cannot make an event"))?;
        Ok(Self { words: PinnedWords::new(context, words)?, copied })
    }
}

impl DevicePlan {
    /// Without a plan yet, and without memory; launched in the default way.
    pub fn new(device: &CudaDevice) -> Self {
        Self::with_launch_mode(device, LaunchMode::default())
    }

    /// As [`DevicePlan::new`], launched in the given way. A single launch is of a mix of each plan's tiles and no others, which has to be
    /// prepared for each set of tiles that plans have; [`DevicePlan::with_mix`] takes one mix for all.
    pub fn with_launch_mode(device: &CudaDevice, launch_mode: LaunchMode) -> Self {
        Self {
            context: Arc::clone(device.context()),
            packed: PackedPlan::default().with_l2(device.limits().l2_bytes),
            l2_bytes: device.limits().l2_bytes,
            geometry: Geometry { q_heads: 1, kv_heads: 1, head_dim: 64, page_size: 1, dtype: Dtype::F16 },
            invariant: false,
            launch_mode,
            mix: None,
            bucket: None,
            memory: None,
            arrivals: None,
            side: None,
            staging: [const { None }; BUFFERS],
            next: 0,
            lengths: None,
            broken: AtomicBool::new(false),
            unclean: AtomicBool::new(false),
        }
    }

    /// As [`DevicePlan::new`], with a single launch of this mix. Plans with a tile that the mix has not are refused when they are uploaded.
    pub fn with_mix(device: &CudaDevice, mix: &Mix, merge: MergeBy) -> Self {
        let launch_mode = LaunchMode { launch: Launch::Single, merge };
        Self { mix: Some(mix.clone()), ..Self::with_launch_mode(device, launch_mode) }
    }

    /// For every plan of a bucket, at addresses that never change, and with grids of one size: what is captured once serves them all.
    /// Everything is allocated here. Until the first upload it is the plan of an empty batch.
    ///
    /// # Errors
    /// The driver's.
    pub fn with_bucket(device: &CudaDevice, bucket: Bucket) -> Result<Self, CudaError> {
        let mut this = Self::with_launch_mode(device, bucket.launch_mode());
        let context = &this.context;
        this.packed = PackedPlan::in_bucket(&bucket).with_l2(this.l2_bytes);
        this.geometry = *bucket.geometry();
        let memory = DeviceMemory::new(context, 4 * this.packed.span())?;
        memory.repeat(&[0u32; 4])?;
        this.memory = Some(memory);
        if bucket.arrival_bytes() > 0 {
            let arrivals = DeviceMemory::new(context, bucket.arrival_bytes())?;
            arrivals.repeat(&[0u32])?;
            this.arrivals = Some(arrivals);
        }
        if this.launch_mode.launch == Launch::Streams {
            this.side = Some(SideStreams::new(context, this.packed.groups.len())?);
        }
        for slot in &mut this.staging {
            *slot = Some(Staging::new(context, this.packed.span())?);
        }
        this.lengths = Some(LengthBuffers::new(context, bucket.capacities().requests as usize)?);
        this.bucket = Some(bucket);
        Ok(this)
    }

    /// Starts the copy of a plan on the stream. Copies and launches of the plan before must be on the same stream, or be done.
    ///
    /// Allocates only when the plan is larger than every one before, in a bucket never, and waits only if both earlier copies are still on
    /// their way.
    ///
    /// # Errors
    /// A plan that does not fit the bucket or the mix: the plan before stays then. The driver's: nothing can be launched then until an
    /// upload succeeds.
    pub fn upload(&mut self, plan: &Plan, stream: &CudaStream) -> Result<(), CudaError> {
        self.fill(plan)?;
        self.copy(stream.cu_stream())
    }

    /// As [`DevicePlan::upload`], on the caller's raw stream.
    ///
    /// # Errors
    /// As [`DevicePlan::upload`].
    ///
    /// # Safety
    /// The stream belongs to the device's context.
    pub unsafe fn upload_raw(&mut self, plan: &Plan, stream: CUstream) -> Result<(), CudaError> {
        self.fill(plan)?;
        self.copy(stream)
    }

    fn fill(&mut self, plan: &Plan) -> Result<(), CudaError> {
        match (&self.bucket, self.launch_mode.launch) {
            (Some(bucket), _) => self.packed.fill_bucket(plan, bucket)?,
            (None, Launch::Single) => {
                let mix = self.mix.clone().unwrap_or_else(|| self.packed.mix_of(plan));
                self.packed.fill_single(plan, &mix)?;
            }
            (None, Launch::Serial | Launch::Streams) => self.packed.fill(plan),
        }
        (self.geometry, self.invariant) = (*plan.geometry(), plan.is_invariant());
        Ok(())
    }

    fn copy(&mut self, stream: CUstream) -> Result<(), CudaError> {
        // What was filled and not copied is not what the device has.
        self.broken.store(true, Ordering::Relaxed);
        self.reserve(stream)?;
        self.start_copy(stream)?;
        self.broken.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Makes room for the packed plan and what belongs to it, and sets counters to zero that may not be.
    fn reserve(&mut self, stream: CUstream) -> Result<(), CudaError> {
        let bytes = 4 * self.packed.span();
        if self.memory.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            // The old block is freed when the device no longer uses it; the driver sees to that.
            self.memory = None;
            self.memory = Some(DeviceMemory::new(&self.context, bytes.next_power_of_two())?);
        }
        if self.launch_mode.merge == MergeBy::LastCta {
            let bytes = 4 * self.packed.merge_grid as usize * self.geometry.kv_heads as usize;
            let small = self.arrivals.as_ref().is_none_or(|arrivals| arrivals.bytes() < bytes);
            if small {
                self.unclean.store(true, Ordering::Relaxed);
                self.arrivals = None;
                self.arrivals = Some(DeviceMemory::new(&self.context, bytes.next_power_of_two())?);
            }
            if let Some(arrivals) = self.arrivals.as_ref().filter(|_| self.unclean.load(Ordering::Relaxed)) {
                // SAFETY: the caller's stream is one of the context.
                unsafe { arrivals.fill_raw(0, stream)? };
                self.unclean.store(false, Ordering::Relaxed);
            }
        }
        let launches = self.packed.groups.len();
        if self.launch_mode.launch == Launch::Streams
            && self.side.as_ref().is_none_or(|side| !side.serve(launches))
        {
            self.side = Some(SideStreams::new(&self.context, launches)?);
        }
        Ok(())
    }

    /// Starts the copy of the packed plan.
    fn start_copy(&mut self, stream: CUstream) -> Result<(), CudaError> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let (target, words) = (memory.address(), self.packed.words());
        let slot = &mut self.staging[self.next];
        self.next = (self.next + 1) % BUFFERS;
        if slot.as_ref().is_none_or(|staging| staging.words.len() < words.len()) {
            if let Some(old) = slot.take() {
                old.copied.synchronize().map_err(CudaError::driver("cannot wait for an upload"))?;
            }
            *slot = Some(Staging::new(&self.context, words.len().next_power_of_two())?);
        }
        let Some(staging) = slot else { return Ok(()) };
        staging.copied.synchronize().map_err(CudaError::driver("cannot wait for an upload"))?;
        staging.words.as_mut_slice()[..words.len()].copy_from_slice(words);
        self.context.bind_to_thread().map_err(CudaError::driver("cannot use the device"))?;
        // SAFETY: the words stay as they are until the event says that the copy is done; the memory has room for them.
        unsafe {
            staging.words.copy_to(target, 0..words.len(), stream)?;
            result::event::record(staging.copied.cu_event(), stream)
                .map_err(CudaError::driver("cannot record an event"))
        }
    }

    /// Starts the copy of the tokens that each query sees: the requests' lengths, where each brings one query
    /// ([`tilewright_plan::Queries::write_visible`] has them of several). A step that only appends tokens inside pages needs no more than that: the
    /// plan holds as long as no request needs another page, nor another number of queries.
    ///
    /// Copies and launches of the plan before must be on the same stream, or be done. Allocates only when the batch is larger than every one
    /// before, in a bucket never, and waits only if several earlier copies are still on their way.
    ///
    /// # Errors
    /// Another number of lengths than queries, or the driver's.
    pub fn set_lengths(&mut self, lengths: &[u32], stream: &CudaStream) -> Result<(), CudaError> {
        self.copy_lengths(lengths, stream.cu_stream())
    }

    /// As [`DevicePlan::set_lengths`], on the caller's raw stream.
    ///
    /// # Errors
    /// As [`DevicePlan::set_lengths`].
    ///
    /// # Safety
    /// The stream belongs to the device's context.
    pub unsafe fn set_lengths_raw(&mut self, lengths: &[u32], stream: CUstream) -> Result<(), CudaError> {
        self.copy_lengths(lengths, stream)
    }

    fn copy_lengths(&mut self, lengths: &[u32], stream: CUstream) -> Result<(), CudaError> {
        self.reserve_lengths(stream)?;
        self.stage_lengths(lengths)?;
        self.copy_staged(stream)
    }

    /// Makes room for the batch's lengths.
    fn reserve_lengths(&mut self, stream: CUstream) -> Result<(), CudaError> {
        let batch = self.batch();
        if self.lengths.as_ref().is_none_or(|lengths| lengths.capacity() < batch) {
            if self.lengths.is_some() {
                // SAFETY: the caller's stream is one of the context. What was copied on another is done.
                unsafe { result::stream::synchronize(stream) }
                    .map_err(CudaError::driver("cannot wait for an upload"))?;
            }
            self.lengths = None;
            self.lengths = Some(LengthBuffers::new(&self.context, batch.next_power_of_two())?);
        }
        Ok(())
    }

    /// Writes the lengths that are copied next. Until they are, they may be written again.
    pub(super) fn stage_lengths(&mut self, lengths: &[u32]) -> Result<(), CudaError> {
        if lengths.len() != self.batch() {
            return Err(CudaError::Length { name: "lengths", found: lengths.len(), needed: self.batch() });
        }
        self.check_uploaded()?;
        if let Some(staged) = &mut self.lengths {
            staged.next()?[..lengths.len()].copy_from_slice(lengths);
        }
        Ok(())
    }

    /// Starts the copy of the lengths that were written.
    fn copy_staged(&mut self, stream: CUstream) -> Result<(), CudaError> {
        self.context.bind_to_thread().map_err(CudaError::driver("cannot use the device"))?;
        // SAFETY: the stream is one of the context, which is current, and the buffers stay as long as the plan.
        let copied = unsafe {
            self.queue_lengths(self.staged(), self.batch(), stream).and_then(|()| self.lengths_queued(stream))
        };
        copied.inspect_err(|_| self.broken.store(true, Ordering::Relaxed))
    }

    /// The buffer that lengths are written to, or were written to and not copied yet.
    pub(super) fn staged(&self) -> usize {
        self.lengths.as_ref().map_or(0, LengthBuffers::turn)
    }

    /// Queues the copy of a buffer's first lengths to their place, or captures it.
    ///
    /// # Safety
    /// As for [`LengthBuffers::copy`].
    pub(super) unsafe fn queue_lengths(
        &self,
        buffer: usize,
        len: usize,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        match (&self.lengths, &self.memory) {
            (Some(lengths), Some(memory)) if len > 0 => {
                let target = memory.address() + 4 * self.packed.lengths_at() as u64;
                // SAFETY: the packed plan has a place for each query of the batch, or of the bucket; the caller's promises.
                unsafe { lengths.copy(buffer, target, len, stream) }
            }
            _ => Ok(()),
        }
    }

    /// The copy of the lengths that were written is queued: the next ones are written elsewhere.
    ///
    /// # Safety
    /// The stream is one of the device's context.
    pub(super) unsafe fn lengths_queued(&mut self, stream: CUstream) -> Result<(), CudaError> {
        match &mut self.lengths {
            // SAFETY: the caller's promises.
            Some(lengths) => unsafe { lengths.queued(stream) },
            None => Ok(()),
        }
    }

    /// The layout that the plan was made for.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether its kernels are batch-invariant ([`Plan::is_invariant`]).
    pub const fn is_invariant(&self) -> bool {
        self.invariant
    }

    /// Queries of the batch: as many as requests, unless the page table had several for one.
    pub const fn batch(&self) -> usize {
        self.packed.batch
    }

    /// The largest page id; `None` without pages.
    pub const fn largest_page(&self) -> Option<i32> {
        if self.packed.largest_page < 0 { None } else { Some(self.packed.largest_page) }
    }

    /// Bytes that the partials of the plan need. At least 1, so that a workspace can be allocated.
    pub const fn workspace_bytes(&self) -> usize {
        let bytes = self.packed.workspace_bytes(&self.geometry);
        if bytes == 0 { 1 } else { bytes }
    }

    /// How many entries the CTAs of forward have, see [`super::RawArgs::timeline`].
    pub fn timeline_entries(&self) -> usize {
        let last = self.packed.groups.iter().map(|group| group.begin + group.grid).max().unwrap_or(0);
        last as usize * self.geometry.kv_heads as usize
    }

    /// Where the numbers of tokens that queries see lie on the device: i32 `[batch]`, for engines that write them by a kernel of their own,
    /// or copy what [`tilewright_plan::Queries::write_visible`] makes of lengths.
    pub fn lengths(&self) -> u64 {
        self.arguments(0).lengths
    }

    /// How it is launched.
    pub const fn launch_mode(&self) -> LaunchMode {
        self.launch_mode
    }

    /// The bucket that it lies in, if it does.
    pub const fn bucket(&self) -> Option<&Bucket> {
        self.bucket.as_ref()
    }

    /// The streams that launches after the first go to.
    pub(super) const fn side(&self) -> Option<&SideStreams> {
        self.side.as_ref()
    }

    /// Launches the next plans in this way; a single launch of the given mix, or else of each plan's tiles. A plan in a bucket is launched as
    /// the bucket says. What was uploaded before is not launched again.
    pub fn set_launch_mode(&mut self, launch_mode: LaunchMode, mix: Option<&Mix>) {
        if self.bucket.is_some() || (self.launch_mode == launch_mode && self.mix.as_ref() == mix) {
            return;
        }
        self.launch_mode = launch_mode;
        self.mix = mix.cloned();
        self.packed = PackedPlan::default().with_l2(self.l2_bytes);
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Says that a launch failed: what it left of the counters is unknown.
    pub(super) fn launch_failed(&self) {
        if self.launch_mode.merge == MergeBy::LastCta {
            self.unclean.store(true, Ordering::Relaxed);
        }
    }

    /// Refuses a plan that the device may not have as it should be.
    pub(super) fn check_uploaded(&self) -> Result<(), CudaError> {
        let refused = self.broken.load(Ordering::Relaxed) || self.unclean.load(Ordering::Relaxed);
        if refused { Err(CudaError::NotUploaded) } else { Ok(()) }
    }

    /// Executes all items with another tile of the same m, on which alone of a tile a plan depends.
    pub fn retile(&mut self, tile: &tilewright_heuristics::Tile) {
        self.packed.retile(tile);
    }

    pub(super) const fn packed(&self) -> &PackedPlan {
        &self.packed
    }

    pub(super) fn arguments(&self, workspace: u64) -> Arguments {
        let base = self.memory.as_ref().map_or(0, DeviceMemory::address);
        let arrivals = match self.launch_mode.merge {
            MergeBy::Launch => 0,
            MergeBy::LastCta => self.arrivals.as_ref().map_or(0, DeviceMemory::address),
        };
        Arguments { arrivals, ..self.packed.arguments(&self.geometry, base, workspace) }
    }
}
