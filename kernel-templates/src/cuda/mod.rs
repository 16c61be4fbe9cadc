//! The CUDA kernels, and all that is known of a variant before it runs.
//!
//! [`Kernel`] renders a variant of the templates in `cuda/`. [`kernel_usage`] reads a compiled kernel's registers and memory
//! from its cubin; [`CudaLimits`] is what a device has; [`occupancy`] says how many CTAs of the one fit an SM of the other, and
//! [`bytes_in_flight`] whether those CTAs ask for enough memory at a time to keep it busy (PAT, section 5.2).

mod arguments;
mod cubin;
mod in_flight;
mod limits;
mod occupancy;
mod spills;
mod variant;

pub use arguments::{Arguments, MergeItem, WorkItem};
pub use cubin::{CubinError, KernelUsage, kernel_usage};
pub use in_flight::{bytes_in_flight, bytes_in_flight_needed};
pub use limits::{CudaLimits, ReportedLimits, UnknownDevice};
pub use occupancy::{Limiter, Occupancy, WARP_THREADS, occupancy};
pub use spills::{PtxasReport, parse_ptxas_log};
pub use variant::{AttentionOptions, Kernel, MERGE_WARPS, shared_bytes, source_hash, sources};
