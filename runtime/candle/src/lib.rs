#![doc = include_str!("../README.md")]

mod attention;
mod decode;
mod on_cpu;
#[cfg(feature = "cuda")]
mod on_cuda;
mod tensors;

pub use attention::PagedAttention;
pub use decode::PagedDecode;
pub use tilewright_runtime::{AttentionOptions, Dtype, Heads, Mask, PageTable};
