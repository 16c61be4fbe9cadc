//! How K and V lie in memory: strides, and the numbers of an FP8 cache. Every backend reads the same.

mod e4m3;
mod strides;

pub use e4m3::{E4m3, KvScales, Scale};
pub use strides::KvStrides;
