//! Samples on a cold L2: how it is emptied, and the median time of what is launched on it.
#![allow(unsafe_code)]

use super::{load, read};
use crate::Graph;
use crate::kernels::{Begins, LoadedKernel};
use crate::memory::DeviceMemory;
use crate::profiling::Timer;
use crate::{CudaDevice, CudaError};
use cudarc::driver::CudaStream;
use std::ffi::c_void;
use std::fmt;
use std::str::FromStr;
use tilewright_kernel_templates::cuda::Kernel;
use tilewright_kernel_templates::toolchain::Compiler;

/// Bytes that are read to drive everything else out of L2, in multiples of its size.
const READ_CACHES: u64 = 4;
/// Bytes that are written to do so, unless the cache holds more than half of them.
const WRITTEN: u64 = 256 << 20;
/// How long the device does nothing behind a flush by writing: the host has queued all launches by then, one by one.
const DELAY_US: f64 = 300.0;
/// Rounds that tell how long one takes.
const DELAY_TRIAL: u32 = 4096;

/// How samples are taken on a cold L2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushBy {
    /// The cache is read full, then a captured graph is replayed. Reading leaves nothing to be written back, so the sample after it pays
    /// for nothing but itself.
    #[default]
    Reading,
    /// The cache is written full, and plain launches queue behind a delay that hides the host's part. The cache is full of lines then that
    /// the sample has to have written back: so peers are often measured.
    Writing,
}

impl FlushBy {
    /// Samples whose median is taken.
    pub const fn samples(self) -> usize {
        match self {
            Self::Reading => super::SAMPLES,
            Self::Writing => 20,
        }
    }
}

impl fmt::Display for FlushBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reading => "read",
            Self::Writing => "write",
        })
    }
}

impl FromStr for FlushBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Reading, Self::Writing];
        let found = known.into_iter().find(|by| by.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is no way to empty a cache: use `read` or `write`"))
    }
}

/// Drives everything out of L2 before a sample.
#[derive(Debug)]
pub struct Flush {
    way: Way,
    memory: DeviceMemory,
}

#[derive(Debug)]
enum Way {
    Reading { kernel: LoadedKernel, ctas: u32 },
    Writing { delay: LoadedKernel, rounds: u32 },
}

impl Flush {
    /// One by reading. Takes as much memory as it reads.
    ///
    /// # Errors
    /// The compiler's or the driver's.
    pub fn new(device: &CudaDevice, compiler: &Compiler, stream: &CudaStream) -> Result<Self, CudaError> {
        Self::with(FlushBy::Reading, device, compiler, stream)
    }

    /// One of either kind. Takes as much memory as it reads or writes.
    ///
    /// # Errors
    /// The compiler's or the driver's.
    pub fn with(
        by: FlushBy,
        device: &CudaDevice,
        compiler: &Compiler,
        stream: &CudaStream,
    ) -> Result<Self, CudaError> {
        let l2_bytes = device.limits().l2_bytes;
        let bytes = match by {
            FlushBy::Reading => (READ_CACHES * l2_bytes).max(64 << 20),
            FlushBy::Writing => WRITTEN.max(2 * l2_bytes),
        };
        let memory = DeviceMemory::new(device.context(), bytes.next_multiple_of(1 << 20) as usize)?;
        memory.fill(0x5a, stream)?;
        let way = match by {
            FlushBy::Reading => {
                let kernel = load(device, compiler, &Kernel::read_probe(true))?;
                Way::Reading { kernel, ctas: device.limits().sms * 8 }
            }
            FlushBy::Writing => {
                let delay = load(device, compiler, &Kernel::flop_probe())?;
                let timer = Timer::new(device.context())?;
                let trial = || wait(&delay, DELAY_TRIAL, memory.address(), stream);
                trial()?; // the first launch of a kernel loads it
                let us = timer.time_us(stream, trial)?.max(1.0);
                let rounds = (f64::from(DELAY_TRIAL) * DELAY_US / us).ceil() as u32;
                Way::Writing { delay, rounds }
            }
        };
        Ok(Self { way, memory })
    }

    /// How it empties the cache.
    pub const fn by(&self) -> FlushBy {
        match self.way {
            Way::Reading { .. } => FlushBy::Reading,
            Way::Writing { .. } => FlushBy::Writing,
        }
    }

    /// Bytes that are read or written.
    pub const fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Queues one flush; the delay, too, if it has one.
    ///
    /// # Errors
    /// The driver's.
    pub fn queue(&self, stream: &CudaStream) -> Result<(), CudaError> {
        match &self.way {
            Way::Reading { kernel, ctas } => {
                read(kernel, self.memory.address(), self.memory.bytes() as u64, *ctas, stream)
            }
            Way::Writing { delay, rounds } => {
                self.memory.fill(0xa5, stream)?;
                wait(delay, *rounds, self.memory.address(), stream)
            }
        }
    }

    /// The median time in µs of what `launch` queues on the stream, each sample on a cold cache.
    ///
    /// # Errors
    /// What `launch` says, or the driver.
    ///
    /// # Safety
    /// As for [`Graph::capture`]; everything is done when this returns without an error.
    pub unsafe fn median_us(
        &self,
        timer: &Timer,
        stream: &CudaStream,
        launch: impl Fn() -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        match self.by() {
            FlushBy::Reading => {
                // SAFETY: the caller's promises.
                let graph = unsafe { Graph::capture(stream, launch)? };
                self.median_of(timer, stream, || graph.launch(stream))
            }
            FlushBy::Writing => {
                launch()?; // the first launch of a kernel loads it
                self.median_of(timer, stream, launch)
            }
        }
    }

    fn median_of(
        &self,
        timer: &Timer,
        stream: &CudaStream,
        launch: impl Fn() -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        let mut samples = Vec::with_capacity(self.by().samples());
        for _ in 0..self.by().samples() {
            self.queue(stream)?;
            samples.push(timer.time_us(stream, &launch)?);
        }
        Ok(median(&mut samples))
    }
}

/// The middle one, or the mean of the two in the middle.
fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    if samples.len() % 2 == 1 { samples[middle] } else { (samples[middle - 1] + samples[middle]) / 2.0 }
}

/// Keeps one SM busy without a word from memory.
fn wait(kernel: &LoadedKernel, rounds: u32, sink: u64, stream: &CudaStream) -> Result<(), CudaError> {
    let (mut rounds, mut sink) = (rounds, sink);
    let mut parameters = [(&raw mut rounds).cast::<c_void>(), (&raw mut sink).cast::<c_void>()];
    // SAFETY: the kernel takes rounds and an address of four bytes that outlive the stream's work.
    unsafe { kernel.launch(1, Begins::Late, stream.cu_stream(), &mut parameters) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_named_as_it_is_read() {
        for by in [FlushBy::Reading, FlushBy::Writing] {
            assert_eq!(by.to_string().parse(), Ok(by));
        }
        assert!("graph".parse::<FlushBy>().unwrap_err().contains("`read` or `write`"));
    }

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [9.0, 1.0, 4.0, 2.0]), 3.0);
    }
}
