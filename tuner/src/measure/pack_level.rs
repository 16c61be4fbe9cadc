//! The first level: packs of one shape, every verified tile raced on them.

use super::{Bench, BenchError, Contestant, Ended, PlanId, RaceOptions, Verified, race};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::store::{Level, Measurement, RunFolder, Status};
use crate::workloads::Workload;
use std::time::Instant;
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;

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
        let (rows, ended) = measure(bench, workload, verified, &options, interrupt)?;
        samples += rows.iter().map(|row| row.samples_us.len()).sum::<usize>();
        ties += usize::from(ended == Ended::Tie);
        run.append(rows)?;
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
    verified: &Verified,
    options: &RaceOptions,
    interrupt: &Interrupt,
) -> anyhow::Result<(Vec<Measurement>, Ended)> {
    let batch = workload.build()?;
    let class = Class::of(&batch.geometry);
    let tiles = verified.tiles(&class);
    let resources: Vec<_> = tiles.iter().map(|tile| bench.resources(tile, &class)).collect();
    let mut loaded = bench.load(&batch)?;
    let plans = tiles.iter().map(|&tile| loaded.plan(&mut |_| tile)).collect::<Result<Vec<PlanId>, BenchError>>()?;
    let shape = loaded.pack_shapes()?.into_iter().max();
    let limit_us = loaded.limit_us();
    let result = race(tiles.len(), options, || interrupt.requested(), |i| loaded.sample(plans[i]));
    let row = |(i, contestant): (usize, Contestant)| {
        let tile: Tile = tiles[i];
        Measurement {
            shape,
            choice: tile.to_string(),
            tile: Some(tile),
            resources: resources[i],
            limit_us: Some(limit_us),
            complete: result.ended != Ended::Interrupted,
            ..workload.measurement(Level::Pack, &batch, contestant)
        }
    };
    let ended = result.ended;
    let rows = result.contestants.into_iter().enumerate().map(row);
    // An interrupted race may not have come to everyone.
    Ok((rows.filter(|row| !row.samples_us.is_empty() || row.status != Status::Correct).collect(), ended))
}
