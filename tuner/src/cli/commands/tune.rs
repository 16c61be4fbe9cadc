//! `tilewright tune`.

use super::tune_several::tune_several;
use crate::cli::exit::Ended;
use crate::cli::{TuneArguments, output};
use crate::device_list::DeviceList;
use crate::device_name::DeviceName;
use crate::interrupt::Interrupt;
use crate::measure::{Bench, CpuBench, TimeLimits, WorkerBench, WorkerCommand};
use crate::progress::Progress;
use crate::tune::{Outputs, Tuned, command_to_go_on, tune as run_line};
use anyhow::Context as _;
use std::time::Instant;
use tilewright_cuda::CudaDevice;
use tilewright_kernel_templates::toolchain::{CubinCache, Nvrtc};

/// Measures, fits, emits and reports for this machine.
///
/// # Errors
/// Scenarios that make no batches, or the file system. What was measured until then is kept.
pub fn tune(arguments: &TuneArguments) -> anyhow::Result<Ended> {
    let begin = Instant::now();
    let interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let progress = Progress::detect();
    let device = match devices(arguments.device.as_ref())?.as_slice() {
        [] => None,
        &[device] => Some(device),
        several => return tune_several(arguments, several, progress, &interrupt),
    };
    let mut bench = open(named_or_first(device), arguments.threads, progress)?;
    progress.note(&format!("the device is open ({:.1} s)", begin.elapsed().as_secs_f64()));
    match run_line(&arguments.options(), bench.as_mut(), progress, &interrupt)? {
        Tuned::Done(outputs) => {
            progress.note(&format!("done in {:.0} s", begin.elapsed().as_secs_f64()));
            say(&outputs, arguments.json, progress)
        }
        Tuned::Shard(path) => {
            progress.note("unite the shards with `tilewright replay SHARD...`");
            if arguments.json {
                output::json(&serde_json::json!({ "shard": path.to_string_lossy() }))?;
            } else {
                output::lines([path.display().to_string()])?;
            }
            Ok(Ended::Done)
        }
        Tuned::Interrupted(folder) => {
            progress.note(&format!(
                "stopped; {} holds everything measured so far: go on with `{}`",
                folder.display(),
                command_to_go_on()
            ));
            Ok(Ended::Interrupted)
        }
    }
}

/// The devices of a list; none if the user named none.
fn devices(list: Option<&DeviceList>) -> anyhow::Result<Vec<DeviceName>> {
    let gpus = match list {
        None => return Ok(Vec::new()),
        Some(DeviceList::These(devices)) => return Ok(devices.clone()),
        Some(DeviceList::AllGpus) => CudaDevice::count(),
    };
    anyhow::ensure!(gpus > 0, "there is no NVIDIA GPU here; `tilewright doctor` says what is missing");
    Ok((0..gpus).map(DeviceName::Cuda).collect())
}

/// The named device, or the first GPU if there is one.
pub(super) fn named_or_first(device: Option<DeviceName>) -> DeviceName {
    device.unwrap_or_else(|| if CudaDevice::count() > 0 { DeviceName::Cuda(0) } else { DeviceName::Cpu })
}

/// The bench of a device. A GPU is measured in a process of its own, which a variant that hangs or crashes may end.
pub(super) fn open(
    device: DeviceName,
    threads: Option<u32>,
    progress: Progress,
) -> anyhow::Result<Box<dyn Bench>> {
    match device {
        DeviceName::Cpu => Ok(Box::new(CpuBench::new(threads))),
        DeviceName::Cuda(_) => {
            // Here, so that a download is not taken for a process that hangs.
            let nvrtc = Nvrtc::load_or_fetch(&CubinCache::default_folder()?)?;
            progress.note(&format!("compiling with {}", nvrtc.path().display()));
            let command = WorkerCommand::this_program(["worker", "--device", device.to_string().as_str()])?;
            Ok(Box::new(WorkerBench::spawn(command, TimeLimits::default())?))
        }
    }
}

/// Says what a selector is worth and which files were written. A selector that is doubted is a check that found a problem.
pub(super) fn say(outputs: &Outputs, json: bool, progress: Progress) -> anyhow::Result<Ended> {
    for doubt in &outputs.doubts {
        progress.note(&format!("the selector is doubted: {doubt}"));
    }
    if let Some(kept) = &outputs.kept {
        progress.note(&format!(
            "the workspace's selector stays: on the batches that were fitted it takes {:.2} % more than the new one, which is too little to tell; \
             `--force` replaces it",
            (kept.over_new - 1.0) * 100.0
        ));
    }
    let ended = if outputs.module.is_some() { Ended::Done } else { Ended::Differs };
    if ended == Ended::Differs {
        progress.note("no module was written; measure again with more time on a quiet machine, or insist with `--force`");
    }
    if json {
        output::json(outputs)?;
        return Ok(ended);
    }
    let mut rows = Vec::new();
    for (judged, regrets) in
        [("batches not fitted", &outputs.held_out), ("executed under the selector", &outputs.batches)]
    {
        for regret in regrets {
            rows.push(vec![
                judged.to_owned(),
                regret.policy.clone(),
                output::percent(regret.mean),
                output::percent(regret.p95),
                output::percent(regret.worst),
            ]);
        }
    }
    if let Some(headline) = &outputs.headline {
        output::lines([headline.clone(), String::new()])?;
    }
    output::lines([format!("Regret (time over that of the best set, less one) on {}:", outputs.device)])?;
    output::table(&["on", "tiles chosen by", "mean", "p95", "worst"], &rows)?;
    output::lines([
        String::new(),
        format!("measurements  {}", outputs.measurements.display()),
        match &outputs.timelines {
            Some(timelines) => format!("timelines     {}", timelines.display()),
            None => "timelines     none".to_owned(),
        },
        match &outputs.module {
            Some(module) => format!("module        {}", module.display()),
            None => "module        none: see above".to_owned(),
        },
        format!("report        {}", outputs.report.display()),
    ])?;
    Ok(ended)
}
