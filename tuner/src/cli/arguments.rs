//! What a user may say.

use super::{CompareArguments, ExplainArguments, FitChanges, FitFlags, exit};
use crate::device_list::DeviceList;
use crate::device_name::DeviceName;
use crate::shard::Shard;
use crate::store::Start;
use crate::tune::TuneOptions;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::path::PathBuf;
use std::time::Duration;
use tilewright_heuristics::Dtype;
use tilewright_kernel_templates::Arch;

/// Finds, for a given device, the fastest tile of a decode-attention kernel for every shape of work.
#[derive(Debug, Parser)]
#[command(name = "tilewright", version, after_help = exit::HELP)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Say what is done on the way; twice: when each part of it began, and what it took
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the devices that can be tuned here, and which selector each would use
    Devices(DevicesArguments),
    /// Show every tile of a device's space: feasible, or the reason why not
    Space(SpaceArguments),
    /// Measure, fit, emit and report: the whole line for one device
    Tune(TuneArguments),
    /// Time the emitted selector and other programs' decode attention on the same batches
    Compare(CompareArguments),
    /// Say why batches get the tiles that they get, on a device that need not be here
    Explain(ExplainArguments),
    /// Fit a decision tree to measurements or to any table of costs
    Fit(FitArguments),
    /// Write the Rust modules of recorded measurements, or check that they are up to date
    Emit(EmitArguments),
    /// Write the HTML report of recorded measurements
    Report(ReportArguments),
    /// Run fit, emit and report from recorded measurements: no device is needed
    Replay(ReplayArguments),
    /// Check that this machine can tune, and say what to mend
    Doctor(DoctorArguments),
    /// Print a completion script for a shell
    Completions(CompletionsArguments),
    /// Measure for a run, which starts this and speaks to it over pipes
    #[command(hide = true)]
    Worker(WorkerArguments),
}

/// Arguments of `devices`.
#[derive(Args, Debug)]
pub struct DevicesArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `space`.
#[derive(Args, Debug)]
pub struct SpaceArguments {
    /// `cpu`, `cuda` or `cuda:N` of this machine, or a GPU that need not be here, such as `a100-80gb` or `h200`; without it, the first GPU
    /// if there is one
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Compile for this architecture, such as `sm_80` or `sm_90a`; without it, the device's
    #[arg(long, value_name = "ARCH")]
    pub arch: Option<Arch>,
    /// Judge by the declared limits alone, without compiling
    #[arg(long)]
    pub uncompiled: bool,
    /// Elements of one head's vector
    #[arg(long, default_value_t = 128, value_parser = head_dim)]
    pub head_dim: u32,
    /// Element type of the KV pages
    #[arg(long, default_value_t = Dtype::F16)]
    pub dtype: Dtype,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `tune`.
#[derive(Args, Debug)]
pub struct TuneArguments {
    /// Scenario files (YAML); without any, the built-in catalogue
    #[arg(value_name = "SCENARIO", value_hint = ValueHint::FilePath)]
    pub scenarios: Vec<PathBuf>,
    /// Folder for the run in progress, the measurements and the report
    #[arg(long, default_value = "tilewright-out", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// The `heuristics` crate to emit into; without it, that of the workspace around the current folder, else `--out`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub heuristics: Option<PathBuf>,
    /// Go on with the run that was stopped in `--out`; a shard that had not begun begins, and one that is over is left as it is
    #[arg(long, conflicts_with = "discard")]
    pub resume: bool,
    /// Throw away the run that was stopped in `--out`
    #[arg(long)]
    pub discard: bool,
    /// Seconds that measuring may take, verification included; workloads share them. Without it, 240 on a processor; on a GPU 110, and 10 more for
    /// each element type beyond the first; 40 with `--quick`. Alike devices divide the time without it
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub budget: Option<u32>,
    /// Batches with more distinct KV are scaled down to this, in MB; without it, 16 MB for a processor and 24 GB for a GPU
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_batch_mb: Option<u32>,
    /// What to tune: `cpu`, `cuda` or `cuda:N`; `cuda:all` for all GPUs, or several like `cuda:0,cuda:2`: alike ones share one run, each other model
    /// has a run and a module of its own. Without it, the first GPU if there is one
    #[arg(long, value_name = "DEVICES")]
    pub device: Option<DeviceList>,
    /// Measure only the K-th of N parts of about equal work, and stop before the fit: `replay` unites the shards
    #[arg(long, value_name = "K/N")]
    pub shard: Option<Shard>,
    /// Threads to measure with; without it, all of the processor's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Take under a minute on a GPU: race only the tiles of the most alike device whose selector is known, on every third batch. The selector is
    /// written as JSON below `--out`, and the workspace stays as it is
    #[arg(long)]
    pub quick: bool,
    /// Measure in a budget that is too small, and emit a selector that loses on the run's own held-out batches, rests on too little, or was
    /// measured on a busy machine
    #[arg(long)]
    pub force: bool,
    /// How the tree is fitted
    #[command(flatten)]
    pub fit: FitFlags,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl TuneArguments {
    /// The run that they ask for.
    pub fn options(&self) -> TuneOptions {
        TuneOptions {
            scenarios: self.scenarios.clone(),
            out: self.out.clone(),
            heuristics: self.heuristics.clone(),
            start: match (self.resume, self.discard) {
                (true, _) => Start::Resume,
                (_, true) => Start::Discard,
                _ => Start::Fresh,
            },
            budget: self.budget.map(|seconds| Duration::from_secs(seconds.into())),
            max_batch_mb: self.max_batch_mb,
            shard: self.shard,
            quick: self.quick,
            force: self.force,
            fit: self.fit.settings(),
        }
    }
}

/// Arguments of `fit`.
#[derive(Args, Debug)]
pub struct FitArguments {
    /// Files of measurements, united
    #[arg(value_name = "MEASUREMENTS", value_hint = ValueHint::FilePath, required_unless_present = "costs")]
    pub measurements: Vec<PathBuf>,
    /// A plain table (.csv, .parquet) instead: whole-number feature columns, one column a candidate, empty = invalid
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "measurements")]
    pub costs: Option<PathBuf>,
    /// Feature columns of `--costs`, a list as CSV has them; without it and `--candidates`, every complete column of whole numbers that is not
    /// named like a tile, if that leaves no doubt
    #[arg(long, value_name = "COLUMNS", requires = "costs", conflicts_with = "measurements")]
    pub features: Vec<String>,
    /// Candidate columns of `--costs`, a list as CSV has them; without it, all that are no features
    #[arg(long, value_name = "COLUMNS", requires = "costs", conflicts_with = "measurements")]
    pub candidates: Vec<String>,
    /// Column of `--costs` that says how much a row counts
    #[arg(long, value_name = "COLUMN", requires = "costs", conflicts_with = "measurements")]
    pub weight: Option<String>,
    /// Column of `--costs` whose equal values stay in one fold of the cross-validation
    #[arg(long, value_name = "COLUMN", requires = "costs", conflicts_with = "measurements")]
    pub group: Option<String>,
    /// Columns of `--costs` to leave out, a list as CSV has them
    #[arg(long, value_name = "COLUMNS", requires = "costs", conflicts_with = "measurements")]
    pub ignore: Vec<String>,
    /// How the tree is fitted
    #[command(flatten)]
    pub fit: FitFlags,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `emit`.
#[derive(Args, Debug)]
pub struct EmitArguments {
    /// Files of measurements, united; without any, every file in the crate's `measurements` folder, each a module
    #[arg(value_name = "MEASUREMENTS", value_hint = ValueHint::FilePath)]
    pub measurements: Vec<PathBuf>,
    /// The `heuristics` crate; without it, that of the workspace around the current folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub heuristics: Option<PathBuf>,
    /// Write no module; exit with 3 if one is not what its measurements give
    #[arg(long)]
    pub check: bool,
    /// Write the report of each module's measurements into a folder, too, with its picture (SVG)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub reports: Option<PathBuf>,
}

/// Arguments of `report`.
#[derive(Args, Debug)]
pub struct ReportArguments {
    /// Files of measurements, united
    #[arg(value_name = "MEASUREMENTS", required = true, value_hint = ValueHint::FilePath)]
    pub measurements: Vec<PathBuf>,
    /// The file to write
    #[arg(long, short, default_value = "report.html", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Write the bars of the summary as a picture (SVG), too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub picture: Option<PathBuf>,
}

/// Arguments of `replay`.
#[derive(Args, Debug)]
pub struct ReplayArguments {
    /// Files of measurements of one device, united
    #[arg(value_name = "MEASUREMENTS", required = true, value_hint = ValueHint::FilePath)]
    pub measurements: Vec<PathBuf>,
    /// Folder for the united measurements, the module and the report
    #[arg(long, default_value = "tilewright-out", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Emit a selector that loses on the held-out batches, rests on too little, or was measured on a busy machine
    #[arg(long)]
    pub force: bool,
    /// What to fit otherwise than recorded; the united measurements record it then.
    #[command(flatten)]
    pub fit: FitChanges,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub struct DoctorArguments {
    /// Check this selector, too: a JSON file that `emit` or `tune` wrote
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub selector: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArguments {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Arguments of `worker`.
#[derive(Args, Debug)]
pub struct WorkerArguments {
    /// What to measure
    #[arg(long, required_unless_present = "compile")]
    pub device: Option<DeviceName>,
    /// Measure nothing, but compile kernels for this architecture
    #[arg(long, value_name = "ARCH", conflicts_with = "device")]
    pub compile: Option<Arch>,
    /// Threads to measure with; without it, all of the processor's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
}

fn head_dim(text: &str) -> Result<u32, String> {
    let dims = tilewright_kernel_templates::Class::HEAD_DIMS;
    text.parse().ok().filter(|dim| dims.contains(dim)).ok_or(format!("kernels exist for {dims:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
