//! Executes a plan on a GPU: forward, one launch a tile, then the merge, all on the caller's stream.
#![allow(unsafe_code)]

use super::args::{CudaElement, DecodeArgs};
use super::kernels::{Compiled, Kernels};
use super::{CudaDevice, CudaError, DevicePlan, RawArgs};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstream;
use std::ffi::c_void;
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{Arguments, AttentionOptions, Compiler, WorkItem};

/// Kernels of one device.
#[derive(Debug)]
pub struct CudaBackend {
    device: CudaDevice,
    pub(super) kernels: Kernels,
}

impl CudaBackend {
    /// A backend without kernels yet.
    ///
    /// # Errors
    /// NVRTC is missing, or newer than the driver.
    pub fn new(device: &CudaDevice) -> Result<Self, CudaError> {
        Ok(Self { device: device.clone(), kernels: Kernels::new(device, false)? })
    }

    /// As [`CudaBackend::new`], but fetches NVRTC if this machine has none.
    ///
    /// # Errors
    /// NVRTC is missing and cannot be fetched, or is newer than the driver.
    pub fn or_fetch(device: &CudaDevice) -> Result<Self, CudaError> {
        Ok(Self { device: device.clone(), kernels: Kernels::new(device, true)? })
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
    /// The answers are in the order of the tiles; one that fails keeps no other from being loaded.
    ///
    /// # Errors
    /// The merge kernels of the class cannot be made.
    pub fn prepare(
        &mut self,
        tiles: &[Tile],
        class: &Class,
        options: AttentionOptions,
        each: impl Fn() + Sync,
    ) -> Result<Vec<Result<Compiled, CudaError>>, CudaError> {
        self.kernels.prepare(tiles, class, options, each)
    }

    /// What the driver says of a loaded tile: registers, bytes of local memory, CTAs an SM. Static analysis has to say the same.
    ///
    /// # Errors
    /// The tile is not prepared, or the driver's.
    pub fn told_by_driver(
        &self,
        tile: &Tile,
        class: &Class,
        options: AttentionOptions,
    ) -> Result<(u32, u32, u32), CudaError> {
        self.kernels.decode(tile, class, options)?.told_by_driver()
    }

    /// Computes attention for every request of an uploaded plan: launches on the stream, no allocation and no synchronisation. The plan
    /// was uploaded on the same stream, or its upload is done.
    ///
    /// May be captured into a graph, if cudarc's event tracking was off before the slices were allocated (or there is only one stream):
    /// a capture cannot wait for events from outside. The graph names the slices and the plan's memory: both have to outlive it, and a
    /// larger plan must not be uploaded meanwhile.
    ///
    /// # Errors
    /// Shapes that do not fit the plan, a kernel that was not prepared, or the driver's refusal.
    pub fn decode<E: CudaElement>(
        &self,
        stream: &CudaStream,
        plan: &DevicePlan,
        args: DecodeArgs<'_, E>,
    ) -> Result<(), CudaError> {
        let (raw, _guards) = args.into_raw(stream, plan)?;
        // SAFETY: the slices were checked against the plan; the guards, dropped when the launches are queued, make cudarc free and reuse
        // the slices after them.
        unsafe { self.decode_raw(stream.cu_stream(), plan, &raw) }
    }

    /// As [`CudaBackend::decode`], from addresses.
    ///
    /// # Errors
    /// Addresses or distances that are not aligned, a kernel that was not prepared, or the driver's refusal.
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
        args.check()?;
        self.device.context().bind_to_thread().map_err(CudaError::driver("cannot use the device"))?;
        let (class, options, image) = (Class::of(plan.geometry()), args.options(), plan.image());
        let mut arguments = arguments(plan, args);
        let items = arguments.items;
        for (index, group) in image.groups.iter().enumerate() {
            let kernel = self.kernels.decode(&group.tile, &class, options)?;
            arguments.items = items + u64::from(group.begin) * size_of::<WorkItem>() as u64;
            arguments.group = index as u32;
            let mut parameters = [(&raw mut arguments).cast::<c_void>()];
            // SAFETY: the kernel takes one `Arguments`, which the driver copies; the caller vouches for the addresses.
            unsafe { kernel.launch(group.count * arguments.kv_heads, stream, &mut parameters)? };
        }
        let rows = image.merge_count * arguments.q_heads;
        if rows > 0 {
            let (kernel, rows_a_cta) = self.kernels.merge(&class, options.sinks, image.longest_merge)?;
            let mut parameters = [(&raw mut arguments).cast::<c_void>()];
            // SAFETY: the kernel takes one `Arguments`, which the driver copies; the caller vouches for the addresses.
            unsafe { kernel.launch(rows.div_ceil(rows_a_cta), stream, &mut parameters)? };
        }
        Ok(())
    }
}

fn arguments(plan: &DevicePlan, args: &RawArgs) -> Arguments {
    let distance = |elements: usize| i64::try_from(elements).unwrap_or(i64::MAX);
    Arguments {
        query: args.query,
        keys: args.keys,
        values: args.values,
        output: args.output,
        lse: args.lse.unwrap_or(0),
        sinks: args.sinks.unwrap_or(0),
        query_request: distance(args.query_strides.request),
        query_head: distance(args.query_strides.head),
        output_request: distance(args.output_strides.request),
        output_head: distance(args.output_strides.head),
        page: distance(args.kv_strides.page),
        token: distance(args.kv_strides.token),
        head: distance(args.kv_strides.head),
        window: args.window.unwrap_or(u32::MAX).min(i32::MAX as u32),
        scale_log2: args.scale * std::f32::consts::LOG2_E,
        softcap: args.softcap.unwrap_or(1.0),
        ..plan.arguments(args.workspace)
    }
}
