//! Kernels of a device, and plans executed with them.
#![allow(unsafe_code)]

use super::args::DecodeArgs;
use super::kernels::{Compiled, Kernels};
use super::tensor_maps::{KnownTensors, meaningful};
use super::{CudaDevice, CudaElement, CudaError, DevicePlan, KvPages, Mix, RawArgs};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstream;
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::KernelOptions;
use tilewright_kernel_templates::toolchain::{Compiler, CubinArchive};

/// Kernels of one device.
#[derive(Debug)]
pub struct CudaBackend {
    device: CudaDevice,
    pub(super) kernels: Kernels,
    pub(super) known_tensors: KnownTensors,
}

impl CudaBackend {
    /// A backend without kernels yet.
    ///
    /// # Errors
    /// NVRTC is missing, or newer than the driver.
    pub fn new(device: &CudaDevice) -> Result<Self, CudaError> {
        Ok(Self::with(device, Kernels::new(device, false)?))
    }

    /// As [`CudaBackend::new`], but fetches NVRTC if this machine has none.
    ///
    /// # Errors
    /// NVRTC is missing and cannot be fetched, or is newer than the driver.
    pub fn or_fetch(device: &CudaDevice) -> Result<Self, CudaError> {
        Ok(Self::with(device, Kernels::new(device, true)?))
    }

    /// A backend with the kernels of an archive; NVRTC is looked for, and fetched if `fetch` says so, when another is needed. An archive
    /// without kernels for the device, or newer than its driver, is passed over.
    ///
    /// # Errors
    /// The archive is passed over, and NVRTC is missing or newer than the driver.
    pub fn of_archive(
        device: &CudaDevice,
        fetch: bool,
        archive: &'static CubinArchive,
    ) -> Result<Self, CudaError> {
        Ok(Self::with(device, Kernels::of_archive(device, fetch, archive)?))
    }

    fn with(device: &CudaDevice, kernels: Kernels) -> Self {
        Self { device: device.clone(), kernels, known_tensors: KnownTensors::default() }
    }

    /// The device.
    pub const fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The compiler.
    pub const fn compiler(&self) -> &Compiler {
        self.kernels.compiler()
    }

    /// Compiles and loads what tiles need, on all cores; what is loaded already costs nothing. `each` is told after every compiled tile.
    ///
    /// Launches choose among what is prepared by what they are given: see [`RawArgs::options`]. So the options say, too, whether pages are such
    /// that TMA cannot load them ([`KernelOptions::for_pages`], [`super::kv_load`]).
    ///
    /// The answers are in the order of the tiles; one that fails keeps no other from being loaded.
    ///
    /// # Errors
    /// The merge kernels of the class cannot be made.
    pub fn prepare(
        &mut self,
        tiles: &[Tile],
        class: &Class,
        options: KernelOptions,
        each: impl Fn() + Sync,
    ) -> Result<Vec<Result<Compiled, CudaError>>, CudaError> {
        let wanted: Vec<_> = tiles.iter().map(|&tile| (tile, *class, options)).collect();
        self.kernels.prepare(&wanted, each)
    }

    /// As [`CudaBackend::prepare`] for tiles of several classes and options, all of them compiled at once.
    ///
    /// # Errors
    /// The merge kernels of a class cannot be made.
    pub fn prepare_all(
        &mut self,
        wanted: &[(Tile, Class, KernelOptions)],
    ) -> Result<Vec<Result<Compiled, CudaError>>, CudaError> {
        self.kernels.prepare(wanted, || ())
    }

    /// Compiles tiles together into one kernel, and loads it; what is loaded already costs nothing. Plans with a single launch
    /// ([`super::Launch::Single`]) need it. Takes as long as compiling each of the tiles.
    ///
    /// Every CTA of such a launch has the threads and the shared memory of the greediest of the tiles. With TMA it has no more registers than
    /// that one alone, and all tiles have the same number of warps. As for one tile, the options say whether pages are such that tokens have
    /// to be gathered: where kernels use TMA that is another kernel.
    ///
    /// # Errors
    /// No tile, tiles that cannot run on this device or not together, or the compiler's.
    pub fn prepare_mix(
        &mut self,
        tiles: &[Tile],
        class: &Class,
        options: KernelOptions,
    ) -> Result<(Mix, Compiled), CudaError> {
        let mix = Mix::of(tiles);
        let compiled = self.kernels.prepare_mix(&mix, class, options)?;
        Ok((mix, compiled))
    }

    /// As [`CudaBackend::prepare_mix`] for several mixes, classes and options, compiled on all cores. The answers are in their order.
    pub fn prepare_mixes(
        &mut self,
        wanted: &[(Mix, Class, KernelOptions)],
    ) -> Vec<Result<Compiled, CudaError>> {
        self.kernels.prepare_mixes(wanted)
    }

    /// What the driver says of a loaded tile: registers, bytes of local memory, CTAs an SM. Static analysis has to say the same.
    ///
    /// # Errors
    /// The tile is not prepared, or the driver's.
    pub fn told_by_driver(
        &self,
        tile: &Tile,
        class: &Class,
        options: KernelOptions,
    ) -> Result<(u32, u32, u32), CudaError> {
        self.kernels.decode(tile, class, options)?.told_by_driver()
    }

    /// Computes attention for every request of an uploaded plan: launches on the stream, in the plan's way ([`super::LaunchMode`]), no
    /// allocation and no synchronisation. The plan was uploaded on the same stream, or its upload is done.
    ///
    /// A plan may be launched on several streams, but where the last CTA merges ([`super::MergeBy::LastCta`]) on one at a time. Launches
    /// that a plan forks to its own streams wait there for those that it forked before; other plans have others.
    ///
    /// May be captured into a graph, if cudarc's event tracking was off before the slices were allocated (or there is only one stream):
    /// a capture cannot wait for events from outside. The graph names the slices and the plan's memory: both have to outlive it, and a
    /// larger plan must not be uploaded meanwhile, nor must one that forks be launched on another stream while it is captured. A plan in a
    /// bucket keeps its addresses and grids: what is captured serves all plans of the bucket ([`super::GraphStep`] does it all).
    ///
    /// # Errors
    /// Shapes that do not fit the plan, a kernel that was not prepared, or the driver's refusal.
    pub fn decode<E: CudaElement, C: KvPages<E>>(
        &self,
        stream: &CudaStream,
        plan: &DevicePlan,
        mut args: DecodeArgs<'_, E, C>,
    ) -> Result<(), CudaError> {
        let (raw, _guards) = args.raw(stream, plan, plan.batch())?;
        // SAFETY: the slices were checked against the plan; the guards, dropped when the launches are queued, make cudarc free and reuse
        // the slices after them.
        unsafe { self.decode_raw(stream.cu_stream(), plan, &raw) }
    }

    /// As [`CudaBackend::decode`], from addresses.
    ///
    /// # Errors
    /// Addresses or strides that are not aligned, a kernel that was not prepared, a plan whose last upload or launch failed, or the
    /// driver's refusal.
    ///
    /// # Safety
    /// The stream belongs to the device's context. All addresses point to device memory as large as the plan's geometry, page ids and
    /// [`DevicePlan::workspace_bytes`] say, which stays until the stream has passed this point.
    pub unsafe fn decode_raw(
        &self,
        stream: CUstream,
        plan: &DevicePlan,
        args: &RawArgs,
    ) -> Result<(), CudaError> {
        let args = &RawArgs { kv_strides: meaningful(&args.kv_strides, plan.geometry()), ..*args };
        args.check(plan.geometry().dtype)?;
        plan.check_uploaded()?;
        self.device.context().bind_to_thread().map_err(CudaError::driver("cannot use the device"))?;
        // SAFETY: the caller's promises.
        unsafe { self.launch(stream, plan, args) }
    }
}
