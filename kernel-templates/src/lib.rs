//! What can run: the space of tiles of each backend, the limits of devices, and the rules that say whether a tile is
//! feasible before anything is measured.
//!
//! [`Space::of`] enumerates a backend's declared grid; [`Space::survey`] judges every tile of it for a [`Class`] of kernels
//! on a device's [`Limits`], and keeps for each rejected tile the reason in words (PAT, section 5.2).

mod class;
pub mod cpu;
pub mod cuda;
mod feasibility;
mod limits;
mod space;

pub use class::Class;
pub use feasibility::{Infeasible, check, check_compiled, check_compiled_mix, check_mix};
pub use limits::{CpuLimits, Limits};
pub use space::{Grid, Space, Verdict};
