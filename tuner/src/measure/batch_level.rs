//! The second level: whole batches of scenarios. First under every set of tiles that a selector may come to choose, which is what is fitted and
//! judged; then, on what is only judged, under the fitted selector and what it is compared with.

use super::batch_policies::{BatchPolicies, Planned};
use super::row::{batch_shape, class_of, measurement};
use super::{
    Bench, BenchError, Contestant, Ended, Execution, Loaded, Order, PlanTiles, RaceOptions, Session, Told,
    Verified, execution_of_set, race,
};
use crate::choice::Choice;
use crate::emit::SelectorModel;
use crate::interrupt::Interrupt;
use crate::statistics::median;
use crate::store::{Level, Measurement, Status};
use crate::workloads::Workload;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tilewright_cuda::LaunchMode;
use tilewright_heuristics::{BatchShape, Tile, TileSetBuf};
use tilewright_kernel_templates::{Class, Limits};

/// Pairs of tiles that are measured beside the single ones, at most: each is a kernel of its own to compile, and a plan of each batch that takes ten times as long
/// as that of one tile. None has taken less than 0.97 of the time of the best single tile (`docs/tried.md`).
const PAIRS: usize = 1;

/// Sets of tiles that batches are raced under.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// The sets.
    pub sets: Vec<TileSetBuf>,
    /// The class of kernels whose batches are raced under sets of several tiles, too; all of them without one. These kernels take longest to compile, and are chosen
    /// least.
    pub several_for: Option<Class>,
}

impl Candidates {
    /// Whether batches of a class are raced under a set whose tiles can run there.
    pub fn has(&self, set: &TileSetBuf, class: &Class) -> bool {
        set.single().is_some() || self.several_for.is_none_or(|several| several == *class)
    }

    /// The sets of several tiles, each with the classes of these that are raced under it, if all of its tiles may run there.
    pub fn several<'a>(
        &self,
        classes: impl Iterator<Item = &'a Class>,
        may_run: &dyn Fn(&Class, &Tile) -> bool,
    ) -> Vec<(TileSetBuf, Class)> {
        let of_class = |class: &Class| {
            let runs = |set: &&TileSetBuf| {
                set.single().is_none()
                    && self.has(set, class)
                    && set.tiles().iter().all(|tile| may_run(class, tile))
            };
            self.sets.iter().filter(runs).map(|set| (*set, *class)).collect::<Vec<_>>()
        };
        classes.flat_map(of_class).collect()
    }

    /// Adds tiles, each alone, that are not among the sets yet.
    pub fn add_singles(&mut self, tiles: &[Tile]) {
        for set in tiles.iter().copied().map(TileSetBuf::one) {
            if !self.sets.contains(&set) {
                self.sets.push(set);
            }
        }
    }
}

/// The sets that are measured on whole batches: each of these tiles for all packs, and pairs: those `known` ones whose tiles are among these, and whose kernels can be
/// compiled before the others are known; else [`pairs`].
pub fn candidate_sets(tiles: &[Tile], known: &[TileSetBuf]) -> Vec<TileSetBuf> {
    let single = tiles.iter().copied().map(TileSetBuf::one);
    let is_raced = |pair: &&TileSetBuf| pair.tiles().iter().all(|tile| tiles.contains(tile));
    let known: Vec<TileSetBuf> = known.iter().filter(is_raced).copied().collect();
    single.chain(if known.is_empty() { pairs(tiles) } else { known }).collect()
}

/// The first pairs of these tiles of a tall one with a low one, which share a kernel where they have the same warps.
pub fn pairs(tiles: &[Tile]) -> Vec<TileSetBuf> {
    let tall = |tile: &&Tile| tile.m >= 64;
    let pairs = tiles.iter().filter(tall).flat_map(|tall| {
        let beside = |low: &&Tile| low.m < tall.m && low.m <= 32 && low.warps == tall.warps;
        tiles.iter().filter(beside).filter_map(|low| TileSetBuf::of(&[*low, *tall]))
    });
    pairs.take(PAIRS).collect()
}

/// Rounds of a batch's race of sets, and of what a selector is compared with: before a tie is believed, and at most.
const ROUNDS: [usize; 2] = [7, 9];
/// Rounds of a race of the whole space: it finds what is worth racing again.
const SCREENING_ROUNDS: [usize; 2] = [2, 3];

/// Rounds on a device: a processor's samples are disturbed by more, and it has the time for half as many again.
fn rounds_on(limits: &Limits, rounds: [usize; 2]) -> [usize; 2] {
    match limits {
        Limits::Cpu(_) => rounds.map(|rounds| rounds + rounds.div_ceil(2)),
        Limits::Cuda(_) => rounds,
    }
}

/// Races tiles that passed their trial on batches of their class that the run does not have yet at `level`. Losers leave the race early. Where the level is not over, the
/// run does not have these batches then: other tiles are raced on them.
///
/// The batches share the time until `deadline`. Returns `false` if the user asked to stop.
///
/// # Errors
/// As [`measure_candidates`].
pub(super) fn measure_screening(
    session: &mut Session<'_, '_>,
    (level, is_over): (Level, bool),
    workloads: &[Workload],
    tried: &Verified,
    deadline: Instant,
) -> anyhow::Result<bool> {
    let plan =
        |loaded: &mut dyn Loaded, _: &Workload, _: &BatchShape, feasible: &[Tile], _: &[LaunchMode]| {
            let plan = |&tile: &Tile| -> Result<(Choice, Planned), BenchError> {
                let set = TileSetBuf::one(tile);
                Ok((Choice::Set(set), Ok(loaded.plan(&Execution::default(), &PlanTiles::Set(set))?)))
            };
            feasible.iter().map(plan).collect()
        };
    let stage = Stage {
        name: if level == Level::FirstLook { "first look" } else { "screening" },
        level,
        rounds: SCREENING_ROUNDS,
        least_rounds: 1,
        selector_hash: "",
        eliminate: true,
        again: false,
        is_over,
        plan: &plan,
    };
    stage.measure(session, workloads, tried, deadline)
}

/// Measures every batch that the run does not have yet under all of these sets that its class of kernels can run. Losers leave the race early.
///
/// The batches share the time until `deadline`. Returns `false` if the user asked to stop.
///
/// # Errors
/// The bench, a scenario that makes no batch, or the run's folder.
pub fn measure_candidates(
    session: &mut Session<'_, '_>,
    workloads: &[Workload],
    candidates: &Candidates,
    verified: &Verified,
    deadline: Instant,
) -> anyhow::Result<bool> {
    measure_candidates_while(session, workloads, candidates, verified, deadline, &|| true)
}

/// The same as long as `goes_on` says so, which is asked before each batch: those that are left are not measured.
///
/// # Errors
/// As [`measure_candidates`].
pub fn measure_candidates_while(
    session: &mut Session<'_, '_>,
    workloads: &[Workload],
    candidates: &Candidates,
    verified: &Verified,
    deadline: Instant,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<bool> {
    let plan = |loaded: &mut dyn Loaded,
                _: &Workload,
                shape: &BatchShape,
                feasible: &[Tile],
                launch_modes: &[LaunchMode]| {
        let class = class_of(shape);
        let can_run = |set: &&TileSetBuf| {
            set.tiles().iter().all(|tile| feasible.contains(tile))
                && class.is_none_or(|class| candidates.has(set, &class))
        };
        let plan = |set: &TileSetBuf| plan_set(loaded, set, launch_modes);
        candidates.sets.iter().filter(can_run).map(plan).collect()
    };
    let stage = Stage {
        name: "candidates",
        level: Level::Batch,
        rounds: ROUNDS,
        least_rounds: 1,
        selector_hash: "",
        eliminate: true,
        again: false,
        is_over: true,
        plan: &plan,
    };
    stage.measure_while(session, workloads, verified, deadline, goes_on)
}

/// Samples that a decision rests on: a selector's set on a batch that it was fitted to.
pub(super) const DECISION_SAMPLES: usize = ROUNDS[0];

/// Races all sets of a selector again where that of a batch left its race before it had the samples of a decision, beside the set that was fastest there: the
/// next selector may choose any of them. Says on how many of the batches; none where every decision has its samples. `None` if the user asked to stop.
///
/// # Errors
/// As [`measure_candidates`].
pub fn measure_decisions(
    session: &mut Session<'_, '_>,
    workloads: &[Workload],
    model: &SelectorModel,
    verified: &Verified,
    deadline: Instant,
) -> anyhow::Result<Option<usize>> {
    let thin = thin_decisions(session.run.rows(), model);
    let workloads: Vec<Workload> =
        workloads.iter().filter(|workload| thin.contains_key(workload.name())).cloned().collect();
    if workloads.is_empty() {
        return Ok(Some(0));
    }
    let again: BTreeMap<BatchShape, &Vec<TileSetBuf>> =
        thin.values().map(|(shape, sets)| (*shape, sets)).collect();
    let plan = |loaded: &mut dyn Loaded,
                _: &Workload,
                shape: &BatchShape,
                _: &[Tile],
                launch_modes: &[LaunchMode]| {
        let plan = |set: &TileSetBuf| plan_set(loaded, set, launch_modes);
        again.get(shape).copied().into_iter().flatten().map(plan).collect()
    };
    let stage = Stage {
        name: "decisions",
        level: Level::Batch,
        rounds: [DECISION_SAMPLES; 2],
        least_rounds: 1,
        selector_hash: "",
        eliminate: false,
        again: true,
        is_over: true,
        plan: &plan,
    };
    let went_on = stage.measure(session, &workloads, verified, deadline)?;
    Ok(went_on.then_some(workloads.len()))
}

/// The batches that were fitted where a selector's set has too few samples, by name: with all of its sets that were raced there, and the fastest one.
fn thin_decisions(
    rows: &[Measurement],
    model: &SelectorModel,
) -> BTreeMap<String, (BatchShape, Vec<TileSetBuf>)> {
    let mut raced: BTreeMap<&str, (BatchShape, BTreeMap<TileSetBuf, Vec<f64>>)> = BTreeMap::new();
    let fitted = |row: &&Measurement| {
        row.level == Level::Batch
            && !row.held_out
            && row.selector_hash.is_empty()
            && row.status == Status::Correct
    };
    for row in rows.iter().filter(fitted) {
        let (Some(batch), Ok(set)) = (row.batch, row.choice.parse::<TileSetBuf>()) else { continue };
        let (_, sets) = raced.entry(&row.workload).or_insert_with(|| (batch, BTreeMap::new()));
        sets.entry(set).or_default().extend(&row.samples_us);
    }
    let thin = |(name, (batch, sets)): (&str, (BatchShape, BTreeMap<TileSetBuf, Vec<f64>>))| {
        let chosen = model.choose(&batch);
        let samples = sets.get(&chosen)?;
        let time = |set: &TileSetBuf| median(&sets[set]).unwrap_or(f64::INFINITY);
        let fastest = sets.keys().copied().min_by(|a, b| time(a).total_cmp(&time(b)))?;
        let own = model.sets.iter().copied().filter(|set| sets.contains_key(set));
        let again: BTreeSet<TileSetBuf> = own.chain([fastest]).collect();
        (samples.len() < DECISION_SAMPLES).then(|| (name.to_owned(), (batch, again.into_iter().collect())))
    };
    raced.into_iter().filter_map(thin).collect()
}

/// Measures every batch that the run does not have yet for this selector, all choices in turn, none of them eliminated.
///
/// The batches share the time until `deadline`. Returns `false` if the user asked to stop.
///
/// # Errors
/// The bench, a scenario that makes no batch, or the run's folder.
pub fn measure_batches(
    session: &mut Session<'_, '_>,
    workloads: &[Workload],
    policies: &BatchPolicies<'_>,
    verified: &Verified,
    deadline: Instant,
) -> anyhow::Result<bool> {
    let plan = |loaded: &mut dyn Loaded,
                workload: &Workload,
                batch: &BatchShape,
                feasible: &[Tile],
                launch_modes: &[LaunchMode]| {
        policies.plan(loaded, workload, batch, feasible, launch_modes)
    };
    let selector_hash = policies.selector_hash();
    let stage = Stage {
        name: "batches",
        level: Level::Batch,
        rounds: ROUNDS,
        least_rounds: policies.least_rounds(),
        selector_hash,
        eliminate: false,
        again: false,
        is_over: true,
        plan: &plan,
    };
    stage.measure(session, workloads, verified, deadline)
}

/// Plans a loaded batch under all that it is measured under, with the tiles that its class of kernels can run, on a bench with these launch
/// modes.
type PlanAll<'a> = &'a (
        dyn Fn(
    &mut dyn Loaded,
    &Workload,
    &BatchShape,
    &[Tile],
    &[LaunchMode],
) -> Result<Vec<(Choice, Planned)>, BenchError>
            + Sync
    );

/// Plans a loaded batch under a set, as decoders do.
fn plan_set(
    loaded: &mut dyn Loaded,
    set: &TileSetBuf,
    launch_modes: &[LaunchMode],
) -> Result<(Choice, Planned), BenchError> {
    let plan = loaded.plan(&execution_of_set(set, launch_modes), &PlanTiles::Set(*set))?;
    Ok((Choice::Set(*set), Ok(plan)))
}

/// Where the time of a pass goes.
#[derive(Debug, Default)]
struct Spent {
    loading: Duration,
    planning: Duration,
    sampling: Duration,
}

impl Spent {
    fn add(&mut self, other: &Self) {
        self.loading += other.loading;
        self.planning += other.planning;
        self.sampling += other.sampling;
    }
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [loading, planning, sampling] =
            [self.loading, self.planning, self.sampling].map(|spent| spent.as_secs_f64());
        let digits = f.precision().unwrap_or(1);
        write!(
            f,
            "{loading:.digits$} s to load them, {planning:.digits$} s to plan, {sampling:.digits$} s to sample"
        )
    }
}

/// Time since `begin`, which becomes now.
fn lap(begin: &mut Instant) -> Duration {
    let now = Instant::now();
    now - std::mem::replace(begin, now)
}

/// A batch that is raced on one of the devices.
struct Piece<'a> {
    workload: &'a Workload,
    /// Of its race: by its name, whichever device has it, and whenever.
    seed: u64,
}

/// A number that a name has.
fn seed_of(name: &str) -> u64 {
    // FNV-1a.
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl fmt::Display for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.workload.name())
    }
}

/// What is said of a piece whose device is lost.
pub(super) fn left_to_others(piece: &str, defect: &BenchError) -> String {
    format!("{piece}: left to the other devices, as one is lost: {defect}")
}

/// A pass over whole batches.
struct Stage<'a> {
    name: &'static str,
    /// What its rows are.
    level: Level,
    /// Rounds of a race: before a tie is believed, and at most.
    rounds: [usize; 2],
    /// Rounds that are completed whatever the time.
    least_rounds: usize,
    /// Of the selector that is measured; empty where there is none yet. A run that was resumed may have fitted another one since: those batches
    /// are measured again.
    selector_hash: &'a str,
    eliminate: bool,
    /// Whether batches are measured that the run has.
    again: bool,
    /// Whether the run has these batches then.
    is_over: bool,
    plan: PlanAll<'a>,
}

impl Stage<'_> {
    fn measure(
        &self,
        session: &mut Session<'_, '_>,
        workloads: &[Workload],
        verified: &Verified,
        deadline: Instant,
    ) -> anyhow::Result<bool> {
        self.measure_while(session, workloads, verified, deadline, &|| true)
    }

    fn measure_while(
        &self,
        session: &mut Session<'_, '_>,
        workloads: &[Workload],
        verified: &Verified,
        deadline: Instant,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> anyhow::Result<bool> {
        let Session { benches, run, progress, interrupt } = session;
        let (progress, interrupt) = (*progress, *interrupt);
        let is_known = |row: &&Measurement| {
            row.level == self.level && row.complete && row.selector_hash == self.selector_hash
        };
        let known: BTreeSet<&str> =
            run.rows().iter().filter(is_known).map(|row| row.workload.as_str()).collect();
        let left = workloads.iter().filter(|workload| self.again || !known.contains(workload.name()));
        let mut left: Vec<Piece<'_>> =
            left.map(|workload| Piece { workload, seed: seed_of(workload.name()) }).collect();
        if benches.living() > 1 {
            // So that none is at a long one when the others have nothing left.
            left.sort_by_key(|piece| Reverse(piece.workload.sample_ns()));
        }
        tracing::debug!("{}: {} batches", self.name, left.len());
        let mut phase = progress.phase(self.name, left.len());
        let mut spent = Spent::default();
        let work_left = AtomicU64::new(left.iter().map(|piece| piece.workload.sample_ns()).sum());
        let work = |bench: &mut dyn Bench, &Piece { workload, seed }: &Piece<'_>, devices: usize| {
            if !goes_on() {
                return Ok(None);
            }
            let own = workload.sample_ns();
            let taken = |left: u64| Some(left.saturating_sub(own));
            let before = work_left.fetch_update(Relaxed, Relaxed, taken).unwrap_or(own);
            // The batches share the time of all devices.
            let part = devices as f64 * own as f64 / before.max(own).max(1) as f64;
            let share = deadline.saturating_duration_since(Instant::now()).mul_f64(part.min(1.0));
            self.one(bench, workload, verified, share, seed, interrupt).map(Some)
        };
        let (mut went_on, mut measured, mut open) = (true, 0, Vec::new());
        let given = benches.give_out(&left, Order::AsGiven, interrupt, &work, |told| {
            match told {
                Told::Begun(piece) => phase.at(piece.workload.name()),
                Told::Done(_, None) => {}
                Told::Done(_, Some((rows, ended, its))) => {
                    measured += 1;
                    spent.add(&its);
                    open.extend(rows);
                    phase.step();
                    went_on &= ended != Ended::Interrupted;
                }
                // Its times are not kept: all times of a batch are of one device.
                Told::Lost(piece, defect) => progress.note(&left_to_others(piece.workload.name(), &defect)),
                Told::NothingElse if open.is_empty() => {}
                Told::NothingElse => run.append(std::mem::take(&mut open))?,
            }
            Ok(())
        })?;
        if !given.went_on()? || !went_on {
            return Ok(false);
        }
        phase.finish(&format!("{measured} whole batches measured: {spent}"));
        Ok(true)
    }

    fn one(
        &self,
        bench: &mut dyn Bench,
        workload: &Workload,
        verified: &Verified,
        time_limit: Duration,
        seed: u64,
        interrupt: &Interrupt,
    ) -> anyhow::Result<(Vec<Measurement>, Ended, Spent)> {
        let (mut begin, mut spent) = (Instant::now(), Spent::default());
        let batch = workload.build()?;
        let (class, shape) = (Class::of(&batch.geometry), batch_shape(&batch)?);
        let launch_modes = bench.launch_modes().to_vec();
        let [min_rounds, max_rounds] = rounds_on(bench.limits(), self.rounds);
        let mut loaded = bench.load(&batch)?;
        spent.loading = lap(&mut begin);
        let plans = (self.plan)(loaded.as_mut(), workload, &shape, verified.tiles(&class), &launch_modes)?;
        let limit_us = loaded.limit_us();
        spent.planning = lap(&mut begin);
        let &Self { eliminate, least_rounds, .. } = self;
        let options = RaceOptions {
            time_limit,
            least_rounds,
            seed,
            eliminate,
            min_rounds,
            max_rounds,
            ..RaceOptions::default()
        };
        let sample = |i: usize| loaded.sample(plans[i].1.clone()?);
        let result = race(plans.len(), &options, || interrupt.requested(), sample);
        spent.sampling = lap(&mut begin);
        tracing::debug!("{}: {} plans, {spent:.3}", workload.name(), plans.len());
        drop(loaded);
        // What was measured before the device was lost is kept; a run that goes on measures the workload again.
        let lost = bench.defect().is_some();
        let conditions = bench.conditions();
        let row = |(i, contestant): (usize, Contestant)| {
            let choice = plans[i].0;
            Measurement {
                choice: choice.to_string(),
                tile: match choice {
                    Choice::Set(set) => set.single(),
                    Choice::Selector(_) | Choice::PatRules | Choice::Pat | Choice::Invariant => None,
                },
                batch: Some(shape),
                limit_us: Some(limit_us),
                conditions: conditions.clone(),
                selector_hash: self.selector_hash.to_owned(),
                complete: self.is_over && result.ended != Ended::Interrupted && !lost,
                ..measurement(workload, self.level, &batch, contestant)
            }
        };
        let ended = result.ended;
        let rows = result.contestants.into_iter().enumerate().map(row);
        // What failed with the device says nothing about a variant.
        let said = |row: &Measurement| match row.status {
            Status::Correct => !row.samples_us.is_empty(),
            _ => !lost,
        };
        Ok((rows.filter(said).collect(), ended, spent))
    }
}

#[cfg(test)]
#[path = "batch_level_tests.rs"]
pub(crate) mod tests;
