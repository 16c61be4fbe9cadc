//! The launches of a plan: forward in one of its ways, then the merge unless the last CTAs do it.
#![allow(unsafe_code)]

use super::kernels::{Begins, LoadedKernel};
use super::packed_plan::{ItemGroup, Variant};
use super::tensor_maps::{TensorMaps, heads_a_page};
use super::{CudaBackend, CudaError, DevicePlan, MergeBy, RawArgs};
use cudarc::driver::sys::CUstream;
use std::ffi::c_void;
use std::sync::Arc;
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{
    Arguments, FastDiv, MaskArguments, TimelineEntry, WorkItem, mix_producer_warps,
};

/// The kernels of a plan, each looked up once: those of the first launches, which mostly are all.
#[derive(Debug, Default)]
struct Found<'a> {
    forward: [Option<&'a LoadedKernel>; 8],
    /// The merge, if there is something to merge by a launch of its own, and how many rows each of its CTAs serves.
    merge: Option<(&'a LoadedKernel, u32)>,
}

impl CudaBackend {
    /// Launches all of a plan, and tells it if that failed.
    ///
    /// # Safety
    /// As for [`CudaBackend::decode_raw`]; the context is current.
    pub(super) unsafe fn launch(
        &self,
        stream: CUstream,
        plan: &DevicePlan,
        args: &RawArgs,
    ) -> Result<(), CudaError> {
        // Whatever is missing is found before anything is queued: only the driver can fail later.
        let mut found = Found::default();
        for (index, group) in plan.packed().groups.iter().enumerate() {
            let kernel = self.kernel_of(group, plan, args)?;
            if let Some(place) = found.forward.get_mut(index) {
                *place = Some(kernel);
            }
        }
        if plan.launch_mode().merge == MergeBy::Launch && plan.packed().merge_grid > 0 {
            found.merge = Some(self.merge_kernel(plan, args).map(|(kernel, rows)| (&**kernel, rows))?);
        }
        let arguments = arguments(plan, args, self.tensors(plan, args)?);
        // SAFETY: the caller's promises.
        unsafe { self.queue(stream, plan, args, &found, arguments) }.inspect_err(|_| plan.launch_failed())
    }

    /// # Safety
    /// As for [`CudaBackend::launch`].
    unsafe fn queue(
        &self,
        stream: CUstream,
        plan: &DevicePlan,
        args: &RawArgs,
        found: &Found<'_>,
        arguments: Arguments,
    ) -> Result<(), CudaError> {
        let groups = &plan.packed().groups;
        let forward = |index: usize, stream: CUstream| {
            let group = &groups[index];
            let mut arguments = Arguments {
                items: arguments.items + u64::from(group.begin) * size_of::<WorkItem>() as u64,
                timeline: arguments.timeline
                    + first_cta(group, &arguments) * size_of::<TimelineEntry>() as u64,
                launch_items: FastDiv::new(group.grid),
                group: index as u32,
                ..arguments
            };
            let kernel = match found.forward.get(index) {
                Some(&Some(kernel)) => kernel,
                _ => self.kernel_of(group, plan, args)?,
            };
            let mut parameters = [(&raw mut arguments).cast::<c_void>()];
            // SAFETY: the kernel takes one `Arguments`, which the driver copies; the caller vouches for the addresses.
            unsafe {
                kernel.launch(group.grid * arguments.kv_heads.by, Begins::Late, stream, &mut parameters)
            }
        };
        match plan.side() {
            // SAFETY: the plan's streams are of its context, in which the caller's is too.
            Some(side) => unsafe { side.fork(stream, groups.len(), forward)? },
            None => (0..groups.len()).try_for_each(|index| forward(index, stream))?,
        }
        let rows = plan.packed().merge_grid * arguments.q_heads.by;
        let Some((kernel, rows_a_cta)) = found.merge else { return Ok(()) };
        let mut arguments = arguments;
        let mut parameters = [(&raw mut arguments).cast::<c_void>()];
        let ctas = rows.div_ceil(rows_a_cta);
        // Behind the launches of several streams it would wait for one of them only.
        let early = plan.side().is_none() && self.compiler().arch().has_dependent_launches();
        // SAFETY: the kernel takes one `Arguments`, which the driver copies; the caller vouches for the addresses. It waits for the launch
        // before it, which alone writes what it reads.
        unsafe {
            kernel.launch(ctas, if early { Begins::Early } else { Begins::Late }, stream, &mut parameters)
        }
    }

    /// The kernels that launching a plan takes; they stay loaded as long as they are referenced.
    pub(super) fn kernels_of(
        &self,
        plan: &DevicePlan,
        args: &RawArgs,
    ) -> Result<Vec<Arc<LoadedKernel>>, CudaError> {
        let forward = plan.packed().groups.iter().map(|group| self.kernel_of(group, plan, args));
        let merge = std::iter::once_with(|| self.merge_kernel(plan, args).map(|(kernel, _)| kernel));
        forward.chain(merge).map(|kernel| kernel.cloned()).collect()
    }

    /// Whether a kernel of a plan uses TMA.
    pub(super) fn copies_boxes(&self, plan: &DevicePlan, args: &RawArgs) -> bool {
        let (class, options) = (Class::of(plan.geometry()), args.options(plan));
        let copies = |tiles: &[Tile]| mix_producer_warps(tiles, &class, options, self.compiler().arch()) > 0;
        plan.packed().groups.iter().any(|group| match &group.variant {
            Variant::Tile(tile) => copies(std::slice::from_ref(tile)),
            Variant::Mix(mix) => copies(mix.tiles()),
        })
    }

    /// The tensor maps of kernels with TMA. Where none uses it, the driver is not asked: older ones cannot make any, and none makes one of
    /// a cache that is not there yet.
    fn tensors(&self, plan: &DevicePlan, args: &RawArgs) -> Result<TensorMaps, CudaError> {
        if self.copies_boxes(plan, args) && args.keys != 0 && args.values != 0 {
            self.known_tensors.of(args, plan.geometry())
        } else {
            Ok(TensorMaps::default())
        }
    }

    fn kernel_of(
        &self,
        group: &ItemGroup,
        plan: &DevicePlan,
        args: &RawArgs,
    ) -> Result<&Arc<LoadedKernel>, CudaError> {
        let (class, options) = (Class::of(plan.geometry()), args.options(plan));
        match &group.variant {
            Variant::Tile(tile) => self.kernels.decode(tile, &class, options),
            Variant::Mix(mix) => self.kernels.mix(mix, &class, options),
        }
    }

    fn merge_kernel(
        &self,
        plan: &DevicePlan,
        args: &RawArgs,
    ) -> Result<(&Arc<LoadedKernel>, u32), CudaError> {
        self.kernels.merge(&Class::of(plan.geometry()), args.options(plan), plan.packed().wide_merges)
    }
}

/// The CTA of a plan that a launch begins with.
fn first_cta(group: &ItemGroup, arguments: &Arguments) -> u64 {
    u64::from(group.begin) * u64::from(arguments.kv_heads.by)
}

fn arguments(plan: &DevicePlan, args: &RawArgs, (key_maps, value_maps): TensorMaps) -> Arguments {
    let stride = |elements: usize| i64::try_from(elements).unwrap_or(i64::MAX);
    let of_plan = plan.arguments(args.workspace);
    Arguments {
        lengths: args.lengths.unwrap_or(of_plan.lengths),
        query: args.query,
        keys: args.keys,
        values: args.values,
        output: args.output,
        lse: args.lse.unwrap_or(0),
        sinks: args.sinks.unwrap_or(0),
        key_scales: args.scales.map_or(0, |scales| scales.keys),
        value_scales: args.scales.map_or(0, |scales| scales.values),
        scale_head: args.scales.map_or(0, |scales| i64::from(scales.per_head)),
        query_request: stride(args.query_strides.request),
        query_head: stride(args.query_strides.head),
        output_request: stride(args.output_strides.request),
        output_head: stride(args.output_strides.head),
        page: stride(args.kv_strides.page),
        token: stride(args.kv_strides.token),
        head: stride(args.kv_strides.head),
        timeline: args.timeline.unwrap_or(0),
        mask: MaskArguments::of(&args.mask, args.scale),
        heads_a_page: heads_a_page(&args.kv_strides) as u32,
        key_maps,
        value_maps,
        ..of_plan
    }
}
