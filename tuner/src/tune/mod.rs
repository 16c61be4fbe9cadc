//! The whole line for one device: scenarios in; measurements, module and report out.

mod budget;
mod fitting;
mod incumbent;
mod inputs;
mod known;
mod outputs;
mod provenance;
mod quick;
mod reserve;
mod stages;

pub use outputs::{Kept, Outputs, write_outputs};
pub use provenance::command_to_go_on;

use crate::analysis::Analysis;
use crate::emit::{Heuristics, module_name};
use crate::fit_settings::FitSettings;
use crate::interrupt::Interrupt;
use crate::measure::{
    BatchPolicies, Benches, Preparation, Session, Verified, measure_batches, record_timelines, screenings,
    time_to_verify, to_prepare_first, verify_invariant,
};
use crate::progress::Progress;
use crate::shard::Shard;
use crate::store::{Finished, Provenance, RunFolder, Start, Timelines, read, read_timelines, timelines_path};
use crate::workloads::{Scale, Workloads};
use anyhow::Context as _;
use budget::Budget;
use inputs::Inputs;
use reserve::work;
use stages::Stages;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tilewright_heuristics::{Backend, Prices};
use tilewright_kernel_templates::{Limits, Space};

/// What is tuned, how long, and where results go.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Scenario files; without any, the catalogue.
    pub scenarios: Vec<PathBuf>,
    /// Folder for the run in progress, the measurements and the report.
    pub out: PathBuf,
    /// The `heuristics` crate to emit into; `None` for that of the workspace around the current folder, else `out`.
    pub heuristics: Option<PathBuf>,
    /// What becomes of a run that was stopped in `out`.
    pub start: Start,
    /// Time to measure, verification included; `None` for the default, which becomes long enough.
    pub budget: Option<Duration>,
    /// Batches with more distinct KV are scaled down to this, in MB.
    pub max_batch_mb: Option<u32>,
    /// The workloads that are measured; `None` for all, and a fit.
    pub shard: Option<Shard>,
    /// Races the tiles of the most alike device that is known, on every third batch, and leaves the workspace as it is.
    pub quick: bool,
    /// Measures in a budget that is too small, and emits what was fitted: also a selector that is doubted, or not clearly better than a former one.
    pub force: bool,
    /// How the tree is fitted.
    pub fit: FitSettings,
}

#[cfg(test)]
impl TuneOptions {
    /// A whole run of the catalogue in that folder, by defaults.
    fn of_catalogue(out: &Path) -> Self {
        Self {
            scenarios: Vec::new(),
            out: out.to_path_buf(),
            heuristics: None,
            start: Start::Fresh,
            budget: None,
            max_batch_mb: None,
            shard: None,
            quick: false,
            force: false,
            fit: FitSettings::default(),
        }
    }
}

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

/// Part of the budget that screening and verification may take.
const VERIFIED_UNTIL: f64 = 0.8;
/// Part of the time left after verification in which whole batches that are held out are measured under the selector; a few timelines have a time of their own,
/// which on a GPU is spent with compiling kernels that note what they do.
const HELD_OUT: f64 = 0.2;
/// Batches that are measured under a selector at once while it is fitted again.
const JUDGED_AT_ONCE: usize = 32;
/// What the timelines get in any case: to compile eight kernels, and launch each twice.
const TIMELINES: Duration = Duration::from_secs(12);

/// What a run with these options compiles first on a GPU with these limits, known before it is opened. Nothing where it goes on with another, races known tiles
/// only, or its scenarios make no batches, which it says itself.
pub fn to_compile_first(options: &TuneOptions, limits: &Limits) -> Vec<Preparation> {
    if options.start == Start::Resume || options.quick {
        return Vec::new();
    }
    let scale = Scale::on(limits, options.max_batch_mb);
    let workloads = Workloads::load(&options.scenarios, limits.backend(), &scale, options.shard);
    let screenings = workloads.map(|workloads| screenings(&workloads.batches, limits)).unwrap_or_default();
    to_prepare_first(&Space::of(limits.backend()), &screenings, &[], limits)
}

/// Tunes a device: one, or several alike ones, which share the work. `differing` says in what these differ.
///
/// # Errors
/// Scenarios that make no batches, a bench that cannot run them, or the file system. What was measured until then is kept.
pub fn tune(
    options: &TuneOptions,
    (mut benches, differing): (Benches<'_>, Vec<String>),
    progress: Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<Tuned> {
    let begin = Instant::now();
    let device = benches.first().device();
    match benches.living() {
        1 => progress.note(&format!("tuning {device}")),
        several => progress.note(&format!("tuning {device} on {several} of them")),
    }
    progress.note(&said(&benches.first().prices()));
    differing.iter().for_each(|differing| progress.note(differing));

    let inputs = Inputs::of(options, &device, benches.limits())?;
    let Inputs { folder, fit, .. } = &inputs;
    let around = std::env::current_dir().ok().and_then(|current| Heuristics::around(&current));
    // A quick run's selector is loaded as data: it replaces none that rests on more.
    let around = around.filter(|_| !options.quick);
    let heuristics = options.heuristics.clone().map(Heuristics::at).or(around);
    let target = Target { heuristics: heuristics.as_ref(), force: options.force };
    if options.start == Start::Resume
        && let Some(finished) = Finished::in_folder(folder)?
    {
        return over(finished, options, &inputs, target, progress);
    }
    // A scheduler starts a shard again by the same command, whether or not it had begun.
    let start = match options.start {
        Start::Resume if options.shard.is_some() && !RunFolder::is_stopped(folder)? => Start::Fresh,
        start => start,
    };
    inputs.ask_first(&benches, options.quick);
    let budget = estimated_budget(options, &inputs, &mut benches, start, (progress, interrupt))?;
    let which = which(&inputs.scale, options.shard, options.quick);
    let prior = if options.force { None } else { inputs.known.prior() };
    let provenance = provenance::provenance(
        (&benches, differing),
        &inputs.space,
        (&inputs.workloads, which),
        (fit, prior),
    );
    let mut run = RunFolder::open(folder, provenance, start)?;
    tracing::debug!("the run's folder is open");
    for damaged in run.damaged() {
        progress.note(&format!("what it held is measured again: {damaged}"));
    }
    let stopped = || Ok(Tuned::Interrupted(folder.clone()));

    let budget = Budget::begin(begin, budget, options.budget.is_some(), &mut benches);
    let session = Session { benches, run: &mut run, progress, interrupt };
    let mut stages = Stages::begin(session, options, &inputs, (begin, budget));
    let went_on = stages.screen_first()?
        && stages.verify_first()?
        && stages.screen_others()?
        && stages.verify_others()?
        && stages.race()?;
    if !went_on {
        return stopped();
    }
    // A shard has raced the tiles of its own screening: where other shards raced others, a batch has no time of a tile.
    if let Some(shard) = options.shard {
        let path = folder.join(shard.file_name());
        stages.say_phases();
        run.write(&path)?;
        run.retire(&path)?;
        return Ok(Tuned::Shard(path));
    }
    let Some(analysis) = fitted(&mut stages, options, &inputs)? else { return stopped() };
    if !execute(&mut stages, options, &inputs, &analysis)? {
        return stopped();
    }
    stages.say_phases();
    stages.session.benches.end();

    let writing = Instant::now();
    let (into, kept) = target.of(run.provenance(), &analysis);
    let measurements = match into {
        Some(heuristics) => heuristics.measurements_path(&inputs.module),
        None => folder.join("measurements.parquet"),
    };
    let recording = run.write(&measurements)?;
    tracing::debug!("measurements are written");
    let timelines = run.timelines().clone();
    let into = (into, options.force);
    let outputs = write_outputs(&recording, &timelines, &analysis, fit, into, folder, measurements.clone())?;
    tracing::debug!("module and report are written");
    let outputs = Outputs { kept, ..outputs };
    // Not before all that is made of them is there.
    run.retire(&measurements)?;
    progress.note(&format!("module and report are written ({:.1} s)", writing.elapsed().as_secs_f64()));
    Ok(Tuned::Done(Box::new(outputs)))
}

/// What a run that is over has, or writes once more.
fn over(
    finished: Finished,
    options: &TuneOptions,
    inputs: &Inputs,
    target: Target<'_>,
    progress: Progress,
) -> anyhow::Result<Tuned> {
    let Inputs { workloads, fit, folder, .. } = inputs;
    let Some(shard) = options.shard else {
        let outputs = finish_again(finished, workloads, fit, target, folder)?;
        progress.note("the run is over: its module and report were written again");
        return Ok(Tuned::Done(Box::new(outputs)));
    };
    require_same_scenarios(&finished, workloads, folder)?;
    let path = folder.join(shard.file_name());
    anyhow::ensure!(
        finished.measurements.file_name() == path.file_name(),
        "{}: another shard is over here: {}; give each a folder of its own with `--out`",
        folder.display(),
        finished.measurements.display()
    );
    progress.note("the shard is over");
    Ok(Tuned::Shard(path))
}

/// The time of a run, by what its trials and verification are estimated to take; a run that goes on, or is quick, has what it was given.
fn estimated_budget(
    options: &TuneOptions,
    inputs: &Inputs,
    benches: &mut Benches<'_>,
    start: Start,
    (progress, interrupt): (Progress, &Interrupt),
) -> anyhow::Result<Duration> {
    let Inputs { space, screened, timed, workloads, backend, .. } = inputs;
    let default =
        if options.quick { quick::BUDGET } else { default_budget(*backend, workloads.dtypes.len()) };
    let budget = options.budget.unwrap_or(default);
    if start == Start::Resume || options.quick {
        return Ok(budget);
    }
    let estimating = Instant::now();
    let needed = time_to_verify(benches, space, screened, timed, interrupt);
    let budget = budget_for(needed, budget, options.budget.is_some(), options.force)?;
    progress.note(&format!(
        "trying and verifying tiles takes about {:.0} s of the budget's {}; {} batches share the rest (estimated in {:.1} s)",
        needed.as_secs_f64(),
        budget.as_secs(),
        workloads.batches.len(),
        estimating.elapsed().as_secs_f64()
    ));
    Ok(budget)
}

/// The selector of what was raced. `None` if the user asked to stop.
fn fitted(
    stages: &mut Stages<'_, '_, '_>,
    options: &TuneOptions,
    inputs: &Inputs,
) -> anyhow::Result<Option<Analysis>> {
    let judged = inputs.judged();
    let (on_the_clock, while_fitting) = (stages.on_the_clock(), stages.while_fitting());
    let (left, enough) = (stages.left, has_time_for_enough(options));
    // A selector that stayed in the first fit stays in the last one, as good as always: what it takes is measured while that is made.
    let judge_ahead = |session: &mut Session<'_, '_>, analysis: &Analysis, fitting: &dyn Fn() -> bool| {
        let mut policies = executed(analysis, enough);
        if while_fitting && !options.quick {
            let Some(families) = verify_invariant(session, judged)? else { return Ok(false) };
            policies = policies.with_invariant(families);
        }
        let verified = Verified::of(session.run.rows());
        for some in judged.chunks(JUDGED_AT_ONCE).take_while(|_| while_fitting && analysis.keeps_prior()) {
            if !fitting() {
                break;
            }
            let part = HELD_OUT * work(some) / work(judged).max(1.0);
            if !measure_batches(session, some, &policies, &verified, Instant::now() + left.mul_f64(part))? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let clock = fitting::Beside { on_the_clock: &on_the_clock, meanwhile: &judge_ahead };
    let first_fit = stages.first_fit.take();
    let (session, timed) = (&mut stages.session, &stages.timed);
    let fitted = fitting::fit_verified(session, inputs.batches(), timed, &inputs.fit, &clock, first_fit);
    let fitted = fitted.with_context(|| inputs.kept())?;
    if fitted.is_some() {
        stages.end("fit and decisions");
    }
    Ok(fitted)
}

/// Executes what is judged under the selector and what it is compared with, and records timelines. Returns `false` if the user asked to stop.
fn execute(
    stages: &mut Stages<'_, '_, '_>,
    options: &TuneOptions,
    inputs: &Inputs,
    analysis: &Analysis,
) -> anyhow::Result<bool> {
    let judged = inputs.judged();
    let session = &mut stages.session;
    // Without the tiles that failed since.
    let verified = Verified::of(session.run.rows());
    let mut policies = executed(analysis, has_time_for_enough(options));
    session.benches.forget_asked();
    for wanted in policies.to_prepare_timelines(session.run.rows(), judged) {
        session.benches.ask(&[wanted], &[]);
    }
    if !options.quick {
        let Some(families) = verify_invariant(session, judged)? else { return Ok(false) };
        policies = policies.with_invariant(families);
        stages.end("verify batch-invariant");
    }
    // The fit has its own time.
    let deadline = Instant::now() + stages.left.mul_f64(HELD_OUT);
    if !measure_batches(&mut stages.session, judged, &policies, &verified, deadline)? {
        return Ok(false);
    }
    stages.end("held-out");
    let deadline = Instant::now() + TIMELINES;
    if !options.quick && !record_timelines(&mut stages.session, inputs.batches(), &policies, deadline)? {
        return Ok(false);
    }
    stages.end("timelines");
    Ok(true)
}

/// Whether batches have as many samples as a decision rests on: the default time is for that, another one is the user's.
fn has_time_for_enough(options: &TuneOptions) -> bool {
    options.budget.is_none() && !options.quick
}

/// What batches are executed under once a selector is fitted, each with as many samples as a decision rests on, or with those that there is time for.
fn executed(analysis: &Analysis, enough: bool) -> BatchPolicies<'_> {
    let policies = BatchPolicies::of(analysis);
    if enough { policies.with_enough_samples() } else { policies }
}

/// Where a run's results go.
#[derive(Clone, Copy, Debug)]
struct Target<'a> {
    heuristics: Option<&'a Heuristics>,
    force: bool,
}

impl<'a> Target<'a> {
    /// The workspace whose module is replaced; or the module that stays in it, as the new selector is not clearly better.
    fn of(&self, provenance: &Provenance, analysis: &Analysis) -> (Option<&'a Heuristics>, Option<Kept>) {
        let Some(heuristics) = self.heuristics.filter(|_| !self.force) else {
            return (self.heuristics, None);
        };
        match incumbent::stays(heuristics, provenance, analysis) {
            None => (Some(heuristics), None),
            Some(over_new) => {
                let module = heuristics.module_path(&module_name(&provenance.device));
                (None, Some(Kept { module, over_new }))
            }
        }
    }
}

/// The time of a run. A budget that was asked for is refused before it is spent if verification alone would spend it, even if the estimate is twice as
/// long as it takes; the default one becomes long enough.
fn budget_for(needed: Duration, budget: Duration, asked: bool, force: bool) -> anyhow::Result<Duration> {
    let enough = needed <= budget.mul_f64(2.0 * VERIFIED_UNTIL);
    let longer = Duration::from_secs_f64((needed.as_secs_f64() * 2.5).ceil().max(10.0));
    if !asked {
        return Ok(if enough { budget } else { longer });
    }
    anyhow::ensure!(
        enough || force,
        "verifying the kernels of these scenarios takes about {:.0} s, which leaves nothing of a budget of {} s to measure in: \
         use `--budget {}`, scenarios of fewer head dimensions and element types, or `--force`",
        needed.as_secs_f64().ceil(),
        budget.as_secs(),
        longer.as_secs()
    );
    Ok(budget)
}

fn require_same_scenarios(finished: &Finished, workloads: &Workloads, folder: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        finished.scenarios == workloads.records,
        "{}: the run here is over, and was of other scenarios; leave out `--resume` to start one",
        folder.display()
    );
    Ok(())
}

/// Writes what a run that is over had written, once more.
fn finish_again(
    finished: Finished,
    workloads: &Workloads,
    fit: &FitSettings,
    target: Target<'_>,
    folder: &Path,
) -> anyhow::Result<Outputs> {
    require_same_scenarios(&finished, workloads, folder)?;
    let mut recording = read(&finished.measurements)?;
    recording.provenance.fit = fit.clone();
    let timelines = read_timelines(&timelines_path(&finished.measurements))?;
    let timelines = timelines.unwrap_or_else(|| Timelines::none_of(recording.provenance.device.clone()));
    let analysis = Analysis::of(&recording.provenance, &recording.rows, fit)?;
    // What was written to a workspace is its module's recording.
    let own = target.heuristics.is_some_and(|heuristics| {
        heuristics.measurements_path(&module_name(&recording.provenance.device)) == finished.measurements
    });
    let (into, kept) =
        if own { (target.heuristics, None) } else { target.of(&recording.provenance, &analysis) };
    let into = (into, target.force);
    let outputs = write_outputs(&recording, &timelines, &analysis, fit, into, folder, finished.measurements)?;
    Ok(Outputs { kept, ..outputs })
}

/// What beside the scenarios decides which workloads a run has.
fn which(scale: &Scale, shard: Option<Shard>, quick: bool) -> String {
    let part = if quick { "every third batch, of" } else { "batches of" };
    let scale = format!("{part} at most {} MB", scale.max_bytes >> 20);
    match shard {
        Some(Shard { index, count }) => format!("{scale}, shard {} of {count}", index + 1),
        None => scale,
    }
}

/// The time of a run that measures `dtypes` element types. On a GPU, each has kernels of its own to compile and verify, which would
/// otherwise be taken from the time of all others. A processor has none to compile, and verifies most types in any case.
fn default_budget(backend: Backend, dtypes: usize) -> Duration {
    const CPU: u64 = 240;
    const CUDA: u64 = 100;
    const FURTHER: u64 = 5;
    Duration::from_secs(match backend {
        Backend::Cpu => CPU,
        Backend::Cuda => CUDA + FURTHER * dtypes.saturating_sub(1) as u64,
    })
}

/// Prices in a line.
fn said(prices: &Prices) -> String {
    prices.facts().map(|(name, value)| format!("{name}: {value}")).join("; ")
}

#[cfg(test)]
#[path = "whole_tests.rs"]
mod whole_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_verification_would_spend_is_refused_before() {
        let seconds = Duration::from_secs;
        assert_eq!(budget_for(seconds(8), seconds(10), true, false).unwrap(), seconds(10));
        let error = budget_for(seconds(46), seconds(1), true, false).unwrap_err().to_string();
        assert!(
            error.contains("46 s") && error.contains("`--budget 115`") && error.contains("--force"),
            "{error}"
        );
        assert_eq!(budget_for(seconds(46), seconds(1), true, true).unwrap(), seconds(1));
    }

    #[test]
    fn the_default_budget_is_never_refused() {
        let seconds = Duration::from_secs;
        assert_eq!(budget_for(seconds(200), seconds(240), false, false).unwrap(), seconds(240));
        assert_eq!(budget_for(seconds(768), seconds(420), false, false).unwrap(), seconds(1920));
    }

    #[test]
    fn a_gpu_gets_more_time_for_further_element_types() {
        assert_eq!(
            [0, 1, 2, 4].map(|dtypes| default_budget(Backend::Cuda, dtypes).as_secs()),
            [100, 100, 105, 115]
        );
        assert_eq!([1, 6].map(|dtypes| default_budget(Backend::Cpu, dtypes).as_secs()), [240; 2]);
    }
}
