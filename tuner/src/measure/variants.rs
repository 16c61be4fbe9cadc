//! Variants of kernels, verified class by class, and the rows that say what became of them.

use super::batch_level::left_to_others;
use super::{Bench, Coverage, Failure, Order, Preparation, Session, Told};
use crate::store::{Conditions, Level, Measurement, Resources, Status};
use std::collections::BTreeMap;
use std::fmt;
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;

/// Makes variants of kernels ready, verifies them class by class, and records at `level` what became of each; those that failed, each in a line. `None` if
/// the user asked to stop.
///
/// # Errors
/// As [`verify_space`](super::verify_space).
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

/// A tile that is verified for a class of kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// The place of its class.
    pub(super) class: usize,
    /// The class, and which variants.
    of: (Class, Coverage),
    /// `None` where nothing of a class is to be verified.
    pub(super) tile: Option<Tile>,
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
    pub(super) fn of(wanted: &[Preparation]) -> Vec<Self> {
        let of_class = |(class, wanted): (usize, &Preparation)| {
            let tiles = wanted.tiles.iter().copied().map(Some);
            let tiles = if wanted.tiles.is_empty() { vec![None] } else { tiles.collect() };
            let of = (wanted.class, wanted.coverage);
            tiles.into_iter().map(move |tile| Self { class, of, tile })
        };
        wanted.iter().enumerate().flat_map(of_class).collect()
    }
}

/// A row of a level on which nothing is timed.
pub(super) fn row(level: Level, tile: &Tile, class: &Class, outcome: Result<f64, Failure>) -> Measurement {
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
