//! The first level: the space, tried on one small batch and raced on a few whole ones. It says which tiles are worth verifying in full and racing
//! on all batches, and nothing else: what it measures is neither fitted nor judged.
//!
//! Compiling takes most of its time. Tiles that differ by their stages alone differ least, so a first look has one of each shape, and its
//! neighbours are compiled where that one does well.

use super::batch_level::measure_screening;
use super::first_look::{Look, Looked, is_near, same_shape};
use super::space_level::try_tiles;
use super::{Coverage, Preparation, Session, Verified, needs_cp_async};
use crate::costs::from_screening;
use crate::fit::CostRow;
use crate::store::{Level, Measurement};
use crate::workloads::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};
use tilewright_heuristics::{Tile, TileSetBuf};
use tilewright_kernel_templates::cuda::WarpSplit;
use tilewright_kernel_templates::{Class, Limits, Space};

/// Batches that the space is raced on: of the class with the most of them, and of each other one.
const BATCHES: [usize; 2] = [40, 14];
/// Batches of a class that its first look is at, evenly from those that it is raced on.
const LOOKED_AT: usize = 10;
/// Part of a class's time that its first look may take.
const LOOKS: f64 = 0.25;
/// One of so many tiles whose kernels are not there yet is raced apart, after the others: the kernels that take longest come a second after all others.
const APART: usize = 6;
/// A class of kernels whose tiles are raced, and the batches.
#[derive(Clone, Debug)]
pub struct Screening {
    /// The class.
    pub class: Class,
    /// Batches of it, evenly from all that are fitted.
    pub workloads: Vec<Workload>,
}

/// What the space is raced on: of each head dimension the element type that most of the fitted batches have, the class with the most batches
/// first. Types of one width take the same tiles.
pub fn screenings(batches: &[Workload], limits: &Limits) -> Vec<Screening> {
    let mut by_class: BTreeMap<Class, Vec<&Workload>> = BTreeMap::new();
    for workload in batches.iter().filter(|workload| !workload.held_out()) {
        by_class.entry(Class::of(workload.geometry())).or_default().push(workload);
    }
    let mut by_dim: BTreeMap<u32, (Class, Vec<&Workload>)> = BTreeMap::new();
    for (class, workloads) in by_class {
        let known = by_dim.get(&class.head_dim).map_or(0, |(_, known)| known.len());
        if workloads.len() > known {
            by_dim.insert(class.head_dim, (class, workloads));
        }
    }
    let mut classes: Vec<(Class, Vec<&Workload>)> = by_dim.into_values().collect();
    classes.sort_by_key(|(_, workloads)| std::cmp::Reverse(workloads.len()));
    let screening = |(index, (class, mut workloads)): (usize, (Class, Vec<&Workload>))| {
        // Batches whose pages TMA cannot load would have all tiles compiled once more.
        if workloads.iter().any(|workload| !needs_cp_async(workload, limits)) {
            workloads.retain(|workload| !needs_cp_async(workload, limits));
        }
        let most = BATCHES[index.min(1)].min(workloads.len());
        let evenly = (0..most).map(|i| workloads[i * workloads.len() / most].clone());
        Screening { class, workloads: evenly.collect() }
    };
    classes.into_iter().enumerate().map(screening).collect()
}

/// Tries the space of each of these classes (`which`, of all `screenings`), and races what passes on its batches; what the run already has is not repeated. They
/// share the time until `deadline`, each by its batches.
///
/// The first class may be screened before the others: what is known of its shapes is taken from the run when these are.
///
/// Returns `false` if the user asked to stop.
///
/// # Errors
/// The bench, a scenario that makes no batch, or the run's folder.
pub fn screen(
    session: &mut Session<'_, '_>,
    space: &Space,
    screenings: &[Screening],
    which: Range<usize>,
    deadline: Instant,
) -> anyhow::Result<bool> {
    let Some(looked) = looks(session, space, screenings, which, deadline)? else { return Ok(false) };
    let before = session.benches.compiled();
    let mut left: usize = looked.iter().map(|(screening, _)| screening.workloads.len()).sum();
    for (screening, Looked { mut passed, left: others }) in looked {
        let Screening { class, workloads } = screening;
        let share = workloads.len() as f64 / left.max(1) as f64;
        left -= workloads.len();
        let last = session.benches.compiled_last(&trial(*class, others.clone()), APART);
        let is_last = |tile: &Tile| last.contains(tile);
        let (last, first): (Vec<Tile>, Vec<Tile>) = others.iter().partition(|tile| is_last(tile));
        let all = passed.len() + first.len() + last.len();
        for (tiles, is_over) in [(first, last.is_empty()), (last, true)] {
            if tiles.is_empty() && passed.is_empty() {
                continue;
            }
            let Some(tried) = try_and_tell(session, &tiles, (class, workloads))? else { return Ok(false) };
            passed.extend(tried);
            let part = if is_over { 1.0 } else { passed.len() as f64 / all.max(1) as f64 };
            let tried = Verified::tried(class, std::mem::take(&mut passed));
            let time = until(session.benches.moved(deadline, before), share * part);
            if !measure_screening(session, (Level::Screen, is_over), workloads, &tried, time)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// The first looks at these classes (`which`, of all `screenings`), and no more. Returns `false` if the user asked to stop.
///
/// # Errors
/// As [`screen`].
pub fn look_at_classes(
    session: &mut Session<'_, '_>,
    space: &Space,
    screenings: &[Screening],
    which: Range<usize>,
    deadline: Instant,
) -> anyhow::Result<bool> {
    Ok(looks(session, space, screenings, which, deadline)?.is_some())
}

/// The first looks at classes that are not screened yet, and what they leave, which is compiled from then on; a look that the run has is not repeated. `None` if the
/// user asked to stop.
fn looks<'a>(
    session: &mut Session<'_, '_>,
    space: &Space,
    screenings: &'a [Screening],
    which: Range<usize>,
    deadline: Instant,
) -> anyhow::Result<Option<Vec<(&'a Screening, Looked)>>> {
    let (known, looked_before_now) =
        (session.run.measured(Level::Screen), session.run.measured(Level::FirstLook));
    let is_left =
        |screening: &Screening| !screening.workloads.iter().all(|workload| known.contains(workload.name()));
    let limits = session.benches.limits().clone();
    let left: Vec<(usize, &Screening)> =
        screenings.iter().enumerate().filter(|(index, one)| which.contains(index) && is_left(one)).collect();
    let batches: usize = left.iter().map(|(_, screening)| screening.workloads.len()).sum();
    let before = session.benches.compiled();
    let mut asked = false;
    let mut looked: Vec<(&Screening, Looked)> = Vec::new();
    for (index, screening) in left {
        if index > 0 && !asked {
            asked = true;
            // All at once: a few kernels of a class alone would leave cores idle.
            let ones = looks_at_others(session.run.rows(), space, screenings, &limits);
            session.benches.getting_ready(&ones, &[], session.interrupt);
        }
        let tiles = tiles_of(session.run.rows(), space, screenings, index, &limits);
        let (class, at) = (screening.class, look_at(index));
        let is_known = looked_at(screening).all(|workload| looked_before_now.contains(workload.name()));
        let before_now = if is_known { looked_before(session.run.rows(), &class, &tiles, at) } else { None };
        let of_class = match before_now {
            Some(of_class) => Some(of_class),
            None => {
                let share = screening.workloads.len() as f64 / batches.max(1) as f64 * LOOKS;
                let time = |session: &Session<'_, '_>| until(session.benches.moved(deadline, before), share);
                first_look(session, screening, &tiles, at, &time)?
            }
        };
        let Some(of_class) = of_class else { return Ok(None) };
        session.benches.getting_ready(&[trial(class, of_class.left.clone())], &[], session.interrupt);
        looked.push((screening, of_class));
    }
    Ok(Some(looked))
}

/// What the first looks at all classes but the first need once that one was looked at.
pub fn looks_at_others(
    rows: &[Measurement],
    space: &Space,
    screenings: &[Screening],
    limits: &Limits,
) -> Vec<Preparation> {
    let one = |(index, screening): (usize, &Screening)| {
        trial(screening.class, look_at(index).first(&tiles_of(rows, space, screenings, index, limits)))
    };
    left(rows, screenings).map(one).collect()
}

/// All classes but the first that a run has not screened, with their places.
fn left<'a>(
    rows: &[Measurement],
    screenings: &'a [Screening],
) -> impl Iterator<Item = (usize, &'a Screening)> {
    let screened = rows.iter().filter(|row| row.level == Level::Screen);
    let screened: BTreeSet<String> = screened.map(|row| row.workload.clone()).collect();
    let is_left = move |(_, screening): &(usize, &Screening)| {
        !screening.workloads.iter().all(|workload| screened.contains(workload.name()))
    };
    screenings.iter().enumerate().skip(1).filter(is_left)
}

/// What the screening of all classes but the first needs once they were looked at.
pub fn left_by_looks(
    rows: &[Measurement],
    space: &Space,
    screenings: &[Screening],
    limits: &Limits,
) -> Vec<Preparation> {
    let of_class = |(index, screening): (usize, &Screening)| {
        let tiles = tiles_of(rows, space, screenings, index, limits);
        let looked = looked_before(rows, &screening.class, &tiles, look_at(index));
        trial(screening.class, looked.map_or(tiles, |looked| looked.left))
    };
    left(rows, screenings).map(of_class).collect()
}

/// The look at a class: the first one has most of the batches.
const fn look_at(index: usize) -> Look {
    Look::AT[if index == 0 { 0 } else { 1 }]
}

/// The tiles of a class, without the shapes that lost at the first class, by what the run has of it: they are tried nowhere. Of what that class cannot run
/// nothing is known, nor of tiles whose warps split a head instead of the tokens.
fn tiles_of(
    rows: &[Measurement],
    space: &Space,
    screenings: &[Screening],
    index: usize,
    limits: &Limits,
) -> Vec<Tile> {
    let mut tiles = space.feasible(&screenings[index].class, limits);
    let alike = |first: &Screening| {
        WarpSplit::splits_heads(first.class.head_dim)
            == WarpSplit::splits_heads(screenings[index].class.head_dim)
    };
    if let Some(first) = screenings.first().filter(|first| index > 0 && alike(first)) {
        let of_first = space.feasible(&first.class, limits);
        if let Some(looked) = looked_before(rows, &first.class, &of_first, look_at(0)) {
            tiles.retain(|tile| {
                looked.has_shape_of(tile) || !of_first.iter().any(|known| same_shape(known, tile))
            });
        }
    }
    tiles
}

/// What a first look at a class has left, by what the run has of it. `None` where there was none.
fn looked_before(rows: &[Measurement], class: &Class, tiles: &[Tile], look: Look) -> Option<Looked> {
    let ones = look.ones(tiles)?;
    let raced = best_of(rows, Level::FirstLook, class);
    (!raced.is_empty()).then(|| look.left(tiles, &ones, &raced, &raced))
}

/// What a run compiles first: the tiles that the first look at the class with most batches has, then what it leaves of the shapes that these `known` tiles have, which
/// are likely to do well.
pub fn to_prepare_first(
    space: &Space,
    screenings: &[Screening],
    known: &[Tile],
    limits: &Limits,
) -> Vec<Preparation> {
    let Some(class) = screenings.first().map(|screening| screening.class) else { return Vec::new() };
    let tiles = space.feasible(&class, limits);
    let ones = look_at(0).first(&tiles);
    let is_likely = |tile: &&Tile| {
        !ones.contains(tile) && is_near(tile, &ones) && known.iter().any(|known| same_shape(known, tile))
    };
    let likely = tiles.iter().filter(is_likely).copied().collect();
    vec![trial(class, ones), trial(class, likely)]
}

fn trial(class: Class, tiles: Vec<Tile>) -> Preparation {
    Preparation { tiles, class, coverage: Coverage::TRIAL }
}

/// When this part of what is left until `deadline` is over.
fn until(deadline: Instant, part: f64) -> Instant {
    let time = deadline.saturating_duration_since(Instant::now()).mul_f64(part);
    Instant::now() + time.max(Duration::from_millis(100))
}

/// Tries tiles, and says how many passed.
fn try_and_tell(
    session: &mut Session<'_, '_>,
    tiles: &[Tile],
    (class, workloads): (&Class, &[Workload]),
) -> anyhow::Result<Option<Vec<Tile>>> {
    if tiles.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let begin = Instant::now();
    let passed = try_tiles(session, tiles, class)?;
    if let Some(passed) = &passed {
        session.progress.note(&format!(
            "{class}: {} of {} tiles were compiled and passed their trial ({:.1} s); they are raced on {} whole batches",
            passed.len(),
            tiles.len(),
            begin.elapsed().as_secs_f64(),
            workloads.len()
        ));
    }
    Ok(passed)
}

/// When a race ends that begins now.
type Until<'a> = &'a dyn Fn(&Session<'_, '_>) -> Instant;

/// The batches that a first look is at.
fn looked_at(screening: &Screening) -> impl Iterator<Item = &Workload> {
    let stride = screening.workloads.len().div_ceil(LOOKED_AT).max(1);
    screening.workloads.iter().step_by(stride)
}

/// Tries one tile of each shape, and races those that pass on a few of the batches. `None` if the user asked to stop.
fn first_look(
    session: &mut Session<'_, '_>,
    screening: &Screening,
    tiles: &[Tile],
    look: Look,
    until: Until<'_>,
) -> anyhow::Result<Option<Looked>> {
    let class = &screening.class;
    let Some(ones) = look.ones(tiles) else { return Ok(Some(Looked::all(tiles))) };
    let looked_at: Vec<Workload> = looked_at(screening).cloned().collect();
    let Some(passed) = try_and_tell(session, &ones, (class, &looked_at))? else { return Ok(None) };
    let raced = Verified::tried(class, passed.clone());
    let until = until(session);
    if !measure_screening(session, (Level::FirstLook, true), &looked_at, &raced, until)? {
        return Ok(None);
    }
    let best = best_of(session.run.rows(), Level::FirstLook, class);
    Ok(Some(look.left(tiles, &ones, &passed, &best)))
}

/// The tiles that were raced at `level`, from those on that are nearest to the best of a batch, on the quarter of the batches that each does best on.
fn best_of(rows: &[Measurement], level: Level, class: &Class) -> Vec<Tile> {
    let Ok(table) = from_screening(rows, level, class) else { return Vec::new() };
    let over = |candidate: usize| {
        let over = |row: &CostRow| {
            let best = row.costs.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            Some(row.costs[candidate]? / best)
        };
        let mut over: Vec<f64> = table.rows().iter().filter_map(over).collect();
        over.sort_by(f64::total_cmp);
        over.truncate(table.rows().len().div_ceil(4));
        over.iter().sum::<f64>() / over.len().max(1) as f64
    };
    let tile = |(candidate, name): (usize, &String)| {
        Some((over(candidate), name.parse::<TileSetBuf>().ok()?.single()?))
    };
    let mut tiles: Vec<(f64, Tile)> = table.candidates().iter().enumerate().filter_map(tile).collect();
    tiles.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    tiles.into_iter().map(|(_, tile)| tile).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::measure::ScriptedBench;
    use crate::progress::Progress;
    use crate::store::test_data::{measurement, provenance};
    use crate::store::{RunFolder, Start};
    use crate::workloads::{Scale, Workloads};
    use tilewright_heuristics::{Backend, BatchShape, Dtype};
    use tilewright_kernel_templates::CudaLimits;

    fn limits() -> Limits {
        Limits::Cuda(CudaLimits::named("h200").unwrap())
    }

    #[test]
    fn the_catalogue_is_screened_evenly_and_held_out_batches_are_not() {
        let scale = Scale::of(Backend::Cuda);
        let batches = Workloads::load(&[], Backend::Cuda, &scale, None).unwrap().batches;
        let screenings = screenings(&batches, &limits());
        let classes: Vec<(u32, usize)> = screenings
            .iter()
            .map(|screening| (screening.class.head_dim, screening.workloads.len()))
            .collect();
        assert_eq!(classes[0], (128, 40));
        assert_eq!(classes.len(), 6, "head dimensions: {classes:?}");
        assert!(classes[1..].iter().all(|(_, count)| (6..=14).contains(count)), "{classes:?}");
        for screening in &screenings {
            for workload in &screening.workloads {
                assert!(!workload.held_out() && !needs_cp_async(workload, &limits()));
                assert_eq!(Class::of(workload.geometry()), screening.class);
            }
        }
        let scenarios: std::collections::BTreeSet<&str> =
            screenings[0].workloads.iter().map(Workload::scenario).collect();
        assert!(scenarios.len() >= 4, "{scenarios:?}");
        assert_eq!(screenings[0].class.dtype, Dtype::F16);
    }

    #[test]
    fn the_best_tiles_are_those_nearest_to_the_best_somewhere() {
        let class = Class { head_dim: 128, dtype: Dtype::F16 };
        let row = |requests: u32, tile: &str, us: f64| {
            let batch =
                BatchShape { requests, head_dim: 128, ..BatchShape::from_values([1; BatchShape::COUNT]) };
            let batch = Some(BatchShape { dtype: Dtype::F16.code(), ..batch });
            let row = measurement(&format!("w{requests}"), tile, &[us, us]);
            Measurement { level: Level::Screen, batch, ..row }
        };
        // One is best of a quarter of the batches and bad of all others, one never best, one always bad.
        let rows: Vec<Measurement> = (1..=8)
            .flat_map(|requests| {
                let special = if requests <= 2 { 1.0 } else { 9.0 };
                [("m16n64w4s2", special), ("m32n64w4s2", 1.2), ("m64n64w4s2", 3.0)]
                    .map(|(tile, us)| row(requests, tile, us))
            })
            .collect();
        let best: Vec<String> = best_of(&rows, Level::Screen, &class).iter().map(Tile::to_string).collect();
        assert_eq!(best, ["m16n64w4s2", "m32n64w4s2", "m64n64w4s2"]);
        assert!(best_of(&rows, Level::Screen, &Class { head_dim: 64, ..class }).is_empty());
    }

    /// What a screening does.
    struct Done {
        /// In order.
        tried: Vec<(Tile, Class)>,
        /// Batches and tiles, sorted.
        raced: Vec<(String, String)>,
    }

    impl Done {
        /// Tiles that are tried for the first class before any other.
        fn of_first(&self) -> usize {
            self.tried.iter().take_while(|(_, class)| class.head_dim == 128).count()
        }

        fn sorted(&self) -> Vec<String> {
            let mut tried: Vec<String> =
                self.tried.iter().map(|(tile, class)| format!("{tile} {class}")).collect();
            tried.sort();
            tried
        }
    }

    /// The classes of the catalogue, screened in parts that end there; the others are looked at between.
    fn screened_until(ends: &[usize]) -> Done {
        let batches = Workloads::load(&[], Backend::Cuda, &Scale::of(Backend::Cuda), None).unwrap().batches;
        let mut screenings = screenings(&batches, &limits());
        screenings.truncate(3);
        screenings.iter_mut().for_each(|screening| screening.workloads.truncate(2));
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunFolder::open(folder.path(), provenance(), Start::Fresh).unwrap();
        let mut bench = ScriptedBench::new(Vec::new(), None);
        bench.limits = limits();
        let interrupt = Interrupt::default();
        let mut session = Session::new(&mut bench, &mut run, Progress::Silent, &interrupt);
        let (space, deadline) = (Space::of(Backend::Cuda), Instant::now() + Duration::from_secs(600));
        let mut begin = 0;
        for &end in ends {
            assert!(screen(&mut session, &space, &screenings, begin..end, deadline).unwrap());
            let others = end..screenings.len();
            assert!(look_at_classes(&mut session, &space, &screenings, others, deadline).unwrap());
            // What is screened needs nothing more.
            let rows = session.run.rows();
            let [looks, left] = [looks_at_others, left_by_looks]
                .map(|wanted| wanted(rows, &space, &screenings, &limits()).len());
            assert_eq!((looks, left), (screenings.len() - end, screenings.len() - end));
            begin = end;
        }
        drop(session);
        let tried = bench.verified.iter().map(|(tile, class, _)| (*tile, *class)).collect();
        let raced = run.rows().iter().filter(|row| row.level == Level::Screen);
        let mut raced: Vec<_> = raced.map(|row| (row.workload.clone(), row.choice.clone())).collect();
        raced.sort();
        Done { tried, raced }
    }

    #[test]
    fn classes_that_are_screened_one_after_the_other_are_as_those_that_are_at_once() {
        let (at_once, apart) = (screened_until(&[3]), screened_until(&[1, 3]));
        assert!(apart.of_first() > at_once.of_first(), "the first class is whole before another is begun");
        assert_eq!(at_once.raced, apart.raced);
        let tried = apart.sorted();
        assert_eq!(at_once.sorted(), tried);
        assert!(tried.windows(2).all(|two| two[0] != two[1]), "no look is repeated");
    }

    #[test]
    fn nothing_fitted_is_nothing_to_screen() {
        assert!(screenings(&[], &limits()).is_empty());
    }
}
