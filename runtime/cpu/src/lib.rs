//! The CPU backend: the same plan as on any device, executed by threads over (m, n) tiles with f32 accumulation.

mod ahead;
mod append;
mod args;
mod arithmetic;
mod backend;
mod cache;
mod element;
mod error;
mod host;
mod instances;
mod kernel;
mod level;
mod load;
mod mask;
mod merge_states;
pub mod probe;
mod queue;
mod shared;
mod simd;
mod steps;
mod team;
mod timeline;
mod totals;
mod vectors;

pub use append::{Positions, Rotary, append};
pub use args::DecodeArgs;
pub use backend::CpuBackend;
pub use cache::{Fp8KvCache, KvCache, KvPages};
pub use element::{Element, Fp8Number, Number};
pub use error::ExecError;
pub use host::HostDevice;
pub use merge_states::{State, merge_states};
pub use tilewright_kernel_templates::RotaryPairs;
pub use timeline::UnitTimes;

/// Hash of the kernel's sources (FNV-1a, 64 bits, hexadecimal): measurements of another kernel say nothing about this one.
pub fn kernel_hash() -> String {
    const SOURCES: [&str; 17] = [
        include_str!("../../../heuristics/src/mask.rs"),
        include_str!("../../plan/src/kv/e4m3.rs"),
        include_str!("../../plan/src/kv/e5m2.rs"),
        include_str!("ahead.rs"),
        include_str!("arithmetic.rs"),
        include_str!("backend.rs"),
        include_str!("element.rs"),
        include_str!("kernel.rs"),
        include_str!("level.rs"),
        include_str!("level/x86.rs"),
        include_str!("load.rs"),
        include_str!("mask.rs"),
        include_str!("queue.rs"),
        include_str!("simd.rs"),
        include_str!("steps.rs"),
        include_str!("team.rs"),
        include_str!("vectors.rs"),
    ];
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = SOURCES.iter().flat_map(|source| source.bytes()).fold(0xcbf2_9ce4_8422_2325, step);
    format!("{hash:016x}")
}
