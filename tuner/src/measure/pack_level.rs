//! The first level: packs of one shape, every verified tile raced on them.

use super::{
    Bench, BenchError, Contestant, Coverage, Ended, PlanId, Planning, RaceOptions, Verified, Way, race,
};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::store::{Level, Measurement, RunFolder, Status};
use crate::workloads::Workload;
use std::time::Instant;
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;
use tilewright_scenarios::Batch;

/// Races all verified tiles on every workload that the run does not have yet; each is kept as soon as it is measured.
///
/// The workloads share the time until `deadline`. Returns `false` if the user asked to stop.
///
/// # Errors
/// The bench, a scenario that makes no batch, or the run's folder.
pub fn measure_packs(
    bench: &mut dyn Bench,
    workloads: &[Workload],
    verified: &Verified,
    run: &mut RunFolder,
    deadline: Instant,
    progress: Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<bool> {
    let known = run.measured(Level::Pack);
    let left: Vec<&Workload> = workloads.iter().filter(|workload| !known.contains(workload.name())).collect();
    let mut phase = progress.phase("packs", left.len());
    let (mut samples, mut ties) = (0, 0);
    for (done, workload) in left.iter().enumerate() {
        if interrupt.requested() {
            return Ok(false);
        }
        let share = deadline.saturating_duration_since(Instant::now()) / (left.len() - done) as u32;
        let options = RaceOptions { time_limit: share, seed: done as u64, ..RaceOptions::default() };
        phase.at(workload.name());
        let batch = workload.build()?;
        let tiles = verified.tiles(&Class::of(&batch.geometry));
        let (rows, ended) = measure(bench, workload, &batch, tiles, &options, interrupt)?;
        samples += rows.iter().map(|row| row.samples_us.len()).sum::<usize>();
        ties += usize::from(ended == Ended::Tie);
        run.append(rows)?;
        if let Some(defect) = bench.defect() {
            return Err(defect.into());
        }
        phase.step();
        if ended == Ended::Interrupted {
            return Ok(false);
        }
    }
    phase.finish(&format!("{} workloads, {samples} samples, {ties} races ended in a tie", left.len()));
    Ok(true)
}

/// Samples that a tile of the portfolio gets on every workload.
const REFINED_SAMPLES: usize = 9;

/// Measures the tiles of a first portfolio again, on every workload, without elimination. A race finds the best tile of each workload;
/// a fit also needs the cost of the others that it may choose, and a tile that left a race early has few samples, taken when it looked
/// bad.
///
/// The workloads share the time until `deadline`. Returns `false` if the user asked to stop.
///
/// # Errors
/// As [`measure_packs`].
#[expect(clippy::too_many_arguments, reason = "the same things as for the races, and the portfolio")]
pub fn refine_packs(
    bench: &mut dyn Bench,
    workloads: &[Workload],
    portfolio: &[Tile],
    verified: &Verified,
    run: &mut RunFolder,
    deadline: Instant,
    progress: Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<bool> {
    let mut phase = progress.phase("portfolio", workloads.len());
    for (done, workload) in workloads.iter().enumerate() {
        if interrupt.requested() {
            return Ok(false);
        }
        let batch = workload.build()?;
        let feasible = verified.tiles(&Class::of(&batch.geometry));
        let samples = |tile: &Tile| {
            let rows =
                run.rows().iter().filter(|row| row.level == Level::Pack && row.workload == workload.name());
            rows.filter(|row| row.tile == Some(*tile)).map(|row| row.samples_us.len()).sum::<usize>()
        };
        let tiles: Vec<Tile> = portfolio
            .iter()
            .copied()
            .filter(|tile| feasible.contains(tile) && samples(tile) < REFINED_SAMPLES)
            .collect();
        let share = deadline.saturating_duration_since(Instant::now()) / (workloads.len() - done) as u32;
        let options = RaceOptions {
            time_limit: share,
            max_rounds: REFINED_SAMPLES,
            eliminate: false,
            seed: done as u64,
            ..RaceOptions::default()
        };
        phase.at(workload.name());
        if !tiles.is_empty() {
            let (rows, ended) = measure(bench, workload, &batch, &tiles, &options, interrupt)?;
            run.append(rows)?;
            if let Some(defect) = bench.defect() {
                return Err(defect.into());
            }
            if ended == Ended::Interrupted {
                return Ok(false);
            }
        }
        phase.step();
    }
    phase.finish(&format!("{} tiles measured well on {} workloads", portfolio.len(), workloads.len()));
    Ok(true)
}

fn measure(
    bench: &mut dyn Bench,
    workload: &Workload,
    batch: &Batch,
    tiles: &[Tile],
    options: &RaceOptions,
    interrupt: &Interrupt,
) -> anyhow::Result<(Vec<Measurement>, Ended)> {
    let class = Class::of(&batch.geometry);
    // A run that was resumed, or whose process was replaced, has none of them ready, and could not say what they need.
    bench.prepare(tiles, &class, Coverage::for_pages(batch.geometry.page_size));
    let resources: Vec<_> = tiles.iter().map(|tile| bench.resources(tile, &class)).collect();
    let mut loaded = bench.load(batch)?;
    // What a sweep calls a pack stays one, whether a decoder would part it or not.
    let way = Way { planning: Planning::PerTree, ..Way::default() };
    let plans = tiles
        .iter()
        .map(|&tile| loaded.plan(&way, &mut |_| tile))
        .collect::<Result<Vec<PlanId>, BenchError>>()?;
    let shape = loaded.pack_shapes(way.planning)?.into_iter().max();
    let limit_us = loaded.limit_us();
    let result = race(tiles.len(), options, || interrupt.requested(), |i| loaded.sample(plans[i]));
    drop(loaded);
    // What was measured before the device was lost is kept; a run that goes on measures the workload again.
    let lost = bench.defect().is_some();
    let conditions = bench.conditions();
    let row = |(i, contestant): (usize, Contestant)| {
        let tile: Tile = tiles[i];
        Measurement {
            shape,
            choice: tile.to_string(),
            tile: Some(tile),
            resources: resources[i],
            limit_us: Some(limit_us),
            conditions: conditions.clone(),
            complete: result.ended != Ended::Interrupted && !lost,
            ..workload.measurement(Level::Pack, batch, contestant)
        }
    };
    let ended = result.ended;
    let rows = result.contestants.into_iter().enumerate().map(row);
    // An interrupted race may not have come to everyone.
    // What failed with the device says nothing about a variant.
    let said = |row: &Measurement| match row.status {
        Status::Correct => !row.samples_us.is_empty(),
        _ => !lost,
    };
    Ok((rows.filter(said).collect(), ended))
}
