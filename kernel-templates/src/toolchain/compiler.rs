//! Compiles kernels for one architecture, many at once, and remembers them by content.

use super::{
    CachedCubin, CubinCache, CubinError, KernelUsage, Nvrtc, NvrtcError, PtxasReport, Source, kernel_usage,
    parse_ptxas_log,
};
use crate::Arch;
use crate::cuda::{Kernel, sources};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most bytes of cubins that are kept: some thousands of variants.
const CACHE_BYTES: u64 = 512 << 20;

/// A compiled kernel.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// The machine code, as the driver loads it.
    pub code: Vec<u8>,
    /// What the kernel needs of the device.
    pub usage: KernelUsage,
    /// What the assembler said about spills.
    pub report: PtxasReport,
    /// Everything that the compiler said.
    pub log: String,
    /// Whether it was compiled earlier.
    pub cached: bool,
}

/// Why a kernel has no machine code.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The compiler refused it.
    #[error("{kernel}: {source}")]
    Nvrtc {
        /// The kernel.
        kernel: String,
        /// What the compiler says.
        source: NvrtcError,
    },
    /// What it made cannot be read.
    #[error("{kernel}: {source}")]
    Cubin {
        /// The kernel.
        kernel: String,
        /// What is wrong with it.
        source: CubinError,
    },
}

/// NVRTC for one architecture, with a cache of what it made.
#[derive(Debug)]
pub struct Compiler {
    nvrtc: &'static Nvrtc,
    arch: Arch,
    cache: Option<CubinCache>,
    compiled: AtomicUsize,
}

impl Compiler {
    /// The compiler found on this machine. Cubins are kept in `folder`; a folder that cannot be used costs time, not results.
    ///
    /// # Errors
    /// There is no NVRTC, or it is broken.
    pub fn new(arch: Arch, folder: &Path) -> Result<Self, NvrtcError> {
        Ok(Self::with(Nvrtc::load(folder)?, arch, folder))
    }

    /// As [`Compiler::new`], but fetches NVRTC into `folder` if this machine has none.
    ///
    /// # Errors
    /// There is no NVRTC, and none could be fetched.
    pub fn or_fetch(arch: Arch, folder: &Path) -> Result<Self, NvrtcError> {
        Ok(Self::with(Nvrtc::load_or_fetch(folder)?, arch, folder))
    }

    fn with(nvrtc: &'static Nvrtc, arch: Arch, folder: &Path) -> Self {
        let cache = CubinCache::open(folder.join("cubins"), CACHE_BYTES).ok();
        Self { nvrtc, arch, cache, compiled: AtomicUsize::new(0) }
    }

    /// The architecture.
    pub const fn arch(&self) -> Arch {
        self.arch
    }

    /// The compiler itself.
    pub const fn nvrtc(&self) -> &'static Nvrtc {
        self.nvrtc
    }

    /// Kernels that were compiled, not taken from the cache.
    pub fn compiled(&self) -> usize {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Whether the compiler knows the architecture.
    pub fn supports_arch(&self) -> bool {
        self.nvrtc.architectures().contains(&self.arch.number())
    }

    /// Compiles a kernel, or takes it from the cache.
    ///
    /// # Errors
    /// The compiler refused it; the error holds the whole log.
    pub fn compile(&self, kernel: &Kernel) -> Result<Cubin, CompileError> {
        let options = self.options();
        let file = format!("{}.cu", kernel.name);
        let source = Source { name: &file, text: &kernel.text, headers: sources() };
        let key = CubinCache::key(self.nvrtc.version(), &options, &source);
        let cached = self.cache.as_ref().and_then(|cache| cache.get(&key));
        let (code, log, from_cache) = match cached {
            Some(entry) => (entry.cubin, entry.log, true),
            None => {
                let compiled = self
                    .nvrtc
                    .compile(&source, &options)
                    .map_err(|source| CompileError::Nvrtc { kernel: kernel.name.clone(), source })?;
                self.compiled.fetch_add(1, Ordering::Relaxed);
                let entry = CachedCubin { cubin: compiled.cubin, log: compiled.log };
                if let Some(cache) = &self.cache {
                    // A full or read-only disk costs the next run its time, nothing else.
                    let _ = cache.put(&key, &entry, &source);
                }
                (entry.cubin, entry.log, false)
            }
        };
        let unreadable = |source| CompileError::Cubin { kernel: kernel.name.clone(), source };
        let mut usages = kernel_usage(&code).map_err(unreadable)?;
        let usage = usages
            .remove(&kernel.name)
            .ok_or_else(|| unreadable(CubinError::NoRegisters { kernel: kernel.name.clone() }))?;
        let report = parse_ptxas_log(&log).remove(&kernel.name).unwrap_or_default();
        Ok(Cubin { code, usage, report, log, cached: from_cache })
    }

    /// Compiles many kernels on all cores; the results are in the order of the kernels. `each` is told after every one.
    ///
    /// Processes that compile the same kernels at the same time, as for each GPU of a machine, begin at different ones: each finds in the cache what
    /// others have compiled.
    pub fn compile_all(
        &self,
        kernels: &[Kernel],
        each: impl Fn() + Sync,
    ) -> Vec<Result<Cubin, CompileError>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(kernels.len().max(1));
        let next = AtomicUsize::new(0);
        let begin = begin_of(std::process::id(), kernels.len());
        let work = || {
            let mut done = Vec::new();
            loop {
                let count = next.fetch_add(1, Ordering::Relaxed);
                if count >= kernels.len() {
                    return done;
                }
                let index = (begin + count) % kernels.len();
                done.push((index, self.compile(&kernels[index])));
                each();
            }
        };
        let mut results: Vec<(usize, Result<Cubin, CompileError>)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .flat_map(|worker| match worker.join() {
                    Ok(done) => done,
                    Err(panic) => std::panic::resume_unwind(panic),
                })
                .collect()
        });
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    fn options(&self) -> Vec<String> {
        vec![
            self.arch.option(),
            "--std=c++17".to_owned(),
            // `constexpr` helpers serve both sides of a static_assert and of a launch.
            "--device-as-default-execution-space".to_owned(),
            // Registers and spills belong to what is known of a variant.
            "--ptxas-options=-v".to_owned(),
        ]
    }
}

/// Where a process begins with its kernels: processes with neighbouring numbers far apart (multiples of the golden ratio).
fn begin_of(process: u32, kernels: usize) -> usize {
    ((u64::from(process.wrapping_mul(0x9e37_79b9)) * kernels as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_begin_far_apart() {
        for process in [1, 4095, u32::MAX - 1] {
            let begins = [process, process + 1].map(|process| begin_of(process, 100));
            assert!(begins.iter().all(|&begin| begin < 100));
            assert!((30..=70).contains(&begins[0].abs_diff(begins[1])), "{begins:?}");
        }
        assert_eq!(begin_of(7, 0), 0);
    }
}
