//! What is compiled into a kernel beside its tile.

use core::fmt;
use tilewright_heuristics::{Backend, Dtype, Geometry};

/// A class of kernels: all that is a compile-time constant beside the tile. A tile is feasible for a class, not for one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// Elements of one head's vector.
    pub head_dim: u32,
    /// Element types of Q, K, V and the output.
    pub dtype: Dtype,
}

impl Class {
    /// The head dimensions that GPUs have kernels for, and that scenarios may have. The CPU backend takes any multiple of 16.
    pub const HEAD_DIMS: [u32; 6] = [64, 96, 128, 192, 256, 512];

    /// [`Class::HEAD_DIMS`] in words, for messages.
    pub const HEAD_DIMS_IN_WORDS: &'static str = "64, 96, 128, 192, 256 or 512";

    /// The class that serves a geometry.
    pub const fn of(geometry: &Geometry) -> Self {
        Self { head_dim: geometry.head_dim, dtype: geometry.dtype }
    }

    /// The class of the outputs alone, which is all that merges know of.
    #[must_use]
    pub const fn outputs(&self) -> Self {
        Self { head_dim: self.head_dim, dtype: self.dtype.query() }
    }

    /// Every class that a backend has to serve. Tensor cores have no full-precision product, so the GPU's kernels compute in
    /// 16 bits.
    pub fn all(backend: Backend) -> impl Iterator<Item = Self> {
        let dtypes: &'static [Dtype] = match backend {
            Backend::Cpu => &Dtype::ALL,
            Backend::Cuda => {
                &[Dtype::F16, Dtype::Bf16, Dtype::Fp8F16, Dtype::Fp8Bf16, Dtype::E5m2F16, Dtype::E5m2Bf16]
            }
        };
        Self::HEAD_DIMS
            .into_iter()
            .flat_map(|head_dim| dtypes.iter().map(move |&dtype| Self { head_dim, dtype }))
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "head_dim {} {}", self.head_dim, self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_head_dimensions_that_there_are() {
        let words = Class::HEAD_DIMS_IN_WORDS.replace(" or", ",");
        let named: Vec<u32> = words.split(", ").map(|dim| dim.parse().unwrap()).collect();
        assert_eq!(named, Class::HEAD_DIMS);
    }
}
