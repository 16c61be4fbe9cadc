//! The op: one layer of a planned step.

use crate::on_cpu;
#[cfg(feature = "cuda")]
use crate::on_cuda::OnCuda;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, Error, Layout, Result, Shape, Tensor};
#[cfg(feature = "cuda")]
use tilewright_runtime::Cuda;
use tilewright_runtime::plan::Plan;
use tilewright_runtime::{Attention, AttentionPlan, Cpu, Planned as _};

/// A planned step as an op on candle's tensors, which is applied in every layer.
///
/// Its arguments are the query `[requests, query heads, dim]`, and K and V `[pages, page size, KV heads, dim]`; the output is like the
/// query, without gaps. Arguments may be views: only the elements of one head's vector have to be neighbours, and K and V have to have the same
/// strides.
///
/// It has no gradient.
#[derive(Debug)]
pub struct PagedDecode {
    on: On,
    largest_page: Option<i32>,
}

#[derive(Debug)]
enum On {
    Cpu(Attention<Cpu>, AttentionPlan<Cpu>),
    #[cfg(feature = "cuda")]
    Cuda(OnCuda, Box<AttentionPlan<Cuda>>),
}

impl PagedDecode {
    pub(crate) fn on_cpu(attention: Attention<Cpu>, plan: AttentionPlan<Cpu>) -> Self {
        Self { largest_page: plan.plan().largest_page(), on: On::Cpu(attention, plan) }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn on_cuda(attention: OnCuda, plan: AttentionPlan<Cuda>) -> Self {
        Self { largest_page: plan.plan().largest_page(), on: On::Cuda(attention, Box::new(plan)) }
    }

    /// Computes a layer: `query.apply_op3_no_bwd(keys, values, self)`.
    ///
    /// # Errors
    /// Tensors of another shape, type or device than was planned for, strides that cannot be read, a cache that lacks a page of the
    /// page table, or the driver's.
    pub fn forward(&self, query: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        query.apply_op3_no_bwd(keys, values, self)
    }

    /// Gives the plan new lengths: requests have grown inside their last pages, and need no other plan.
    ///
    /// # Errors
    /// Another number of lengths than requests, or a length that needs another number of pages.
    pub fn set_lengths(&mut self, seq_lens: &[u32]) -> Result<()> {
        match &mut self.on {
            On::Cpu(_, plan) => plan.set_lengths(seq_lens).map_err(Error::wrap),
            #[cfg(feature = "cuda")]
            On::Cuda(_, plan) => plan.set_lengths(seq_lens).map_err(Error::wrap),
        }
    }

    /// The work items, packs and merges.
    pub fn plan(&self) -> &Plan {
        match &self.on {
            On::Cpu(_, plan) => plan.plan(),
            #[cfg(feature = "cuda")]
            On::Cuda(_, plan) => plan.plan(),
        }
    }
}

impl CustomOp3 for PagedDecode {
    fn name(&self) -> &'static str {
        "paged-decode"
    }

    fn cpu_fwd(
        &self,
        query: &CpuStorage,
        query_layout: &Layout,
        keys: &CpuStorage,
        keys_layout: &Layout,
        values: &CpuStorage,
        values_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        match &self.on {
            On::Cpu(attention, plan) => on_cpu::run(
                attention,
                plan,
                self.largest_page,
                [query, keys, values],
                [query_layout, keys_layout, values_layout],
            ),
            #[cfg(feature = "cuda")]
            On::Cuda(..) => candle_core::bail!(
                "paged-decode: the step was planned for a GPU, the tensors are on the CPU: plan it with a `PagedAttention` of `Device::Cpu`"
            ),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        query: &CudaStorage,
        query_layout: &Layout,
        keys: &CudaStorage,
        keys_layout: &Layout,
        values: &CudaStorage,
        values_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        match &self.on {
            On::Cpu(..) => candle_core::bail!(
                "paged-decode: the step was planned for the CPU, the tensors are on a GPU: plan it with a `PagedAttention` of their device"
            ),
            On::Cuda(attention, plan) => attention.run(
                plan,
                self.largest_page,
                [query, keys, values],
                [query_layout, keys_layout, values_layout],
            ),
        }
    }
}
