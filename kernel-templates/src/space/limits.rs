//! What a device offers a kernel, as data.

use super::CudaLimits;
use tilewright_heuristics::Backend;

/// Limits of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limits {
    /// Host threads.
    Cpu(CpuLimits),
    /// An NVIDIA GPU.
    Cuda(CudaLimits),
}

impl Limits {
    /// The backend whose limits these are.
    pub const fn backend(&self) -> Backend {
        match self {
            Limits::Cpu(_) => Backend::Cpu,
            Limits::Cuda(_) => Backend::Cuda,
        }
    }
}

/// Limits of the host's processor. Cache sizes are per core, the last level's is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuLimits {
    /// Threads that run at once.
    pub threads: u32,
    /// L1 data cache in bytes.
    pub l1d_bytes: usize,
    /// L2 in bytes.
    pub l2_bytes: usize,
    /// Last-level cache in bytes; 0 if there is none beyond the second.
    pub llc_bytes: usize,
}

impl CpuLimits {
    /// The smallest processor that tiles are meant for: one thread, 32 KB and 512 KB.
    pub const BASELINE: CpuLimits =
        CpuLimits { threads: 1, l1d_bytes: 32 << 10, l2_bytes: 512 << 10, llc_bytes: 0 };
}
