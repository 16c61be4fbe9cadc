//! The whole line for one device: scenarios in; measurements, module and report out.

mod outputs;
mod provenance;

pub use outputs::{Outputs, write_outputs};

use crate::analysis::Analysis;
use crate::cli::TuneArguments;
use crate::emit::{Heuristics, module_name};
use crate::interrupt::Interrupt;
use crate::measure::{
    BatchPolicies, Bench, Timed, measure_batches, measure_packs, record_timelines, refine_packs, verify_space,
};
use crate::progress::Progress;
use crate::store::{RunFolder, Start};
use crate::workloads::{Scale, Workloads};
use anyhow::Context as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tilewright_heuristics::Prices;
use tilewright_kernel_templates::Space;

/// How a tuning run ended.
#[derive(Debug)]
pub enum Tuned {
    /// Everything was measured and written.
    Done(Box<Outputs>),
    /// A shard was measured; shards are united by `replay`.
    Shard(PathBuf),
    /// The user stopped it; the folder holds what was measured.
    Interrupted(PathBuf),
}

/// Parts of the time left after verification until which races of packs, then the portfolio on all packs, and then whole batches are
/// measured; a few timelines take the rest, which on a GPU is spent with compiling kernels that note what they do.
const RACES_UNTIL: f64 = 0.6;
const PORTFOLIO_UNTIL: f64 = 0.8;
const BATCHES_UNTIL: f64 = 0.95;

/// Tunes the device on `bench`.
///
/// # Errors
/// Scenarios that make no batches, a bench that cannot run them, or the file system. What was measured until then is kept.
pub fn tune(
    arguments: &TuneArguments,
    bench: &mut dyn Bench,
    progress: Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<Tuned> {
    let begin = Instant::now();
    let budget = Duration::from_secs(u64::from(arguments.budget));
    let device = bench.device();
    let module = module_name(&device);
    progress.note(&format!("tuning {device}"));
    progress.note(&said(&bench.prices()));

    let backend = bench.limits().backend();
    let scale = Scale::on(bench.limits(), arguments.max_batch_mb);
    let workloads = Workloads::load(&arguments.scenarios, backend, &scale, arguments.shard)?;
    let timed =
        Timed { classes: workloads.classes(), dtypes: workloads.dtypes.clone(), shard: arguments.shard };
    let space = Space::of(backend);
    let folder = arguments.out.join(&module);
    let start = match (arguments.resume, arguments.discard) {
        (true, _) => Start::Resume,
        (_, true) => Start::Discard,
        _ => Start::Fresh,
    };
    let provenance = provenance::provenance(bench, &space, &workloads, &arguments.fit);
    let mut run = RunFolder::open(&folder, provenance, start)?;
    let stopped = |folder: &PathBuf| Ok(Tuned::Interrupted(folder.clone()));

    let Some(verified) = verify_space(bench, &space, &timed, &mut run, progress, interrupt)? else {
        return stopped(&folder);
    };
    let (measuring, left) = (Instant::now(), (begin + budget).saturating_duration_since(Instant::now()));
    let deadline = measuring + left.mul_f64(RACES_UNTIL);
    if !measure_packs(bench, &workloads.packs, &verified, &mut run, deadline, progress, interrupt)? {
        return stopped(&folder);
    }
    if let Some(shard) = arguments.shard {
        let path = folder.join(format!("shard-{}-of-{}.parquet", shard.index + 1, shard.count));
        run.finish(&path)?;
        return Ok(Tuned::Shard(path));
    }

    let kept = || format!("{}: the measurements are kept", folder.display());
    let portfolio = Analysis::first_portfolio(&run.united_rows(), &arguments.fit).with_context(kept)?;
    let deadline = measuring + left.mul_f64(PORTFOLIO_UNTIL);
    let packs = &workloads.packs;
    if !refine_packs(bench, packs, &portfolio, &verified, &mut run, deadline, progress, interrupt)? {
        return stopped(&folder);
    }
    progress.note("fitting the selector");
    let analysis = Analysis::of(run.provenance(), &run.united_rows(), &arguments.fit).with_context(kept)?;
    let policies = BatchPolicies::of(&analysis);
    let deadline = measuring + left.mul_f64(BATCHES_UNTIL);
    if !measure_batches(
        bench,
        &workloads.batches,
        &policies,
        &verified,
        &mut run,
        deadline,
        progress,
        interrupt,
    )? {
        return stopped(&folder);
    }
    let deadline = begin + budget;
    let batches = &workloads.batches;
    if !record_timelines(bench, batches, &policies, &verified, &mut run, deadline, progress, interrupt)? {
        return stopped(&folder);
    }

    let around = std::env::current_dir().ok().and_then(|current| Heuristics::around(&current));
    let heuristics = arguments.heuristics.clone().map(Heuristics::at).or(around);
    let measurements = match &heuristics {
        Some(heuristics) => heuristics.measurements_path(&module),
        None => folder.join("measurements.parquet"),
    };
    let (recording, timelines) = run.finish(&measurements)?;
    let outputs = write_outputs(
        &recording,
        &timelines,
        &analysis,
        &arguments.fit,
        heuristics.as_ref(),
        &folder,
        measurements,
    )?;
    Ok(Tuned::Done(Box::new(outputs)))
}

/// Prices in a line.
fn said(prices: &Prices) -> String {
    prices.facts().map(|(name, value)| format!("{name}: {value}")).join("; ")
}
