//! How K and V lie in memory: strides, and the numbers of an FP8 cache. Every backend reads the same.

mod e4m3;
mod e5m2;
mod scales;
mod strides;

pub use e4m3::E4m3;
pub use e5m2::E5m2;
pub use scales::{KvScales, Scale};
pub use strides::KvStrides;
