//! The device that a choice is explained for. It need not be here: a selector is a function of a device's name, architecture and units.

use crate::device_name::DeviceName;
use anyhow::Context as _;
use tilewright_cpu::HostDevice;
use tilewright_cuda::CudaDevice;
use tilewright_heuristics::{Backend, Device, Selection, Selector, Tile, TileSet};
use tilewright_kernel_templates::{
    self as kernel_templates, Class, CpuLimits, CudaLimits, Limits, Space, selectors,
};
use tilewright_plan::{DeviceProfile, PlanOptions};

/// A device by name, here or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    backend: Backend,
    name: String,
    capability: String,
    units: u32,
    limits: Limits,
}

impl NamedDevice {
    /// The device of that name: `cpu`, `cuda` or `cuda:N` of this machine; one that a selector was measured on; a known GPU, by its short name
    /// (`h200`) or by its driver's (`NVIDIA H100 80GB HBM3`). Without a name, this machine's first GPU, else its processor.
    ///
    /// # Errors
    /// A GPU that is not here, or an unknown name; the message lists the known ones.
    pub fn find(name: Option<&str>) -> anyhow::Result<Self> {
        let Some(name) = name else {
            return if CudaDevice::count() > 0 { Self::gpu_here(0) } else { Ok(Self::host()) };
        };
        if let Ok(here) = name.parse() {
            return match here {
                DeviceName::Cpu => Ok(Self::host()),
                DeviceName::Cuda(ordinal) => Self::gpu_here(ordinal),
            };
        }
        Self::measured(name).or_else(|| Self::known(name)).with_context(|| {
            let measured = selectors().iter().map(|selector| format!("{:?}", selector.device.name));
            let known = CudaLimits::NAMED.iter().map(|limits| limits.name.to_string());
            let list = |names: Vec<String>| names.join(", ");
            format!(
                "no device called {name:?} is known; selectors were measured on {}, and limits are known of {}",
                list(measured.collect()),
                list(known.collect())
            )
        })
    }

    fn host() -> Self {
        let host = HostDevice::detect();
        let limits = Limits::Cpu(host.limits.clone());
        Self::of(&host.as_device(), limits)
    }

    fn gpu_here(ordinal: usize) -> anyhow::Result<Self> {
        let device = CudaDevice::open(ordinal)?;
        Ok(Self::of(&device.as_device(), Limits::Cuda(device.limits().clone())))
    }

    /// A device of a known selector.
    fn measured(name: &str) -> Option<Self> {
        let selector = selectors().iter().find(|selector| selector.device.name.eq_ignore_ascii_case(name))?;
        Self::of_selector(selector)
    }

    /// The device that a selector was measured on; `None` for a GPU whose limits are unknown.
    pub fn of_selector(selector: &Selector) -> Option<Self> {
        let device = &selector.device;
        let limits = match device.backend {
            Backend::Cpu => Limits::Cpu(CpuLimits { threads: device.units, ..CpuLimits::BASELINE }),
            Backend::Cuda => {
                let known = CudaLimits::recognised(device.name);
                let known = known.or_else(|| of_arch(device.capability))?;
                Limits::Cuda(CudaLimits { sms: device.units, ..known })
            }
        };
        Some(Self::of(device, limits))
    }

    /// A GPU of the table of limits. One that a selector was measured on is called as the selector calls it.
    fn known(name: &str) -> Option<Self> {
        let limits = CudaLimits::named(name).ok().or_else(|| CudaLimits::recognised(name))?;
        let is_this = |device: &Device<'_>| {
            device.backend == Backend::Cuda && CudaLimits::recognised(device.name).as_ref() == Some(&limits)
        };
        // `h200` is what its driver calls `NVIDIA H200`; `NVIDIA H200 NVL` is not.
        let short = CudaLimits::named(name).is_ok();
        match selectors().iter().map(|selector| &selector.device).find(|device| short && is_this(device)) {
            Some(device) => Self::measured(device.name),
            None => {
                let (arch, units) = (limits.arch.to_string(), limits.sms);
                let device = Device { backend: Backend::Cuda, name, capability: &arch, units };
                Some(Self::of(&device, Limits::Cuda(limits)))
            }
        }
    }

    fn of(device: &Device<'_>, limits: Limits) -> Self {
        let Device { backend, name, capability, units } = *device;
        Self { backend, name: name.to_owned(), capability: capability.to_owned(), units, limits }
    }

    /// Its name and units, as selectors are looked up by.
    pub fn as_device(&self) -> Device<'_> {
        let Self { backend, name, capability, units, .. } = self;
        Device { backend: *backend, name, capability, units: *units }
    }

    /// The tiles that can run a class of kernels on the device, by its declared limits.
    pub fn feasible(&self, class: &Class) -> Vec<Tile> {
        Space::of(self.backend).feasible(class, &self.limits)
    }

    /// The family of tiles of batch-invariant plans of a class.
    pub fn invariant_set(&self, class: &Class) -> Option<TileSet<'static>> {
        kernel_templates::invariant_set(class, &self.limits)
    }

    /// What a decoder on the device decides by: a selector that was loaded, or the best that is known.
    ///
    /// # Errors
    /// No tile can run there.
    pub fn selection(&self, own: Option<&'static Selector>) -> anyhow::Result<Selection> {
        let selection = kernel_templates::selection(&self.as_device(), &self.limits, own);
        selection.with_context(|| format!("{}: it can run no tile; `tilewright space` says why", self.name))
    }

    /// How a decoder on the device plans.
    pub fn plan_options(&self, selection: &Selection) -> PlanOptions {
        PlanOptions::on(DeviceProfile::of(&self.as_device(), selection))
    }
}

/// The first known device of an architecture.
fn of_arch(arch: &str) -> Option<CudaLimits> {
    CudaLimits::NAMED.iter().find(|limits| limits.arch == arch).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::Match;
    use tilewright_heuristics::generated::SELECTORS;

    fn found(name: &str) -> (NamedDevice, Match) {
        let device = NamedDevice::find(Some(name)).unwrap();
        let matched = device.selection(None).unwrap().matched;
        (device, matched)
    }

    #[test]
    fn a_measured_gpu_is_found_by_both_its_names() {
        for name in ["NVIDIA H200", "nvidia h200", "h200"] {
            let (device, matched) = found(name);
            assert_eq!(device.as_device().name, "NVIDIA H200", "{name}");
            assert!(matches!(matched, Match::Exact(selector) if selector.device.name == "NVIDIA H200"));
            assert_eq!(device.plan_options(&device.selection(None).unwrap()).device.max_concurrent_ctas, 264);
        }
        for name in ["NVIDIA H100 80GB HBM3", "h100-sxm"] {
            let (device, matched) = found(name);
            assert_eq!(device.as_device().name, "NVIDIA H100 80GB HBM3", "{name}");
            assert!(
                matches!(matched, Match::Exact(selector) if selector.device.name == device.as_device().name)
            );
        }
    }

    #[test]
    fn a_gpu_that_nobody_measured_takes_what_is_alike() {
        let (device, matched) = found("h100-pcie");
        assert_eq!((device.as_device().name, device.as_device().units), ("h100-pcie", 114));
        let relative = matched.selector().unwrap().device.name;
        assert!(matches!(matched, Match::SameCapability(_)) && relative == "NVIDIA H100 80GB HBM3");
        assert!(matches!(found("rtx-4090").1, Match::OtherArchitecture(_)));
    }

    #[test]
    fn a_measured_processor_need_not_be_here() {
        let cpu = SELECTORS.iter().find(|selector| selector.device.backend == Backend::Cpu).unwrap();
        let (device, matched) = found(cpu.device.name);
        assert!(matches!(matched, Match::Exact(_)));
        assert_eq!(
            device.plan_options(&device.selection(None).unwrap()).device.max_concurrent_ctas,
            cpu.device.units
        );
        assert_eq!(NamedDevice::find(Some("cpu")).unwrap().as_device().backend, Backend::Cpu);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = NamedDevice::find(Some("voodoo2")).unwrap_err().to_string();
        assert!(
            error.contains("voodoo2") && error.contains("\"NVIDIA H200\"") && error.contains("l40s"),
            "{error}"
        );
    }
}
