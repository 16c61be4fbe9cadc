//! What can go wrong on a GPU, said before anything is launched where that is possible.

use super::{FitError, Mix};
use cudarc::driver::DriverError;
use tilewright_heuristics::{Dtype, MaskError, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::toolchain::{CacheError, CompileError, NvrtcError};
use tilewright_plan::{AppendError, PlanError, StatesError};

/// Why the CUDA backend cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no driver.
    #[error("no NVIDIA driver: libcuda.so.1 was not found; install the driver, or use the CPU backend")]
    NoDriver,
    /// The driver knows no such device.
    #[error("there is no CUDA device {ordinal}: the driver counts {count}")]
    NoDevice {
        /// The device asked for.
        ordinal: usize,
        /// Devices that there are.
        count: usize,
    },
    /// The driver cannot load what the compiler makes.
    #[error(
        "the driver supports CUDA {driver}, NVRTC compiles for CUDA {nvrtc}: install driver {needed} or newer, or an NVRTC of CUDA {driver} \
         (name it with TILEWRIGHT_NVRTC)"
    )]
    DriverTooOld {
        /// The driver's CUDA version.
        driver: String,
        /// The compiler's.
        nvrtc: String,
        /// The first driver that would do.
        needed: &'static str,
    },
    /// The device is older than the kernels' instructions.
    #[error(
        "{name} has compute capability {major}.{minor}; the kernels need 8.0 (tensor cores with asynchronous copies)"
    )]
    TooOld {
        /// The device.
        name: String,
        /// Its capability.
        major: u32,
        /// Its capability.
        minor: u32,
    },
    /// A call of the driver failed.
    #[error("{what}: {source}")]
    Driver {
        /// What was attempted.
        what: String,
        /// The driver's answer.
        source: DriverError,
    },
    /// The compiler is missing or refused the source.
    #[error(transparent)]
    Nvrtc(#[from] NvrtcError),
    /// There is no place for what is fetched and compiled.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A kernel was not compiled.
    #[error(transparent)]
    Compile(CompileError),
    /// A kernel that the plan needs was not compiled for these options.
    #[error(
        "`{kernel}` is not loaded; call `prepare` with its tile, class and options first (`KernelOptions::for_pages` for pages of any size)"
    )]
    NotPrepared {
        /// The kernel.
        kernel: String,
    },
    /// No tile can run on the device.
    #[error("{device} can run no tile of the space; `tilewright space` says why")]
    NoTile {
        /// The device.
        device: String,
    },
    /// The tile cannot run on this device.
    #[error("tile {tile} cannot run for {class} on this device: {reason}")]
    Infeasible {
        /// The tile.
        tile: Tile,
        /// The class of kernels.
        class: Class,
        /// Why.
        reason: String,
    },
    /// The plan was made for another element type.
    #[error("the plan is for {planned}, the arguments are {given}")]
    Dtype {
        /// The plan's.
        planned: Dtype,
        /// The arguments'.
        given: Dtype,
    },
    /// A slice is too short.
    #[error("`{name}` has {found} elements, the plan needs {needed}")]
    Length {
        /// The argument.
        name: &'static str,
        /// Its elements.
        found: usize,
        /// What is needed.
        needed: usize,
    },
    /// A pointer or stride that loads of 16 bytes cannot serve.
    #[error(
        "`{name}` is {value}: it must be a multiple of {multiple} {unit}, so that heads can be loaded 16 bytes at a time"
    )]
    Misaligned {
        /// The argument.
        name: &'static str,
        /// Its value.
        value: i64,
        /// What divides a good one.
        multiple: i64,
        /// `bytes` or `elements`.
        unit: &'static str,
    },
    /// The kernel that merges states was not compiled.
    #[error(
        "no kernel for merging states of {class} is loaded; call `prepare_merge_states` with that class first"
    )]
    StatesNotPrepared {
        /// The class of kernels.
        class: Class,
    },
    /// States that cannot be merged.
    #[error(transparent)]
    States(#[from] StatesError),
    /// The kernel that appends tokens was not compiled.
    #[error(
        "no kernel for appending to caches of {class} is loaded; call `prepare_append` with that class, and how K is rotated, first"
    )]
    AppendNotPrepared {
        /// The class of kernels.
        class: Class,
    },
    /// Tokens that cannot be appended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A plan that cannot be laid out as it should be.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// Tiles that were not compiled together for these options.
    #[error(
        "no kernel of {mix} together is loaded for {class} and these options; call `prepare_mix` with them first (`KernelOptions::for_pages` for pages of any size), or launch each tile by itself"
    )]
    MixNotPrepared {
        /// The tiles.
        mix: Mix,
        /// The class of kernels.
        class: Class,
    },
    /// The tile's kernel was launched, and its answer is wrong.
    #[error(
        "tile {tile} for {class} computes what is wrong on this device: {reason}; please report it with the driver's version"
    )]
    Untrusted {
        /// The tile.
        tile: Tile,
        /// The class of kernels.
        class: Class,
        /// The first number that is wrong.
        reason: String,
    },
    /// The mix cannot run on this device.
    #[error("tiles {mix} cannot run together for {class} on this device: {reason}")]
    InfeasibleMix {
        /// The tiles.
        mix: Mix,
        /// The class of kernels.
        class: Class,
        /// Why.
        reason: String,
    },
    /// The device may not have what was uploaded, or left counters as they should not be.
    #[error("an upload or a launch of this plan failed: upload it again before it is launched")]
    NotUploaded,
    /// Only plans in a bucket can be captured once for all.
    #[error(
        "the plan lies in no bucket, so its addresses and grids change: make it with `DevicePlan::with_bucket`"
    )]
    NoBucket,
    /// A page that a captured step cannot count to.
    #[error(
        "the plan has page {page}, the captured kernels count to {last}: capture the step again when a plan with such pages is uploaded"
    )]
    FarPage {
        /// The plan's largest.
        page: i32,
        /// The step's last.
        last: i32,
    },
    /// Queries that no plan can have, or not this one.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An option that makes no sense.
    #[error("`{name}` is {value}: {message}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        message: &'static str,
    },
}

impl From<MaskError> for CudaError {
    fn from(MaskError { name, value, message }: MaskError) -> Self {
        Self::Option { name, value, message }
    }
}

impl CudaError {
    /// Wraps the driver's answer with what was attempted. Nothing is allocated where there is no error.
    pub fn driver(what: impl Into<String>) -> impl FnOnce(DriverError) -> Self {
        move |source| Self::Driver { what: what.into(), source }
    }
}
