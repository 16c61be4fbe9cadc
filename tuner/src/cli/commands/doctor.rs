//! `tilewright doctor`.

use crate::cli::exit::Ended;
use crate::cli::{DoctorArguments, output};
use serde::Serialize;
use std::path::Path;
use tilewright_cpu::HostDevice;
use tilewright_cuda::{CudaDevice, CudaError};
use tilewright_heuristics::Selector;
use tilewright_kernel_templates::toolchain::{CubinCache, Nvrtc};
use tilewright_kernel_templates::{Class, Limits, Space, selection};

#[derive(Serialize)]
struct Check {
    name: &'static str,
    passed: bool,
    finding: String,
    /// What to do about it; empty if there is nothing to do.
    remedy: String,
}

/// Checks that this machine can tune, and says what to mend.
///
/// # Errors
/// stdout is closed.
pub fn doctor(arguments: &DoctorArguments) -> anyhow::Result<Ended> {
    let host = HostDevice::detect();
    let mut checks = vec![simd(&host), space(&host), selector(&host), memory(), load(&host), folder()];
    checks.extend([gpu(), compiler()]);
    checks.extend(arguments.selector.as_deref().map(selector_file));
    if arguments.json {
        output::json(&checks)?;
    } else {
        for check in &checks {
            let mark = if check.passed { "ok  " } else { "MEND" };
            output::lines([format!("{mark}  {}: {}", check.name, check.finding)])?;
            if !check.remedy.is_empty() {
                output::lines([format!("      -> {}", check.remedy)])?;
            }
        }
    }
    Ok(if checks.iter().all(|check| check.passed) { Ended::Done } else { Ended::Differs })
}

/// Whether a file is a selector, and of which device.
fn selector_file(path: &Path) -> Check {
    let name = "selector file";
    match Selector::load(path) {
        Ok(selector) => Check {
            name,
            passed: true,
            finding: format!(
                "{}: measured on {} ({}), {} sets of tiles",
                path.display(),
                selector.device.name,
                selector.device.capability,
                selector.sets.len()
            ),
            remedy: String::new(),
        },
        Err(error) => Check {
            name,
            passed: false,
            finding: error.to_string(),
            remedy: "`tilewright emit` or `tilewright replay` writes it from its measurements".to_owned(),
        },
    }
}

fn simd(host: &HostDevice) -> Check {
    let scalar = host.capability.ends_with("scalar");
    Check {
        name: "processor",
        passed: true,
        finding: format!("{}, {}", host.name, host.capability),
        remedy: if scalar {
            "no SIMD is used here: figures will be far from the limit".to_owned()
        } else {
            String::new()
        },
    }
}

fn space(host: &HostDevice) -> Check {
    let limits = Limits::Cpu(host.limits.clone());
    let space = Space::of(host.as_device().backend);
    let fewest = Class::all(host.as_device().backend)
        .map(|class| space.feasible(&class, &limits).len())
        .min()
        .unwrap_or(0);
    Check {
        name: "space",
        passed: fewest > 0,
        finding: format!(
            "at least {fewest} of {} tiles are feasible for every class of kernels",
            space.tiles().len()
        ),
        remedy: String::new(),
    }
}

fn selector(host: &HostDevice) -> Check {
    let limits = Limits::Cpu(host.limits.clone());
    let device = host.as_device();
    let exact = selection(&device, &limits, None).is_some_and(|selection| selection.is_exact());
    Check {
        name: "selector",
        passed: true,
        finding: if exact { "measured on this very device" } else { "none was measured on this device" }
            .to_owned(),
        remedy: if exact { String::new() } else { "run `tilewright tune`".to_owned() },
    }
}

/// What the pools, the batch and the reference of a run need at least, with the default `--max-batch-mb`.
const NEEDED_MB: u64 = 2048;

fn memory() -> Check {
    let available = crate::system::available_memory().map(|bytes| bytes >> 20);
    let enough = available.is_none_or(|mb| mb >= NEEDED_MB);
    Check {
        name: "memory",
        passed: enough,
        finding: available
            .map_or("the system does not tell".to_owned(), |mb| format!("{mb} MB are available")),
        remedy: if enough { String::new() } else { "close programs, or lower `--max-batch-mb`".to_owned() },
    }
}

fn load(host: &HostDevice) -> Check {
    let busy = crate::system::load().unwrap_or(0.0);
    let quiet = busy < 0.5 * f64::from(host.limits.threads).max(1.0);
    Check {
        name: "load",
        passed: quiet,
        finding: format!("{busy:.1} runnable processes in the last minute, {} threads", host.limits.threads),
        remedy: if quiet {
            String::new()
        } else {
            "wait for other work to end: it would be measured too".to_owned()
        },
    }
}

fn gpu() -> Check {
    let (finding, remedy) = match CudaDevice::open(0) {
        Ok(device) => {
            let (major, minor) = device.driver();
            (
                format!("{} ({}), the driver supports CUDA {major}.{minor}", device.name(), device.arch()),
                String::new(),
            )
        }
        Err(error @ CudaError::NoDriver) => (error.to_string(), String::new()),
        Err(error) => (error.to_string(), "the processor is tuned instead".to_owned()),
    };
    Check { name: "GPU", passed: true, finding, remedy }
}

fn compiler() -> Check {
    let found = CubinCache::default_folder()
        .map_err(|error| error.to_string())
        .and_then(|folder| Nvrtc::load(&folder).map_err(|error| error.to_string()));
    match found {
        Ok(nvrtc) => {
            let (major, minor) = nvrtc.version();
            let newer =
                CudaDevice::open(0).ok().and_then(|device| device.check_compiler(nvrtc.version()).err());
            Check {
                name: "NVRTC",
                passed: newer.is_none(),
                finding: format!("{major}.{minor} in {}", nvrtc.path().display()),
                remedy: newer.map(|error| error.to_string()).unwrap_or_default(),
            }
        }
        Err(error) => Check {
            name: "NVRTC",
            passed: true,
            finding: error.lines().next().unwrap_or_default().to_owned(),
            remedy: "`tune` and `space` fetch it with pip when they need it".to_owned(),
        },
    }
}

fn folder() -> Check {
    let outcome = std::env::current_dir().and_then(|folder| tempfile::tempfile_in(folder).map(drop));
    Check {
        name: "current folder",
        passed: outcome.is_ok(),
        finding: outcome.as_ref().map_or_else(ToString::to_string, |()| "can be written to".to_owned()),
        remedy: if outcome.is_ok() { String::new() } else { "name a folder with `tune --out`".to_owned() },
    }
}
