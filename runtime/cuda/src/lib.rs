//! The CUDA backend: the caller's context and stream, no allocation and no synchronisation between upload and output.
//!
//! ```no_run
//! use tilewright_heuristics::{Dtype, Geometry};
//! use tilewright_kernel_templates::cuda::AttentionOptions;
//! use tilewright_kernel_templates::Class;
//! use tilewright_cuda::{CudaDecoder, CudaDevice, DecodeArgs, DevicePlan, KvCache};
//! use tilewright_plan::{KvStrides, PageTable};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let geometry = Geometry { q_heads: 32, kv_heads: 8, head_dim: 128, page_size: 16, dtype: Dtype::F16 };
//! let device = CudaDevice::open(0)?;
//! let stream = device.context().new_stream()?;
//! let mut decoder = CudaDecoder::new(&device)?;
//! // Compiles once, then comes from the cache.
//! decoder.prepare(&Class::of(&geometry), AttentionOptions::for_pages(geometry.page_size))?;
//!
//! let (entries, seq_lens) = ([0, 1, 0, 2], [32, 20]);
//! let table = PageTable::new(&entries, 2, &seq_lens, geometry.page_size)?;
//! let plan = decoder.plan(&geometry, &table)?; // once a step; it serves all layers
//! let mut uploaded = DevicePlan::new(&device);
//! decoder.upload(&plan, &mut uploaded, &stream)?; // a set of several tiles is one launch
//!
//! let elements = 3 * 16 * 8 * 128;
//! let keys = stream.alloc_zeros::<half::f16>(elements)?;
//! let values = stream.alloc_zeros::<half::f16>(elements)?;
//! let query = stream.alloc_zeros::<half::f16>(2 * 32 * 128)?;
//! let mut output = stream.alloc_zeros::<half::f16>(2 * 32 * 128)?;
//! let mut workspace = stream.alloc_zeros::<u8>(uploaded.workspace_bytes())?;
//! let cache = KvCache { keys: &keys, values: &values, strides: KvStrides::nhd(&geometry) };
//! let args = DecodeArgs::new(&query, cache, &mut output, &mut workspace);
//! decoder.execute(&stream, &uploaded, args)?; // one call a layer
//! # Ok(())
//! # }
//! ```

mod args;
mod backend;
mod bucket;
mod cache;
mod decoder;
mod device;
mod device_plan;
mod error;
mod fit_error;
mod graph_step;
mod kernels;
mod launch;
mod launch_mode;
mod lengths;
mod memory;
mod merge_states;
mod packed_plan;
pub mod probe;
mod side_streams;
mod tensor_maps;
mod timeline;
mod timer;

pub use args::{DecodeArgs, RawArgs, RawScales, RowStrides};
pub use backend::CudaBackend;
pub use bucket::{Bucket, Capacities};
pub use cache::{CudaElement, Fp8KvCache, KvCache, KvPages, ScaleSlices};
pub use decoder::CudaDecoder;
pub use device::CudaDevice;
pub use device_plan::DevicePlan;
pub use error::CudaError;
pub use fit_error::FitError;
pub use graph_step::{DecodeMemory, GraphStep};
pub use kernels::Compiled;
pub use launch_mode::{Launch, LaunchMode, MergeBy, Mix, ParseLaunchModeError};
pub use memory::DeviceMemory;
pub use merge_states::{MergeStatesArgs, RawMergeStates, RawState, State};
pub use packed_plan::{Arrangement, PackedPlan};
pub use tensor_maps::must_gather;
pub use tilewright_kernel_templates::cuda::MAX_STATES;
pub use timeline::Timeline;
pub use timer::{Graph, Timer};
