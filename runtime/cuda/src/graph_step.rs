//! A decode step as a CUDA graph: captured once for a bucket, launched for every batch that fits it.
#![allow(unsafe_code)]

use super::kernels::LoadedKernel;
use super::lengths::BUFFERS;
use super::tensor_maps::last_tma_page;
use super::{CudaBackend, CudaElement, CudaError, DecodeArgs, DevicePlan, Graph, KvCache, RawArgs};
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
};
use std::sync::Arc;
use tilewright_heuristics::Mask;
use tilewright_plan::{KvStrides, Plan};

/// Forward and merge of one layer, captured for a bucket. Each step uploads its plan, or lengths alone where requests only grew inside their
/// pages, and launches; requests may come, grow, fork and leave without another capture, until a plan does not fit.
///
/// A step of lengths alone is one call of the driver: their copy is captured too, once from each buffer of a small ring.
///
/// Uploads and launches are queued on the stream that it was captured with, so each launch reads the plan uploaded last. It owns what the
/// graph names: the plan, the kernels, and `M`: [`DecodeMemory`], or nothing where the caller vouches for the memory.
#[derive(Debug)]
pub struct GraphStep<M = ()> {
    // In this order they are dropped: the graphs, when their launches are done, before what they name.
    stream: DoneStream,
    graph: Graph,
    /// The same behind a copy of the lengths, from each buffer of the plan.
    updating: Vec<Graph>,
    /// Lengths were written that no launch has copied.
    updated: bool,
    _kernels: Vec<Arc<LoadedKernel>>,
    plan: DevicePlan,
    /// The last page that the captured kernels count to.
    last_page: i32,
    memory: M,
}

/// A stream that is waited for when it is dropped. Slices are freed in the order of their own streams, which may be others.
#[derive(Debug)]
struct DoneStream(Arc<CudaStream>);

impl Drop for DoneStream {
    fn drop(&mut self) {
        // What a kernel did wrong shows elsewhere.
        let _ = self.0.synchronize();
    }
}

/// What a captured step of a layer reads and writes.
#[derive(Debug)]
pub struct DecodeMemory<E> {
    /// `[requests, q_heads, head_dim]`, with the requests of the bucket.
    pub query: CudaSlice<E>,
    /// K, in pages.
    pub keys: CudaSlice<E>,
    /// V, laid out like K.
    pub values: CudaSlice<E>,
    /// Where a page, token and head lies.
    pub kv_strides: KvStrides,
    /// `[requests, q_heads, head_dim]`; the rows of each batch are written.
    pub output: CudaSlice<E>,
    /// At least [`super::Bucket::workspace_bytes`] bytes.
    pub workspace: CudaSlice<u8>,
    /// Natural-log sum of exponentials of the logits, `[requests, q_heads]`.
    pub lse: Option<CudaSlice<f32>>,
    /// Factor of the logits; `1 / sqrt(head_dim)` if absent.
    pub scale: Option<f32>,
    /// As in [`RawArgs::mask`].
    pub mask: Mask,
    /// As in [`RawArgs::sinks`].
    pub sinks: Option<CudaSlice<f32>>,
}

impl GraphStep {
    /// Captures a plan's launches, from addresses; nothing runs yet. What the plan holds does not matter, only its bucket. The stream is
    /// not the legacy default stream, which cannot be captured.
    ///
    /// # Errors
    /// A plan without a bucket, addresses or strides that are not aligned, a kernel that was not prepared, or the driver's refusal.
    ///
    /// # Safety
    /// All addresses point to device memory that stays until the step is dropped: as large as the bucket's requests, its
    /// [`workspace_bytes`](super::Bucket::workspace_bytes) and the page ids of every uploaded plan say. Code that writes the query or the
    /// pages, or reads the output, on another stream orders it with the step's.
    pub unsafe fn capture(
        backend: &CudaBackend,
        stream: &Arc<CudaStream>,
        plan: DevicePlan,
        args: &RawArgs,
    ) -> Result<Self, CudaError> {
        let bucket = plan.bucket().ok_or(CudaError::NoBucket)?;
        let kernels = backend.kernels_of(&plan, args)?;
        let last_page = match backend.copies_boxes(&plan, args) {
            true => last_tma_page(&args.kv_strides, plan.geometry()),
            false => i32::MAX,
        };
        let lengths = bucket.capacities().requests as usize;
        let raw = stream.cu_stream();
        // SAFETY: the caller keeps the memory, and this the plan, its buffers and the kernels, as long as the graphs.
        let graph = unsafe { Graph::capture(stream, || backend.decode_raw(raw, &plan, args))? };
        let updating = |buffer| {
            // SAFETY: as above; the capture made the context current. Launches are counted in `queue_with`.
            unsafe {
                Graph::capture(stream, || {
                    plan.queue_lengths(buffer, lengths, raw)?;
                    backend.decode_raw(raw, &plan, args)
                })
            }
        };
        let updating = (0..BUFFERS).map(updating).collect::<Result<_, _>>()?;
        let stream = DoneStream(Arc::clone(stream));
        Ok(Self { graph, updating, updated: false, _kernels: kernels, plan, last_page, stream, memory: () })
    }

    /// Queues the copy of a step's plan.
    ///
    /// # Errors
    /// A plan that does not fit the bucket, or has a page that the captured kernels cannot count to; neither changes anything. The driver's.
    pub fn upload(&mut self, plan: &Plan) -> Result<(), CudaError> {
        self.upload_reached(plan)
    }

    /// Queues one step.
    ///
    /// # Errors
    /// An upload that failed, or the driver's.
    pub fn launch(&mut self) -> Result<(), CudaError> {
        self.queue_with(|(), _| ())
    }
}

impl<M> GraphStep<M> {
    /// Gives the next launch the requests' lengths, as [`DevicePlan::set_lengths`] does. Nothing is queued before: that launch copies them.
    /// Waits only if several launches before are still to copy theirs.
    ///
    /// # Errors
    /// As there.
    pub fn set_lengths(&mut self, lengths: &[u32]) -> Result<(), CudaError> {
        self.plan.stage_lengths(lengths)?;
        self.updated = true;
        Ok(())
    }

    /// The plan, in its bucket.
    pub const fn plan(&self) -> &DevicePlan {
        &self.plan
    }

    /// The stream that everything is queued on.
    pub const fn stream(&self) -> &Arc<CudaStream> {
        &self.stream.0
    }

    fn upload_reached(&mut self, plan: &Plan) -> Result<(), CudaError> {
        match plan.largest_page() {
            Some(page) if page > self.last_page => Err(CudaError::FarPage { page, last: self.last_page }),
            _ => self.plan.upload(plan, &self.stream.0),
        }?;
        // The plan has newer ones.
        self.updated = false;
        Ok(())
    }

    /// Queues one step, and keeps what `uses` gives of the memory until it is queued.
    fn queue_with<'a, G>(
        &'a mut self,
        uses: impl FnOnce(&'a mut M, &'a CudaStream) -> G,
    ) -> Result<(), CudaError> {
        let Self { graph, updating, updated, plan, stream, memory, .. } = self;
        let stream: &CudaStream = &stream.0;
        plan.check_uploaded()?;
        let _guards = uses(memory, stream);
        let graph = if *updated { &updating[plan.staged()] } else { graph };
        graph.launch(stream).inspect_err(|_| plan.launch_failed())?;
        if std::mem::take(updated) {
            // SAFETY: the stream is the one that the graph was captured on.
            unsafe { plan.lengths_queued(stream.cu_stream())? };
        }
        Ok(())
    }
}

impl<E: CudaElement> GraphStep<DecodeMemory<E>> {
    /// As [`GraphStep::capture`], with memory that the step owns.
    ///
    /// # Errors
    /// A plan without a bucket, memory that is too small for it, a kernel that was not prepared, or the driver's refusal: cudarc's event
    /// tracking must be off if it uses several streams, for a capture cannot wait for events from outside.
    pub fn with_memory(
        backend: &CudaBackend,
        stream: &Arc<CudaStream>,
        plan: DevicePlan,
        mut memory: DecodeMemory<E>,
    ) -> Result<Self, CudaError> {
        let requests = plan.bucket().ok_or(CudaError::NoBucket)?.capacities().requests as usize;
        let mut args = memory.args();
        let (raw, guards) = args.raw(stream, &plan, requests)?;
        drop(guards);
        // SAFETY: the slices are large enough for the bucket; page ids are checked at each upload. They stay as long as the graph, as they are:
        // callers get views of them only. `launch` orders the stream after their last uses.
        let GraphStep { graph, updating, updated, _kernels, plan, last_page, stream, .. } =
            unsafe { GraphStep::capture(backend, stream, plan, &raw)? };
        Ok(Self { graph, updating, updated, _kernels, plan, last_page, stream, memory })
    }

    /// Queues the copy of a step's plan.
    ///
    /// # Errors
    /// A plan that does not fit the bucket, or has pages beyond the cache; neither changes anything. The driver's.
    pub fn upload(&mut self, plan: &Plan) -> Result<(), CudaError> {
        let largest = plan.largest_page().unwrap_or(-1);
        if largest >= 0 {
            let needed = self.memory.kv_strides.end_of_page(plan.geometry(), largest).unwrap_or(usize::MAX);
            for (name, found) in [("keys", self.memory.keys.len()), ("values", self.memory.values.len())] {
                if found < needed {
                    return Err(CudaError::Length { name, found, needed });
                }
            }
        }
        self.upload_reached(plan)
    }

    /// Queues one step, after the last uses of its memory.
    ///
    /// # Errors
    /// An upload that failed, or the driver's.
    pub fn launch(&mut self) -> Result<(), CudaError> {
        self.queue_with(DecodeMemory::use_on)
    }

    /// The query, to be written before each step.
    pub fn query_mut(&mut self) -> CudaViewMut<'_, E> {
        self.memory.query.as_view_mut()
    }

    /// K and V, to be appended to.
    pub fn cache_mut(&mut self) -> (CudaViewMut<'_, E>, CudaViewMut<'_, E>) {
        (self.memory.keys.as_view_mut(), self.memory.values.as_view_mut())
    }

    /// The output.
    pub fn output(&self) -> CudaView<'_, E> {
        self.memory.output.as_view()
    }

    /// The output, to be cleared.
    pub fn output_mut(&mut self) -> CudaViewMut<'_, E> {
        self.memory.output.as_view_mut()
    }

    /// The LSE, if there is memory for it.
    pub fn lse(&self) -> Option<CudaView<'_, f32>> {
        self.memory.lse.as_ref().map(CudaSlice::as_view)
    }
}

impl<E: CudaElement> DecodeMemory<E> {
    fn args(&mut self) -> DecodeArgs<'_, E> {
        let cache = KvCache { keys: &self.keys, values: &self.values, strides: self.kv_strides };
        DecodeArgs {
            lse: self.lse.as_mut(),
            scale: self.scale,
            mask: self.mask,
            sinks: self.sinks.as_ref(),
            ..DecodeArgs::new(&self.query, cache, &mut self.output, &mut self.workspace)
        }
    }

    /// Orders the stream after the last uses of everything; dropped, the guards make what is queued until then the last use.
    fn use_on<'a>(&'a mut self, stream: &'a CudaStream) -> [Option<SyncOnDrop<'a>>; 7] {
        fn read<'a, T: DeviceRepr>(slice: &'a CudaSlice<T>, stream: &'a CudaStream) -> SyncOnDrop<'a> {
            slice.device_ptr(stream).1
        }
        fn write<'a, T: DeviceRepr>(slice: &'a mut CudaSlice<T>, stream: &'a CudaStream) -> SyncOnDrop<'a> {
            slice.device_ptr_mut(stream).1
        }
        [
            Some(read(&self.query, stream)),
            Some(read(&self.keys, stream)),
            Some(read(&self.values, stream)),
            self.sinks.as_ref().map(|sinks| read(sinks, stream)),
            Some(write(&mut self.output, stream)),
            Some(write(&mut self.workspace, stream)),
            self.lse.as_mut().map(|lse| write(lse, stream)),
        ]
    }
}
