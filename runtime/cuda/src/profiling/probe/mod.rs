//! What a GPU gives at most, measured: what every limit is made of, and the prices that plans go by.
#![allow(unsafe_code)]

mod flush;
mod prices;

use crate::kernels::{Begins, LoadedKernel};
use crate::memory::DeviceMemory;
use crate::profiling::Timer;
use crate::{CudaDevice, CudaError};
use cudarc::driver::CudaStream;
pub use flush::{Flush, FlushBy};
use std::ffi::c_void;
use std::sync::Arc;
use tilewright_heuristics::Prices;
use tilewright_kernel_templates::cuda::Kernel;
use tilewright_kernel_templates::toolchain::Compiler;

/// Samples of each point of the curve, unless samples are of another kind ([`FlushBy::samples`]).
const SAMPLES: usize = 11;

/// A point of the curve: the time of reading a number of bytes once, cold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadPoint {
    /// Bytes read.
    pub bytes: u64,
    /// Median time of a launch that reads them, in µs.
    pub us: f64,
}

/// What was measured of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// From 1 MB up to 4 GB, ascending.
    pub reads: Vec<ReadPoint>,
    /// Time of an empty launch, in µs; in a graph, unless samples are plain launches ([`FlushBy::Writing`]).
    pub launch_us: f64,
    /// Cycles from a load to its value, from device memory, unloaded.
    pub memory_latency_cycles: u32,
    /// The same from L2.
    pub l2_latency_cycles: u32,
    /// What a plan's parts cost.
    pub prices: Prices,
}

impl Figures {
    /// The least time to read `bytes` bytes, in µs: on the line through the two measured points around them, or through the last two beyond
    /// the largest, so that a launch is paid for once. Nothing takes an empty launch.
    pub fn read_us(&self, bytes: u64) -> f64 {
        let nothing = ReadPoint { bytes: 0, us: self.launch_us };
        let above =
            self.reads.partition_point(|read| read.bytes < bytes).min(self.reads.len().saturating_sub(1));
        let Some(&high) = self.reads.get(above) else { return self.launch_us };
        let low = above.checked_sub(1).map_or(nothing, |below| self.reads[below]);
        let (x, width) = (bytes as f64 - low.bytes as f64, (high.bytes - low.bytes).max(1) as f64);
        low.us + (high.us - low.us) * x / width
    }

    /// The rate of the largest read in bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.reads.last().map_or(0.0, |read| read.bytes as f64 / read.us * 1e6)
    }
}

/// Measures a device. Takes at most 4 GB of its memory, and a second.
///
/// # Errors
/// The compiler's or the driver's.
pub fn measure(
    device: &CudaDevice,
    compiler: &Compiler,
    stream: &Arc<CudaStream>,
) -> Result<Figures, CudaError> {
    measure_flushed(FlushBy::Reading, device, compiler, stream)
}

/// As [`measure`], with reads and the empty launch timed as samples behind this flush are: the limit of those.
///
/// # Errors
/// As there.
pub fn measure_flushed(
    by: FlushBy,
    device: &CudaDevice,
    compiler: &Compiler,
    stream: &Arc<CudaStream>,
) -> Result<Figures, CudaError> {
    let flush = Flush::with(by, device, compiler, stream)?;
    let timer = Timer::new(device.context())?;
    let kernel = load(device, compiler, &Kernel::read_probe(false))?;
    let largest = (4u64 << 30).min(device.limits().memory_bytes / 4).max(1 << 20);
    let memory = DeviceMemory::new(device.context(), largest as usize)?;
    memory.fill(0xa5, stream)?;
    let mut reads = Vec::new();
    let sizes =
        (0..=24).map(|step| (f64::from(1 << 20) * 2f64.powf(f64::from(step) / 2.0)) as u64 / 4096 * 4096);
    for bytes in sizes.take_while(|&bytes| bytes <= largest) {
        // The best grid differs from size to size: a limit takes the best of them.
        let mut us = f64::INFINITY;
        for ctas_per_sm in [2, 4, 8] {
            let ctas = device.limits().sms * ctas_per_sm;
            let launch = || read(&kernel, memory.address(), bytes, ctas, stream);
            // SAFETY: the memory and the kernel stay.
            us = us.min(unsafe { flush.median_us(&timer, stream, launch)? });
        }
        reads.push(ReadPoint { bytes, us });
    }
    // A larger read that is faster than a smaller one is noise of the smaller one.
    for at in (1..reads.len()).rev() {
        reads[at - 1].us = reads[at - 1].us.min(reads[at].us);
    }
    // SAFETY: as above.
    let launch_us =
        unsafe { flush.median_us(&timer, stream, || read(&kernel, memory.address(), 0, 1, stream))? };
    // A step of a chain is a load alone, with nothing to be written back.
    let flush = match by {
        FlushBy::Reading => flush,
        FlushBy::Writing => Flush::new(device, compiler, stream)?,
    };
    let chase = load(device, compiler, &Kernel::latency_probe())?;
    let mut figures = Figures {
        reads,
        launch_us,
        memory_latency_cycles: latency(&chase, &memory, largest, &flush, stream)?,
        l2_latency_cycles: latency(&chase, &memory, 4 << 20, &flush, stream)?,
        prices: Prices::H200,
    };
    figures.prices =
        prices::measure(device, compiler, stream, &memory, figures.bandwidth(), launch_us * 1e-6)?;
    Ok(figures)
}

/// Kernels of a measurement that are the same for all devices of an architecture: whoever has them compiled into the cache before a device is open
/// spares [`measure`] that.
pub fn kernels() -> Vec<Kernel> {
    vec![
        Kernel::read_probe(true),
        Kernel::read_probe(false),
        Kernel::latency_probe(),
        Kernel::again_probe(),
        Kernel::write_probe(),
        Kernel::flop_probe(),
    ]
}

fn load(device: &CudaDevice, compiler: &Compiler, kernel: &Kernel) -> Result<LoadedKernel, CudaError> {
    LoadedKernel::load(device.context(), kernel, &compiler.compile(kernel)?)
}

fn read(
    kernel: &LoadedKernel,
    address: u64,
    bytes: u64,
    ctas: u32,
    stream: &CudaStream,
) -> Result<(), CudaError> {
    // The memory's first word stands for a result that is never written.
    let (mut data, mut count, mut sink) = (address, bytes / 16, address);
    let mut parameters = [
        (&raw mut data).cast::<c_void>(),
        (&raw mut count).cast::<c_void>(),
        (&raw mut sink).cast::<c_void>(),
    ];
    // SAFETY: the kernel takes two addresses and a count of 16-byte elements, all inside one allocation that outlives the stream's work.
    unsafe { kernel.launch(ctas, Begins::Late, stream.cu_stream(), &mut parameters) }
}

/// Writes a chain that visits lines of 128 bytes in an order that no prefetcher guesses: the first word of a line is the index of the next
/// line's first.
fn write_chain(memory: &DeviceMemory, bytes: u64) -> Result<(), CudaError> {
    const LINE_WORDS: u32 = 32;
    let span = chain_span(memory, bytes);
    let lines = (span / 128) as u32;
    let mut chain = vec![0u32; (span / 4) as usize];
    // A full cycle: the multiplier and the odd step make a linear congruential sequence visit every line of a power of two.
    let lines = 1u32 << lines.ilog2();
    let (mut at, mut steps) = (0u32, 0);
    while steps < lines {
        let next = at.wrapping_mul(0x915f_77f5).wrapping_add(0x6b43_a9b5) % lines;
        chain[(at * LINE_WORDS) as usize] = next * LINE_WORDS;
        at = next;
        steps += 1;
    }
    memory.write(0, &chain)
}

/// Bytes that a chain takes of those that are asked for.
fn chain_span(memory: &DeviceMemory, bytes: u64) -> u64 {
    bytes.min(256 << 20).min(memory.bytes() as u64)
}

/// Cycles of a step of a chain.
fn latency(
    kernel: &LoadedKernel,
    memory: &DeviceMemory,
    bytes: u64,
    flush: &Flush,
    stream: &CudaStream,
) -> Result<u32, CudaError> {
    write_chain(memory, bytes)?;
    let small = chain_span(memory, bytes) <= 8 << 20;
    let mut hops: u32 = 2048;
    let result = DeviceMemory::new(memory.context(), 16)?;
    let mut best = u64::MAX;
    for _ in 0..5 {
        if !small {
            flush.queue(stream)?;
        }
        let (mut data, mut cycles) = (memory.address(), result.address());
        let mut parameters = [
            (&raw mut data).cast::<c_void>(),
            (&raw mut hops).cast::<c_void>(),
            (&raw mut cycles).cast::<c_void>(),
        ];
        // SAFETY: the chain's words are indices inside of it, and the kernel writes two u64.
        unsafe { kernel.launch(1, Begins::Late, stream.cu_stream(), &mut parameters)? };
        let mut found = [0u64; 2];
        result.read(0, &mut found, stream)?;
        best = best.min(found[0]);
    }
    Ok((best / u64::from(hops)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_lies_on_the_measured_curve() {
        let reads = vec![ReadPoint { bytes: 1000, us: 4.0 }, ReadPoint { bytes: 2000, us: 6.0 }];
        let figures = Figures {
            reads,
            launch_us: 2.0,
            memory_latency_cycles: 700,
            l2_latency_cycles: 300,
            prices: Prices::H200,
        };
        for (bytes, us) in [(0, 2.0), (500, 3.0), (1000, 4.0), (1500, 5.0), (2000, 6.0), (4000, 10.0)] {
            assert!((figures.read_us(bytes) - us).abs() < 1e-9, "{bytes}");
        }
        assert!((figures.bandwidth() - 2000.0 / 6e-6).abs() < 1.0);
    }
}
