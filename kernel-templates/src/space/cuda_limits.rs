//! What CUDA devices offer, as data: published figures of known devices, and what a live device reports in their place.
//!
//! Per compute capability, the figures of an SM are those of the CUDA C++ Programming Guide's table of technical
//! specifications. SMs, clocks, memory and peak bandwidth are those of each device's data sheet or architecture white paper.

use crate::Class;
use crate::cuda::{KernelOptions, has_tma_producers, mix_producer_warps, mix_shared_bytes, mix_threads};
use std::borrow::Cow;
use tilewright_heuristics::Tile;

/// Limits of one CUDA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaLimits {
    /// The name to call it by, such as `h100-sxm`.
    pub name: Cow<'static, str>,
    /// The architecture to compile for, such as `sm_90a`.
    pub arch: Cow<'static, str>,
    /// Streaming multiprocessors (SMs).
    pub sms: u32,
    /// 32-bit registers of an SM.
    pub registers_per_sm: u32,
    /// The most registers that a thread can have.
    pub max_registers_per_thread: u32,
    /// A warp gets a multiple of this many registers.
    pub register_allocation_unit: u32,
    /// Warps that can reside on an SM.
    pub warp_slots_per_sm: u32,
    /// CTAs that can reside on an SM.
    pub ctas_per_sm: u32,
    /// The most threads of a CTA.
    pub threads_per_cta: u32,
    /// Shared memory of an SM in bytes, with the L1 cache at its smallest.
    pub shared_bytes_per_sm: u32,
    /// The most shared memory of a CTA in bytes, which a kernel must opt in to beyond 48 KB.
    pub shared_bytes_per_cta: u32,
    /// Bytes of shared memory that the system takes for each resident CTA, beyond what the CTA asks for.
    pub shared_reserved_per_cta: u32,
    /// A CTA gets a multiple of this many bytes of shared memory.
    pub shared_allocation_unit: u32,
    /// L2 in bytes.
    pub l2_bytes: u64,
    /// Memory in bytes. In the table, the data sheet's GB taken as 10^9: a device has at least that much.
    pub memory_bytes: u64,
    /// The most bytes a second that memory can be read at, by the data sheet.
    pub read_bandwidth: u64,
    /// Floating-point operations a second of the tensor cores on dense 16-bit matrices with f32 sums, by the data sheet; 0 if unknown.
    pub matrix_flops: u64,
    /// SM cycles from a load to its value, from memory with no other load under way. In the table, an estimate for devices
    /// that were not measured for it (see the comments there): prefer a measured one.
    pub memory_latency_cycles: u32,
    /// The SMs' clock in Hz, boosted.
    pub clock_hz: u64,
}

/// A name that is none of [`CudaLimits::NAMED`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no limits are known for a CUDA device called {name:?}; known are {}", known_names())]
pub struct UnknownDevice {
    /// The name asked for.
    pub name: String,
}

fn known_names() -> String {
    CudaLimits::NAMED.iter().map(|limits| &*limits.name).collect::<Vec<_>>().join(", ")
}

/// Compute capability 8.0.
const CC_80: CudaLimits = CudaLimits {
    name: Cow::Borrowed(""),
    arch: Cow::Borrowed("sm_80"),
    sms: 1,
    registers_per_sm: 64 << 10,
    max_registers_per_thread: 255,
    register_allocation_unit: 256,
    warp_slots_per_sm: 64,
    ctas_per_sm: 32,
    threads_per_cta: 1024,
    shared_bytes_per_sm: 164 << 10,
    shared_bytes_per_cta: 163 << 10,
    shared_reserved_per_cta: 1 << 10,
    shared_allocation_unit: 128,
    l2_bytes: 0,
    memory_bytes: 0,
    read_bandwidth: 0,
    matrix_flops: 0,
    memory_latency_cycles: 0,
    clock_hz: 0,
};

/// Compute capability 8.9.
const CC_89: CudaLimits = CudaLimits {
    arch: Cow::Borrowed("sm_89"),
    warp_slots_per_sm: 48,
    ctas_per_sm: 24,
    shared_bytes_per_sm: 100 << 10,
    shared_bytes_per_cta: 99 << 10,
    ..CC_80
};

/// Compute capability 9.0.
const CC_90: CudaLimits = CudaLimits {
    arch: Cow::Borrowed("sm_90a"),
    shared_bytes_per_sm: 228 << 10,
    shared_bytes_per_cta: 227 << 10,
    ..CC_80
};

/// Compute capability 10.0: as 9.0 in all that limits a CTA.
const CC_100: CudaLimits = CudaLimits { arch: Cow::Borrowed("sm_100a"), ..CC_90 };

const GB: u64 = 1_000_000_000;

impl CudaLimits {
    /// Devices known by name.
    pub const NAMED: &[CudaLimits] = &[
        // Latencies are estimates from public pointer-chasing benchmarks (arXiv:2402.13499 is one); only the H200's was measured for
        // this table. A run measures its own device's.
        CudaLimits {
            name: Cow::Borrowed("a100-40gb"),
            sms: 108,
            l2_bytes: 40 << 20,
            memory_bytes: 40 * GB,
            read_bandwidth: 1_555 * GB,
            matrix_flops: 312_000 * GB,
            memory_latency_cycles: 466,
            clock_hz: 1_410_000_000,
            ..CC_80
        },
        // The SXM card; the PCIe one reads 1935 GB/s.
        CudaLimits {
            name: Cow::Borrowed("a100-80gb"),
            sms: 108,
            l2_bytes: 40 << 20,
            memory_bytes: 80 * GB,
            read_bandwidth: 2_039 * GB,
            matrix_flops: 312_000 * GB,
            memory_latency_cycles: 466,
            clock_hz: 1_410_000_000,
            ..CC_80
        },
        // Both H100: the cycles measured on an H200, whose die is theirs.
        CudaLimits {
            name: Cow::Borrowed("h100-sxm"),
            sms: 132,
            l2_bytes: 50 << 20,
            memory_bytes: 80 * GB,
            read_bandwidth: 3_350 * GB,
            matrix_flops: 989_000 * GB,
            memory_latency_cycles: 707,
            clock_hz: 1_980_000_000,
            ..CC_90
        },
        CudaLimits {
            name: Cow::Borrowed("h100-pcie"),
            sms: 114,
            l2_bytes: 50 << 20,
            memory_bytes: 80 * GB,
            read_bandwidth: 2_000 * GB,
            matrix_flops: 756_000 * GB,
            memory_latency_cycles: 707,
            clock_hz: 1_755_000_000,
            ..CC_90
        },
        // Cache as the driver reports it; cycles measured, about.
        CudaLimits {
            name: Cow::Borrowed("h200"),
            sms: 132,
            l2_bytes: 60 << 20,
            memory_bytes: 141 * GB,
            read_bandwidth: 4_800 * GB,
            matrix_flops: 989_000 * GB,
            memory_latency_cycles: 707,
            clock_hz: 1_980_000_000,
            ..CC_90
        },
        // L40S: the RTX 4090's cycles, whose die is its own; its memory is GDDR6, not GDDR6X.
        CudaLimits {
            name: Cow::Borrowed("l40s"),
            sms: 142,
            l2_bytes: 96 << 20,
            memory_bytes: 48 * GB,
            read_bandwidth: 864 * GB,
            matrix_flops: 362_000 * GB,
            memory_latency_cycles: 542,
            clock_hz: 2_520_000_000,
            ..CC_89
        },
        CudaLimits {
            name: Cow::Borrowed("rtx-4090"),
            sms: 128,
            l2_bytes: 72 << 20,
            memory_bytes: 24 * GB,
            read_bandwidth: 1_008 * GB,
            matrix_flops: 165_000 * GB,
            memory_latency_cycles: 542,
            clock_hz: 2_520_000_000,
            ..CC_89
        },
        // B200: the H200's cycles for want of a figure. Memory as in an HGX B200.
        CudaLimits {
            name: Cow::Borrowed("b200"),
            sms: 148,
            l2_bytes: 126 << 20,
            memory_bytes: 180 * GB,
            read_bandwidth: 8_000 * GB,
            matrix_flops: 2_250_000 * GB,
            memory_latency_cycles: 707,
            clock_hz: 1_965_000_000,
            ..CC_100
        },
    ];

    /// The limits of the device of that name, in capitals or not.
    ///
    /// # Errors
    /// If there is none; the message lists the names that there are.
    pub fn named(name: &str) -> Result<CudaLimits, UnknownDevice> {
        Self::NAMED
            .iter()
            .find(|limits| limits.name.eq_ignore_ascii_case(name))
            .cloned()
            .ok_or_else(|| UnknownDevice { name: name.to_owned() })
    }

    /// The named device that a driver's name for one means, such as `NVIDIA H200` for `h200`; the most specific if several do.
    pub fn recognised(driver_name: &str) -> Option<CudaLimits> {
        let words = |name: &str| -> Vec<String> {
            name.split([' ', '-']).map(str::to_ascii_lowercase).filter(|word| word != "nvidia").collect()
        };
        let mut given = words(driver_name);
        // `NVIDIA H100 80GB HBM3` is the SXM card: the PCIe one has other memory, and says PCIe.
        if given.iter().any(|word| word == "hbm3") {
            given.push("sxm".to_owned());
        }
        let matches = |limits: &&CudaLimits| words(&limits.name).iter().all(|word| given.contains(word));
        Self::NAMED.iter().filter(matches).max_by_key(|limits| limits.name.len()).cloned()
    }

    /// What all devices of a compute capability have in common, for those that are not [`CudaLimits::NAMED`]: a device's own report
    /// completes it. Latency is that of a Hopper, for want of a better figure.
    pub fn of_capability(major: u32, minor: u32) -> CudaLimits {
        let common = match (major, minor) {
            (..=8, 0) => CC_80,
            // 8.6 and 8.7 differ from 8.9 in what they report themselves.
            (..=8, _) => CC_89,
            (9, _) => CC_90,
            _ => CC_100,
        };
        CudaLimits {
            memory_latency_cycles: 707,
            clock_hz: 1_700_000_000,
            read_bandwidth: 1_000 * GB,
            ..common
        }
    }

    /// These limits with what a device reports in place of what is known of its kind.
    #[must_use]
    pub fn overridden_by(self, reported: &ReportedLimits) -> CudaLimits {
        // Taken apart in full, so that a field that is added cannot be forgotten here.
        let ReportedLimits {
            name,
            arch,
            sms,
            registers_per_sm,
            max_registers_per_thread,
            register_allocation_unit,
            warp_slots_per_sm,
            ctas_per_sm,
            threads_per_cta,
            shared_bytes_per_sm,
            shared_bytes_per_cta,
            shared_reserved_per_cta,
            shared_allocation_unit,
            l2_bytes,
            memory_bytes,
            read_bandwidth,
            matrix_flops,
            memory_latency_cycles,
            clock_hz,
        } = reported;
        CudaLimits {
            name: name.clone().map_or(self.name, Cow::Owned),
            arch: arch.clone().map_or(self.arch, Cow::Owned),
            sms: sms.unwrap_or(self.sms),
            registers_per_sm: registers_per_sm.unwrap_or(self.registers_per_sm),
            max_registers_per_thread: max_registers_per_thread.unwrap_or(self.max_registers_per_thread),
            register_allocation_unit: register_allocation_unit.unwrap_or(self.register_allocation_unit),
            warp_slots_per_sm: warp_slots_per_sm.unwrap_or(self.warp_slots_per_sm),
            ctas_per_sm: ctas_per_sm.unwrap_or(self.ctas_per_sm),
            threads_per_cta: threads_per_cta.unwrap_or(self.threads_per_cta),
            shared_bytes_per_sm: shared_bytes_per_sm.unwrap_or(self.shared_bytes_per_sm),
            shared_bytes_per_cta: shared_bytes_per_cta.unwrap_or(self.shared_bytes_per_cta),
            shared_reserved_per_cta: shared_reserved_per_cta.unwrap_or(self.shared_reserved_per_cta),
            shared_allocation_unit: shared_allocation_unit.unwrap_or(self.shared_allocation_unit),
            l2_bytes: l2_bytes.unwrap_or(self.l2_bytes),
            memory_bytes: memory_bytes.unwrap_or(self.memory_bytes),
            read_bandwidth: read_bandwidth.unwrap_or(self.read_bandwidth),
            matrix_flops: matrix_flops.unwrap_or(self.matrix_flops),
            memory_latency_cycles: memory_latency_cycles.unwrap_or(self.memory_latency_cycles),
            clock_hz: clock_hz.unwrap_or(self.clock_hz),
        }
    }
}

/// What a live device says, or was measured to have. The driver's attribute for each is named; the others it does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedLimits {
    /// [`CudaLimits::name`]: `cuDeviceGetName`.
    pub name: Option<String>,
    /// [`CudaLimits::arch`]: from `COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
    pub arch: Option<String>,
    /// [`CudaLimits::sms`]: `MULTIPROCESSOR_COUNT`.
    pub sms: Option<u32>,
    /// [`CudaLimits::registers_per_sm`]: `MAX_REGISTERS_PER_MULTIPROCESSOR`.
    pub registers_per_sm: Option<u32>,
    /// [`CudaLimits::max_registers_per_thread`].
    pub max_registers_per_thread: Option<u32>,
    /// [`CudaLimits::register_allocation_unit`].
    pub register_allocation_unit: Option<u32>,
    /// [`CudaLimits::warp_slots_per_sm`]: `MAX_THREADS_PER_MULTIPROCESSOR` by `WARP_SIZE`.
    pub warp_slots_per_sm: Option<u32>,
    /// [`CudaLimits::ctas_per_sm`]: `MAX_BLOCKS_PER_MULTIPROCESSOR`.
    pub ctas_per_sm: Option<u32>,
    /// [`CudaLimits::threads_per_cta`]: `MAX_THREADS_PER_BLOCK`.
    pub threads_per_cta: Option<u32>,
    /// [`CudaLimits::shared_bytes_per_sm`]: `MAX_SHARED_MEMORY_PER_MULTIPROCESSOR`.
    pub shared_bytes_per_sm: Option<u32>,
    /// [`CudaLimits::shared_bytes_per_cta`]: `MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
    pub shared_bytes_per_cta: Option<u32>,
    /// [`CudaLimits::shared_reserved_per_cta`]: `RESERVED_SHARED_MEMORY_PER_BLOCK`.
    pub shared_reserved_per_cta: Option<u32>,
    /// [`CudaLimits::shared_allocation_unit`].
    pub shared_allocation_unit: Option<u32>,
    /// [`CudaLimits::l2_bytes`]: `L2_CACHE_SIZE`.
    pub l2_bytes: Option<u64>,
    /// [`CudaLimits::memory_bytes`]: `cuDeviceTotalMem`.
    pub memory_bytes: Option<u64>,
    /// [`CudaLimits::read_bandwidth`]: measured, or from the memory's clock and bus width.
    pub read_bandwidth: Option<u64>,
    /// [`CudaLimits::matrix_flops`]: from the data sheet of a device of that name.
    pub matrix_flops: Option<u64>,
    /// [`CudaLimits::memory_latency_cycles`]: measured.
    pub memory_latency_cycles: Option<u32>,
    /// [`CudaLimits::clock_hz`]: `CLOCK_RATE`, which is in kHz.
    pub clock_hz: Option<u64>,
}

/// What a CTA of a kernel takes on this device. On an unknown architecture no kernel has TMA producers.
impl CudaLimits {
    /// Whether a class has kernels with TMA producer warps.
    pub fn has_tma_producers(&self, class: &Class) -> bool {
        self.arch.parse().is_ok_and(|arch| has_tma_producers(class, arch))
    }

    /// Threads of a CTA of a tile's kernel.
    pub fn threads(&self, tile: &Tile, class: &Class, options: KernelOptions) -> u32 {
        mix_threads(&[*tile], self.producer_warps(&[*tile], class, options))
    }

    /// Dynamic shared memory of a CTA of a tile's kernel, in bytes.
    pub fn shared_bytes(&self, tile: &Tile, class: &Class, options: KernelOptions) -> u32 {
        mix_shared_bytes(&[*tile], class, self.producer_warps(&[*tile], class, options), options)
    }

    /// TMA producer warps of a CTA that computes any of several tiles.
    pub fn producer_warps(&self, tiles: &[Tile], class: &Class, options: KernelOptions) -> u32 {
        self.arch.parse().map_or(0, |arch| mix_producer_warps(tiles, class, options, arch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::shared_bytes;
    use std::collections::BTreeSet;
    use tilewright_heuristics::Dtype;

    #[test]
    fn every_named_device_is_complete_and_found_by_its_name() {
        let names: BTreeSet<_> = CudaLimits::NAMED.iter().map(|limits| &limits.name).collect();
        assert_eq!(names.len(), CudaLimits::NAMED.len());
        for limits in CudaLimits::NAMED {
            assert_eq!(CudaLimits::named(&limits.name.to_uppercase()).as_ref(), Ok(limits));
            let CudaLimits { sms, l2_bytes, memory_bytes, read_bandwidth, clock_hz, .. } = *limits;
            assert!(sms > 1 && l2_bytes > 0 && memory_bytes > 0, "{limits:?}");
            assert!(read_bandwidth > 0 && limits.memory_latency_cycles > 0 && clock_hz > 0, "{limits:?}");
            assert_eq!(
                limits.shared_bytes_per_cta + limits.shared_reserved_per_cta,
                limits.shared_bytes_per_sm,
                "{limits:?}"
            );
        }
    }

    #[test]
    fn a_drivers_name_is_recognised() {
        let found = |name: &str| CudaLimits::recognised(name).map(|limits| limits.name.into_owned());
        assert_eq!(found("NVIDIA H200").as_deref(), Some("h200"));
        assert_eq!(found("NVIDIA GeForce RTX 4090").as_deref(), Some("rtx-4090"));
        assert_eq!(found("NVIDIA A100-SXM4-80GB").as_deref(), Some("a100-80gb"));
        assert_eq!(found("NVIDIA H100 PCIe").as_deref(), Some("h100-pcie"));
        assert_eq!(found("NVIDIA H100 80GB HBM3").as_deref(), Some("h100-sxm"));
        assert_eq!(found("NVIDIA T4"), None);
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let message = CudaLimits::named("a1000").unwrap_err().to_string();
        assert_eq!(
            message,
            "no limits are known for a CUDA device called \"a1000\"; known are a100-40gb, a100-80gb, \
             h100-sxm, h100-pcie, h200, l40s, rtx-4090, b200"
        );
    }

    #[test]
    fn a_device_overrides_what_it_reports_and_nothing_else() {
        let h200 = CudaLimits::named("h200").unwrap();
        assert_eq!(h200.clone().overridden_by(&ReportedLimits::default()), h200);
        let reported = ReportedLimits {
            name: Some("a slice of one".into()),
            sms: Some(16),
            memory_bytes: Some(18 << 30),
            ..ReportedLimits::default()
        };
        let slice = h200.clone().overridden_by(&reported);
        let expected = CudaLimits { name: "a slice of one".into(), sms: 16, memory_bytes: 18 << 30, ..h200 };
        assert_eq!(slice, expected);
    }

    #[test]
    fn a_device_has_the_ctas_of_its_architecture() {
        let class = Class { head_dim: 128, dtype: Dtype::F16 };
        let tile = Tile::of("m64n64w4s2");
        let [tma, cp_async] = [16, 1].map(KernelOptions::for_pages);
        let figures = |options, arch: &'static str| {
            let limits = CudaLimits { arch: arch.into(), ..CudaLimits::named("h200").unwrap() };
            (limits.threads(&tile, &class, options), limits.shared_bytes(&tile, &class, options))
        };
        let plain = (128, shared_bytes(&tile, &class, 0, tma));
        let invariant = KernelOptions { invariant: true, ..tma };
        assert_eq!(figures(invariant, "sm_80"), (128, plain.1 + 64 * 128 * 4), "totals of 64 rows");
        assert_eq!(figures(tma, "sm_90a"), (256, shared_bytes(&tile, &class, 4, tma)));
        assert_eq!(figures(cp_async, "sm_90a"), plain);
        assert_eq!(figures(tma, "sm_80"), plain);
        assert_eq!(figures(tma, "of tomorrow"), plain);
    }
}
