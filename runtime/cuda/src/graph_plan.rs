//! The plan that captured launches read: what a graph of a whole model has of a bucket, whoever captures it.
#![allow(unsafe_code)]

use super::tensor_maps::last_tma_page;
use super::{Bucket, CudaBackend, CudaDevice, CudaError, DeviceMemory, DevicePlan, RawArgs};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstream;
use tilewright_plan::Plan;

/// A plan in its bucket and the workspace for its partials, at addresses that never change. Launches that are captured with it, of all layers of
/// a step, compute whatever plan was uploaded last; [`GraphStep`](super::GraphStep) is the same for one layer, with its graph.
///
/// Uploads, and launches of the graphs, are on one stream, or ordered by the caller. It outlives the graphs and their last launches.
#[derive(Debug)]
pub struct GraphPlan {
    plan: DevicePlan,
    workspace: DeviceMemory,
    /// The last page that all kernels so far count to.
    last_page: i32,
}

impl GraphPlan {
    /// Of an empty batch until the first upload. Everything is allocated here.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &CudaDevice, bucket: Bucket) -> Result<Self, CudaError> {
        let workspace = DeviceMemory::new(device.context(), bucket.workspace_bytes())?;
        Ok(Self { plan: DevicePlan::with_bucket(device, bucket)?, workspace, last_page: i32::MAX })
    }

    /// The plan, in its bucket.
    pub const fn plan(&self) -> &DevicePlan {
        &self.plan
    }

    /// Launches a layer, or captures that, as [`CudaBackend::decode_raw`]; the workspace is this one's. Query and output are as large as the
    /// bucket's requests; the rows of each plan's batch are computed.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there, where the graph is launched as well; pages are those of every plan that is uploaded.
    pub unsafe fn decode_raw(
        &mut self,
        backend: &CudaBackend,
        stream: CUstream,
        args: &RawArgs,
    ) -> Result<(), CudaError> {
        if backend.copies_boxes(&self.plan, args) {
            self.last_page = self.last_page.min(last_tma_page(&args.kv_strides, self.plan.geometry()));
        }
        let args = RawArgs { workspace: self.workspace.address(), ..*args };
        // SAFETY: the caller's promises; the workspace is as large as the bucket says.
        unsafe { backend.decode_raw(stream, &self.plan, &args) }
    }

    /// Queues the copy of a step's plan.
    ///
    /// # Errors
    /// A plan that does not fit the bucket, or has a page that a launch so far cannot count to; neither changes anything. The driver's.
    pub fn upload(&mut self, plan: &Plan, stream: &CudaStream) -> Result<(), CudaError> {
        match plan.largest_page() {
            Some(page) if page > self.last_page => Err(CudaError::FarPage { page, last: self.last_page }),
            _ => self.plan.upload(plan, stream),
        }
    }

    /// Queues the copy of new lengths of the plan that was uploaded last, as [`DevicePlan::set_lengths`].
    ///
    /// # Errors
    /// As there.
    pub fn set_lengths(&mut self, lengths: &[u32], stream: &CudaStream) -> Result<(), CudaError> {
        self.plan.set_lengths(lengths, stream)
    }
}
