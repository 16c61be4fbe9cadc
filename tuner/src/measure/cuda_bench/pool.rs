//! What batches read: pages of K and V, and queries, full of numbers.

use crate::measure::numbers::{Stream, block};
use tilewright_cuda::{CudaDevice, CudaError, DeviceMemory};
use tilewright_heuristics::Dtype;
use tilewright_plan::E4m3;

/// Pages of K and V.
#[derive(Debug)]
pub(super) struct Pool {
    dtype: Dtype,
    keys: DeviceMemory,
    values: DeviceMemory,
    /// One f32 of 1, the scale of all heads where K and V are FP8.
    scale: DeviceMemory,
}

/// Addresses on the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PoolAddresses {
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) scale: u64,
}

impl Pool {
    /// So many bytes of K, and as many of V.
    pub(super) fn new(device: &CudaDevice, dtype: Dtype, bytes: usize) -> Result<Self, CudaError> {
        let scale = DeviceMemory::new(device.context(), 4)?;
        scale.write(0, &[1.0f32])?;
        Ok(Self {
            dtype,
            keys: filled_memory(device, Stream::Keys, dtype, bytes)?,
            values: filled_memory(device, Stream::Values, dtype, bytes)?,
            scale,
        })
    }

    /// Whether a batch of this type with `bytes` of K fits.
    pub(super) fn serves(&self, dtype: Dtype, bytes: usize) -> bool {
        self.dtype == dtype && self.keys.bytes() >= bytes
    }

    pub(super) fn addresses(&self) -> PoolAddresses {
        PoolAddresses {
            keys: self.keys.address(),
            values: self.values.address(),
            scale: self.scale.address(),
        }
    }
}

/// Copies of a stream's block. Elements are those that K and V have.
pub(super) fn filled_memory(
    device: &CudaDevice,
    stream: Stream,
    dtype: Dtype,
    bytes: usize,
) -> Result<DeviceMemory, CudaError> {
    let memory = DeviceMemory::new(device.context(), bytes)?;
    match dtype {
        Dtype::Bf16 => {
            memory.repeat(&block(stream, bytes.div_ceil(2), |x| half::bf16::from_f32(x).to_bits()))?
        }
        Dtype::F16 | Dtype::F32 => {
            memory.repeat(&block(stream, bytes.div_ceil(2), |x| half::f16::from_f32(x).to_bits()))?;
        }
        Dtype::Fp8F16 | Dtype::Fp8Bf16 | Dtype::Fp8F32 => {
            memory.repeat(&block(stream, bytes, |x| E4m3::from_f32(x).to_bits()))?;
        }
    }
    Ok(memory)
}
