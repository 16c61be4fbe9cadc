//! What batches read and write: pages of K and V, queries full of numbers, and outputs. They stay for the next batch: drawing numbers for them takes longer than
//! all else of loading one, and batches of several element types take turns.

use crate::measure::numbers::{Stream, block};
use tilewright_cuda::{CudaDevice, CudaError, DeviceMemory};
use tilewright_heuristics::Dtype;
use tilewright_plan::{E4m3, E5m2};

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
            dtype: stored(dtype),
            keys: filled_memory(device, Stream::Keys, dtype, bytes)?,
            values: filled_memory(device, Stream::Values, dtype, bytes)?,
            scale,
        })
    }

    /// Whether a batch of this type with `bytes` of K fits.
    pub(super) fn serves(&self, dtype: Dtype, bytes: usize) -> bool {
        self.is_of(dtype) && self.keys.bytes() >= bytes
    }

    /// Whether K and V of this type have the numbers that it holds.
    pub(super) fn is_of(&self, dtype: Dtype) -> bool {
        self.dtype == stored(dtype)
    }

    pub(super) fn addresses(&self) -> PoolAddresses {
        PoolAddresses {
            keys: self.keys.address(),
            values: self.values.address(),
            scale: self.scale.address(),
        }
    }
}

/// One of the types whose K and V are stored alike.
const fn stored(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F16 | Dtype::F32 => Dtype::F16,
        Dtype::Bf16 => Dtype::Bf16,
        Dtype::Fp8F16 | Dtype::Fp8Bf16 | Dtype::Fp8F32 => Dtype::Fp8F16,
        Dtype::E5m2F16 | Dtype::E5m2Bf16 | Dtype::E5m2F32 => Dtype::E5m2F16,
    }
}

/// Queries and outputs of a batch, and of each smaller one.
#[derive(Debug)]
pub(super) struct Rows {
    dtype: Dtype,
    pub(super) query: DeviceMemory,
    pub(super) output: DeviceMemory,
}

impl Rows {
    /// So many bytes of queries of this type, and as many of outputs.
    pub(super) fn new(device: &CudaDevice, dtype: Dtype, bytes: usize) -> Result<Self, CudaError> {
        Ok(Self {
            dtype,
            query: filled_memory(device, Stream::Query, dtype, bytes)?,
            output: DeviceMemory::new(device.context(), bytes)?,
        })
    }

    /// Whether a batch with this many bytes of queries of this type fits.
    pub(super) fn serves(&self, dtype: Dtype, bytes: usize) -> bool {
        self.is_of(dtype) && self.query.bytes() >= bytes
    }

    /// Whether its queries have this type.
    pub(super) fn is_of(&self, dtype: Dtype) -> bool {
        self.dtype == dtype
    }
}

/// Copies of a stream's block. Elements are those that K and V have.
fn filled_memory(
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
        Dtype::E5m2F16 | Dtype::E5m2Bf16 | Dtype::E5m2F32 => {
            memory.repeat(&block(stream, bytes, |x| E5m2::from_f32(x).to_bits()))?;
        }
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_are_stored_alike_share_their_pages() {
        assert_eq!([Dtype::Fp8Bf16, Dtype::Fp8F32].map(stored), [stored(Dtype::Fp8F16); 2]);
        assert_eq!(stored(Dtype::F32), stored(Dtype::F16));
        assert_eq!(stored(Dtype::E5m2Bf16), stored(Dtype::E5m2F16));
        assert_ne!(stored(Dtype::E5m2F16), stored(Dtype::Fp8F16));
        assert_ne!(stored(Dtype::Bf16), stored(Dtype::F16));
        for dtype in Dtype::ALL.into_iter().filter(|&dtype| dtype != Dtype::F32) {
            assert_eq!(stored(dtype).kv_bytes(), dtype.kv_bytes(), "{dtype}");
        }
    }
}
