//! Attention on a device of candle's: made once a kind of layer, plans once a step.

use crate::PagedDecode;
#[cfg(feature = "cuda")]
use crate::on_cuda::OnCuda;
use candle_core::{Device, Error, Result, bail};
use tilewright_runtime::{Attention, AttentionOptions, Cpu, Heads, PageTable};

/// Decode attention of one kind of layer on one device. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PagedAttention {
    on: On,
}

#[derive(Clone, Debug)]
enum On {
    Cpu(Attention<Cpu>),
    #[cfg(feature = "cuda")]
    Cuda(OnCuda),
}

impl PagedAttention {
    /// Attention on the CPU, or on the GPU whose stream is the device's. `options.dtype` is the type of query, K, V and output: f16, bf16,
    /// and on the CPU f32.
    ///
    /// # Errors
    /// Heads that make no sense, FP8, a GPU that the kernels cannot run on, or a device that this crate was not built for.
    pub fn new(device: &Device, heads: Heads, options: AttentionOptions) -> Result<Self> {
        if options.dtype.has_fp8_kv() {
            bail!(
                "paged-decode: K and V in FP8 have scales, which this op does not take: use `tilewright_runtime::Attention::run_raw` with the tensors' addresses"
            );
        }
        let on = match device {
            Device::Cpu => On::Cpu(Attention::cpu(heads, options).map_err(Error::wrap)?),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => On::Cuda(OnCuda::new(device, heads, options)?),
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) => bail!(
                "paged-decode: tilewright-candle was built without GPUs: enable its feature `cuda`, or use `Device::Cpu`"
            ),
            Device::Metal(_) => bail!("paged-decode: there are no kernels for Metal: use `Device::Cpu`"),
        };
        Ok(Self { on })
    }

    /// Plans a step: finds shared prefixes in the page table, and packs the batch. The plan serves all layers of the step.
    ///
    /// # Errors
    /// A page table that makes no sense; on a GPU a kernel that cannot be compiled, or another thread than before where candle's stream is
    /// the thread's own.
    pub fn plan(&self, table: &PageTable<'_>) -> Result<PagedDecode> {
        match &self.on {
            On::Cpu(attention) => {
                let plan = attention.plan(table).map_err(Error::wrap)?;
                Ok(PagedDecode::on_cpu(attention.clone(), plan))
            }
            #[cfg(feature = "cuda")]
            On::Cuda(on_cuda) => Ok(PagedDecode::on_cuda(on_cuda.clone(), on_cuda.plan(table)?)),
        }
    }
}
