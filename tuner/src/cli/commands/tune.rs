//! `tilewright tune`.

use super::tune_several::tune_several;
use crate::cli::exit::Ended;
use crate::cli::{TuneArguments, output};
use crate::device_list::DeviceList;
use crate::device_name::DeviceName;
use crate::fleet::workers;
use crate::interrupt::Interrupt;
use crate::measure::worker::CompileProcess;
use crate::measure::{
    Bench, Benches, Compile, CompileAhead, CpuBench, TimeLimits, WorkerBench, WorkerCommand,
};
use crate::progress::Progress;
use crate::tune::{Outputs, TuneOptions, Tuned, command_to_go_on, to_compile_first, tune as run_line};
use anyhow::Context as _;
use std::time::Instant;
use tilewright_cuda::CudaDevice;
use tilewright_cuda::profiling::probe;
use tilewright_kernel_templates::toolchain::{CubinCache, Nvrtc};
use tilewright_kernel_templates::{CudaLimits, Limits};
use tilewright_reports::InvariantCost;

/// Measures, fits, emits and reports for this machine.
///
/// # Errors
/// Scenarios that make no batches, or the file system. What was measured until then is kept.
pub fn tune(arguments: &TuneArguments) -> anyhow::Result<Ended> {
    let begin = Instant::now();
    let interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let progress = Progress::detect();
    let mut devices = devices(arguments.device.as_ref())?;
    if devices.is_empty() {
        devices.push(named_or_first(None));
    }
    // Before the devices are open: processes start, and first kernels are compiled, meanwhile.
    let ahead = compile_ahead(&devices, &arguments.options())?;
    let mut opened = match devices.as_slice() {
        &[device] => vec![open(device, arguments.threads, progress)?],
        several => open_several(several, arguments.threads, progress)?,
    };
    let records = devices.iter().copied().zip(opened.iter().map(|bench| bench.device())).collect::<Vec<_>>();
    let models = workers(&records, &arguments.out);
    if models.len() > 1 {
        drop((opened, ahead));
        return tune_several(arguments, &models, progress, &interrupt);
    }
    let count =
        if opened.len() == 1 { "device is".to_owned() } else { format!("{} devices are", opened.len()) };
    progress.note(&format!("the {count} open ({:.1} s)", begin.elapsed().as_secs_f64()));
    let (mut benches, differing) =
        Benches::of(opened.iter_mut().map(|bench| &mut **bench as &mut dyn Bench).collect());
    if let Some((mut ahead, others)) = ahead {
        ahead.add(others);
        benches.compile_ahead(ahead);
    }
    let benches = (benches, differing);
    match run_line(&arguments.options(), benches, progress, &interrupt)? {
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

/// The benches of several devices, each in a process of its own: one that is lost is not all of them.
fn open_several(
    devices: &[DeviceName],
    threads: Option<u32>,
    progress: Progress,
) -> anyhow::Result<Vec<Box<dyn Bench>>> {
    if devices.iter().any(|device| matches!(device, DeviceName::Cuda(_))) {
        // Here, so that they do not fetch it all at once.
        let nvrtc = Nvrtc::load_or_fetch(&CubinCache::default_folder()?)?;
        progress.note(&format!("compiling with {}", nvrtc.path().display()));
    }
    let spawn = |device: &DeviceName| -> anyhow::Result<Box<dyn Bench>> {
        let mut arguments = vec!["worker".to_owned(), "--device".to_owned(), device.to_string()];
        if let Some(threads) = threads.filter(|_| *device == DeviceName::Cpu) {
            arguments.extend(["--threads".to_owned(), threads.to_string()]);
        }
        let command = WorkerCommand::this_program(arguments)?;
        let bench = WorkerBench::spawn(command, TimeLimits::default());
        Ok(Box::new(bench.with_context(|| format!("{device}: cannot be opened"))?))
    };
    // GPUs measure what they give side by side; processors would be in each other's way.
    std::thread::scope(|scope| {
        let open = |device| match device {
            DeviceName::Cpu => Ok(spawn(&device)),
            DeviceName::Cuda(_) => Err(scope.spawn(move || spawn(&device))),
        };
        let opened: Vec<_> = devices.iter().copied().map(open).collect();
        let bench = |opened: Result<_, std::thread::ScopedJoinHandle<'_, _>>| match opened {
            Ok(opened) => opened,
            Err(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        };
        opened.into_iter().map(bench).collect()
    })
}

/// Processes that compile.
type Compilers = Vec<Box<dyn Compile>>;

/// Processes that compile kernels of these GPUs beside the measuring, if they are alike: one for each core but those that measure. Half of them begin with what the
/// run compiles first; the others are for when the devices are open, which takes cores, too. Without a driver there are none; whoever opens the devices says why.
fn compile_ahead(
    devices: &[DeviceName],
    options: &TuneOptions,
) -> anyhow::Result<Option<(CompileAhead, Compilers)>> {
    let limits = |device: &DeviceName| match device {
        DeviceName::Cuda(ordinal) => CudaDevice::limits_of(*ordinal).ok(),
        DeviceName::Cpu => None,
    };
    let limits: Option<Vec<CudaLimits>> = devices.iter().map(limits).collect();
    let Some((first, others)) = limits.as_deref().and_then(<[CudaLimits]>::split_first) else {
        return Ok(None);
    };
    if others.iter().any(|other| other.arch != first.arch) {
        return Ok(None);
    }
    // Here, so that they do not fetch it all at once.
    Nvrtc::load_or_fetch(&CubinCache::default_folder()?)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let command = WorkerCommand::this_program(["worker", "--compile", &*first.arch])?;
    let process = |_| Box::new(CompileProcess::new(command.clone())) as Box<dyn Compile>;
    let count = cores.saturating_sub(devices.len()).max(1);
    let mut compilers: Compilers = (0..count).map(process).collect();
    let others = compilers.split_off(count.div_ceil(2));
    let ahead = CompileAhead::start(compilers);
    let limits = Limits::Cuda(first.clone());
    ahead.ask_to_open(probe::kernels());
    ahead.ask(&to_compile_first(options, &limits), &limits);
    Ok(Some((ahead, others)))
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
    if let Some(cost) = &outputs.invariant {
        let over = |ratio: Option<f64>| ratio.map_or("none".to_owned(), |ratio| output::percent(ratio - 1.0));
        rows.push(vec![
            "executed under the selector".to_owned(),
            InvariantCost::ROW.to_owned(),
            over(cost.over_selector),
            over(cost.p95),
            over(cost.worst),
        ]);
    }
    if let Some(headline) = &outputs.headline {
        output::lines([headline.clone(), String::new()])?;
    }
    output::lines([format!("Regret (time over that of the best set, less one) on {}:", outputs.device)])?;
    output::table(&["on", "tiles chosen by", "mean", "p95", "worst"], &rows)?;
    if let Some(cost) = &outputs.invariant {
        output::lines([String::new(), cost.to_string()])?;
    }
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
