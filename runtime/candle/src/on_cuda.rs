//! The op on a GPU: candle's context, stream and memory.
#![expect(unsafe_code)]

use crate::tensors::{Tensors, refuse_types};
use candle_core::backend::{BackendDevice as _, BackendStorage as _};
// Candle and the runtime ask for the same version, or streams and contexts would be of different types.
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr as _, DeviceRepr, sys::CUstream};
use candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorageSlice};
use candle_core::{CudaStorage, Error, Layout, Result, Shape, bail};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use tilewright_runtime::cuda::{RawArgs, RowStrides};
use tilewright_runtime::{
    Attention, AttentionOptions, AttentionPlan, Cuda, Dtype, Heads, PageTable, Planned as _,
};

/// Attention on one of candle's devices.
#[derive(Clone, Debug)]
pub(crate) struct OnCuda {
    device: CudaDevice,
    attention: Attention<Cuda>,
    /// Who plans and runs, where the device's stream is the calling thread's own.
    thread: Arc<OnceLock<ThreadId>>,
}

impl OnCuda {
    pub(crate) fn new(device: &CudaDevice, heads: Heads, options: AttentionOptions) -> Result<Self> {
        let context = Arc::clone(device.cuda_stream().context());
        let attention = Attention::cuda(context, heads, options).map_err(Error::wrap)?;
        Ok(Self { device: device.clone(), attention, thread: Arc::default() })
    }

    pub(crate) fn plan(&self, table: &PageTable<'_>) -> Result<AttentionPlan<Cuda>> {
        self.stream()?;
        self.attention.plan(table).map_err(Error::wrap)
    }

    /// The device's stream. `Device::new_cuda` makes devices whose stream is another one on each thread under one handle: plans and workspaces,
    /// which are ordered by a stream, then belong to one thread.
    fn stream(&self) -> Result<Arc<CudaStream>> {
        const PER_THREAD: CUstream = std::ptr::without_provenance_mut(2);
        let stream = self.device.cuda_stream();
        let thread = thread::current().id();
        if stream.cu_stream() == PER_THREAD && *self.thread.get_or_init(|| thread) != thread {
            bail!(
                "paged-decode: the device's stream is each thread's own, and another thread has planned before: make the device with `Device::new_cuda_with_stream`, or a `PagedAttention` for each thread"
            );
        }
        Ok(stream)
    }

    /// Query, K and V.
    pub(crate) fn run(
        &self,
        plan: &AttentionPlan<Cuda>,
        largest_page: Option<i32>,
        storages: [&CudaStorage; 3],
        layouts: [&Layout; 3],
    ) -> Result<(CudaStorage, Shape)> {
        use CudaStorageSlice::{BF16, F16};
        if let Some(other) = storages.iter().find(|storage| !storage.device.same_device(&self.device)) {
            bail!(
                "paged-decode: a tensor is of {:?} ({:?}), the step was planned for {:?} ({:?}): use one `Device` for all",
                other.device,
                other.device.location(),
                self.device,
                self.device.location()
            );
        }
        match (plan.plan().geometry().dtype, storages.map(|storage| &storage.slice)) {
            (Dtype::F16, [F16(_), F16(_), F16(_)]) => {
                self.run_as::<half::f16>(plan, largest_page, storages, layouts)
            }
            (Dtype::Bf16, [BF16(_), BF16(_), BF16(_)]) => {
                self.run_as::<half::bf16>(plan, largest_page, storages, layouts)
            }
            (planned, _) => refuse_types(planned, storages.map(|storage| storage.dtype())),
        }
    }

    fn run_as<E: CudaDType + DeviceRepr>(
        &self,
        plan: &AttentionPlan<Cuda>,
        largest_page: Option<i32>,
        storages: [&CudaStorage; 3],
        layouts: [&Layout; 3],
    ) -> Result<(CudaStorage, Shape)> {
        let [query, keys, values] = storages.map(CudaStorage::as_cuda_slice::<E>);
        let (query, keys, values) = (query?, keys?, values?);
        let at = Tensors::new(plan.plan(), largest_page, layouts, [query.len(), keys.len(), values.len()])?;
        let shape = layouts[0].shape().clone();
        let stream = self.stream()?;
        // SAFETY: every element is written before anything is read, on the stream of the allocation; a batch of 0 has none.
        let output = unsafe { self.device.alloc::<E>(shape.elem_count().max(1))? };
        if shape.elem_count() > 0 {
            let address = |elements: usize| (elements * size_of::<E>()) as u64;
            // The guards record the launches as the slices' last uses.
            let (query, _query) = query.device_ptr(&stream);
            let (keys, _keys) = keys.device_ptr(&stream);
            let (values, _values) = values.device_ptr(&stream);
            let (output, _output) = output.device_ptr(&stream);
            let args = RawArgs {
                query: query + address(at.query),
                query_strides: RowStrides { request: at.query_strides.0, head: at.query_strides.1 },
                keys: keys + address(at.keys),
                values: values + address(at.values),
                kv_strides: at.kv_strides,
                output,
                ..RawArgs::dense(plan.plan().geometry())
            };
            // SAFETY: `Tensors` has checked shapes, ends and the largest page against these slices, which the guards keep until the launches are
            // queued, and candle until its stream has passed them; the device, and so its stream, is kept by `self`.
            unsafe { self.attention.run_raw(plan, &stream, &args).map_err(Error::wrap)? };
        }
        Ok((CudaStorage::wrap_cuda_slice(output, self.device.clone()), shape))
    }
}
