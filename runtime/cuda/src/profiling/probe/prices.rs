//! What a plan's parts cost on a GPU, from a few kernels that do one thing each.
//!
//! A kernel repeats its work in rounds, in one launch. The time of many rounds less that of few is divided by the rounds between: the
//! launch, the start of its CTAs and the first, cold round drop out.
#![allow(unsafe_code)]

use super::{SAMPLES, load};
use crate::Graph;
use crate::kernels::{Begins, LoadedKernel};
use crate::memory::DeviceMemory;
use crate::profiling::Timer;
use crate::{CudaDevice, CudaError};
use cudarc::driver::CudaStream;
use std::ffi::c_void;
use std::sync::Arc;
use tilewright_heuristics::Prices;
use tilewright_kernel_templates::CudaLimits;
use tilewright_kernel_templates::cuda::{CTA_PROBE_REGION, FLOP_PROBE_FLOPS, Kernel};
use tilewright_kernel_templates::toolchain::Compiler;

const FEW: u32 = 4;
const MANY: u32 = 36;
/// Rounds of the matrix kernel for each round of the others: a product takes nanoseconds.
const FLOP_ROUNDS: u32 = 64;
/// CTAs an SM that the matrix kernel is launched with: enough warps to keep every unit busy.
const FLOP_CTAS: u32 = 2;
/// Partials of a step, which its merge reads right after: they stay in L2.
const PARTIAL_BYTES: u64 = 16 << 20;
/// Part of L2 that is read again. Where the cache has two halves, each keeps a copy of what its SMs read: two thirds
/// are taken then, and the rest is room for what else is there.
const AGAIN_SHARE: u64 = 3;

/// Empty launches that merging at all takes, a launch that begins while forward's CTAs run and then reads what these wrote: 3 to 4.4 us
/// after forward's last CTA on an H200, whose empty launch takes 2.98 us (`docs/deep-dive.md`).
const MERGE_LAUNCHES: f64 = 4.0 / 3.0;

/// Measures on a quiet stream, in the first bytes of `memory`, which are overwritten. Reading at first, and an empty launch in seconds, were
/// measured before.
pub(super) fn measure(
    device: &CudaDevice,
    compiler: &Compiler,
    stream: &Arc<CudaStream>,
    memory: &DeviceMemory,
    bandwidth: f64,
    launch: f64,
) -> Result<Prices, CudaError> {
    let timer = Timer::new(device.context())?;
    let bench = Bench { timer: &timer, stream, memory };
    let limits = device.limits();
    let sms = limits.sms;
    let again_bytes = bench.fitting(limits.l2_bytes / AGAIN_SHARE);
    let partial_bytes = bench.fitting(PARTIAL_BYTES.min(limits.l2_bytes / AGAIN_SHARE));

    let again = bench.passes(&load(device, compiler, &Kernel::again_probe())?, again_bytes, sms)?;
    let partial = bench.passes(&load(device, compiler, &Kernel::write_probe())?, partial_bytes, sms)?;
    let multiply = load(device, compiler, &Kernel::flop_probe())?;
    let flops = u64::from(FLOP_CTAS * sms) * u64::from(FLOP_ROUNDS) * FLOP_PROBE_FLOPS;
    let flop = bench.of_round(|rounds| bench.multiply(&multiply, rounds * FLOP_ROUNDS, FLOP_CTAS * sms))?;
    let slots = device.plan_options().device.max_concurrent_ctas;
    let starting = load(device, compiler, &Kernel::cta_probe(shared_bytes(limits, slots / sms.max(1))))?;
    let regions = u32::try_from(memory.bytes() as u64 / CTA_PROBE_REGION).unwrap_or(u32::MAX).max(1);
    let cta = bench.of_round(|rounds| bench.start(&starting, regions, rounds * slots))?;

    let hbm_byte = Prices::of_seconds(1.0 / bandwidth);
    Ok(Prices {
        hbm_byte,
        // What says that a cache is slower than memory is noise.
        l2_byte: Prices::of_seconds(again / again_bytes as f64).min(hbm_byte),
        partial_byte: Prices::of_seconds(partial / partial_bytes as f64),
        flop: Prices::of_seconds(flop / flops as f64),
        // With the time of its first tokens: until they are there, its place computes nothing.
        cta: Prices::of_seconds(cta / f64::from(slots)),
        merge: Prices::of_seconds(launch * MERGE_LAUNCHES),
    })
}

/// Shared memory of a CTA by which just this number fits an SM, as of those of a decode step.
fn shared_bytes(limits: &CudaLimits, ctas: u32) -> u32 {
    let share = (limits.shared_bytes_per_sm / ctas.max(1)).saturating_sub(limits.shared_reserved_per_cta);
    let unit = limits.shared_allocation_unit.max(1);
    share.min(limits.shared_bytes_per_cta) / unit * unit
}

struct Bench<'a> {
    timer: &'a Timer,
    stream: &'a Arc<CudaStream>,
    memory: &'a DeviceMemory,
}

impl Bench<'_> {
    /// As many of these bytes as there are, in whole pages.
    fn fitting(&self, bytes: u64) -> u64 {
        (bytes.min(self.memory.bytes() as u64) / 4096 * 4096).max(4096)
    }

    /// Seconds of one round of what `launch` queues for a number of rounds.
    fn of_round(&self, launch: impl Fn(u32) -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let mut us = [0.0; 2];
        for (us, rounds) in us.iter_mut().zip([FEW, MANY]) {
            // SAFETY: what it launches works on memory of this probe, which outlives the graph.
            let graph = unsafe { Graph::capture(self.stream, || launch(rounds))? };
            let mut samples = Vec::with_capacity(SAMPLES);
            for _ in 0..SAMPLES {
                // The one before warms the caches, and hides the host's part of the one that is timed.
                graph.launch(self.stream)?;
                samples.push(self.timer.time_us(self.stream, || graph.launch(self.stream))?);
            }
            samples.sort_by(f64::total_cmp);
            *us = samples[SAMPLES / 2];
        }
        Ok((us[1] - us[0]) / f64::from(MANY - FEW) * 1e-6)
    }

    /// Seconds that a kernel takes to read `bytes` bytes, with the grid that is fastest.
    fn passes(&self, kernel: &LoadedKernel, bytes: u64, sms: u32) -> Result<f64, CudaError> {
        let mut seconds = f64::INFINITY;
        for ctas_per_sm in [2, 4, 8] {
            let walk = |rounds| self.walk(kernel, bytes, rounds, sms * ctas_per_sm);
            seconds = seconds.min(self.of_round(walk)?);
        }
        Ok(seconds)
    }

    fn walk(&self, kernel: &LoadedKernel, bytes: u64, rounds: u32, ctas: u32) -> Result<(), CudaError> {
        let (mut data, mut count) = (self.memory.address(), bytes / 16);
        let (mut rounds, mut sink) = (rounds, self.memory.address());
        let mut parameters = [
            (&raw mut data).cast::<c_void>(),
            (&raw mut count).cast::<c_void>(),
            (&raw mut rounds).cast::<c_void>(),
            (&raw mut sink).cast::<c_void>(),
        ];
        // SAFETY: the kernel takes an address, a count of 16-byte elements, rounds and an address, all inside one allocation that outlives
        // the stream's work.
        unsafe { kernel.launch(ctas, Begins::Late, self.stream.cu_stream(), &mut parameters) }
    }

    fn multiply(&self, kernel: &LoadedKernel, rounds: u32, ctas: u32) -> Result<(), CudaError> {
        let (mut rounds, mut sink) = (rounds, self.memory.address());
        let mut parameters = [(&raw mut rounds).cast::<c_void>(), (&raw mut sink).cast::<c_void>()];
        // SAFETY: the kernel takes rounds and an address of four bytes that outlive the stream's work.
        unsafe { kernel.launch(ctas, Begins::Late, self.stream.cu_stream(), &mut parameters) }
    }

    fn start(&self, kernel: &LoadedKernel, regions: u32, ctas: u32) -> Result<(), CudaError> {
        let (mut data, mut regions, mut sink) = (self.memory.address(), regions, self.memory.address());
        let mut parameters = [
            (&raw mut data).cast::<c_void>(),
            (&raw mut regions).cast::<c_void>(),
            (&raw mut sink).cast::<c_void>(),
        ];
        // SAFETY: the kernel reads regions that the memory has, and outlives the stream's work.
        unsafe { kernel.launch(ctas, Begins::Late, self.stream.cu_stream(), &mut parameters) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn just_so_many_ctas_fit_an_sm() {
        for name in ["a100-80gb", "l40s", "h200", "b200"] {
            let limits = CudaLimits::named(name).unwrap();
            for ctas in 1..=4 {
                let bytes = shared_bytes(&limits, ctas) + limits.shared_reserved_per_cta;
                assert_eq!(limits.shared_bytes_per_sm / bytes, ctas, "{name}");
                assert!(shared_bytes(&limits, ctas) <= limits.shared_bytes_per_cta);
            }
        }
    }
}
