//! Attention on a GPU.
#![allow(unsafe_code)]

use crate::attention::{Attention, Backend, Planned};
use crate::{AttentionError, AttentionOptions, Heads, KvCache, PerRow};
use cudarc::driver::sys::CUstreamCaptureStatus;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tilewright_cuda::{
    CubinArchive, CudaDevice, CudaElement, CudaError, DecodeArgs, DevicePlan, Fp8KvCache, KvPages, RawArgs,
    TunedBackend, kv_load_up_to,
};
use tilewright_heuristics::Geometry;
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{KernelOptions, KvLoad};
use tilewright_plan::{Choose, KvStrides, Plan, PlanOptions, Split};

/// The CUDA backend of [`Attention`].
#[derive(Debug)]
pub struct Cuda {
    pub(crate) tuned: RwLock<TunedBackend>,
    prepared: Mutex<HashSet<(Class, KernelOptions)>>,
    /// Memory of plans that are gone, for those to come on the same stream.
    spare: Mutex<Vec<Uploaded>>,
}

/// A plan in device memory, and the workspace for its partials.
#[derive(Debug)]
struct Uploaded {
    stream: Arc<CudaStream>,
    plan: DevicePlan,
    workspace: CudaSlice<u8>,
}

/// What the device has of a plan: nothing before it is first run.
#[derive(Debug)]
pub struct OnDevice {
    backend: Arc<Cuda>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    uploaded: Option<Uploaded>,
    lengths_changed: bool,
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.backend.spare().extend(state.uploaded.take());
    }
}

impl Cuda {
    fn new(context: Arc<CudaContext>, options: &AttentionOptions) -> Result<Self, CudaError> {
        let device = CudaDevice::of(context)?;
        let fetch = options.fetch_nvrtc;
        let tuned = match options.cubins.or_else(CubinArchive::of_environment) {
            Some(archive) => TunedBackend::of_archive(&device, fetch, archive)?,
            None if fetch => TunedBackend::or_fetch(&device)?,
            None => TunedBackend::new(&device)?,
        };
        let tuned = match options.selector {
            Some(selector) => tuned.with_selector(selector)?,
            None => tuned,
        };
        Ok(Self { tuned: RwLock::new(tuned), prepared: Mutex::default(), spare: Mutex::default() })
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Uploaded>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `stream` is what is launched on next, if anything is.
    fn prepare_options(
        &self,
        class: Class,
        options: KernelOptions,
        stream: Option<&CudaStream>,
    ) -> Result<(), AttentionError> {
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if !prepared.contains(&(class, options)) {
            stream.map_or(Ok(()), |stream| refuse_capture(stream, "a kernel is to be compiled"))?;
            self.tuned.write().unwrap_or_else(PoisonError::into_inner).prepare(&class, options)?;
            prepared.insert((class, options));
        }
        Ok(())
    }

    /// Copies the plan if the stream does not have it, or its lengths if they have changed.
    fn upload(&self, state: &mut State, plan: &Plan, stream: &Arc<CudaStream>) -> Result<(), AttentionError> {
        if state.uploaded.as_ref().is_some_and(|uploaded| uploaded.stream != *stream)
            // What is captured runs when its graph is launched, which the caller orders after the upload: on whichever stream that was.
            && !is_captured(stream)?
        {
            self.spare().extend(state.uploaded.take());
        }
        if let Some(uploaded) = &mut state.uploaded {
            if state.lengths_changed {
                refuse_capture(stream, "lengths are to be copied")?;
                uploaded.plan.set_lengths(plan.seq_lens(), stream)?;
                state.lengths_changed = false;
            }
            return Ok(());
        }
        refuse_capture(stream, "a plan is to be copied")?;
        let tuned = self.tuned.read().unwrap_or_else(PoisonError::into_inner);
        let known = {
            let mut spare = self.spare();
            let place = spare.iter().position(|uploaded| uploaded.stream == *stream);
            place.map(|place| spare.swap_remove(place))
        };
        let mut uploaded = match known {
            Some(uploaded) => uploaded,
            None => Uploaded {
                stream: Arc::clone(stream),
                plan: DevicePlan::new(tuned.backend().device()),
                workspace: allocate(stream, 1)?,
            },
        };
        let (mode, mix) = tuned.launch_of(plan);
        uploaded.plan.set_launch_mode(mode, mix);
        uploaded.plan.upload(plan, stream)?;
        let bytes = uploaded.plan.workspace_bytes();
        if uploaded.workspace.len() < bytes {
            uploaded.workspace = allocate(stream, bytes.next_power_of_two())?;
        }
        *state = State { uploaded: Some(uploaded), lengths_changed: false };
        Ok(())
    }
}

fn is_captured(stream: &CudaStream) -> Result<bool, CudaError> {
    let status = stream.capture_status();
    let status = status.map_err(CudaError::driver("cannot ask whether the stream is captured"))?;
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// A graph would repeat what belongs to one step: a copy from a buffer that has other plans by then, or an allocation.
pub(crate) fn refuse_capture(stream: &CudaStream, what: &'static str) -> Result<(), AttentionError> {
    if is_captured(stream)? { Err(AttentionError::Captured { what }) } else { Ok(()) }
}

pub(crate) fn allocate(stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>, CudaError> {
    stream.alloc_zeros(bytes).map_err(CudaError::driver("cannot allocate the workspace"))
}

/// What chooses the tiles of plans, and how plans are made.
pub(crate) fn choice<'a>(
    tuned: &'a TunedBackend,
    geometry: &Geometry,
    options: &AttentionOptions,
) -> (Choose<'a>, PlanOptions) {
    let invariant = tuned.invariant_set(&Class::of(geometry)).filter(|_| options.invariant);
    match invariant {
        Some(set) => (Choose::Set(set), PlanOptions { split: Split::Invariant, ..tuned.plan_options() }),
        None => (Choose::Selection(tuned.choose()), tuned.plan_options()),
    }
}

impl AttentionOptions {
    /// What the kernels for pages of this size have compiled in.
    const fn compiled(&self, page_size: u32) -> KernelOptions {
        KernelOptions {
            mask: self.mask.options(),
            invariant: self.invariant,
            ..KernelOptions::for_pages(page_size)
        }
    }
}

impl Backend for Cuda {
    type OnDevice = OnDevice;
    type Slice<T> = CudaSlice<T>;

    fn on_device(this: &Arc<Self>) -> OnDevice {
        OnDevice { backend: Arc::clone(this), state: Mutex::default() }
    }

    fn lengths_changed(on_device: &OnDevice) {
        on_device.state.lock().unwrap_or_else(PoisonError::into_inner).lengths_changed = true;
    }

    fn prepare(&self, geometry: &Geometry, options: &AttentionOptions) -> Result<(), AttentionError> {
        geometry.validate()?;
        options.check_invariant(geometry)?;
        self.prepare_options(Class::of(geometry), options.compiled(geometry.page_size), None)
    }

    fn with_choice<T>(
        &self,
        geometry: &Geometry,
        options: &AttentionOptions,
        call: impl FnOnce(Choose<'_>, PlanOptions) -> T,
    ) -> T {
        let tuned = self.tuned.read().unwrap_or_else(PoisonError::into_inner);
        let (choose, options) = choice(&tuned, geometry, options);
        call(choose, options)
    }
}

/// A cache in device memory for queries of `E`: of the same type, or FP8 (`CudaSlice<u8>`) with scales.
pub trait DeviceCache<E: CudaElement> {
    #[doc(hidden)]
    fn pages(&self, geometry: &Geometry) -> impl KvPages<E>;

    #[doc(hidden)]
    fn kv_strides(&self, geometry: &Geometry) -> KvStrides;
}

impl<E: CudaElement> DeviceCache<E> for KvCache<'_, CudaSlice<E>> {
    fn pages(&self, geometry: &Geometry) -> impl KvPages<E> {
        tilewright_cuda::KvCache {
            keys: self.keys,
            values: self.values,
            strides: self.layout.strides(geometry),
        }
    }

    fn kv_strides(&self, geometry: &Geometry) -> KvStrides {
        self.layout.strides(geometry)
    }
}

/// Scales of an FP8 cache in device memory.
pub type DeviceScales<'a> = (&'a CudaSlice<f32>, &'a CudaSlice<f32>);

impl<E: CudaElement> DeviceCache<E> for KvCache<'_, CudaSlice<u8>, DeviceScales<'_>> {
    fn pages(&self, geometry: &Geometry) -> impl KvPages<E> {
        Fp8KvCache {
            keys: self.keys,
            values: self.values,
            strides: self.layout.strides(geometry),
            key_scales: self.scales.0,
            value_scales: self.scales.1,
        }
    }

    fn kv_strides(&self, geometry: &Geometry) -> KvStrides {
        self.layout.strides(geometry)
    }
}

impl Attention<Cuda> {
    /// Attention on the GPU of the caller's context. Says once, as a warning, if its tiles were not measured on such a GPU.
    ///
    /// # Errors
    /// Heads that make no sense, a GPU that the kernels cannot run on, or NVRTC is missing.
    pub fn cuda(
        context: Arc<CudaContext>,
        heads: Heads,
        options: AttentionOptions,
    ) -> Result<Self, AttentionError> {
        Self::new(heads, options, Cuda::new(context, &options)?)
    }

    /// Queues one layer on the stream. Query and output are `[batch, query heads, dim]`; every element of the output is written.
    ///
    /// The first call with a plan on a stream copies it there ([`Attention::upload`] does it earlier); the calls after it only launch.
    ///
    /// # Errors
    /// Arguments that do not fit the plan, or the driver's.
    pub fn run<E: CudaElement>(
        &self,
        plan: &impl Planned<Cuda>,
        stream: &Arc<CudaStream>,
        query: &CudaSlice<E>,
        cache: &impl DeviceCache<E>,
        output: &mut CudaSlice<E>,
    ) -> Result<(), AttentionError> {
        self.run_with(plan, stream, query, cache, output, PerRow::default())
    }

    /// As [`Attention::run`], with LSE and sinks.
    ///
    /// # Errors
    /// Arguments that do not fit the plan, or the driver's.
    pub fn run_with<E: CudaElement>(
        &self,
        plan: &impl Planned<Cuda>,
        stream: &Arc<CudaStream>,
        query: &CudaSlice<E>,
        cache: &impl DeviceCache<E>,
        output: &mut CudaSlice<E>,
        per_row: PerRow<'_, CudaSlice<f32>>,
    ) -> Result<(), AttentionError> {
        let PerRow { lse, sinks } = per_row;
        let AttentionOptions { scale, mask, .. } = self.options;
        let strides = cache.kv_strides(plan.plan().geometry());
        self.launch(plan, stream, &strides, sinks.is_some(), |tuned, uploaded, workspace| {
            let pages = cache.pages(uploaded.geometry());
            let args =
                DecodeArgs { lse, scale, mask, sinks, ..DecodeArgs::new(query, pages, output, workspace) };
            tuned.execute(stream, uploaded, args)
        })
    }

    /// As [`Attention::run_with`], from addresses: tensors of other libraries, in any strides. The workspace and the mask are the
    /// attention's, and its scale if it has one; what `args` says of these is not read. A stream of another library is
    /// [`CudaContext::wrap_borrowed_stream`].
    ///
    /// # Errors
    /// Addresses or strides that are not aligned, missing scales, or the driver's.
    ///
    /// # Safety
    /// All addresses point to device memory as large as the plan's geometry, its batch and its page ids say, which stays until the stream
    /// has passed this point. A borrowed stream outlives the attention and its plans.
    pub unsafe fn run_raw(
        &self,
        plan: &impl Planned<Cuda>,
        stream: &Arc<CudaStream>,
        args: &RawArgs,
    ) -> Result<(), AttentionError> {
        self.launch(plan, stream, &args.kv_strides, args.sinks.is_some(), |tuned, uploaded, workspace| {
            let (workspace, _guard) = workspace.device_ptr_mut(stream);
            let args = self.with_own_options(args, workspace);
            // SAFETY: the workspace is as large as the plan needs, and the guard orders its next use after this one; the caller's promises.
            unsafe { tuned.backend().decode_raw(stream.cu_stream(), uploaded, &args) }
        })
    }

    /// Prepares kernels and plan, and calls with them.
    fn launch(
        &self,
        plan: &impl Planned<Cuda>,
        stream: &Arc<CudaStream>,
        kv_strides: &KvStrides,
        sinks: bool,
        call: impl FnOnce(&TunedBackend, &DevicePlan, &mut CudaSlice<u8>) -> Result<(), CudaError>,
    ) -> Result<(), AttentionError> {
        let (on_device, plan) = (plan.on_device(), plan.plan());
        let mut state = on_device.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.backend.upload(&mut state, plan, stream)?;
        let Some(Uploaded { plan: uploaded, workspace, .. }) = &mut state.uploaded else { return Ok(()) };
        let geometry = plan.geometry();
        let kv_load = kv_load_up_to(kv_strides, geometry, uploaded.largest_page());
        self.prepare_launch(geometry, kv_load, sinks, stream)?;
        let tuned = self.backend.tuned.read().unwrap_or_else(PoisonError::into_inner);
        Ok(call(&tuned, uploaded, workspace)?)
    }

    /// Compiles the kernels of a launch that are not those of every plan.
    pub(crate) fn prepare_launch(
        &self,
        geometry: &Geometry,
        kv_load: KvLoad,
        sinks: bool,
        stream: &CudaStream,
    ) -> Result<(), AttentionError> {
        if sinks || kv_load == KvLoad::CpAsync {
            let options = KernelOptions { sinks, kv_load, ..self.options.compiled(geometry.page_size) };
            self.backend.prepare_options(Class::of(geometry), options, Some(stream))?;
        }
        Ok(())
    }

    /// A call's arguments with what the attention decides.
    pub(crate) fn with_own_options(&self, args: &RawArgs, workspace: u64) -> RawArgs {
        let AttentionOptions { scale, mask, .. } = self.options;
        RawArgs { workspace, mask, scale: scale.unwrap_or(args.scale), ..*args }
    }

    /// Copies a plan to the device before it is run there: before a CUDA graph is captured, for example, on the stream that it is launched on.
    /// The graph names the plan's memory: the plan outlives it, and is run on no other stream meanwhile.
    ///
    /// # Errors
    /// The driver's.
    pub fn upload(&self, plan: &impl Planned<Cuda>, stream: &Arc<CudaStream>) -> Result<(), AttentionError> {
        let mut state = plan.on_device().state.lock().unwrap_or_else(PoisonError::into_inner);
        self.backend.upload(&mut state, plan.plan(), stream)
    }

    /// Calls with the compiled kernels: for [`tilewright_cuda::CudaBackend::decode_raw`], buckets and graphs.
    pub fn with_kernels<T>(&self, call: impl FnOnce(&TunedBackend) -> T) -> T {
        call(&self.backend.tuned.read().unwrap_or_else(PoisonError::into_inner))
    }
}
