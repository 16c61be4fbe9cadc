#![doc = include_str!("../README.md")]

mod append;
mod append_on_cpu;
mod append_on_cuda;
mod attention;
mod error;
mod following_plan;
mod graph_plan;
mod kv_cache;
mod live_plan;
mod on_cpu;
mod on_cuda;
mod options;

pub use append::{NewTokens, Positions, Rotary};
pub use append_on_cpu::HostCacheMut;
pub use append_on_cuda::DeviceCacheMut;
pub use attention::{Attention, AttentionPlan, Backend, Planned};
pub use error::AttentionError;
pub use following_plan::FollowingPlan;
pub use graph_plan::GraphPlan;
pub use kv_cache::{KvCache, KvCacheMut, KvLayout};
pub use live_plan::LivePlan;
pub use on_cpu::{Cpu, HostCache, HostFp8, HostScales};
pub use on_cuda::{Cuda, DeviceCache, DeviceScales};
pub use options::{AttentionOptions, Heads, PerRow};
pub use tilewright_cuda::{ArchiveError, CubinArchive};
pub use tilewright_heuristics::data::SelectorError;
pub use tilewright_heuristics::{Dtype, Fp8, Geometry, Mask, Selector};
pub use tilewright_kernel_templates::RotaryPairs;
pub use tilewright_plan::{E4m3, E5m2, KvStrides, PageRows, PageTable, Queries};

/// The explicit forms of the CPU backend.
pub use tilewright_cpu as cpu;
/// The explicit forms of the CUDA backend: raw pointers, memory of the caller's own, graphs.
pub use tilewright_cuda as cuda;
/// Pages for engines that have no page manager of their own.
pub use tilewright_pages as pages;
/// How plans are made: forests, packs, options.
pub use tilewright_plan as plan;
