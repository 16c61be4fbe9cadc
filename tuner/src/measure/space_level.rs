//! The space of a device: what the rules reject, and what the rest computes on conformance shapes, before anything is timed.

use super::{Bench, Coverage, Failure, Session};
use crate::shard::Shard;
use crate::store::{Conditions, Level, Measurement, Resources, Status, failed_cp_async};
use crate::workloads::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tilewright_heuristics::{Backend, Dtype, Tile};
use tilewright_kernel_templates::{Class, Limits, Space, check};

/// Tiles that [`verify_others`] is given at most: those of a first portfolio.
const MOST_RETURNED: usize = 16;

/// The tiles that may be timed, for each class of kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    passed: BTreeMap<String, Vec<Tile>>,
}

impl Verified {
    /// What the recorded space says, without what failed with `cp.async`.
    pub fn of(rows: &[Measurement]) -> Self {
        let failed = failed_cp_async(rows);
        let mut passed: BTreeMap<String, Vec<Tile>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.level == Level::Space && row.status == Status::Correct) {
            let tile = row.tile.filter(|tile| !failed.contains_key(&(row.workload.as_str(), *tile)));
            passed.entry(row.workload.clone()).or_default().extend(tile);
        }
        Self { passed }
    }

    /// The tiles that passed for a class.
    pub fn tiles(&self, class: &Class) -> &[Tile] {
        self.passed.get(&class.to_string()).map_or(&[], Vec::as_slice)
    }
}

/// Judges and verifies the space, one part of the run a class. Classes that the run already has are kept.
///
/// Only classes that are timed are verified, the most timed ones first; those of the others that `deadline` leaves no time for are said, and not timed. A
/// selector may be asked about others: [`verify_others`] verifies the few tiles that it may return. `timed` decides for which class the variants with options are verified, too. Where a class has two ways of copying K and
/// V, the second one is verified here only if all tiles are timed with it; [`verify_cp_async`] does it for the few tiles that a selector may
/// return. Returns what may be timed; `None` if the user asked to stop.
///
/// # Errors
/// The run's folder, or a bench that cannot go on.
pub fn verify_space(
    session: &mut Session<'_>,
    space: &Space,
    timed: &Timed,
    deadline: Instant,
) -> anyhow::Result<Option<Verified>> {
    let Session { bench, run, progress, interrupt } = session;
    let (bench, progress, interrupt) = (&mut **bench, *progress, *interrupt);
    let known = run.measured(Level::Space);
    let classes: Vec<Class> = timed
        .first(bench.limits().backend())
        .into_iter()
        .filter(|class| !known.contains(&class.to_string()))
        .collect();
    let mut phase = progress.phase("verify", classes.len());
    for (index, class) in classes.into_iter().enumerate() {
        // Without the most timed class there is nothing to measure.
        if (index > 0 || !known.is_empty()) && Instant::now() >= deadline {
            progress.note(&format!("{class}: no time to verify its kernels, so its workloads are not measured; a larger `--budget` has it"));
            continue;
        }
        let verdicts = space.survey(&class, bench.limits());
        let feasible: Vec<Tile> = verdicts
            .iter()
            .filter(|verdict| verdict.infeasible.is_none())
            .map(|verdict| verdict.tile)
            .collect();
        phase.at(&format!("{class}: making {} tiles ready", feasible.len()));
        let coverage = Coverage { options: timed.with_options(&class), cp_async: false };
        bench.prepare(&feasible, &class, coverage);
        phase.at(&format!("{class} against the f64 reference"));
        let mut rows = Vec::with_capacity(verdicts.len());
        for verdict in verdicts {
            if interrupt.requested() {
                return Ok(None);
            }
            let outcome = match &verdict.infeasible {
                Some(reason) => Err(Failure { status: Status::Constraints, message: reason.to_string() }),
                None => bench.verify(&verdict.tile, &class, coverage),
            };
            if let Some(defect) = bench.defect() {
                return Err(defect.into());
            }
            let resources = bench.resources(&verdict.tile, &class);
            rows.push(Measurement { resources, ..row(Level::Space, &verdict.tile, &class, outcome) });
        }
        run.append(rows)?;
        phase.step();
    }
    let (mut correct, mut rejected, mut failed) = (0, 0, 0);
    for row in run.rows().iter().filter(|row| row.level == Level::Space) {
        match row.status {
            Status::Correct => correct += 1,
            Status::Constraints => rejected += 1,
            _ => failed += 1,
        }
    }
    phase.finish(&format!("{correct} variants correct, {rejected} infeasible, {failed} failed"));
    let first = |class: &Class| timed.cp_async_first(class);
    let failed = verify_cp_async(session, space.tiles(), &first, timed)?;
    Ok(failed.map(|_| Verified::of(session.run.rows())))
}

/// Verifies tiles for the classes that nothing is timed of: a selector is asked about them, too, and its safe default has to serve them all. What
/// the run already has is not repeated. `None` if the user asked to stop.
///
/// # Errors
/// As [`verify_space`].
pub fn verify_others(session: &mut Session<'_>, tiles: &[Tile], timed: &Timed) -> anyhow::Result<Option<()>> {
    let Session { bench, run, progress, interrupt } = session;
    let (bench, progress, interrupt) = (&mut **bench, *progress, *interrupt);
    let known: BTreeSet<(String, Option<Tile>)> = run
        .rows()
        .iter()
        .filter(|row| row.level == Level::Space)
        .map(|row| (row.workload.clone(), row.tile))
        .collect();
    let mut wanted = Vec::new();
    for class in timed.others(bench.limits().backend()) {
        let name = class.to_string();
        let missing = |tile: &&Tile| !known.contains(&(name.clone(), Some(**tile)));
        let missing: Vec<Tile> = tiles.iter().filter(missing).copied().collect();
        if !missing.is_empty() {
            wanted.push((class, missing));
        }
    }
    let mut phase = progress.phase("other classes", wanted.len());
    for (class, tiles) in wanted {
        phase.at(&format!("{class}: {} tiles", tiles.len()));
        let judged: Vec<(Tile, Option<String>)> = tiles
            .iter()
            .map(|tile| (*tile, check(tile, &class, bench.limits()).err().map(|reason| reason.to_string())))
            .collect();
        let feasible: Vec<Tile> =
            judged.iter().filter(|(_, reason)| reason.is_none()).map(|(tile, _)| *tile).collect();
        let coverage = Coverage { options: timed.with_options(&class), cp_async: false };
        bench.prepare(&feasible, &class, coverage);
        let mut rows = Vec::with_capacity(judged.len());
        for (tile, reason) in judged {
            if interrupt.requested() {
                return Ok(None);
            }
            let outcome = match reason {
                Some(message) => Err(Failure { status: Status::Constraints, message }),
                None => bench.verify(&tile, &class, coverage),
            };
            if let Some(defect) = bench.defect() {
                return Err(defect.into());
            }
            let resources = bench.resources(&tile, &class);
            rows.push(Measurement { resources, ..row(Level::Space, &tile, &class, outcome) });
        }
        run.append(rows)?;
        phase.step();
    }
    phase.finish("the tiles that a selector may return are verified for all classes");
    Ok(Some(()))
}

/// Sets of options that [`Coverage::options`] has beside the plain one, each kernels of its own.
const OPTION_SETS: f64 = 2.0;

/// How long [`verify_space`] and [`verify_others`] would take, within a factor of two or so, by what some tiles of the most timed class do.
pub fn time_to_verify(bench: &mut dyn Bench, space: &Space, timed: &Timed) -> Duration {
    let backend = bench.limits().backend();
    let classes = timed.first(backend);
    let feasible = |class: &Class, bench: &dyn Bench| space.feasible(class, bench.limits());
    let Some(usual) = classes.first() else { return Duration::ZERO };
    let of_usual = feasible(usual, bench);
    // Several for each thread that compiles a GPU's, so that none waits for the largest of them; none is compiled a second time.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let most = match backend {
        Backend::Cpu => 8,
        Backend::Cuda => (3 * threads).max(8),
    };
    let stride = of_usual.len().div_ceil(most).max(1);
    let sample: Vec<Tile> = of_usual.iter().copied().step_by(stride).collect();
    let Some((first, others)) = sample.split_first() else { return Duration::ZERO };
    // What fails is told when the space is verified.
    let mut took = |tiles: &[Tile], ready: bool| {
        let begin = Instant::now();
        if ready {
            bench.prepare(tiles, usual, Coverage::PLAIN);
        }
        for tile in tiles.iter().filter(|_| !ready) {
            let _ = bench.verify(tile, usual, Coverage::PLAIN);
        }
        begin.elapsed().as_secs_f64()
    };
    let compiled = took(&sample, true) / sample.len() as f64;
    // The first one also draws the class's batches and computes their reference.
    let drawn = took(std::slice::from_ref(first), false);
    let each = compiled + took(others, false) / others.len().max(1) as f64;
    let of_class = |tiles: usize| drawn + each * tiles as f64;
    let timed_classes: f64 = classes.iter().map(|class| of_class(feasible(class, bench).len())).sum();
    let with_options = OPTION_SETS * of_class(of_usual.len());
    let returned = timed.others(backend).len() as f64 * of_class(MOST_RETURNED);
    Duration::from_secs_f64(timed_classes + with_options + returned)
}

/// Verifies tiles once more, with the `cp.async` producer although their classes of kernels have TMA: for caches that TMA cannot load. The few that a selector may return are cheap, all of the space would take as long again as its verification. What the run
/// already has is not repeated, and what failed with TMA is left out, as are classes that are not `wanted`.
///
/// Returns how many variants failed now: no selector may return them, so another has to be fitted. `None` if the user asked to stop.
///
/// # Errors
/// As [`verify_space`].
pub fn verify_cp_async(
    session: &mut Session<'_>,
    tiles: &[Tile],
    wanted: &dyn Fn(&Class) -> bool,
    timed: &Timed,
) -> anyhow::Result<Option<usize>> {
    let Session { bench, run, progress, interrupt } = session;
    let (bench, progress, interrupt) = (&mut **bench, *progress, *interrupt);
    let verified = Verified::of(run.rows());
    let known: BTreeSet<(&str, Option<Tile>)> = run
        .rows()
        .iter()
        .filter(|row| row.level == Level::CpAsync)
        .map(|row| (row.workload.as_str(), row.tile))
        .collect();
    let missing = |class: Class| {
        let name = class.to_string();
        let missing = |tile: &&Tile| tiles.contains(tile) && !known.contains(&(name.as_str(), Some(**tile)));
        (class, verified.tiles(&class).iter().filter(missing).copied().collect::<Vec<Tile>>())
    };
    let classes: Vec<(Class, Vec<Tile>)> = timed
        .to_verify(bench.limits().backend())
        .into_iter()
        .filter(|class| wanted(class) && has_tma(class, bench.limits()))
        .map(missing)
        .filter(|(_, tiles)| !tiles.is_empty())
        .collect();
    if classes.is_empty() {
        return Ok(Some(0));
    }
    let mut phase = progress.phase("verifying cp.async", classes.len());
    let (mut correct, mut failed) = (0, Vec::new());
    for (class, tiles) in classes {
        phase.at(&format!("{class}: {} tiles", tiles.len()));
        let coverage = Coverage { options: timed.with_options(&class), cp_async: true };
        bench.prepare(&tiles, &class, coverage);
        let mut rows = Vec::with_capacity(tiles.len());
        for tile in tiles {
            if interrupt.requested() {
                return Ok(None);
            }
            let outcome = bench.verify(&tile, &class, coverage);
            if let Some(defect) = bench.defect() {
                return Err(defect.into());
            }
            match &outcome {
                Ok(_) => correct += 1,
                Err(failure) => failed.push(format!("{tile}, {class}: {}", failure.message)),
            }
            rows.push(row(Level::CpAsync, &tile, &class, outcome));
        }
        run.append(rows)?;
        phase.step();
    }
    phase.finish(&format!("{correct} `cp.async` variants correct, {} failed", failed.len()));
    for failed in &failed {
        progress.note(&format!("no selector may return a tile that fails with `cp.async`: {failed}"));
    }
    Ok(Some(failed.len()))
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
}

impl Timed {
    /// Whether a class's variants with options are verified. They are kernels of their own, which are not timed: they are verified where most
    /// is timed.
    fn with_options(&self, class: &Class) -> bool {
        let usual = self.classes.iter().max_by_key(|(_, workloads)| **workloads);
        usual.is_some_and(|(usual, _)| usual == class)
    }

    /// Whether all tiles of a class are verified with `cp.async` before any is timed. The shards of a run are fitted together
    /// where there may be no device: which tiles a selector will return is not known while there is one.
    fn cp_async_first(&self, class: &Class) -> bool {
        self.shard.is_some() || self.cp_async.contains(class)
    }

    /// The classes of which all tiles are verified: those that are timed, the most timed ones first. Shards are fitted together where there may
    /// be no device: each takes a part of the other classes, too.
    fn first(&self, backend: Backend) -> Vec<Class> {
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
    fn to_verify(&self, backend: Backend) -> Vec<Class> {
        let always = |dtype: Dtype| backend == Backend::Cpu && !dtype.has_fp8_kv();
        let needed = |class: &Class| always(class.dtype) || self.dtypes.contains(&class.dtype);
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
        shape: None,
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
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::measure::ScriptedBench;
    use crate::progress::Progress;
    use crate::store::{RunFolder, Start, test_data};
    use tilewright_kernel_templates::CudaLimits;

    #[test]
    fn fp8_is_verified_where_it_is_timed() {
        let dtypes = |backend, dtypes: &[Dtype]| {
            let timed = Timed { dtypes: dtypes.iter().copied().collect(), ..Timed::default() };
            let classes = timed.to_verify(backend);
            let dtypes: BTreeSet<Dtype> = classes.iter().map(|class| class.dtype).collect();
            assert_eq!(
                classes.len(),
                Class::all(backend).filter(|class| dtypes.contains(&class.dtype)).count()
            );
            dtypes.into_iter().collect::<Vec<_>>()
        };
        let plain = [Dtype::F16, Dtype::Bf16, Dtype::F32];
        assert_eq!(dtypes(Backend::Cpu, &[]), plain);
        assert_eq!(dtypes(Backend::Cpu, &[Dtype::Fp8F32]), [&plain[..], &[Dtype::Fp8F32]].concat());
        assert_eq!(dtypes(Backend::Cuda, &[Dtype::Bf16]), [Dtype::Bf16]);
        assert_eq!(dtypes(Backend::Cuda, &[]), []);
    }

    #[test]
    fn shards_verify_what_they_time_and_together_all_classes() {
        let class = Class { head_dim: 128, dtype: Dtype::Bf16 };
        for backend in [Backend::Cpu, Backend::Cuda] {
            // What the second of three shards times is of another type than what the others do.
            let of = |shard: Option<usize>| {
                let classes = BTreeMap::from([(class, 1)]);
                let classes = if shard == Some(1) { classes } else { BTreeMap::new() };
                let shard = shard.map(|index| Shard { index, count: 3 });
                let dtypes = BTreeSet::from([Dtype::F16, Dtype::Bf16]);
                Timed { classes, dtypes, shard, ..Timed::default() }.to_verify(backend)
            };
            let (alone, shards) = (of(None), [0, 1, 2].map(|index| of(Some(index))));
            let together: BTreeSet<Class> = shards.iter().flatten().copied().collect();
            assert_eq!(together, alone.iter().copied().collect());
            assert!(shards[1].contains(&class));
            assert!(shards.iter().all(|shard| shard.len() <= alone.len() / 3 + 1));
        }
    }

    const USUAL: Class = Class { head_dim: 128, dtype: Dtype::F16 };
    const OTHER: Class = Class { head_dim: 64, dtype: Dtype::F16 };

    /// What is verified before anything is timed on a GPU with TMA, where some variants are wrong; the bench, and what may be timed.
    fn verified_first(timed: Timed, wrong: &[(Tile, Class, bool)]) -> (ScriptedBench, Verified) {
        let mut bench = ScriptedBench::new(Vec::new(), None);
        bench.limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
        bench.wrong = wrong.to_vec();
        let timed = Timed { classes: [(USUAL, 2), (OTHER, 1)].into(), dtypes: [Dtype::F16].into(), ..timed };
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
        let (space, interrupt) = (Space::of(Backend::Cuda), Interrupt::default());
        let later = Instant::now() + Duration::from_secs(600);
        let verified = verify_space(
            &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt),
            &space,
            &timed,
            later,
        )
        .unwrap();
        (bench, verified.unwrap())
    }

    /// Classes of which tiles were verified with `cp.async`, or with TMA, with whether options were too and how many tiles.
    fn coverages(bench: &ScriptedBench, cp_async: bool) -> BTreeMap<(Class, bool), usize> {
        let mut counts = BTreeMap::new();
        for (_, class, coverage) in
            bench.verified.iter().filter(|(_, _, coverage)| coverage.cp_async == cp_async)
        {
            *counts.entry((*class, coverage.options)).or_default() += 1;
        }
        counts
    }

    #[test]
    fn cp_async_is_verified_first_only_if_it_is_timed() {
        let (bench, all) = verified_first(Timed::default(), &[]);
        let feasible: BTreeMap<_, _> =
            [USUAL, OTHER].map(|class| ((class, class == USUAL), all.tiles(&class).len())).into();
        assert!(feasible.values().all(|tiles| *tiles > 50), "{feasible:?}");
        assert!(all.tiles(&Class { head_dim: 256, ..USUAL }).is_empty(), "nothing is timed of it");
        assert_eq!(coverages(&bench, false), feasible);
        assert!(coverages(&bench, true).is_empty());

        let cp_async = [OTHER, Class { head_dim: 256, ..USUAL }].into();
        let wrong = all.tiles(&OTHER)[7];
        let (bench, timed) = verified_first(Timed { cp_async, ..Timed::default() }, &[(wrong, OTHER, true)]);
        assert_eq!(coverages(&bench, false), feasible);
        assert_eq!(coverages(&bench, true), [((OTHER, false), feasible[&(OTHER, false)])].into());
        let rest: Vec<Tile> = all.tiles(&OTHER).iter().copied().filter(|tile| *tile != wrong).collect();
        assert_eq!((timed.tiles(&OTHER), timed.tiles(&USUAL)), (rest.as_slice(), all.tiles(&USUAL)));

        let shard = Some(Shard { index: 0, count: 1 });
        let (bench, _) = verified_first(Timed { shard, ..Timed::default() }, &[]);
        assert_eq!(
            coverages(&bench, true),
            feasible,
            "no shard can verify more when shards are fitted together"
        );
    }

    #[test]
    fn untimed_classes_get_what_a_selector_may_return() {
        let mut bench = ScriptedBench::new(Vec::new(), None);
        bench.limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
        let timed = Timed { classes: [(USUAL, 2)].into(), dtypes: [Dtype::F16].into(), ..Timed::default() };
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
        // The second has no room for heads of 256 elements.
        let tiles = ["m64n64w4s2", "m64n128w8s3"].map(|tile| tile.parse::<Tile>().unwrap());
        for _ in 0..2 {
            verify_others(
                &mut Session::new(&mut bench, &mut run, Progress::Silent, &Interrupt::default()),
                &tiles,
                &timed,
            )
            .unwrap();
        }
        let of = |class: Class| {
            let rows = run.rows().iter().filter(move |row| row.workload == class.to_string());
            rows.map(|row| (row.tile.unwrap(), row.status)).collect::<Vec<_>>()
        };
        let wide = Class { head_dim: 256, ..USUAL };
        assert_eq!(of(USUAL), [], "all of its tiles are verified before");
        assert_eq!(of(OTHER), tiles.map(|tile| (tile, Status::Correct)), "once");
        assert_eq!(of(wide), [(tiles[0], Status::Correct), (tiles[1], Status::Constraints)]);
        assert!(bench.verified.iter().all(|(tile, class, _)| (*tile, *class) != (tiles[1], wide)));
    }

    #[test]
    fn without_time_only_the_most_timed_class_is_verified() {
        let mut bench = ScriptedBench::new(Vec::new(), None);
        bench.limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
        let timed = Timed {
            classes: [(OTHER, 1), (USUAL, 2)].into(),
            dtypes: [Dtype::F16].into(),
            ..Timed::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
        let (space, interrupt) = (Space::of(Backend::Cuda), Interrupt::default());
        assert!(time_to_verify(&mut bench, &space, &timed) < Duration::from_secs(60));
        bench.verified.clear();
        let now = Instant::now();
        for _ in ["fresh", "resumed"] {
            let verified = verify_space(
                &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt),
                &space,
                &timed,
                now,
            );
            let verified = verified.unwrap().unwrap();
            assert!(!verified.tiles(&USUAL).is_empty() && verified.tiles(&OTHER).is_empty());
        }
    }

    #[test]
    fn what_fails_in_the_default_way_is_not_verified_in_the_other() {
        let (_, all) = verified_first(Timed::default(), &[]);
        let wrong = all.tiles(&USUAL)[0];
        let timed = Timed { cp_async: [USUAL].into(), ..Timed::default() };
        let (bench, _) = verified_first(timed, &[(wrong, USUAL, false)]);
        let of_it: Vec<bool> = bench
            .verified
            .iter()
            .filter(|(tile, class, _)| (*tile, *class) == (wrong, USUAL))
            .map(|(_, _, coverage)| coverage.cp_async)
            .collect();
        assert_eq!(of_it, [false]);
    }
}
