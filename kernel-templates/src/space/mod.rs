//! Which tiles can run on a device, and are worth measuring.
//!
//! [`Space::of`] enumerates a backend's declared grid; [`Space::survey`] judges every tile of it for a [`Class`](crate::Class) of kernels on a
//! device's [`Limits`], and keeps for each rejected tile the reason in words (PAT, section 5.2). [`occupancy`] says how many CTAs of a
//! compiled kernel fit an SM, [`bytes_in_flight`] whether those CTAs ask for enough memory at a time to keep it busy.

mod cuda_limits;
mod feasibility;
mod grid;
mod in_flight;
mod invariant;
mod limits;
mod occupancy;
mod selection;
mod shipped;

pub use cuda_limits::{CudaLimits, ReportedLimits, UnknownDevice};
pub use feasibility::{Infeasible, check, check_compiled, check_compiled_mix, check_mix};
pub use grid::{Grid, Space, Verdict};
pub use in_flight::{bytes_in_flight, bytes_in_flight_needed};
pub use invariant::{invariant_set, invariant_sets};
pub use limits::{CpuLimits, Limits};
pub use occupancy::{Limiter, Occupancy, WARP_THREADS, occupancy};
pub use selection::{selection, selectors};
pub use shipped::{SHIPPED_ARCHS, SHIPPED_CLASSES, selected_kernels, shipped_kernels};
