//! The processor this runs on: its name, what code it runs, its threads and caches.

use super::level::Isa;
use std::path::Path;
use tilewright_heuristics::{Backend, Device};
use tilewright_kernel_templates::CpuLimits;

/// The host's processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Model and threads, e.g. `AMD EPYC 7763 x 2 threads`.
    pub name: String,
    /// Architecture and SIMD level, e.g. `x86_64-avx2`.
    pub capability: String,
    /// What it offers a kernel.
    pub limits: CpuLimits,
}

impl HostDevice {
    /// The processor with all threads that this process may run on.
    pub fn detect() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32);
        Self::with_threads(threads)
    }

    /// The processor with `threads` threads, at least one.
    pub fn with_threads(threads: u32) -> Self {
        let threads = threads.max(1);
        let noun = if threads == 1 { "thread" } else { "threads" };
        Self {
            name: format!("{} x {threads} {noun}", model()),
            capability: format!("{}-{}", std::env::consts::ARCH, simd_level()),
            limits: CpuLimits { threads, ..caches(Path::new("/sys/devices/system/cpu/cpu0/cache")) },
        }
    }

    /// As a selector knows it.
    pub fn as_device(&self) -> Device<'_> {
        Device {
            backend: Backend::Cpu,
            name: &self.name,
            capability: &self.capability,
            units: self.limits.threads,
        }
    }
}

fn model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    model_in(&info).unwrap_or_else(|| format!("unknown {} processor", std::env::consts::ARCH))
}

/// The model in `/proc/cpuinfo`, without trademark signs and the words that every vendor adds.
fn model_in(info: &str) -> Option<String> {
    const NOISE: [&str; 4] = ["(R)", "(TM)", "(r)", "(tm)"];
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    let mut name = line.split_once(':')?.1.to_owned();
    for noise in NOISE {
        name = name.replace(noise, " ");
    }
    let words = name.split_whitespace().take_while(|word| *word != "@");
    let words: Vec<&str> = words.filter(|word| !["CPU", "Processor"].contains(word)).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The SIMD level that the kernels are dispatched to.
fn simd_level() -> &'static str {
    Isa::detect().name()
}

/// The caches of the first core; what the system does not tell is taken from the smallest processor that tiles are meant for.
fn caches(folder: &Path) -> CpuLimits {
    let mut limits = CpuLimits::BASELINE;
    for index in 0..8 {
        let folder = folder.join(format!("index{index}"));
        let read =
            |name: &str| std::fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned());
        let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size")) else {
            continue;
        };
        let Some(bytes) = bytes(&size) else { continue };
        match (level.as_str(), kind.as_str()) {
            ("1", "Data" | "Unified") => limits.l1d_bytes = bytes,
            ("2", "Data" | "Unified") => limits.l2_bytes = bytes,
            ("3" | "4", "Data" | "Unified") => limits.llc_bytes = limits.llc_bytes.max(bytes),
            _ => {}
        }
    }
    limits
}

/// A size as the system writes it: `512K`, `32M`, or plain bytes.
fn bytes(size: &str) -> Option<usize> {
    let (digits, shift) = match size.as_bytes().last()? {
        b'K' => (&size[..size.len() - 1], 10),
        b'M' => (&size[..size.len() - 1], 20),
        b'G' => (&size[..size.len() - 1], 30),
        _ => (size, 0),
    };
    digits.parse::<usize>().ok()?.checked_shl(shift).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_without_noise() {
        let named = |model: &str| model_in(&format!("vendor_id : x\nmodel name\t: {model}\n"));
        assert_eq!(
            named("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz").as_deref(),
            Some("Intel Xeon Platinum 8480C")
        );
        assert_eq!(named("AMD EPYC 7763 64-Core Processor").as_deref(), Some("AMD EPYC 7763 64-Core"));
        assert_eq!(model_in("BogoMIPS : 50\n"), None);
    }

    #[test]
    fn sizes_are_read_as_the_system_writes_them() {
        assert_eq!(
            ["512K", "32M", "1G", "64", "", "x", "0"].map(bytes),
            [Some(512 << 10), Some(32 << 20), Some(1 << 30), Some(64), None, None, None]
        );
    }

    #[test]
    fn a_machine_that_tells_nothing_is_the_smallest_one() {
        assert_eq!(caches(Path::new("/nonexistent")), CpuLimits::BASELINE);
    }

    #[test]
    fn this_machine_can_run_tiles() {
        let host = HostDevice::detect();
        assert!(host.limits.threads >= 1 && host.limits.l2_bytes >= 1 << 15, "{host:?}");
        assert!(host.capability.starts_with(std::env::consts::ARCH));
    }
}
