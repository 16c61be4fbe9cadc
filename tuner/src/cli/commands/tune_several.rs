//! `tilewright tune` on several devices.

use super::{read_all, timelines_beside, tune::say};
use crate::analysis::Analysis;
use crate::cli::exit::Ended;
use crate::cli::{TuneArguments, output};
use crate::device_name::DeviceName;
use crate::emit::Heuristics;
use crate::fleet::{self, Worker, worker_arguments, workers};
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::progress::Progress;
use crate::store::{DeviceRecord, write, write_timelines_beside};
use crate::tune::{Outputs, command_to_go_on, write_outputs};
use anyhow::Context as _;
use std::path::PathBuf;
use tilewright_cpu::HostDevice;
use tilewright_cuda::CudaDevice;
use tilewright_kernel_templates::toolchain::{CubinCache, Nvrtc};

/// The exit code of a worker whose selector is doubted: its measurements and report are there.
const DOUBTED: i32 = 3;

/// Tunes each model of device, by a process a device.
///
/// # Errors
/// A device that cannot be opened, or workers that failed, by their names: what all of them have measured is kept.
pub(super) fn tune_several(
    arguments: &TuneArguments,
    devices: &[DeviceName],
    progress: Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<Ended> {
    anyhow::ensure!(
        arguments.shard.is_none(),
        "several devices divide the work themselves; leave out `--shard`, or name one device"
    );
    let records =
        devices.iter().map(|&device| Ok((device, record(device)?))).collect::<anyhow::Result<Vec<_>>>()?;
    if devices.iter().any(|device| matches!(device, DeviceName::Cuda(_))) {
        // Here, so that workers do not fetch it all at once.
        Nvrtc::load_or_fetch(&CubinCache::default_folder()?)?;
    }
    let models = workers(&records, &arguments.out);
    let all: Vec<&Worker> = models.iter().flatten().collect();
    let mut to_run = Vec::new();
    for worker in &all {
        let start = match (arguments.resume, arguments.discard) {
            (_, true) => Some("--discard"),
            // A shard knows itself whether it has begun.
            (true, _) if worker.shard.is_some() || worker.has_begun()? => Some("--resume"),
            _ => None,
        };
        to_run.push((*worker, worker_arguments(std::env::args_os().skip(1), worker, start)));
    }
    progress.note(&format!("{} devices of {} models, a process each", all.len(), models.len()));
    let ended = fleet::run(&to_run, interrupt)?;

    let mut failed = Vec::new();
    let (mut outcome, mut results) = (Ended::Done, Vec::new());
    let mut rest = ended.as_slice();
    for model in &models {
        let (of_model, others) = rest.split_at(model.len());
        rest = others;
        let succeeded = |ended: &fleet::Ended| matches!(ended.status.code(), Some(0 | DOUBTED));
        let bad = model.iter().zip(of_model).filter(|(_, ended)| !succeeded(ended));
        let bad: Vec<String> =
            bad.map(|(worker, ended)| format!("{}: {}", worker.device, ended.status)).collect();
        if !bad.is_empty() {
            failed.extend(bad);
            continue;
        }
        if let [alone] = of_model {
            if alone.status.code() == Some(DOUBTED) {
                outcome = Ended::Differs;
            }
            let said: serde_json::Value =
                serde_json::from_str(&alone.stdout).context("a worker did not say what it wrote")?;
            if !arguments.json {
                let file = |key| Some(format!("{key:<13} {}", said[key].as_str()?));
                let files = ["measurements", "timelines", "module", "report"].into_iter().filter_map(file);
                output::lines(said["device"].as_str().map(str::to_owned).into_iter().chain(files))?;
            }
            results.push(said);
            continue;
        }
        let outputs = unite(arguments, of_model)?;
        if outputs.module.is_none() {
            outcome = Ended::Differs;
        }
        if !arguments.json {
            say(&outputs, false, progress)?;
        }
        results.push(serde_json::to_value(&outputs)?);
    }
    if interrupt.requested() || ended.iter().any(|ended| ended.status.code() == Some(EXIT_INTERRUPTED.into()))
    {
        progress.note(&format!(
            "stopped; everything measured so far is kept: go on with `{}`",
            command_to_go_on()
        ));
        return Ok(Ended::Interrupted);
    }
    anyhow::ensure!(
        failed.is_empty(),
        "workers failed ({}); what they said is above. Everything that was measured is kept: go on with `{}`",
        failed.join(", "),
        command_to_go_on()
    );
    if arguments.json {
        output::json(&results)?;
    }
    Ok(outcome)
}

/// What tells a device's model.
fn record(device: DeviceName) -> anyhow::Result<DeviceRecord> {
    match device {
        DeviceName::Cpu => Ok(HostDevice::detect().as_device().into()),
        DeviceName::Cuda(ordinal) => Ok(CudaDevice::open(ordinal)?.as_device().into()),
    }
}

/// Fits a selector to the shards of one model, and writes all that a run of one device writes.
fn unite(arguments: &TuneArguments, shards: &[fleet::Ended]) -> anyhow::Result<Outputs> {
    let path = |ended: &fleet::Ended| {
        let said: serde_json::Value = serde_json::from_str(&ended.stdout)?;
        Ok(PathBuf::from(said["shard"].as_str().context("a worker did not name its shard")?))
    };
    let paths = shards.iter().map(path).collect::<anyhow::Result<Vec<_>>>()?;
    let recording = read_all(&paths)?;
    let timelines = timelines_beside(&paths, &recording)?;
    let settings = recording.provenance.fit.clone();
    let analysis = Analysis::of(&recording.provenance, &recording.rows, &settings)?;
    let module = analysis.module_name();
    let folder = arguments.out.join(&module);
    let around = std::env::current_dir().ok().and_then(|current| Heuristics::around(&current));
    let heuristics = arguments.heuristics.clone().map(Heuristics::at).or(around);
    let measurements = match &heuristics {
        Some(heuristics) => heuristics.measurements_path(&module),
        None => folder.join("measurements.parquet"),
    };
    write(&measurements, &recording)?;
    write_timelines_beside(&measurements, &timelines)?;
    let target = (heuristics.as_ref(), arguments.force);
    write_outputs(&recording, &timelines, &analysis, &settings, target, &folder, measurements)
}
