//! Compiles kernels for one architecture, many at once, and remembers them by content.

use super::{
    CachedCubin, CubinArchive, CubinCache, CubinError, KernelUsage, Nvrtc, NvrtcError, PtxasReport, Source,
    kernel_usage, parse_ptxas_log,
};
use crate::Arch;
use crate::cuda::{Kernel, sources};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
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
    /// Whether it was compiled earlier: it is of the cache, or of an archive.
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
    /// The driver is too old for what the compiler makes.
    #[error(
        "{kernel}: the driver supports CUDA {}.{}, and cannot load what NVRTC {}.{} makes", driver.0, driver.1, nvrtc.0, nvrtc.1
    )]
    NewerThanDriver {
        /// The kernel.
        kernel: String,
        /// The CUDA version of the driver.
        driver: (u32, u32),
        /// That of the compiler.
        nvrtc: (u32, u32),
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

/// NVRTC for one architecture, with a cache of what it made, and perhaps an archive of what was made elsewhere.
#[derive(Debug)]
pub struct Compiler {
    arch: Arch,
    folder: PathBuf,
    /// Found when it is first needed.
    nvrtc: OnceLock<&'static Nvrtc>,
    fetch: bool,
    archive: Option<&'static CubinArchive>,
    /// The CUDA version of the driver that is to load the kernels.
    driver: Option<(u32, u32)>,
    cache: Option<CubinCache>,
    compiled: AtomicUsize,
}

impl Compiler {
    /// The compiler found on this machine. Cubins are kept in `folder`; a folder that cannot be used costs time, not results.
    ///
    /// # Errors
    /// There is no NVRTC, or it is broken.
    pub fn new(arch: Arch, folder: &Path) -> Result<Self, NvrtcError> {
        let compiler = Self::lazy(arch, folder, false);
        compiler.nvrtc().map(|_| compiler)
    }

    /// As [`Compiler::new`], but fetches NVRTC into `folder` if this machine has none.
    ///
    /// # Errors
    /// There is no NVRTC, and none could be fetched.
    pub fn or_fetch(arch: Arch, folder: &Path) -> Result<Self, NvrtcError> {
        let compiler = Self::lazy(arch, folder, true);
        compiler.nvrtc().map(|_| compiler)
    }

    /// Kernels of an archive. Where it lacks one, this machine's compiler is looked for, and fetched into `folder` if `fetch` says so; `driver`
    /// is the CUDA version of the driver that is to load what it makes.
    pub fn with_archive(
        arch: Arch,
        folder: &Path,
        fetch: bool,
        archive: &'static CubinArchive,
        driver: (u32, u32),
    ) -> Self {
        Self { archive: Some(archive), driver: Some(driver), ..Self::lazy(arch, folder, fetch) }
    }

    fn lazy(arch: Arch, folder: &Path, fetch: bool) -> Self {
        let cache = CubinCache::open(folder.join("cubins"), CACHE_BYTES).ok();
        let (nvrtc, compiled) = (OnceLock::new(), AtomicUsize::new(0));
        Self { arch, folder: folder.to_owned(), nvrtc, fetch, archive: None, driver: None, cache, compiled }
    }

    /// The architecture.
    pub const fn arch(&self) -> Arch {
        self.arch
    }

    /// The compiler itself, which is looked for if it was not needed yet.
    ///
    /// # Errors
    /// There is no NVRTC, or it is broken.
    pub fn nvrtc(&self) -> Result<&'static Nvrtc, NvrtcError> {
        if let Some(nvrtc) = self.nvrtc.get() {
            return Ok(nvrtc);
        }
        let found = if self.fetch { Nvrtc::load_or_fetch(&self.folder)? } else { Nvrtc::load(&self.folder)? };
        Ok(self.nvrtc.get_or_init(|| found))
    }

    /// Kernels that were compiled, not taken from the cache or an archive.
    pub fn compiled(&self) -> usize {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Whether the compiler knows the architecture.
    pub fn supports_arch(&self) -> bool {
        self.nvrtc().is_ok_and(|nvrtc| nvrtc.architectures().contains(&self.arch.number()))
    }

    /// Compiles a kernel, or takes it from the archive or the cache.
    ///
    /// # Errors
    /// The compiler refused it; the error holds the whole log.
    pub fn compile(&self, kernel: &Kernel) -> Result<Cubin, CompileError> {
        let shipped = self.archive.and_then(|archive| archive.get(kernel, self.arch));
        let (CachedCubin { cubin: code, log }, from_cache) = match shipped {
            Some(entry) => (entry, true),
            None => self.compile_here(kernel)?,
        };
        let unreadable = |source| CompileError::Cubin { kernel: kernel.name.clone(), source };
        let mut usages = kernel_usage(&code).map_err(unreadable)?;
        let usage = usages
            .remove(&kernel.name)
            .ok_or_else(|| unreadable(CubinError::NoRegisters { kernel: kernel.name.clone() }))?;
        let report = parse_ptxas_log(&log).remove(&kernel.name).unwrap_or_default();
        Ok(Cubin { code, usage, report, log, cached: from_cache })
    }

    /// By NVRTC, or from the cache of what it made here; and whether it is from there.
    fn compile_here(&self, kernel: &Kernel) -> Result<(CachedCubin, bool), CompileError> {
        let failed = |source| CompileError::Nvrtc { kernel: kernel.name.clone(), source };
        let nvrtc = self.nvrtc().map_err(failed)?;
        let version = nvrtc.version();
        if let Some(driver) = self.driver.filter(|driver| driver.0 < version.0) {
            let kernel = kernel.name.clone();
            return Err(CompileError::NewerThanDriver { kernel, driver, nvrtc: version });
        }
        with_source(kernel, |source| {
            let options = options(self.arch);
            let key = CubinCache::key(version, &options, source);
            if let Some(entry) = self.cache.as_ref().and_then(|cache| cache.get(&key)) {
                return Ok((entry, true));
            }
            let compiled = nvrtc.compile(source, &options).map_err(failed)?;
            self.compiled.fetch_add(1, Ordering::Relaxed);
            let entry = CachedCubin { cubin: compiled.cubin, log: compiled.log };
            if let Some(cache) = &self.cache {
                // A full or read-only disk costs the next run its time, nothing else.
                let _ = cache.put(&key, &entry, source);
            }
            Ok((entry, false))
        })
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
}

/// What a kernel is compiled with.
fn options(arch: Arch) -> Vec<String> {
    vec![
        arch.option(),
        "--std=c++17".to_owned(),
        // `constexpr` helpers serve both sides of a static_assert and of a launch.
        "--device-as-default-execution-space".to_owned(),
        // Registers and spills belong to what is known of a variant.
        "--ptxas-options=-v".to_owned(),
    ]
}

fn with_source<T>(kernel: &Kernel, call: impl FnOnce(&Source<'_>) -> T) -> T {
    call(&Source { name: &format!("{}.cu", kernel.name), text: &kernel.text, headers: sources() })
}

/// The key of what this version of NVRTC makes of a kernel, in caches and archives.
pub(super) fn key(nvrtc: (u32, u32), kernel: &Kernel, arch: Arch) -> String {
    with_source(kernel, |source| CubinCache::key(nvrtc, &options(arch), source))
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
