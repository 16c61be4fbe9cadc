#![doc = include_str!("../README.md")]

pub use tilewright_cpu as cpu;
pub use tilewright_cpu::{DecodeError, Decoder, ExecError};
pub use tilewright_cuda as cuda;
pub use tilewright_heuristics::{Dtype, Geometry};
pub use tilewright_pages as pages;
pub use tilewright_plan::*;
