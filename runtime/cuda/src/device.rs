//! A GPU: its context, and what it reports of itself.
#![allow(unsafe_code)]

use super::CudaError;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, result, sys};
use std::sync::Arc;
use tilewright_heuristics::{Backend, Device};
use tilewright_kernel_templates::{Arch, CudaLimits, ReportedLimits};
use tilewright_plan::DeviceProfile;
use tilewright_plan::PlanOptions;

/// An opened GPU.
#[derive(Clone, Debug)]
pub struct CudaDevice {
    context: Arc<CudaContext>,
    name: String,
    arch: Arch,
    arch_name: String,
    limits: CudaLimits,
    driver: (u32, u32),
}

impl CudaDevice {
    /// GPUs that the driver counts; 0 without a driver.
    pub fn count() -> usize {
        if !driver_present() || result::init().is_err() {
            return 0;
        }
        CudaContext::device_count().map_or(0, |count| usize::try_from(count).unwrap_or(0))
    }

    /// Opens a GPU in its primary context.
    ///
    /// # Errors
    /// No driver, no such device, or one that the kernels cannot run on.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        if !driver_present() {
            return Err(CudaError::NoDriver);
        }
        let fail = |what: &str| CudaError::driver(what.to_owned());
        result::init().map_err(fail("cannot start the driver"))?;
        let count = Self::count();
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(fail("cannot open the device"))?;
        Self::of(context)
    }

    /// The GPU of a context that the caller already has.
    ///
    /// # Errors
    /// The driver's, or a device that the kernels cannot run on.
    pub fn of(context: Arc<CudaContext>) -> Result<Self, CudaError> {
        let fail = |what: &str| CudaError::driver(what.to_owned());
        let name = context.name().map_err(fail("cannot read the device's name"))?;
        let (arch, limits) = reported(context.cu_device(), &name)?;
        Ok(Self { arch_name: arch.to_string(), context, name, arch, limits, driver: driver_version() })
    }

    /// What a GPU offers a kernel, by its own report, without opening it: no context is made, which takes longer.
    ///
    /// # Errors
    /// As [`CudaDevice::open`].
    pub fn limits_of(ordinal: usize) -> Result<CudaLimits, CudaError> {
        let count = Self::count();
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(number) = number else { return Err(CudaError::NoDevice { ordinal, count }) };
        let fail = |what: &str| CudaError::driver(what.to_owned());
        let device = result::device::get(number).map_err(fail("cannot find the device"))?;
        let name = result::device::get_name(device).map_err(fail("cannot read the device's name"))?;
        Ok(reported(device, &name)?.1)
    }

    /// The context that everything runs in.
    pub const fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is compiled for it.
    pub const fn arch(&self) -> Arch {
        self.arch
    }

    /// What it offers a kernel, by its own report.
    pub const fn limits(&self) -> &CudaLimits {
        &self.limits
    }

    /// How batches are planned for it, by default prices: packs by price, cut so that all its SMs finish together.
    pub fn plan_options(&self) -> PlanOptions {
        PlanOptions::on(DeviceProfile::of_units(Backend::Cuda, self.limits.sms))
    }

    /// Its number among all devices that there are.
    ///
    /// # Errors
    /// The driver's.
    pub fn uuid(&self) -> Result<[u8; 16], CudaError> {
        let uuid = self.context.uuid().map_err(CudaError::driver("cannot read the device's UUID"))?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Bytes of its memory that are free.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_memory(&self) -> Result<u64, CudaError> {
        let (free, _) =
            self.context.mem_get_info().map_err(CudaError::driver("cannot ask for the free memory"))?;
        Ok(free as u64)
    }

    /// The CUDA version that its driver supports.
    pub const fn driver(&self) -> (u32, u32) {
        self.driver
    }

    /// The device as a selector knows it.
    pub fn as_device(&self) -> Device<'_> {
        Device {
            backend: Backend::Cuda,
            name: &self.name,
            capability: &self.arch_name,
            units: self.limits.sms,
        }
    }

    /// Checks that the driver can load what a compiler of this version makes.
    ///
    /// # Errors
    /// The compiler's major version is newer than the driver's.
    pub fn check_compiler(&self, nvrtc: (u32, u32)) -> Result<(), CudaError> {
        check_versions(self.driver, nvrtc)
    }
}

/// A cubin of the same major version loads in any driver of it (minor version compatibility).
fn check_versions(driver: (u32, u32), nvrtc: (u32, u32)) -> Result<(), CudaError> {
    if driver.0 >= nvrtc.0 { Ok(()) } else { Err(driver_too_old(driver, nvrtc)) }
}

pub(super) fn driver_too_old(driver: (u32, u32), nvrtc: (u32, u32)) -> CudaError {
    let needed = match nvrtc.0 {
        ..=11 => "450.80",
        12 => "525.60",
        _ => "580.65",
    };
    CudaError::DriverTooOld {
        driver: format!("{}.{}", driver.0, driver.1),
        nvrtc: format!("{}.{}", nvrtc.0, nvrtc.1),
        needed,
    }
}

/// cudarc panics when it is used without a driver. Its own `is_culib_present` is not there in programs that link CUDA, as those with candle's.
fn driver_present() -> bool {
    // SAFETY: it opens the library and closes it again; its initialisers are the driver's own.
    ["libcuda.so", "libcuda.so.1"].into_iter().any(|name| unsafe { libloading::Library::new(name) }.is_ok())
}

fn driver_version() -> (u32, u32) {
    let mut version = 0;
    // SAFETY: the driver is present, and writes one number.
    let answer = unsafe { sys::cuDriverGetVersion(&mut version) };
    let version = if answer == sys::CUresult::CUDA_SUCCESS { version.unsigned_abs() } else { 0 };
    (version / 1000, version % 1000 / 10)
}

/// A device's architecture, and its limits by its own report. The driver is started.
fn reported(device: sys::CUdevice, name: &str) -> Result<(Arch, CudaLimits), CudaError> {
    let attribute = |attribute| {
        // SAFETY: the device is one that the driver named.
        unsafe { result::device::get_attribute(device, attribute) }
    };
    let capability = |part| {
        let value = attribute(part).map_err(CudaError::driver("cannot read the device's capability"))?;
        Ok::<u32, CudaError>(value.unsigned_abs())
    };
    let major = capability(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = capability(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    if major < 8 {
        return Err(CudaError::TooOld { name: name.to_owned(), major, minor });
    }
    let arch = Arch::from_capability(major, minor);
    let number = |part| attribute(part).ok().and_then(|value| u32::try_from(value).ok());
    let threads = number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    let warp = number(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE).filter(|&warp| warp > 0);
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) };
    let reported = ReportedLimits {
        name: Some(name.to_owned()),
        arch: Some(arch.to_string()),
        sms: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        registers_per_sm: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
        warp_slots_per_sm: threads.zip(warp).map(|(threads, warp)| threads / warp),
        ctas_per_sm: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR),
        threads_per_cta: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        shared_bytes_per_sm: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        shared_bytes_per_cta: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        shared_reserved_per_cta: number(Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
        l2_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).map(u64::from),
        memory_bytes: memory.ok().map(|bytes| bytes as u64),
        clock_hz: number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).map(|khz| u64::from(khz) * 1000),
        ..ReportedLimits::default()
    };
    let known = CudaLimits::recognised(name).filter(|known| *known.arch == *arch.to_string());
    let limits = known.unwrap_or_else(|| CudaLimits::of_capability(major, minor));
    Ok((arch, limits.overridden_by(&reported)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_older_than_the_compiler_is_told_what_to_install() {
        assert!(check_versions((13, 0), (13, 0)).is_ok());
        assert!(check_versions((13, 2), (12, 8)).is_ok());
        let error = check_versions((12, 8), (13, 0)).unwrap_err().to_string();
        assert!(
            error.contains("CUDA 12.8") && error.contains("580.65") && error.contains("TILEWRIGHT_NVRTC"),
            "{error}"
        );
    }

    #[test]
    fn a_machine_without_a_driver_is_told_so_without_a_panic() {
        if CudaDevice::count() == 0 {
            assert!(matches!(
                CudaDevice::open(0),
                Err(CudaError::NoDriver | CudaError::NoDevice { .. } | CudaError::Driver { .. })
            ));
        } else {
            assert!(matches!(CudaDevice::open(usize::MAX), Err(CudaError::NoDevice { .. })));
        }
        assert!(matches!(CudaDevice::limits_of(usize::MAX), Err(CudaError::NoDevice { .. })));
    }
}
