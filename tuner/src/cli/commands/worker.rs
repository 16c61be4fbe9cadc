//! `tilewright worker`: the process that measures for a run. Started by the run, not by people.

use crate::cli::WorkerArguments;
use crate::cli::exit::Ended;
use crate::device_name::DeviceName;
use crate::measure::worker::{Fault, FaultyBench, serve, serve_compiler};
use crate::measure::{Bench, CpuBench, CudaBench};
use anyhow::Context as _;
use std::io::{self, PipeReader};
use std::time::Duration;
use tilewright_kernel_templates::Arch;
use tilewright_kernel_templates::cuda::Kernel;
use tilewright_kernel_templates::toolchain::{Compiler, CubinCache};

/// How long the answer in progress may take when no caller waits for it any more.
const GRACE: Duration = Duration::from_millis(500);

/// Answers requests on stdin until it ends.
///
/// # Errors
/// No such device, a malformed request, or a broken pipe.
pub fn worker(arguments: &WorkerArguments) -> anyhow::Result<Ended> {
    if let Some(arch) = arguments.compile {
        return compile(arch);
    }
    let mut bench: Box<dyn Bench> = match arguments.device {
        Some(DeviceName::Cuda(ordinal)) => Box::new(CudaBench::new(ordinal)?),
        Some(DeviceName::Cpu) | None => Box::new(CpuBench::new(arguments.threads)),
    };
    if let Some(fault) = Fault::from_environment().map_err(anyhow::Error::msg)? {
        bench = Box::new(FaultyBench::new(bench, fault));
    }
    let mut input = requests().context("cannot read requests")?;
    serve(bench.as_mut(), &mut input, &mut io::stdout().lock()).context("the run cannot be answered")?;
    Ok(Ended::Done)
}

/// Compiles kernels into the cache, behind whatever measures.
fn compile(arch: Arch) -> anyhow::Result<Ended> {
    crate::system::lower_priority();
    let compiler = Compiler::new(arch, &CubinCache::default_folder()?)?;
    let compile = |kernel: &Kernel| compiler.compile(kernel).map(drop).map_err(|error| error.to_string());
    let mut input = requests().context("cannot read requests")?;
    serve_compiler(&compile, &mut input, &mut io::stdout().lock()).context("the run cannot be answered")?;
    Ok(Ended::Done)
}

/// What comes on stdin. When that ends the run is gone, and this process ends too, even if a variant hangs.
fn requests() -> io::Result<PipeReader> {
    let (reader, mut writer) = io::pipe()?;
    std::thread::spawn(move || {
        // A pipe that breaks has ended as well.
        let _ = io::copy(&mut io::stdin().lock(), &mut writer);
        drop(writer);
        std::thread::sleep(GRACE);
        std::process::exit(1);
    });
    Ok(reader)
}
