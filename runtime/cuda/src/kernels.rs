//! Compiled kernels, loaded into a context.
#![allow(unsafe_code)]

use super::device::driver_too_old;
use super::{CudaDevice, CudaError, Mix};
use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchConfig, CUmodule, CUstream, cuLaunchKernelEx,
};
use cudarc::driver::{CudaContext, result};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::cuda::{Kernel, KernelOptions, MERGE_WARPS};
use tilewright_kernel_templates::toolchain::{
    CompileError, Compiler, Cubin, CubinArchive, CubinCache, KernelUsage, Nvrtc, PtxasReport,
};
use tilewright_kernel_templates::{
    Class, CudaLimits, Infeasible, RotaryPairs, check_compiled, check_compiled_mix, check_mix, occupancy,
};

/// A kernel in a context.
#[derive(Debug)]
pub(super) struct LoadedKernel {
    context: Arc<CudaContext>,
    module: CUmodule,
    function: CUfunction,
    threads: u32,
    shared_bytes: u32,
}

// SAFETY: modules and functions are handles that the driver guards itself.
unsafe impl Send for LoadedKernel {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for LoadedKernel {}

impl LoadedKernel {
    pub(super) fn load(
        context: &Arc<CudaContext>,
        kernel: &Kernel,
        cubin: &Cubin,
    ) -> Result<Self, CudaError> {
        let fail = || CudaError::driver(format!("cannot load `{}`", kernel.name));
        context.bind_to_thread().map_err(fail())?;
        let name = CString::new(kernel.name.as_str()).unwrap_or_default();
        // SAFETY: the image is a whole cubin, read before the call returns.
        let module =
            unsafe { result::module::load_data(cubin.code.as_ptr().cast::<c_void>()) }.map_err(fail())?;
        // SAFETY: the module was just loaded.
        let function = unsafe { result::module::get_function(module, name) };
        let loaded = function.map(|function| Self {
            context: Arc::clone(context),
            module,
            function,
            threads: kernel.threads,
            shared_bytes: kernel.shared_bytes,
        });
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                // SAFETY: nothing else knows the module.
                let _ = unsafe { result::module::unload(module) };
                return Err(fail()(error));
            }
        };
        // More than 48 KB of dynamic shared memory must be asked for.
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(kernel.shared_bytes).unwrap_or(i32::MAX);
        // SAFETY: the function lives as long as `loaded`.
        unsafe { result::function::set_function_attribute(loaded.function, attribute, bytes) }
            .map_err(fail())?;
        Ok(loaded)
    }

    /// Registers, bytes of local memory, and CTAs an SM.
    pub(super) fn told_by_driver(&self) -> Result<(u32, u32, u32), CudaError> {
        let fail = || CudaError::driver("cannot ask about a kernel");
        let attribute = |attribute| {
            // SAFETY: the function is loaded.
            unsafe { result::function::get_function_attribute(self.function, attribute) }
        };
        let registers = attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS).map_err(fail())?;
        let local = attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES).map_err(fail())?;
        // SAFETY: as above.
        let ctas = unsafe {
            let shared = self.shared_bytes as usize;
            result::occupancy::max_active_block_per_multiprocessor(self.function, self.threads as i32, shared)
        };
        Ok((registers as u32, local as u32, ctas.map_err(fail())? as u32))
    }

    /// Launches `ctas` CTAs; [`Begins::Early`], once all CTAs of the launch before have begun, instead of after its end
    /// (programmatic dependent launch): the kernel waits by itself for what that one writes.
    ///
    /// # Safety
    /// `parameters` point to what the kernel declares, addresses in them to memory that outlives the launch, and the stream is one of the
    /// kernel's context. A device with early launches has compute capability 9.0 or more.
    pub(super) unsafe fn launch(
        &self,
        ctas: u32,
        begins: Begins,
        stream: CUstream,
        parameters: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        if ctas == 0 {
            return Ok(());
        }
        let mut attribute = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: ctas,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(begins == Begins::Early),
        };
        // SAFETY: the caller's promises; the configuration is read before the call returns.
        unsafe {
            cuLaunchKernelEx(&raw const config, self.function, parameters.as_mut_ptr(), std::ptr::null_mut())
        }
        .result()
        .map_err(CudaError::driver("cannot launch a kernel"))
    }
}

/// When a launch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    /// After the one before.
    Late,
    /// While the last CTAs of the one before still run.
    Early,
}

impl Drop for LoadedKernel {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: loaded once, unloaded once; the driver waits for launches that use it.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// What is known of a tile that was compiled.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Registers a thread.
    pub registers: u32,
    /// Shared memory a CTA in bytes, static and dynamic.
    pub shared_bytes: u32,
    /// Bytes of local memory a thread: arrays and spills.
    pub local_bytes: u32,
    /// CTAs that an SM holds at once.
    pub ctas_per_sm: u32,
    options: KernelOptions,
    usage: KernelUsage,
    report: PtxasReport,
}

impl Compiled {
    /// Whether the tile is still feasible now that it is compiled.
    ///
    /// # Errors
    /// The rule that rejects it.
    pub fn check(&self, tile: &Tile, class: &Class, limits: &CudaLimits) -> Result<(), Infeasible> {
        check_compiled(tile, class, self.options, limits, &self.usage, &self.report)
    }

    /// The same for a mix.
    ///
    /// # Errors
    /// The rule that rejects it.
    pub fn check_mix(&self, mix: &Mix, class: &Class, limits: &CudaLimits) -> Result<(), Infeasible> {
        check_compiled_mix(mix.tiles(), class, self.options, limits, &self.usage, &self.report)
    }
}

type DecodeKey = (Tile, Class, KernelOptions);
type MixKey = (Mix, Class, KernelOptions);
/// Of a class, with sinks or without, batch-invariant or not.
type MergeKey = (Class, bool, bool);

/// The kernels of a backend.
#[derive(Debug)]
pub(super) struct Kernels {
    device: CudaDevice,
    compiler: Compiler,
    decode: HashMap<DecodeKey, (Arc<LoadedKernel>, Compiled)>,
    mixes: HashMap<MixKey, (Arc<LoadedKernel>, Compiled)>,
    merge: HashMap<MergeKey, [Arc<LoadedKernel>; MERGE_WARPS.len()]>,
    states: HashMap<Class, LoadedKernel>,
    append: HashMap<(Class, Option<RotaryPairs>), LoadedKernel>,
}

impl Kernels {
    /// With NVRTC as this machine has it, fetched if `fetch` allows.
    pub(super) fn new(device: &CudaDevice, fetch: bool) -> Result<Self, CudaError> {
        let folder = CubinCache::default_folder()?;
        let nvrtc = if fetch { Nvrtc::load_or_fetch(&folder)? } else { Nvrtc::load(&folder)? };
        device.check_compiler(nvrtc.version())?;
        Ok(Self::with(device, Compiler::new(device.arch(), &folder)?))
    }

    /// Those of an archive, others by NVRTC when they are needed. An archive that has none for the device is passed over.
    pub(super) fn of_archive(
        device: &CudaDevice,
        fetch: bool,
        archive: &'static CubinArchive,
    ) -> Result<Self, CudaError> {
        let (arch, path) = (device.arch(), archive.path().display());
        if !archive.serves(arch) {
            tracing::info!("{path} has no kernels for {arch}: they are compiled");
        } else if let Err(error) = device.check_compiler(archive.nvrtc()) {
            tracing::warn!("{path} is not used: {error}");
        } else {
            let folder = CubinCache::default_folder()?;
            let compiler = Compiler::with_archive(arch, &folder, fetch, archive, device.driver());
            return Ok(Self::with(device, compiler));
        }
        Self::new(device, fetch)
    }

    fn with(device: &CudaDevice, compiler: Compiler) -> Self {
        Self {
            device: device.clone(),
            compiler,
            decode: HashMap::new(),
            mixes: HashMap::new(),
            merge: HashMap::new(),
            states: HashMap::new(),
            append: HashMap::new(),
        }
    }

    pub(super) const fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// What of the options makes a difference on this device: the kernels of two sets that differ in nothing else are the same.
    fn here(&self, class: &Class, options: KernelOptions) -> KernelOptions {
        options.on(class, self.compiler.arch())
    }

    /// The kernel of a tile for this device.
    fn kernel(&self, tile: &Tile, class: &Class, options: KernelOptions) -> Kernel {
        Kernel::decode(tile, class, options, self.compiler.arch())
    }

    /// Compiles and loads what tiles need, each for its class and options, on all cores. A tile that fails does not keep others from being
    /// loaded.
    pub(super) fn prepare(
        &mut self,
        wanted: &[(Tile, Class, KernelOptions)],
        each: impl Fn() + Sync,
    ) -> Result<Vec<Result<Compiled, CudaError>>, CudaError> {
        let here = |&(tile, class, options): &_| (tile, class, self.here(&class, options));
        let wanted: Vec<(Tile, Class, KernelOptions)> = wanted.iter().map(here).collect();
        for (_, class, options) in &wanted {
            self.prepare_merge(class, *options)?;
        }
        let mut missing = wanted.clone();
        missing.retain(|key| !self.decode.contains_key(key));
        missing.sort_unstable();
        missing.dedup();
        let kernel = |(tile, class, options): &_| self.kernel(tile, class, *options);
        let kernels: Vec<Kernel> = missing.iter().map(kernel).collect();
        let cubins = self.compiler.compile_all(&kernels, each);
        let mut failures = HashMap::new();
        for ((key, kernel), cubin) in missing.into_iter().zip(&kernels).zip(cubins) {
            let (tile, class, options) = key;
            let infeasible = |reason| CudaError::Infeasible { tile, class, reason };
            let loaded = cubin
                .map_err(CudaError::from)
                .and_then(|cubin| self.load(kernel, &cubin, options, infeasible));
            match loaded {
                Ok(loaded) => drop(self.decode.insert(key, loaded)),
                Err(error) => drop(failures.insert(key, error)),
            }
        }
        let outcome = |key: &(Tile, Class, KernelOptions)| match self.decode.get(key) {
            Some((_, compiled)) => Ok(compiled.clone()),
            None => Err(failures.remove(key).unwrap_or_else(|| CudaError::NotPrepared {
                kernel: self.kernel(&key.0, &key.1, key.2).name,
            })),
        };
        Ok(wanted.iter().map(outcome).collect())
    }

    fn load(
        &self,
        kernel: &Kernel,
        cubin: &Cubin,
        options: KernelOptions,
        infeasible: impl FnOnce(String) -> CudaError,
    ) -> Result<(Arc<LoadedKernel>, Compiled), CudaError> {
        let shared_bytes = kernel.shared_bytes + cubin.usage.static_shared_bytes;
        let held = occupancy(self.device.limits(), kernel.threads, cubin.usage.registers, shared_bytes);
        let compiled = Compiled {
            registers: cubin.usage.registers,
            shared_bytes,
            local_bytes: cubin.usage.local_bytes,
            ctas_per_sm: held.ctas_per_sm,
            options,
            usage: cubin.usage,
            report: cubin.report,
        };
        if held.ctas_per_sm == 0 {
            let reason = format!(
                "{} threads with {} registers and {shared_bytes} bytes of shared memory do not fit an SM",
                kernel.threads, cubin.usage.registers
            );
            return Err(infeasible(reason));
        }
        Ok((Arc::new(LoadedKernel::load(self.device.context(), kernel, cubin)?), compiled))
    }

    fn prepare_merge(&mut self, class: &Class, options: KernelOptions) -> Result<(), CudaError> {
        let (class, KernelOptions { sinks, invariant, .. }) = (&class.outputs(), options);
        let key = (*class, sinks, invariant);
        if self.merge.contains_key(&key) {
            return Ok(());
        }
        let options = KernelOptions { sinks, invariant, ..KernelOptions::default() };
        let load = |warps: u32| {
            let kernel = Kernel::merge(warps, class, options);
            let cubin = self.compiler.compile(&kernel)?;
            LoadedKernel::load(self.device.context(), &kernel, &cubin).map(Arc::new)
        };
        let narrow = load(MERGE_WARPS[0])?;
        // Batch-invariant merges have one warp a row, however many partials it has.
        let wide = if invariant { Arc::clone(&narrow) } else { load(MERGE_WARPS[1])? };
        self.merge.insert(key, [narrow, wide]);
        Ok(())
    }

    pub(super) fn decode(
        &self,
        tile: &Tile,
        class: &Class,
        options: KernelOptions,
    ) -> Result<&Arc<LoadedKernel>, CudaError> {
        let options = self.here(class, options);
        self.decode
            .get(&(*tile, *class, options))
            .map(|(kernel, _)| kernel)
            .ok_or_else(|| CudaError::NotPrepared { kernel: self.kernel(tile, class, options).name })
    }

    /// The merge kernel that reads each row with one warp, or with four, and how many rows each of its CTAs serves.
    pub(super) fn merge(
        &self,
        class: &Class,
        options: KernelOptions,
        wide: bool,
    ) -> Result<(&Arc<LoadedKernel>, u32), CudaError> {
        let KernelOptions { sinks, invariant, .. } = options;
        let kernels = self.merge.get(&(class.outputs(), sinks, invariant)).ok_or_else(|| {
            let options = KernelOptions { sinks, invariant, ..KernelOptions::default() };
            CudaError::NotPrepared { kernel: Kernel::merge(MERGE_WARPS[0], class, options).name }
        })?;
        let wide = usize::from(wide && !invariant);
        Ok((&kernels[wide], 4 / MERGE_WARPS[wide]))
    }
}

/// Kernels of several tiles.
impl Kernels {
    pub(super) fn prepare_mix(
        &mut self,
        mix: &Mix,
        class: &Class,
        options: KernelOptions,
    ) -> Result<Compiled, CudaError> {
        self.prepare_mixes(&[(mix.clone(), *class, options)]).remove(0)
    }

    pub(super) fn prepare_mixes(
        &mut self,
        wanted: &[(Mix, Class, KernelOptions)],
    ) -> Vec<Result<Compiled, CudaError>> {
        let arch = self.compiler.arch();
        let keys: Vec<(Mix, Class, KernelOptions)> = wanted
            .iter()
            .map(|(mix, class, options)| (mix.clone(), *class, self.here(class, *options)))
            .collect();
        let infeasible = |(mix, class, _): &(Mix, Class, KernelOptions), reason: String| {
            CudaError::InfeasibleMix { mix: mix.clone(), class: *class, reason }
        };
        let mut failures = HashMap::new();
        let mut missing: Vec<&(Mix, Class, KernelOptions)> = Vec::new();
        for key in keys.iter().filter(|key| !self.mixes.contains_key(key)) {
            let (mix, class, options) = key;
            // Known before it is compiled, which takes as long as for all of its tiles.
            match check_mix(mix.tiles(), class, *options, self.device.limits()) {
                Ok(()) if missing.contains(&key) => {}
                Ok(()) => missing.push(key),
                Err(error) => drop(failures.insert(key.clone(), infeasible(key, error.to_string()))),
            }
        }
        let kernel = |(mix, class, options): &&(Mix, Class, KernelOptions)| {
            Kernel::decode_mix(mix.tiles(), class, *options, arch)
        };
        let kernels: Vec<Kernel> = missing.iter().map(kernel).collect();
        for ((key, kernel), cubin) in
            missing.into_iter().zip(&kernels).zip(self.compiler.compile_all(&kernels, || ()))
        {
            let (_, class, options) = key;
            let loaded = cubin
                .map_err(CudaError::from)
                .and_then(|cubin| self.load(kernel, &cubin, *options, |reason| infeasible(key, reason)))
                .and_then(|loaded| self.prepare_merge(class, *options).map(|()| loaded));
            match loaded {
                Ok(loaded) => drop(self.mixes.insert(key.clone(), loaded)),
                Err(error) => drop(failures.insert(key.clone(), error)),
            }
        }
        let outcome = |key: &(Mix, Class, KernelOptions)| match self.mixes.get(key) {
            Some((_, compiled)) => Ok(compiled.clone()),
            None => Err(failures
                .remove(key)
                .unwrap_or_else(|| CudaError::MixNotPrepared { mix: key.0.clone(), class: key.1 })),
        };
        keys.iter().map(outcome).collect()
    }

    pub(super) fn mix(
        &self,
        mix: &Mix,
        class: &Class,
        options: KernelOptions,
    ) -> Result<&Arc<LoadedKernel>, CudaError> {
        let options = self.here(class, options);
        let kernel = self.mixes.get(&(mix.clone(), *class, options)).map(|(kernel, _)| kernel);
        kernel.ok_or_else(|| CudaError::MixNotPrepared { mix: mix.clone(), class: *class })
    }
}

/// What no plan needs, the merge of states and the append: each is compiled for who asks for it.
impl Kernels {
    pub(super) fn prepare_states(&mut self, class: &Class) -> Result<(), CudaError> {
        let class = &class.outputs();
        if !self.states.contains_key(class) {
            let kernel = Kernel::merge_states(class);
            let cubin = self.compiler.compile(&kernel)?;
            self.states.insert(*class, LoadedKernel::load(self.device.context(), &kernel, &cubin)?);
        }
        Ok(())
    }

    pub(super) fn states(&self, class: &Class) -> Result<&LoadedKernel, CudaError> {
        self.states.get(&class.outputs()).ok_or(CudaError::StatesNotPrepared { class: *class })
    }

    pub(super) fn prepare_append(
        &mut self,
        class: &Class,
        rotary: Option<RotaryPairs>,
    ) -> Result<(), CudaError> {
        if !self.append.contains_key(&(*class, rotary)) {
            let kernel = Kernel::append(class, rotary);
            let cubin = self.compiler.compile(&kernel)?;
            let loaded = LoadedKernel::load(self.device.context(), &kernel, &cubin)?;
            self.append.insert((*class, rotary), loaded);
        }
        Ok(())
    }

    pub(super) fn append(
        &self,
        class: &Class,
        rotary: Option<RotaryPairs>,
    ) -> Result<&LoadedKernel, CudaError> {
        self.append.get(&(*class, rotary)).ok_or(CudaError::AppendNotPrepared { class: *class })
    }
}

impl From<CompileError> for CudaError {
    fn from(error: CompileError) -> Self {
        match error {
            CompileError::NewerThanDriver { driver, nvrtc, .. } => driver_too_old(driver, nvrtc),
            error => Self::Compile(error),
        }
    }
}
