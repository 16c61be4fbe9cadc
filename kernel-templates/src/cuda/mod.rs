//! The CUDA kernels, and all that is known of a variant before it runs. None of it needs a GPU or its driver.
//!
//! [`Kernel`] renders a variant of the templates in `cuda/`; [`Compiler`] makes its [`Cubin`] with NVRTC, which is found or fetched,
//! and keeps it by content. [`kernel_usage`] reads a compiled kernel's registers and memory; [`CudaLimits`] is what a device has;
//! [`occupancy`] says how many CTAs of the one fit an SM of the other, and [`bytes_in_flight`] whether those CTAs ask for enough
//! memory at a time to keep it busy (PAT, section 5.2).

mod abi;
mod arch;
mod cache;
mod compiler;
mod cubin;
mod error;
mod fetch;
mod in_flight;
mod limits;
mod locate;
mod nvrtc;
mod occupancy;
mod producers;
mod spills;
mod variant;

pub use abi::{
    Arguments, BOX_TOKENS, DIRECT, EVICT_FIRST, GRANULE, KvSegment, MAX_STATES, MergeItem, OutputTarget,
    StatesArguments, TensorMap, TimelineEntry, UNTOUCHED, WARP_ROWS, WorkItem, max_segments,
};
pub use arch::{Arch, ParseArchError};
pub use cache::{CacheError, CachedCubin, CubinCache};
pub use compiler::{CompileError, Compiler, Cubin};
pub use cubin::{CubinError, KernelUsage, kernel_usage};
pub use error::{FetchError, NvrtcError, Rejected};
pub use fetch::{Disassemblers, fetch, fetch_disassemblers};
pub use in_flight::{bytes_in_flight, bytes_in_flight_needed};
pub use limits::{CudaLimits, ReportedLimits, UnknownDevice};
pub use locate::{Candidate, Surroundings, candidates};
pub use nvrtc::{Compiled, Nvrtc, Source};
pub use occupancy::{Limiter, Occupancy, WARP_THREADS, occupancy};
pub use producers::{
    has_tma_producers, has_tma_producers_on, mix_producer_warps, mix_producer_warps_on, mix_shared_bytes,
    mix_threads, producer_warps, shared_bytes_on, threads, threads_on,
};
pub use spills::{PtxasReport, parse_ptxas_log};
pub use variant::{
    AttentionOptions, CTA_PROBE_BYTES, CTA_PROBE_REGION, FLOP_PROBE_FLOPS, Kernel, MERGE_WARPS, shared_bytes,
    source_hash, sources,
};
