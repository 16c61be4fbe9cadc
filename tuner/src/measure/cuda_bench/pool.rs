//! What batches read: pages of K and V, and queries, full of random numbers. Their values decide no time, but zeros might.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_heuristics::Dtype;
use tilewright_runtime::E4m3;
use tilewright_runtime::cuda::{CudaDevice, CudaError, DeviceMemory};

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
            keys: random_memory(device, dtype, bytes)?,
            values: random_memory(device, dtype, bytes)?,
            scale,
        })
    }

    /// Whether a batch of this type with so many bytes of K fits.
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

/// Copies of one random block whose length divides nothing, so that pages differ. Elements are those that K and V have.
pub(super) fn random_memory(
    device: &CudaDevice,
    dtype: Dtype,
    bytes: usize,
) -> Result<DeviceMemory, CudaError> {
    const BLOCK: usize = (1 << 20) + 2;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut number = || rng.random_range(-1.0f32..1.0);
    let block: Vec<u16> = (0..BLOCK.min(bytes.div_ceil(2)))
        .map(|_| match dtype {
            Dtype::Bf16 => half::bf16::from_f32(number()).to_bits(),
            Dtype::F16 | Dtype::F32 => half::f16::from_f32(number()).to_bits(),
            Dtype::Fp8F16 | Dtype::Fp8Bf16 | Dtype::Fp8F32 => {
                u16::from_le_bytes([(); 2].map(|()| E4m3::from_f32(number()).to_bits()))
            }
        })
        .collect();
    let memory = DeviceMemory::new(device.context(), bytes)?;
    memory.repeat(&block)?;
    Ok(memory)
}
