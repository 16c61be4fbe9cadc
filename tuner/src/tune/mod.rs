//! The whole line for one device: scenarios in; measurements, module and report out.

mod budget;
mod fitting;
mod incumbent;
mod known;
mod outputs;
mod provenance;
mod quick;
mod reserve;

pub use outputs::{Kept, Outputs, write_outputs};
pub use provenance::command_to_go_on;

use crate::analysis::Analysis;
use crate::emit::{Heuristics, module_name};
use crate::fit_settings::FitSettings;
use crate::interrupt::Interrupt;
use crate::measure::{
    BatchPolicies, Benches, Candidates, Preparation, Session, Timed, Verified, candidate_sets, left_by_looks,
    look_at_classes, looks_at_others, measure_batches, measure_candidates, needs_cp_async, record_timelines,
    screen, screenings, time_to_verify, to_prepare_first, to_prepare_invariant, verify_invariant,
    verify_space_with, verify_without_options,
};
use crate::progress::Progress;
use crate::shard::Shard;
use crate::store::{
    Finished, Level, Provenance, RunFolder, Start, Timelines, read, read_timelines, timelines_path,
};
use crate::workloads::{Scale, Workload, Workloads};
use anyhow::Context as _;
use budget::{Budget, Phases};
use known::Known;
use reserve::{Reserve, work};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tilewright_heuristics::{Backend, Prices, Tile};
use tilewright_kernel_templates::{Class, Limits, Space};

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

/// Part of the budget after which no race of the whole space begins another round.
const SCREENED_UNTIL: f64 = 0.4;
/// Part of the budget that screening and verification may take.
const VERIFIED_UNTIL: f64 = 0.8;
/// Parts of the time left after verification in which whole batches are measured under all sets of tiles, and, after the fit, those that are
/// held out under the selector; a few timelines have a time of their own, which on a GPU is spent with compiling kernels that note what they do.
const CANDIDATES: f64 = 0.9;
const HELD_OUT: f64 = 0.2;
/// Part of its time to race that the class which is verified first may take before the others are verified, whose verification is in that time, too.
const BEFORE_OTHERS: f64 = 0.85;
/// Cores from which on a GPU is measured while a selector is fitted, which takes eight.
const CORES_TO_FIT_BESIDE: usize = 16;
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
    let mut phases = Phases::begin();
    let device = benches.first().device();
    let limits = benches.limits().clone();
    let module = module_name(&device);
    match benches.living() {
        1 => progress.note(&format!("tuning {device}")),
        several => progress.note(&format!("tuning {device} on {several} of them")),
    }
    progress.note(&said(&benches.first().prices()));
    differing.iter().for_each(|differing| progress.note(differing));

    let backend = limits.backend();
    let scale = Scale::on(&limits, options.max_batch_mb);
    let mut workloads = Workloads::load(&options.scenarios, backend, &scale, options.shard)?;
    tracing::debug!("{} batches are known", workloads.batches.len());
    let known = Known::of(&device, &limits);
    let known_sets = if options.quick { known.sets() } else { Vec::new() };
    let space = Space::of(backend);
    // Those that are verified whatever the screening finds.
    let known_tiles: Vec<Tile> = if options.quick {
        let tiles: BTreeSet<Tile> = known_sets.iter().flat_map(|set| set.tiles()).copied().collect();
        tiles.into_iter().filter(|tile| space.tiles().contains(tile)).collect()
    } else if options.shard.is_some() {
        known.tiles_or_rules(&space)
    } else {
        known.tiles(&space)
    };
    let fit = if options.quick { quick::settings(&options.fit) } else { options.fit.clone() };
    if options.quick {
        anyhow::ensure!(
            !known_sets.is_empty(),
            "no selector of a device like {device} is known, whose tiles a quick run would race: leave out `--quick`"
        );
        quick::thin(&mut workloads);
    }
    anyhow::ensure!(
        options.shard.is_some() || workloads.batches.iter().any(|workload| !workload.held_out()),
        "the scenarios have no batches to fit a selector to: add one that is not `use: held-out`"
    );
    let default = if options.quick { quick::BUDGET } else { default_budget(backend, workloads.dtypes.len()) };
    let mut budget = options.budget.unwrap_or(default);
    let by_cp_async = workloads.batches.iter().filter(|workload| needs_cp_async(workload, &limits));
    let mut timed = Timed {
        classes: workloads.classes(),
        dtypes: workloads.dtypes.clone(),
        // Batches whose pages TMA cannot load are measured with tiles that are verified with `cp.async`.
        cp_async: by_cp_async.map(|workload| Class::of(workload.geometry())).collect(),
        shard: options.shard,
        only: BTreeMap::new(),
    };
    let screenings = if options.quick { Vec::new() } else { screenings(&workloads.batches, &limits) };
    let screened: Vec<Class> = screenings.iter().map(|screening| screening.class).collect();
    let folder = options.out.join(&module);
    let around = std::env::current_dir().ok().and_then(|current| Heuristics::around(&current));
    // A quick run's selector is loaded as data: it replaces none that rests on more.
    let around = around.filter(|_| !options.quick);
    let heuristics = options.heuristics.clone().map(Heuristics::at).or(around);
    let target = Target { heuristics: heuristics.as_ref(), force: options.force };
    let finished = if options.start == Start::Resume { Finished::in_folder(&folder)? } else { None };
    if let (Some(finished), Some(shard)) = (&finished, options.shard) {
        require_same_scenarios(finished, &workloads, &folder)?;
        let path = folder.join(shard.file_name());
        anyhow::ensure!(
            finished.measurements.file_name() == path.file_name(),
            "{}: another shard is over here: {}; give each a folder of its own with `--out`",
            folder.display(),
            finished.measurements.display()
        );
        progress.note("the shard is over");
        return Ok(Tuned::Shard(path));
    }
    if let Some(finished) = finished {
        let outputs = finish_again(finished, &workloads, &fit, target, &folder)?;
        progress.note("the run is over: its module and report were written again");
        return Ok(Tuned::Done(Box::new(outputs)));
    }
    // A scheduler starts a shard again by the same command, whether or not it had begun.
    let start = match options.start {
        Start::Resume if options.shard.is_some() && !RunFolder::is_stopped(&folder)? => Start::Fresh,
        start => start,
    };
    // What is compiled first, in the order in which it is needed.
    if benches.compiles_ahead() {
        for wanted in to_prepare_first(&space, &screenings, &known_tiles, &limits) {
            benches.ask(&[wanted], &[]);
        }
        // A pair of known tiles, whose kernel takes longest, and without which no batch is raced.
        if let Some(usual) = timed.usual().filter(|_| !options.quick) {
            let sets = candidate_sets(&known_tiles, &known_tiles).into_iter();
            let pairs = sets.filter(|set| set.single().is_none()).map(|pair| (pair, usual));
            benches.ask(&[], &pairs.collect::<Vec<_>>());
        }
    }
    if start != Start::Resume && !options.quick {
        let estimating = Instant::now();
        let needed = time_to_verify(&mut benches, &space, &screened, &timed, interrupt);
        budget = budget_for(needed, budget, options.budget.is_some(), options.force)?;
        progress.note(&format!(
            "trying and verifying tiles takes about {:.0} s of the budget's {}; {} batches share the rest (estimated in {:.1} s)",
            needed.as_secs_f64(),
            budget.as_secs(),
            workloads.batches.len(),
            estimating.elapsed().as_secs_f64()
        ));
    }
    let which = which(&scale, options.shard, options.quick);
    let prior = if options.force { None } else { known.prior() };
    let provenance =
        provenance::provenance((&benches, differing), &space, (&workloads, which), (&fit, prior));
    let mut run = RunFolder::open(&folder, provenance, start)?;
    tracing::debug!("the run's folder is open");
    for damaged in run.damaged() {
        progress.note(&format!("what it held is measured again: {damaged}"));
    }
    let stopped = |folder: &PathBuf| Ok(Tuned::Interrupted(folder.clone()));

    let budget = Budget::begin(begin, budget, options.budget.is_some(), &mut benches);
    let session = &mut Session { benches, run: &mut run, progress, interrupt };
    phases.end("estimate", begin, &session.benches);
    let kept = || format!("{}: the measurements are kept", folder.display());
    // The class with most batches is raced as soon as it is screened and verified, while kernels of the others are compiled.
    let usual = timed.usual().filter(|_| session.benches.compiles_ahead());
    let first_class = usual.filter(|usual| screened.first().is_none_or(|screened| screened == usual));
    let at_once = if first_class.is_some() { screenings.len().min(1) } else { screenings.len() };
    let batches = &workloads.batches;
    let (fitted, held_out): (Vec<Workload>, Vec<Workload>) =
        batches.iter().cloned().partition(|workload| !workload.held_out());
    let judged = if held_out.is_empty() { batches } else { &held_out };
    let screening_until = budget.deadline(SCREENED_UNTIL, session.benches.compiled());
    if session.benches.compiles_ahead() {
        if !look_at_classes(session, &space, &screenings, 0..at_once, screening_until)? {
            return stopped(&folder);
        }
        // What is needed in any case, behind what the look has left: its kernels are waited for. Each of the others waits for the one before.
        let looks = looks_at_others(session.run.rows(), &space, &screenings, &limits);
        let of_space = timed.to_prepare_space(&space, &known_tiles, &limits);
        let invariant = if options.quick || options.shard.is_some() {
            Vec::new()
        } else {
            to_prepare_invariant(judged, &limits)
        };
        let cp_async = timed.to_prepare_cp_async(&space, &known_tiles, &known_tiles, &limits);
        for wanted in looks.into_iter().chain(of_space).chain(invariant).chain(cp_async) {
            session.benches.ask(&[wanted], &[]);
        }
    }
    if !screen(session, &space, &screenings, 0..at_once, screening_until)? {
        return stopped(&folder);
    }
    let screened_at = Instant::now();
    let left_by = |session: &Session<'_, '_>, classes: &[Class], timed: &mut Timed| {
        let left = match Analysis::screened(&session.run.united_rows(), classes, &fit) {
            Ok(left) => left,
            // The others may have some.
            Err(_) if classes.len() < screened.len() => BTreeMap::new(),
            Err(error) => return Err(error).with_context(kept),
        };
        // What other shards of the run keep is not known here.
        if options.shard.is_none() && backend == Backend::Cuda {
            timed.leave(backend, &left, &known_tiles);
        }
        let mut tiles: Vec<Tile> = Vec::new();
        for tile in left.into_values().flatten().chain(known_tiles.iter().copied()) {
            if !tiles.contains(&tile) {
                tiles.push(tile);
            }
        }
        Ok(tiles)
    };
    let mut tiles =
        if options.quick { known_tiles.clone() } else { left_by(session, &screened[..at_once], &mut timed)? };
    phases.end("screen", begin, &session.benches);
    let mut candidates = Candidates {
        sets: if options.quick { known_sets } else { candidate_sets(&tiles, &known_tiles) },
        several_for: timed.usual().filter(|_| backend == Backend::Cuda && !options.quick),
    };
    // They are compiled beside the tiles alone, where something compiles beside; else those whose tiles passed, once it is known.
    let ahead = if session.benches.compiles_ahead() || session.benches.living() > 1 {
        let feasible: BTreeMap<Class, Vec<Tile>> =
            timed.classes.keys().map(|class| (*class, space.feasible(class, &limits))).collect();
        candidates.several(timed.classes.keys(), &|class, tile| feasible[class].contains(tile))
    } else {
        Vec::new()
    };
    let deadline = budget.deadline(VERIFIED_UNTIL, session.benches.compiled());
    let racing = budget.left(Instant::now(), session.benches.compiled(), 1.0 - VERIFIED_UNTIL);
    let mut reserve = Reserve::new(work(batches), racing.mul_f64(CANDIDATES * BEFORE_OTHERS));
    let mut verified = Verified::default();
    if let Some(first) = first_class.filter(|_| !tiles.is_empty()) {
        let of_space = timed.to_prepare_space(&space, &tiles, &limits);
        let cp_async = timed.to_prepare_cp_async(&space, &tiles, &known_tiles, &limits);
        for wanted in of_space.into_iter().chain(cp_async) {
            session.benches.ask(&[wanted], &[]);
        }
        verified = if timed.is_raced_before_options(&first) {
            let Some(passed) = verify_without_options(session, &tiles, &first)? else {
                return stopped(&folder);
            };
            Verified::tried(&first, passed)
        } else {
            let is_first = |class: &Class| *class == first;
            let of_first =
                verify_space_with(session, &space, (&tiles, &ahead), (&timed, &is_first), deadline)?;
            let Some(of_first) = of_first else { return stopped(&folder) };
            of_first
        };
        let sets =
            candidates.several(timed.classes.keys(), &|class, tile| verified.tiles(class).contains(tile));
        session.benches.prepare(&[], &sets, interrupt);
        phases.end("verify first class", begin, &session.benches);
        reserve.add(batches, &|class| *class == first);
    }
    if at_once < screenings.len() {
        // Each of the others is looked at and screened as soon as its kernels are there, between batches of the first: what one look leaves is compiled
        // behind the kernels of the other looks, before anything else.
        let looks = looks_at_others(session.run.rows(), &space, &screenings, &limits);
        if session.benches.compiles_ahead() {
            session.benches.getting_ready(&looks, &[], interrupt);
        }
        let of_class = |wanted: Vec<Preparation>, index: usize| -> Vec<Preparation> {
            wanted.into_iter().filter(|wanted| wanted.class == screenings[index].class).collect()
        };
        for index in at_once..screenings.len() {
            let awaited = session.benches.awaited(&of_class(looks.clone(), index));
            if !reserve.race_until(session, &candidates, &verified, &|| awaited.are_there())? {
                return stopped(&folder);
            }
            let until = screening_until + screened_at.elapsed();
            if !look_at_classes(session, &space, &screenings, index..index + 1, until)? {
                return stopped(&folder);
            }
        }
        for index in at_once..screenings.len() {
            let left = left_by_looks(session.run.rows(), &space, &screenings, &limits);
            let awaited = session.benches.awaited(&of_class(left, index));
            if !reserve.race_until(session, &candidates, &verified, &|| awaited.are_there())? {
                return stopped(&folder);
            }
            let until = screening_until + screened_at.elapsed();
            if !screen(session, &space, &screenings, index..index + 1, until)? {
                return stopped(&folder);
            }
        }
        tiles = left_by(session, &screened, &mut timed)?;
        candidates.add_singles(&tiles);
        phases.end("screen others, and first candidates", begin, &session.benches);
    }
    // Classes are verified when the kernels of all are there; until then batches of those that are verified are raced, as long as there are any.
    let mut open = timed.to_prepare_space(&space, &tiles, &limits);
    let of_space = session.run.rows().iter().filter(|row| row.level == Level::Space);
    let known: BTreeSet<(String, Tile)> =
        of_space.filter_map(|row| Some((row.workload.clone(), row.tile?))).collect();
    for Preparation { tiles, class, .. } in &mut open {
        tiles.retain(|tile| !known.contains(&(class.to_string(), *tile)));
    }
    if session.benches.compiles_ahead() {
        session.benches.getting_ready(&open, &[], interrupt);
    }
    while !open.is_empty() {
        let all = session.benches.awaited(&open);
        if !reserve.race_until(session, &candidates, &verified, &|| all.are_there())? {
            return stopped(&folder);
        }
        let is_ready =
            |wanted: &Preparation| session.benches.awaited(std::slice::from_ref(wanted)).are_there();
        let (ready, waiting): (Vec<Preparation>, Vec<Preparation>) = open.iter().cloned().partition(is_ready);
        let (now, later) = if ready.is_empty() { (waiting, Vec::new()) } else { (ready, waiting) };
        let now: BTreeSet<Class> = now.iter().map(|wanted| wanted.class).collect();
        let wanted = |class: &Class| now.contains(class);
        let until = deadline + reserve.spent();
        let passed = verify_space_with(session, &space, (&tiles, &ahead), (&timed, &wanted), until)?;
        let Some(passed) = passed else { return stopped(&folder) };
        verified = passed.or(&verified);
        open = later;
        if first_class.is_some() {
            let has_some = |class: &Class| !verified.tiles(class).is_empty();
            reserve.add(batches, &|class| wanted(class) && Some(*class) != first_class && has_some(class));
        }
    }
    let verified = Verified::of(session.run.rows());
    let raced = reserve.spent();
    if reserve.raced() > 0 {
        progress.note(&format!(
            "{} batches were raced while kernels of other work were compiled ({:.1} s)",
            reserve.raced(),
            raced.as_secs_f64()
        ));
    }
    let compiling = Instant::now();
    // What has not failed since is there already if it was asked for ahead.
    let sets = candidates.several(timed.classes.keys(), &|class, tile| verified.tiles(class).contains(tile));
    session.benches.prepare(&[], &sets, interrupt);
    phases.end("verify, and further candidates", begin, &session.benches);
    let measuring = Instant::now();
    // What there was to race in, of which some is spent. Where verification takes longer than estimated, the run does rather than measure nothing.
    let left = raced + budget.left(measuring, session.benches.compiled(), 1.0 - VERIFIED_UNTIL);
    let to_race = left.mul_f64(CANDIDATES).saturating_sub(raced);
    progress.note(&format!(
        "{} sets of tiles, on {} batches that are fitted and {} that are only judged; kernels of several tiles were waited for for {:.1} s",
        candidates.sets.len(),
        fitted.len(),
        held_out.len(),
        (measuring - compiling).as_secs_f64()
    ));
    if !options.quick && options.shard.is_none() && session.benches.compiles_ahead() {
        // The fit forgets what was asked for ahead of knowing its tiles; these are needed whatever they are.
        session.benches.getting_ready(&to_prepare_invariant(judged, &limits), &[], interrupt);
    }
    let deadline = measuring + to_race;
    // One of those that are judged goes first: a fit is judged by them.
    let (judged_first, judged_later) = held_out.split_at(held_out.len().min(1));
    let while_fitting = backend == Backend::Cuda
        && options.shard.is_none()
        && !fitted.is_empty()
        && !judged_later.is_empty()
        && std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= CORES_TO_FIT_BESIDE);
    let mut first_fit = None;
    if while_fitting {
        let before: Vec<Workload> = fitted.iter().chain(judged_first).cloned().collect();
        let open = reserve.open(&before);
        let part = open / (open + reserve.open(judged_later)).max(1.0);
        let until = measuring + to_race.mul_f64(part);
        if !measure_candidates(session, &before, &candidates, &verified, until)? {
            return stopped(&folder);
        }
        let (fitted, went_on) = fitting::fit_first_while(session, &fit, |session| {
            if !measure_candidates(session, judged_later, &candidates, &verified, deadline)? {
                return Ok(false);
            }
            // Two GPUs are faster than the fit; what is verified here is known to all that follows.
            Ok(options.quick || verify_invariant(session, judged)?.is_some())
        })
        .with_context(kept)?;
        if !went_on {
            return stopped(&folder);
        }
        first_fit = Some(fitted);
    } else if !measure_candidates(session, batches, &candidates, &verified, deadline)? {
        return stopped(&folder);
    }
    phases.end("candidates", begin, &session.benches);
    // A shard has raced the tiles of its own screening: where other shards raced others, a batch has no time of a tile.
    if let Some(shard) = options.shard {
        let path = folder.join(shard.file_name());
        say_phases(&phases, &session.benches);
        run.write(&path)?;
        run.retire(&path)?;
        return Ok(Tuned::Shard(path));
    }
    let on_the_clock = |time| budget.divided(time);
    // The default time is for as many samples as a decision rests on; another one is the user's.
    let enough = options.budget.is_none() && !options.quick;
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
    let fitted = fitting::fit_verified(session, batches, &timed, &fit, &clock, first_fit);
    let Some(analysis) = fitted.with_context(kept)? else { return stopped(&folder) };
    phases.end("fit and decisions", begin, &session.benches);
    // Without the tiles that failed since.
    let verified = Verified::of(session.run.rows());
    let mut policies = executed(&analysis, enough);
    session.benches.forget_asked();
    for wanted in policies.to_prepare_timelines(session.run.rows(), judged) {
        session.benches.ask(&[wanted], &[]);
    }
    if !options.quick {
        let Some(families) = verify_invariant(session, judged)? else { return stopped(&folder) };
        policies = policies.with_invariant(families);
        phases.end("verify batch-invariant", begin, &session.benches);
    }
    // The fit has its own time.
    let judging = Instant::now();
    let deadline = judging + left.mul_f64(HELD_OUT);
    if !measure_batches(session, judged, &policies, &verified, deadline)? {
        return stopped(&folder);
    }
    phases.end("held-out", begin, &session.benches);
    let deadline = Instant::now() + TIMELINES;
    if !options.quick && !record_timelines(session, batches, &policies, deadline)? {
        return stopped(&folder);
    }

    phases.end("timelines", begin, &session.benches);
    say_phases(&phases, &session.benches);
    let writing = Instant::now();
    let (into, kept) = target.of(run.provenance(), &analysis);
    let measurements = match into {
        Some(heuristics) => heuristics.measurements_path(&module),
        None => folder.join("measurements.parquet"),
    };
    let recording = run.write(&measurements)?;
    tracing::debug!("measurements are written");
    let timelines = run.timelines().clone();
    let into = (into, options.force);
    let outputs =
        write_outputs(&recording, &timelines, &analysis, &fit, into, &folder, measurements.clone())?;
    tracing::debug!("module and report are written");
    let outputs = Outputs { kept, ..outputs };
    // Not before all that is made of them is there.
    run.retire(&measurements)?;
    progress.note(&format!("module and report are written ({:.1} s)", writing.elapsed().as_secs_f64()));
    Ok(Tuned::Done(Box::new(outputs)))
}

/// What batches are executed under once a selector is fitted, each with as many samples as a decision rests on, or with those that there is time for.
fn executed(analysis: &Analysis, enough: bool) -> BatchPolicies<'_> {
    let policies = BatchPolicies::of(analysis);
    if enough { policies.with_enough_samples() } else { policies }
}

/// Says where the time of a run went.
fn say_phases(phases: &Phases, benches: &Benches<'_>) {
    tracing::info!("phases: {phases}");
    if let Some(said) = benches.compiled_ahead() {
        tracing::info!("{said}");
    }
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
