//! Names of devices: what a selector was measured on, and what it is asked for.

use core::fmt;
use core::str::FromStr;

/// Where a plan is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// Threads and SIMD of the host.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl Backend {
    /// Its name as written in measurements and commands.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::Cuda => "cuda",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownBackend(String);

impl fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a backend; use cpu or cuda", self.0)
    }
}

impl std::error::Error for UnknownBackend {}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Backend::Cpu, Backend::Cuda]
            .into_iter()
            .find(|backend| backend.name() == text)
            .ok_or_else(|| UnknownBackend(text.to_owned()))
    }
}

/// A device as a selector knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device<'a> {
    /// Where it executes.
    pub backend: Backend,
    /// The exact device, e.g. `NVIDIA H200`, or the processor and its thread count.
    pub name: &'a str,
    /// What code it can run: `sm_90a` for a GPU, the SIMD level for a CPU.
    pub capability: &'a str,
    /// Threads that a work item can be shared among on a CPU; multiprocessors of a GPU.
    pub units: u32,
}
