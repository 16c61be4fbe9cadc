//! The space of a device: what the rules reject, and what the rest computes on conformance shapes, before anything is timed.

use super::batch_level::left_to_others;
use super::row::class_of;
use super::{Awaited, Bench, Coverage, Failure, Order, Preparation, Session, Told};
use crate::shard::Shard;
use crate::store::{Conditions, Level, Measurement, Resources, Status, failed_variants};
use crate::workloads::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::OnceLock;
use std::time::Instant;
use tilewright_heuristics::{Backend, Dtype, Tile, TileSetBuf};
use tilewright_kernel_templates::{Class, Limits, Space, Verdict};

/// Levels at which tiles that a selector may return are verified once more, with what a phase of it is called.
const ONCE_MORE: [(Level, &str); 2] =
    [(Level::CpAsync, "verifying cp.async"), (Level::Options, "verifying options")];

/// The tiles that may be timed, for each class of kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    passed: BTreeMap<String, Vec<Tile>>,
}

impl Verified {
    /// What the recorded space says, without what failed with `cp.async` or with options.
    pub fn of(rows: &[Measurement]) -> Self {
        let failed = failed_variants(rows);
        let mut passed: BTreeMap<String, Vec<Tile>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.level == Level::Space && row.status == Status::Correct) {
            let tile = row.tile.filter(|tile| !failed.contains_key(&(row.workload.as_str(), *tile)));
            passed.entry(row.workload.clone()).or_default().extend(tile);
        }
        Self { passed }
    }

    /// Tiles of a class that were tried only: returned by no selector before the run has them.
    pub fn tried(class: &Class, tiles: Vec<Tile>) -> Self {
        Self { passed: [(class.to_string(), tiles)].into() }
    }

    /// The same, with what these say of the classes that it does not know.
    #[must_use]
    pub fn or(mut self, others: &Self) -> Self {
        for (class, tiles) in &others.passed {
            self.passed.entry(class.clone()).or_insert_with(|| tiles.clone());
        }
        self
    }

    /// The tiles that passed for a class.
    pub fn tiles(&self, class: &Class) -> &[Tile] {
        self.passed.get(&class.to_string()).map_or(&[], Vec::as_slice)
    }
}

/// Judges the space, and verifies these tiles of it for every class of kernels that a selector may be asked about, one part of the run a class. What
/// the run already has is not repeated.
///
/// Classes that are timed come first, the most timed one before all; those of them that `deadline` leaves no time for are said, and not
/// timed. A safe default has to serve the others too. Where a class
/// has two ways of copying K and V, the second one is verified here only if all tiles are timed with it; [`verify_returned`] does it for the few
/// tiles that a selector may return. Returns what may be timed; `None` if the user asked to stop.
///
/// # Errors
/// The run's folder, or a bench that cannot go on.
pub fn verify_space(
    session: &mut Session<'_, '_>,
    space: &Space,
    tiles: &[Tile],
    timed: &Timed,
    deadline: Instant,
) -> anyhow::Result<Option<Verified>> {
    verify_space_with(session, space, (tiles, &[]), (timed, &|_| true), deadline)
}

/// The same for the classes that are `wanted` now, which makes these sets of tiles ready at once with the tiles: kernels of several tiles take longest.
///
/// # Errors
/// As [`verify_space`].
pub fn verify_space_with(
    session: &mut Session<'_, '_>,
    space: &Space,
    (tiles, sets): (&[Tile], &[(TileSetBuf, Class)]),
    (timed, is_wanted): (&Timed, &dyn Fn(&Class) -> bool),
    deadline: Instant,
) -> anyhow::Result<Option<Verified>> {
    let Session { benches, run, progress, interrupt } = session;
    let (progress, interrupt) = (*progress, *interrupt);
    let backend = benches.limits().backend();
    let mut known: BTreeMap<String, BTreeSet<Tile>> = BTreeMap::new();
    for row in run.rows().iter().filter(|row| row.level == Level::Space) {
        known.entry(row.workload.clone()).or_default().extend(row.tile);
    }
    let raced: BTreeSet<(Tile, Class)> =
        run.rows().iter().filter_map(|row| Some((row.tile?, class_of(&row.batch?)?))).collect();
    let of_time = timed.first(backend);
    let mut classes: Vec<Class> = of_time.iter().copied().chain(timed.others(backend)).collect();
    classes.retain(is_wanted);
    let mut phase = progress.phase("verify", classes.len());
    let of_class = |class: &Class| {
        let known = known.remove(&class.to_string()).unwrap_or_default();
        let mut verdicts = space.survey(class, benches.limits());
        verdicts.retain(|verdict| !known.contains(&verdict.tile));
        (timed.to_prepare((class, backend), &verdicts, tiles), verdicts)
    };
    let (wanted, verdicts): (Vec<Preparation>, Vec<Vec<Verdict>>) = classes.iter().map(of_class).unzip();
    let some: Vec<Preparation> = wanted.iter().filter(|wanted| !wanted.tiles.is_empty()).cloned().collect();
    let before = benches.compiled();
    if !some.is_empty() || !sets.is_empty() {
        phase.at(&format!("making {} tiles ready", tiles.len()));
    }
    let ready = benches.getting_ready(&some, sets, interrupt);
    let deadline = benches.moved(deadline, before);
    // Without the most timed class there is nothing to measure.
    let may_wait = |index: usize| {
        Some(&classes[index]) != of_time.first()
            && of_time.contains(&classes[index])
            && !verdicts[index].is_empty()
    };
    let has_time: Vec<OnceLock<bool>> = classes.iter().map(|_| OnceLock::new()).collect();
    let has_time = |class: usize| {
        *has_time[class].get_or_init(|| !may_wait(class) || Instant::now() < ready.moved(deadline))
    };
    let work = |bench: &mut dyn Bench, piece: &Piece, _: usize| {
        let Piece { class, tile, .. } = *piece;
        if !has_time(class) {
            return Ok(None);
        }
        let Some(tile) = tile else { return Ok(Some(None)) };
        ready.wait(&wanted[class].only(tile));
        let outcome = bench.verify(&tile, &classes[class], wanted[class].coverage);
        Ok(Some(Some((outcome, bench.resources(&tile, &classes[class])))))
    };
    let mut done: Vec<Outcomes> = vec![Outcomes::default(); classes.len()];
    let pieces = Piece::of(&wanted);
    let mut open: Vec<usize> = vec![0; classes.len()];
    pieces.iter().for_each(|piece| open[piece.class] += 1);
    let not_verified: Vec<Outcomes> = {
        let outcomes = |(verdicts, wanted): (&Vec<Verdict>, &Preparation)| {
            let others = verdicts.iter().filter(|verdict| !wanted.tiles.contains(&verdict.tile));
            let outcome = |verdict: &Verdict| {
                let failure = match verdict.infeasible.clone() {
                    Some(reason) => Failure { status: Status::Constraints, message: reason.to_string() },
                    None => Failure {
                        status: Status::Unverified,
                        message: "slower than others wherever all tiles were raced".to_owned(),
                    },
                };
                // What no race has had was never compiled; to ask of thousands keeps devices waiting.
                let was_compiled = raced.contains(&(verdict.tile, wanted.class));
                let resources = if was_compiled {
                    benches.resources(&verdict.tile, &wanted.class)
                } else {
                    Resources::default()
                };
                (verdict.tile, (Err(failure), resources))
            };
            others.map(outcome).collect()
        };
        verdicts.iter().zip(&wanted).map(outcomes).collect()
    };
    let by_class = |piece: &Piece| piece.class;
    let given = benches.give_out(&pieces, Order::ByGroup(&by_class), interrupt, &work, |told| {
        let (piece, outcome) = match told {
            Told::Begun(piece) => {
                if piece.tile.is_some() {
                    phase.at(&format!("{} against the f64 reference", classes[piece.class]));
                }
                return Ok(());
            }
            Told::Lost(piece, defect) => {
                progress.note(&left_to_others(&classes[piece.class].to_string(), &defect));
                return Ok(());
            }
            Told::NothingElse => return Ok(()),
            Told::Done(piece, outcome) => (piece, outcome),
        };
        let class = piece.class;
        open[class] -= 1;
        if let (Some(tile), Some(Some(outcome))) = (piece.tile, outcome.clone()) {
            done[class].insert(tile, outcome);
        }
        if open[class] > 0 {
            return Ok(());
        }
        if outcome.is_none() {
            progress.note(&format!("{}: no time to verify its kernels, so its workloads are not measured; a larger `--budget` has it", classes[class]));
            return Ok(());
        }
        // A class is kept as a whole, in the order of the space.
        done[class].extend(not_verified[class].clone());
        let of_tile = |verdict: &Verdict| {
            let (outcome, resources) = done[class].remove(&verdict.tile)?;
            Some(Measurement { resources, ..row(Level::Space, &verdict.tile, &classes[class], outcome) })
        };
        run.append(verdicts[class].iter().filter_map(of_tile).collect())?;
        phase.step();
        Ok(())
    })?;
    if !given.went_on()? {
        return Ok(None);
    }
    let (mut correct, mut rejected, mut slower, mut failed) = (0, 0, 0, 0);
    for row in run.rows().iter().filter(|row| row.level == Level::Space) {
        *match row.status {
            Status::Correct => &mut correct,
            Status::Constraints => &mut rejected,
            Status::Unverified => &mut slower,
            _ => &mut failed,
        } += 1;
    }
    phase.finish(&format!(
        "{correct} variants correct, {failed} failed; {rejected} infeasible, {slower} too slow to be verified"
    ));
    let first = |class: &Class| is_wanted(class) && timed.cp_async_first(class);
    let failed = verify_returned(session, tiles, &first, timed)?;
    Ok(failed.map(|_| Verified::of(session.run.rows())))
}

/// Makes tiles of a class ready and tries each on one small batch; those that pass. What fails is recorded, and never timed. `None` if the user
/// asked to stop.
///
/// # Errors
/// As [`verify_space`].
pub(super) fn try_tiles(
    session: &mut Session<'_, '_>,
    tiles: &[Tile],
    class: &Class,
) -> anyhow::Result<Option<Vec<Tile>>> {
    let Session { benches, run, progress, interrupt } = session;
    let (progress, interrupt) = (*progress, *interrupt);
    let wanted = Preparation { tiles: tiles.to_vec(), class: *class, coverage: Coverage::TRIAL };
    let ready = benches.getting_ready(std::slice::from_ref(&wanted), &[], interrupt);
    let mut outcomes = BTreeMap::new();
    let work = |bench: &mut dyn Bench, tile: &Tile, _: usize| {
        ready.wait(&wanted.only(*tile));
        Ok(bench.verify(tile, class, Coverage::TRIAL))
    };
    let given = benches.give_out(tiles, Order::AsGiven, interrupt, &work, |told| {
        match told {
            Told::Begun(_) | Told::NothingElse => {}
            Told::Done(tile, outcome) => drop(outcomes.insert(*tile, outcome)),
            Told::Lost(tile, defect) => progress.note(&left_to_others(&tile.to_string(), &defect)),
        }
        Ok(())
    })?;
    if !given.went_on()? {
        return Ok(None);
    }
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for tile in tiles {
        match outcomes.remove(tile) {
            Some(Ok(_)) => passed.push(*tile),
            Some(Err(failure)) => failed.push(row(Level::Space, tile, class, Err(failure))),
            None => {}
        }
    }
    if !failed.is_empty() {
        run.append(failed)?;
    }
    Ok(Some(passed))
}

/// Verifies tiles once more: with the `cp.async` producer where their classes of kernels have TMA, for caches that TMA cannot load, and with mask options and sinks. The few that
/// a selector may return are cheap, all of the space would take as long again as its verification. What the run already has is not repeated, and what failed is left
/// out, as are classes that are not `wanted`.
///
/// Returns how many variants failed now: no selector may return them, so another has to be fitted. `None` if the user asked to stop.
///
/// # Errors
/// As [`verify_space`].
pub fn verify_returned(
    session: &mut Session<'_, '_>,
    tiles: &[Tile],
    wanted: &dyn Fn(&Class) -> bool,
    timed: &Timed,
) -> anyhow::Result<Option<usize>> {
    let progress = session.progress;
    let mut count = 0;
    for (level, phase) in ONCE_MORE {
        let wanted = left_of_returned(session, tiles, level, wanted, timed);
        let with = level.verified_with().unwrap_or_default();
        let Some(failed) = verify_variants(session, &wanted, level, (phase, with))? else {
            return Ok(None);
        };
        for failed in &failed {
            progress.note(&format!("no selector may return a tile that fails with {with}: {failed}"));
        }
        count += failed.len();
    }
    Ok(Some(count))
}

/// Has the kernels compiled that [`verify_returned`] needs for these tiles of all classes, before it is called; they can be waited for.
pub fn ask_for_returned(session: &mut Session<'_, '_>, tiles: &[Tile], timed: &Timed) -> Awaited {
    let left = ONCE_MORE.map(|(level, _)| left_of_returned(session, tiles, level, &|_| true, timed)).concat();
    if session.benches.compiles_ahead() {
        session.benches.getting_ready(&left, &[], session.interrupt);
    }
    session.benches.awaited(&left)
}

/// What of these tiles the run has not verified at one of these levels.
fn left_of_returned(
    session: &Session<'_, '_>,
    tiles: &[Tile],
    level: Level,
    wanted: &dyn Fn(&Class) -> bool,
    timed: &Timed,
) -> Vec<Preparation> {
    let Session { benches, run, .. } = session;
    let limits = benches.limits();
    let verified = Verified::of(run.rows());
    let known: BTreeSet<(&str, Option<Tile>)> = run
        .rows()
        .iter()
        .filter(|row| row.level == level)
        .map(|row| (row.workload.as_str(), row.tile))
        .collect();
    let missing = |class: Class| {
        let name = class.to_string();
        let missing = |tile: &&Tile| tiles.contains(tile) && !known.contains(&(name.as_str(), Some(**tile)));
        let tiles = verified.tiles(&class).iter().filter(missing).copied().collect();
        match level {
            Level::Options => Timed::with_options(tiles, class),
            _ => timed.with_cp_async(tiles, class),
        }
    };
    let is_of_level = |class: &Class| match level {
        Level::Options => timed.options_later(class, limits.backend()),
        _ => has_tma(class, limits),
    };
    timed
        .to_verify(limits.backend())
        .into_iter()
        .filter(|class| wanted(class) && is_of_level(class))
        .map(missing)
        .filter(|wanted| !wanted.tiles.is_empty())
        .collect()
}

/// Makes variants of kernels ready, verifies them class by class, and records at `level` what became of each; those that failed, each in a line. `None` if
/// the user asked to stop.
///
/// # Errors
/// As [`verify_space`].
pub(super) fn verify_variants(
    session: &mut Session<'_, '_>,
    wanted: &[Preparation],
    level: Level,
    (phase, variants): (&'static str, &str),
) -> anyhow::Result<Option<Vec<String>>> {
    let Session { benches, run, progress, interrupt } = session;
    let (progress, interrupt) = (*progress, *interrupt);
    if wanted.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let mut phase = progress.phase(phase, wanted.len());
    phase.at("making tiles ready");
    let ready = benches.getting_ready(wanted, &[], interrupt);
    let work = |bench: &mut dyn Bench, piece: &Piece, _: usize| {
        let wanted = &wanted[piece.class];
        let verify = |tile| {
            ready.wait(&wanted.only(tile));
            bench.verify(&tile, &wanted.class, wanted.coverage)
        };
        Ok(piece.tile.map(verify))
    };
    let mut done: Vec<BTreeMap<Tile, Result<f64, Failure>>> = vec![BTreeMap::new(); wanted.len()];
    let (mut correct, mut failed) = (0, Vec::new());
    let by_class = |piece: &Piece| piece.class;
    let given =
        benches.give_out(&Piece::of(wanted), Order::ByGroup(&by_class), interrupt, &work, |told| {
            let (piece, outcome) = match told {
                Told::Begun(piece) => {
                    let Preparation { tiles, class, .. } = &wanted[piece.class];
                    phase.at(&format!("{class}: {} tiles", tiles.len()));
                    return Ok(());
                }
                Told::Lost(piece, defect) => {
                    progress.note(&left_to_others(&wanted[piece.class].class.to_string(), &defect));
                    return Ok(());
                }
                Told::NothingElse => return Ok(()),
                Told::Done(piece, outcome) => (piece, outcome),
            };
            let Preparation { tiles, class, .. } = &wanted[piece.class];
            let done = &mut done[piece.class];
            done.extend(piece.tile.zip(outcome));
            if done.len() < tiles.len() {
                return Ok(());
            }
            let mut rows = Vec::with_capacity(tiles.len());
            for tile in tiles {
                let Some(outcome) = done.remove(tile) else { continue };
                match &outcome {
                    Ok(_) => correct += 1,
                    Err(failure) => failed.push(format!("{tile}, {class}: {}", failure.message)),
                }
                rows.push(row(level, tile, class, outcome));
            }
            run.append(rows)?;
            phase.step();
            Ok(())
        })?;
    if !given.went_on()? {
        return Ok(None);
    }
    phase.finish(&format!("{correct} variants correct with {variants}, {} failed", failed.len()));
    Ok(Some(failed))
}

/// Whether kernels of a class load K and V by TMA on a device.
fn has_tma(class: &Class, limits: &Limits) -> bool {
    match limits {
        Limits::Cuda(limits) => limits.has_tma_producers(class),
        Limits::Cpu(_) => false,
    }
}

/// Whether a workload is timed with kernels that use `cp.async` although its class has others with TMA.
pub fn needs_cp_async(workload: &Workload, limits: &Limits) -> bool {
    let geometry = workload.geometry();
    Coverage::for_pages(geometry.page_size).cp_async && has_tma(&Class::of(geometry), limits)
}

/// A tile that is verified for a class of kernels.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The place of its class.
    class: usize,
    /// The class, and which variants.
    of: (Class, Coverage),
    /// `None` where nothing of a class is to be verified.
    tile: Option<Tile>,
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, coverage) = self.of;
        let wanted = Preparation { tiles: self.tile.into_iter().collect(), class, coverage };
        write!(f, "verify {wanted}")
    }
}

impl Piece {
    /// All tiles of these classes, one class after the other; each class has a piece.
    fn of(wanted: &[Preparation]) -> Vec<Self> {
        let of_class = |(class, wanted): (usize, &Preparation)| {
            let tiles = wanted.tiles.iter().copied().map(Some);
            let tiles = if wanted.tiles.is_empty() { vec![None] } else { tiles.collect() };
            let of = (wanted.class, wanted.coverage);
            tiles.into_iter().map(move |tile| Self { class, of, tile })
        };
        wanted.iter().enumerate().flat_map(of_class).collect()
    }
}

/// What became of a class's tiles, and what they need.
type Outcomes = BTreeMap<Tile, (Result<f64, Failure>, Resources)>;

/// What decides which classes are verified.
#[derive(Clone, Debug, Default)]
pub struct Timed {
    /// The classes that will be timed, with how many workloads each has.
    pub classes: BTreeMap<Class, usize>,
    /// The element types that will be timed, by other shards too.
    pub dtypes: BTreeSet<Dtype>,
    /// The classes of which all tiles are timed with `cp.async`, too.
    pub cp_async: BTreeSet<Class>,
    /// Which shard this is.
    pub shard: Option<Shard>,
    /// Tiles that are worth verifying for a class; all for those that it does not name.
    pub only: BTreeMap<Class, BTreeSet<Tile>>,
}

impl Timed {
    /// The class with the most workloads.
    pub fn usual(&self) -> Option<Class> {
        self.classes.iter().max_by_key(|(_, workloads)| **workloads).map(|(class, _)| *class)
    }

    /// Leaves of the classes that a selector must know tiles for those that do well at their head dimension (`screened`), and those that are `known`: a selector's
    /// tree is of one head dimension, and a safe default is one for all. Classes that are not timed have the latter alone.
    pub fn leave(&mut self, backend: Backend, screened: &BTreeMap<u32, Vec<Tile>>, known: &[Tile]) {
        if known.is_empty() {
            return;
        }
        for class in self.to_verify(backend) {
            let of_dim = screened.get(&class.head_dim).filter(|_| self.classes.contains_key(&class));
            let none = Vec::new();
            self.only.insert(class, of_dim.unwrap_or(&none).iter().chain(known).copied().collect());
        }
    }

    /// What the verification of a run's classes needs, if it has these tiles.
    pub fn to_prepare_space(&self, space: &Space, tiles: &[Tile], limits: &Limits) -> Vec<Preparation> {
        let backend = limits.backend();
        let of_class = |class: &Class| self.to_prepare((class, backend), &space.survey(class, limits), tiles);
        let classes = self.first(backend).into_iter().chain(self.others(backend));
        classes.map(|class| of_class(&class)).collect()
    }

    /// The kernels with `cp.async` and with options that verification needs once a selector is fitted, if that returns tiles of these. Where none are `known` that a run's
    /// selector is likely to return, it may be any.
    pub fn to_prepare_returned(
        &self,
        space: &Space,
        tiles: &[Tile],
        known: &[Tile],
        limits: &Limits,
    ) -> Vec<Preparation> {
        let mut wanted = self.to_prepare_space(space, tiles, limits);
        for wanted in &mut wanted {
            let is_likely = |tile: &Tile| known.is_empty() || known.contains(tile);
            wanted.tiles.retain(|tile| self.cp_async_first(&wanted.class) || is_likely(tile));
        }
        let options = wanted.iter().filter(|wanted| self.options_later(&wanted.class, limits.backend()));
        let options = options.map(|wanted| Self::with_options(wanted.tiles.clone(), wanted.class));
        let by_cp_async = wanted.iter().filter(|wanted| has_tma(&wanted.class, limits));
        let by_cp_async = by_cp_async.map(|wanted| self.with_cp_async(wanted.tiles.clone(), wanted.class));
        by_cp_async.chain(options).collect()
    }

    /// What verification needs of a class with these verdicts, if a run has these tiles.
    fn to_prepare(
        &self,
        (class, backend): (&Class, Backend),
        verdicts: &[Verdict],
        tiles: &[Tile],
    ) -> Preparation {
        let wanted = |verdict: &&Verdict| {
            verdict.infeasible.is_none()
                && tiles.contains(&verdict.tile)
                && self.only.get(class).is_none_or(|only| only.contains(&verdict.tile))
        };
        let tiles = verdicts.iter().filter(wanted).map(|verdict| verdict.tile).collect();
        let options = self.has_options(class) && !self.options_later(class, backend);
        Preparation { tiles, class: *class, coverage: Coverage { options, ..Coverage::PLAIN } }
    }

    /// Tiles of a class with the `cp.async` producer.
    fn with_cp_async(&self, tiles: Vec<Tile>, class: Class) -> Preparation {
        let coverage = Coverage { options: self.has_options(&class), cp_async: true, ..Coverage::PLAIN };
        Preparation { tiles, class, coverage }
    }

    /// Tiles of a class with options.
    const fn with_options(tiles: Vec<Tile>, class: Class) -> Preparation {
        Preparation { tiles, class, coverage: Coverage { options: true, ..Coverage::PLAIN } }
    }

    /// Whether a class's variants with options are verified: where most is timed. On a GPU they are kernels of their own, which are not timed.
    fn has_options(&self, class: &Class) -> bool {
        self.usual().is_some_and(|usual| usual == *class)
    }

    /// Whether they are verified of the tiles alone that a selector may return.
    fn options_later(&self, class: &Class, backend: Backend) -> bool {
        self.has_options(class) && backend == Backend::Cuda && !self.cp_async_first(class)
    }

    /// Whether all tiles of a class are verified with `cp.async` before any is timed. The shards of a run are fitted together
    /// where there may be no device: which tiles a selector will return is not known while there is one.
    fn cp_async_first(&self, class: &Class) -> bool {
        self.shard.is_some() || self.cp_async.contains(class)
    }

    /// The classes of which all tiles are verified: those that are timed, the most timed ones first. Shards are fitted together where there may
    /// be no device: each takes a part of the other classes, too.
    pub(super) fn first(&self, backend: Backend) -> Vec<Class> {
        let timed = |class: &Class| self.classes.get(class).copied().unwrap_or(0);
        let wanted = |class: &Class| self.shard.is_some() || timed(class) > 0;
        let mut classes: Vec<Class> = self.to_verify(backend).into_iter().filter(wanted).collect();
        classes.sort_by_key(|class| std::cmp::Reverse(timed(class)));
        classes
    }

    /// The classes of which only what a selector may return is verified.
    fn others(&self, backend: Backend) -> Vec<Class> {
        let first = self.first(backend);
        self.to_verify(backend).into_iter().filter(|class| !first.contains(class)).collect()
    }

    /// The classes that a selector must know tiles for, with every head dimension: a safe default has to serve them all. A GPU's are
    /// compiled first, so only the element types that are timed are verified; a processor's those and all without FP8, for which a
    /// selector answers where no FP8 was timed. Of those that it does not time, a shard takes every `count`-th: together they have all.
    pub(super) fn to_verify(&self, backend: Backend) -> Vec<Class> {
        let always = |class: &Class| backend == Backend::Cpu && !class.dtype.has_fp8_kv();
        // What a selector knows of them would be the tile for all; of others rules choose by the batch.
        let seldom = |class: &Class| !class.head_dim.is_power_of_two() && !self.classes.contains_key(class);
        let needed = |class: &Class| always(class) || self.dtypes.contains(&class.dtype);
        let needed = |class: &Class| needed(class) && !seldom(class);
        let mine = |(index, class): &(usize, Class)| {
            self.classes.contains_key(class)
                || self.shard.is_none_or(|shard| index % shard.count == shard.index)
        };
        Class::all(backend).filter(needed).enumerate().filter(mine).map(|(_, class)| class).collect()
    }
}

fn row(level: Level, tile: &Tile, class: &Class, outcome: Result<f64, Failure>) -> Measurement {
    let (status, relative_error, message) = match outcome {
        Ok(error) => (Status::Correct, Some(error), String::new()),
        Err(failure) => (failure.status, None, failure.message),
    };
    Measurement {
        level,
        workload: class.to_string(),
        scenario: String::new(),
        batch: None,
        held_out: false,
        choice: tile.to_string(),
        tile: Some(*tile),
        status,
        survived: status == Status::Correct,
        complete: true,
        samples_us: Vec::new(),
        limit_us: None,
        requests: None,
        unique_bytes: None,
        unshared_bytes: None,
        scaled: String::new(),
        relative_error,
        resources: Resources::default(),
        conditions: Conditions::default(),
        selector_hash: String::new(),
        message,
    }
}

#[cfg(test)]
#[path = "space_level_tests.rs"]
mod tests;
