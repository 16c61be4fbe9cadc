//! Awkward batches that every variant computes against the f64 reference before it is timed.
//!
//! [`cases`] serve every tile of a class; [`tile_cases`] look for the edges of one tile, [`invariant_cases`] for those of batch-invariant plans' chunks. Each is
//! small and about one thing.
//! The tuner's verification, the tests of the CPU backend and those of GPU kernels all use them:
//!
//! ```
//! use tilewright_heuristics::{Dtype, Tile};
//! use tilewright_kernel_templates::Class;
//! use tilewright_conformance::{self as conformance, CpuCase};
//! use tilewright_cpu::CpuBackend;
//!
//! let class = Class { head_dim: 64, dtype: Dtype::F32 };
//! let tile = Tile::of("m4n32w1s1");
//! let mut backend = CpuBackend::new(2);
//! for case in conformance::tile_cases(&class, &tile, 7).into_iter().filter(|case| case.is_plain()) {
//!     let case = CpuCase::<f32>::new(case);
//!     let (output, lse) = case.run(&mut backend, &tile).unwrap();
//!     assert!(case.case.check(&output, &lse).unwrap() < conformance::tolerance(class.dtype));
//! }
//! ```

mod batch_builder;
mod case;
mod catalogue;
mod check;
pub mod invariance;
mod on_cpu;
mod on_cuda;
mod random;
pub mod reference;
mod values;

pub use case::{ConformanceCase, Layout};
pub use catalogue::{cases, invariant_cases, tile_cases};
pub use check::{compare, tolerance};
pub use on_cpu::CpuCase;
pub use on_cuda::{CudaCase, RunError, options_of};
pub use values::{CaseCache, Fp8Pages, Values};
