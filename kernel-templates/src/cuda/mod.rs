//! The CUDA kernels: templates (`*.cuh`), and beside each the host code that knows the same (`*.rs`).
//!
//! [`Kernel`] instantiates a template; `crate::toolchain` compiles it. `abi` declares what a launch reads, `kernel_traits` what a CTA takes.

mod abi;
mod append;
mod decode;
mod kernel;
mod kernel_traits;
mod merge;
mod merge_states;
mod options;
mod probe;
mod sources;

pub use abi::{
    Arguments, BOX_TOKENS, CLIPPED_TOKENS, DIRECT, EVICT_FIRST, FastDiv, GRANULE, KvSegment, MAX_STATES,
    MergeItem, OutputTarget, StatesArguments, TensorMap, TimelineEntry, UNTOUCHED, VALUE_MAPS, WARP_ROWS,
    WorkItem, max_segments,
};
pub use append::AppendArguments;
pub use kernel::Kernel;
pub use kernel_traits::{
    WarpSplit, has_tma_producers, mix_producer_warps, mix_shared_bytes, mix_threads, panel_row_bytes,
    producer_warps, shared_bytes, threads, transposes,
};
pub use merge::MERGE_WARPS;
pub use options::{KernelOptions, KvLoad, MaskArguments};
pub use probe::{CTA_PROBE_BYTES, CTA_PROBE_REGION, FLOP_PROBE_FLOPS};
pub use sources::{source_hash, sources};
