//! `tilewright worker`: the process that measures for a run. Started by the run, not by people.

use crate::cli::WorkerArguments;
use crate::cli::exit::Ended;
use crate::device_name::DeviceName;
use crate::measure::worker::{Fault, FaultyBench, serve};
use crate::measure::{Bench, CpuBench, CudaBench};
use anyhow::Context as _;
use std::io::{self, PipeReader};
use std::time::Duration;

/// How long the answer in progress may take when no caller waits for it any more.
const GRACE: Duration = Duration::from_millis(500);

/// Answers requests on stdin until it ends.
///
/// # Errors
/// No such device, a malformed request, or a broken pipe.
pub fn worker(arguments: &WorkerArguments) -> anyhow::Result<Ended> {
    let mut bench: Box<dyn Bench> = match arguments.device {
        DeviceName::Cpu => Box::new(CpuBench::new(arguments.threads)),
        DeviceName::Cuda(ordinal) => Box::new(CudaBench::new(ordinal)?),
    };
    if let Some(fault) = Fault::from_environment().map_err(anyhow::Error::msg)? {
        bench = Box::new(FaultyBench::new(bench, fault));
    }
    let mut input = requests().context("cannot read requests")?;
    serve(bench.as_mut(), &mut input, &mut io::stdout().lock()).context("the run cannot be answered")?;
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
