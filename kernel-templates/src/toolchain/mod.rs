//! From a kernel to machine code, without a GPU or its driver.
//!
//! [`Compiler`] makes a kernel's [`Cubin`] with [`Nvrtc`], which is found or fetched, and keeps it by content ([`CubinCache`]). [`kernel_usage`]
//! reads a compiled kernel's registers and memory, [`parse_ptxas_log`] its spills. A [`CubinArchive`] has kernels that were compiled elsewhere: they
//! need no NVRTC.

mod archive;
mod cache;
mod compiler;
mod cubin;
mod error;
mod fetch;
mod locate;
mod nvrtc;
mod ptxas_log;

pub use archive::{ArchiveError, ArchiveGroup, CubinArchive};
pub use cache::{CacheError, CachedCubin, CubinCache};
pub use compiler::{CompileError, Compiler, Cubin};
pub use cubin::{CubinError, KernelUsage, kernel_usage};
pub use error::{FetchError, NvrtcError, Rejected};
pub use fetch::{Disassemblers, fetch, fetch_disassemblers};
pub use locate::{Candidate, Surroundings, candidates};
pub use nvrtc::{Compiled, Nvrtc, Source};
pub use ptxas_log::{PtxasReport, parse_ptxas_log};
