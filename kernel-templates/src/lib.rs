//! What can run: the space of tiles of each backend, the rules that say whether a tile is feasible before anything is measured, the CUDA
//! kernels, and what compiles them.

mod arch;
mod class;
pub mod cpu;
pub mod cuda;
mod rotary;
mod space;
pub mod toolchain;

pub use arch::{Arch, ParseArchError};
pub use class::Class;
pub use rotary::RotaryPairs;
pub use space::{
    CpuLimits, CudaLimits, Grid, Infeasible, Limiter, Limits, Occupancy, ReportedLimits, SHIPPED_ARCHS,
    SHIPPED_CLASSES, Space, UnknownDevice, Verdict, WARP_THREADS, bytes_in_flight, bytes_in_flight_needed,
    check, check_compiled, check_compiled_mix, check_mix, invariant_set, invariant_sets, occupancy,
    selected_kernels, selection, selectors, shipped_kernels,
};
