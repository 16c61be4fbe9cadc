//! The CUDA backend: the caller's context and stream, no allocation and no synchronisation between upload and output.
//!
//! An engine uses it through the crate `tilewright-runtime`. Here are the explicit forms: [`TunedBackend`] compiles what the device's selector
//! may choose, [`DevicePlan::upload`] copies a plan, and [`CudaBackend::decode`] (from raw pointers [`CudaBackend::decode_raw`]) only launches, so
//! that it can be captured in a graph ([`GraphStep`]).

mod append;
mod args;
mod backend;
mod bucket;
mod cache;
mod device;
mod device_plan;
mod error;
mod fit_error;
mod graph;
mod graph_step;
mod kernels;
mod launch;
mod launch_mode;
mod lengths;
mod memory;
mod merge_states;
mod packed_plan;
#[cfg(feature = "profiling")]
pub mod profiling;
mod side_streams;
mod tensor_maps;
mod trial;
mod tuned_backend;

pub use append::{AppendArgs, Positions, RawAppend, RawPositions, RawRotary, Rotary};
pub use args::{DecodeArgs, RawArgs, RawScales, RowStrides};
pub use backend::CudaBackend;
pub use bucket::{Bucket, Capacities};
pub use cache::{
    CudaElement, Fp8KvCache, Fp8KvCacheMut, KvCache, KvCacheMut, KvPages, KvPagesMut, ScaleSlices,
};
pub use device::CudaDevice;
pub use device_plan::DevicePlan;
pub use error::CudaError;
pub use fit_error::FitError;
pub use graph::Graph;
pub use graph_step::{DecodeMemory, GraphStep};
pub use kernels::Compiled;
pub use launch_mode::{Launch, LaunchMode, MergeBy, Mix, ParseLaunchModeError};
pub use memory::DeviceMemory;
pub use merge_states::{MergeStatesArgs, RawMergeStates, RawState, State};
pub use packed_plan::PackedPlan;
pub use tensor_maps::{kv_load, kv_load_up_to};
pub use tilewright_kernel_templates::cuda::MAX_STATES;
pub use tilewright_kernel_templates::toolchain::{ArchiveError, CubinArchive};
pub use tilewright_kernel_templates::{Class, RotaryPairs};
pub use trial::TrialMemory;
pub use tuned_backend::TunedBackend;
