//! The first level: packs of one shape, every verified tile raced on them.

use super::row::measurement;
use super::{
    Bench, BenchError, Contestant, Coverage, Ended, Execution, PlanId, Planning, RaceOptions, Session,
    Verified, race,
};
use crate::interrupt::Interrupt;
use crate::store::{Level, Measurement, Status};
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
    session: &mut Session<'_>,
    workloads: &[Workload],
    verified: &Verified,
    deadline: Instant,
) -> anyhow::Result<bool> {
    let Session { bench, run, progress, interrupt } = session;
    let (bench, progress, interrupt) = (&mut **bench, *progress, *interrupt);
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
    let execution = Execution { planning: Planning::PerTree, ..Execution::default() };
    let plans = tiles
        .iter()
        .map(|&tile| loaded.plan(&execution, &tile.into()))
        .collect::<Result<Vec<PlanId>, BenchError>>()?;
    let shape = loaded.pack_shapes(execution.planning)?.into_iter().max();
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
            ..measurement(workload, Level::Pack, batch, contestant)
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
