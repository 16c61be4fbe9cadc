//! The space of a device: what the rules reject, and what the rest computes on conformance shapes, before anything is timed.

use super::batch_level::left_to_others;
use super::returned_level::verify_returned;
use super::row::class_of;
use super::timed::Timed;
use super::variants::{Piece, row};
use super::{Bench, Coverage, Failure, Order, Preparation, Session, Told};
use crate::store::{Level, Measurement, Resources, Status, failed_variants};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Instant;
use tilewright_heuristics::{Tile, TileSetBuf};
use tilewright_kernel_templates::{Class, Space, Verdict};

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
                        message: "slower than others wherever all tiles were raced, or returned for other classes alone".to_owned(),
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
        if let Some(failed) = failures(&classes[class], &done[class]) {
            progress.note(&failed);
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
        "{correct} variants correct, {failed} failed; {rejected} infeasible, {slower} not worth verifying"
    ));
    let first = |class: &Class| {
        let is_first = is_wanted(class) && timed.cp_async_first(class);
        if is_first { tiles.iter().copied().collect() } else { BTreeSet::new() }
    };
    let failed = verify_returned(session, &first, timed)?;
    Ok(failed.map(|_| Verified::of(session.run.rows())))
}

/// How many of a class's verified tiles failed, and why the first one did.
fn failures(class: &Class, verified: &Outcomes) -> Option<String> {
    let failed = || verified.iter().filter_map(|(tile, (outcome, _))| Some((tile, outcome.as_ref().err()?)));
    let (tile, Failure { message, .. }) = failed().next()?;
    Some(format!(
        "{class}: {} of {} tiles failed and are not returned for it; {tile}: {message}",
        failed().count(),
        verified.len()
    ))
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

/// What became of a class's tiles, and what they need.
type Outcomes = BTreeMap<Tile, (Result<f64, Failure>, Resources)>;

#[cfg(test)]
#[path = "space_level_tests.rs"]
mod tests;
