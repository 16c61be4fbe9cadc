//! Our side: the selector that a decoder would use, and each of its tiles alone, on the tuner's bench.

use super::results::{Contender, Outcome};
use crate::measure::{
    Bench, BenchError, Coverage, Ended, Execution, Failure, Loaded, PlanId, PlanTiles, Planning, Preparation,
    RaceOptions, execution_of_set, race, worst_row,
};
use crate::statistics::median;
use std::collections::BTreeSet;
use std::time::Duration;
use tilewright_conformance as conformance;
use tilewright_heuristics::{BatchShape, Selection, Selector, Tile, TileSetBuf};
use tilewright_kernel_templates::{self as kernel_templates, Class, Space};
use tilewright_scenarios::Batch;

/// What a row of one head may be off, in multiples of what a whole output may: a row has fewer numbers to even out.
const ROW_FACTOR: f64 = 4.0;
/// What measuring a batch may take beside its first round.
const TIME_LIMIT: Duration = Duration::from_secs(4);
/// The rate at which matrix products can be had on these devices, in operations a second: about three quarters of what libraries reach, and
/// more than `mma.sync` does. The data sheets' peaks are out of reach for all.
const REACHED_FLOPS: f64 = 600e12;
/// The devices that this was measured on, or that have the same multiprocessors.
const REACHED_ON: [&str; 2] = ["H100", "H200"];

/// A row's error up to which a result is right, relative to the row's norm.
pub fn tolerance(batch: &Batch) -> f64 {
    ROW_FACTOR * conformance::tolerance(batch.geometry.dtype)
}

/// What a decoder on the bench's device would choose, and plan by: the bench adopts the selector's prices.
///
/// # Errors
/// The device's backend is unknown, or it can run no tile.
pub fn selection(bench: &mut dyn Bench, own: Option<&'static Selector>) -> anyhow::Result<Selection> {
    let record = bench.device();
    let device = record
        .as_device()
        .ok_or_else(|| anyhow::anyhow!("{record}: there are no kernels for its backend"))?;
    let selection = kernel_templates::selection(&device, bench.limits(), own)
        .ok_or_else(|| anyhow::anyhow!("{record}: it can run no tile; `tilewright space` says why"))?;
    if let Some(prices) = selection.prices() {
        bench.adopt_prices(prices);
    }
    Ok(selection)
}

/// Where the tiles come from, in words.
pub fn said(selection: &Selection) -> String {
    match selection.matched.selector() {
        Some(_) if selection.is_exact() => "measured on this device".to_owned(),
        Some(selector) => {
            format!("measured on {}; `tilewright tune` measures on this device", selector.device.name)
        }
        None => {
            "PAT's rules, as nothing alike was measured; `tilewright tune` measures on this device".to_owned()
        }
    }
}

/// How the limit is found, in a sentence.
pub fn limit_method(bench: &dyn Bench) -> String {
    let method = bench.limit_method();
    if reached_flops(&bench.device().name).is_none() {
        return method;
    }
    format!(
        "{method} For the latter {:.0} TFLOP/s are taken, as nothing reaches the data sheet's.",
        REACHED_FLOPS / 1e12
    )
}

/// The rate at which a device of this name does matrix products.
fn reached_flops(name: &str) -> Option<f64> {
    REACHED_ON.iter().any(|device| name.contains(device)).then_some(REACHED_FLOPS)
}

/// The time that the products of a batch take on a device of this name at least, in µs: nothing where that is left to the bench.
fn products_us(name: &str, batch: &Batch, launch_us: f64) -> f64 {
    reached_flops(name).map_or(0.0, |rate| batch.flops() / rate * 1e6 + launch_us)
}

/// What our side made of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Ours {
    /// The least time that the hardware needs, in µs.
    pub limit_us: f64,
    /// With the selector's tiles.
    pub selector: Outcome,
    /// Batch-invariant, with a tile of such plans' family.
    pub invariant: Outcome,
    /// With each of its tiles for all packs.
    pub tiles: Vec<Contender>,
}

/// Measures a batch: all plans in turn, on cold caches, each checked first. `None` if the user asked to stop.
///
/// # Errors
/// The batch does not fit, is malformed, or the bench is lost.
pub fn measure(
    bench: &mut dyn Bench,
    selection: &Selection,
    (batch, shape): (&Batch, &BatchShape),
    also: &[TileSetBuf],
    sampled: &[usize],
    expected: &[f64],
    interrupted: &dyn Fn() -> bool,
) -> Result<Option<Ours>, BenchError> {
    let class = Class::of(&batch.geometry);
    let products_us = products_us(&bench.device().name, batch, bench.launch_us());
    let set = TileSetBuf::from(selection.select(shape));
    let portfolio = portfolio(bench, selection, &set, also, &class);
    let invariant = kernel_templates::invariant_set(&class, bench.limits()).map(TileSetBuf::from);
    let tiles: BTreeSet<Tile> = portfolio.iter().flat_map(|set| set.tiles()).copied().collect();
    let coverage = Coverage::for_pages(batch.geometry.page_size);
    bench.prepare(&[Preparation { tiles: tiles.into_iter().collect(), class, coverage }]);
    let launch_modes = bench.launch_modes().to_vec();
    let mut loaded = bench.load(batch)?;
    let limit_us = loaded.limit_us().max(products_us);

    let mut plans = vec![loaded.plan(&execution_of_set(&set, &launch_modes), &PlanTiles::Set(set))?];
    if let Some(set) = &invariant {
        let execution = Execution { planning: Planning::Invariant, ..Execution::default() };
        plans.push(loaded.plan(&execution, &PlanTiles::Set(*set))?);
    }
    let first_alone = plans.len();
    for set in &portfolio {
        plans.push(loaded.plan(&execution_of_set(set, &launch_modes), &PlanTiles::Set(*set))?);
    }

    let row = batch.geometry.head_dim as usize;
    let errors: Vec<Result<f64, Failure>> =
        plans.iter().map(|&plan| check(loaded.as_mut(), plan, sampled, expected, row)).collect();
    let right: Vec<usize> = (0..plans.len())
        .filter(|&i| errors[i].as_ref().is_ok_and(|error| *error <= tolerance(batch)))
        .collect();
    let options = RaceOptions { eliminate: false, time_limit: TIME_LIMIT, ..RaceOptions::default() };
    let raced = race(right.len(), &options, interrupted, |i| loaded.sample(plans[right[i]]));
    drop(loaded);
    if let Some(defect) = bench.defect() {
        return Err(defect);
    }
    if raced.ended == Ended::Interrupted {
        return Ok(None);
    }

    let outcome = |i: usize| match (&errors[i], right.iter().position(|&other| other == i)) {
        (Err(failure), _) => left_out(failure),
        (Ok(error), None) => Outcome::wrong(*error, tolerance(batch)),
        (Ok(error), Some(at)) => {
            let contestant = &raced.contestants[at];
            match (median(&contestant.samples_us), &contestant.error) {
                (Some(us), None) => {
                    let how = match (i, &invariant) {
                        (0, _) => set.to_string(),
                        (1, Some(set)) => set.to_string(),
                        _ => String::new(),
                    };
                    Outcome::Timed { us, error: *error, how }
                }
                (_, Some(failure)) => left_out(failure),
                (None, None) => Outcome::LeftOut { reason: "failed: it was never sampled".to_owned() },
            }
        }
    };
    let alone = portfolio.iter().enumerate();
    let alone =
        alone.map(|(i, tile)| Contender { name: tile.to_string(), outcome: outcome(first_alone + i) });
    let tiles = alone.collect();
    let invariant = match invariant {
        Some(_) => outcome(1),
        None => Outcome::LeftOut { reason: "failed: the device runs no tile of such plans".to_owned() },
    };
    Ok(Some(Ours { limit_us, selector: outcome(0), invariant, tiles }))
}

/// What is measured beside the selector, as far as it can run a class of kernels: each tile alone that the selector may choose (where nothing alike
/// was measured, those of this batch), and the sets that the user names.
fn portfolio(
    bench: &dyn Bench,
    selection: &Selection,
    set: &TileSetBuf,
    also: &[TileSetBuf],
    class: &Class,
) -> Vec<TileSetBuf> {
    let feasible = Space::of(bench.limits().backend()).feasible(class, bench.limits());
    let of_selector = match selection.matched.selector() {
        Some(selector) => selector.tiles(),
        None => set.tiles().to_vec(),
    };
    let sets: BTreeSet<TileSetBuf> =
        of_selector.into_iter().map(TileSetBuf::one).chain(also.iter().copied()).collect();
    sets.into_iter().filter(|set| set.tiles().iter().all(|tile| feasible.contains(tile))).collect()
}

fn check(
    loaded: &mut dyn Loaded,
    plan: PlanId,
    sampled: &[usize],
    expected: &[f64],
    row: usize,
) -> Result<f64, Failure> {
    Ok(worst_row(&loaded.outputs(plan, sampled)?, expected, row))
}

fn left_out(failure: &Failure) -> Outcome {
    Outcome::LeftOut { reason: format!("failed: {}", failure.message) }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{reference, sampled_requests};
    use super::*;
    use crate::measure::CpuBench;
    use crate::workloads::batch_shape_of;
    use tilewright_scenarios::Scenario;

    fn batch(dtype: &str) -> Batch {
        let text = format!(
            "name: t\nheads: [[4, 2]]\nhead_dims: [64]\ndtypes: [{dtype}]\ntrees: ['1,2,6_64,32,45']\n"
        );
        Scenario::parse(&text, "t.yaml").unwrap().batches().unwrap()[0].build().unwrap()
    }

    #[test]
    fn every_plan_of_a_processor_computes_what_the_reference_does() {
        let mut bench = CpuBench::new(Some(2));
        let selection = selection(&mut bench, None).unwrap();
        for dtype in ["f16", "bf16", "fp8-f16", "fp8-bf16"] {
            let batch = batch(dtype);
            let shape = batch_shape_of(&batch).unwrap();
            let sampled = sampled_requests(&batch);
            let expected = reference(&batch, &sampled).unwrap();
            let ours = measure(&mut bench, &selection, (&batch, &shape), &[], &sampled, &expected, &|| false)
                .unwrap()
                .unwrap();
            assert!(ours.limit_us > 0.0 && !ours.tiles.is_empty());
            let alone = ours.tiles.iter().map(|tile| &tile.outcome);
            for outcome in alone.chain([&ours.selector, &ours.invariant]) {
                let Outcome::Timed { us, error, .. } = outcome else { panic!("{dtype}: {outcome:?}") };
                assert!(*us > 0.0 && *error > 0.0 && *error < tolerance(&batch), "{dtype}: {outcome:?}");
            }
        }
    }

    #[test]
    fn products_count_where_their_rate_is_known() {
        let text = "name: t\nheads: [[64, 8]]\ntrees: ['1,1024_2048,32']\n";
        let batch = Scenario::parse(text, "t.yaml").unwrap().batches().unwrap()[0].build().unwrap();
        // 4 * 64 heads * 128 elements * 1024 requests * 2080 tokens.
        for name in ["NVIDIA H200", "NVIDIA H100 80GB HBM3"] {
            assert!((products_us(name, &batch, 3.0) - 119.3).abs() < 0.1, "{name}");
        }
        assert_eq!(products_us("NVIDIA A100-SXM4-80GB", &batch, 3.0), 0.0);
    }

    #[test]
    fn what_is_wrong_is_not_timed_and_an_interrupt_stops() {
        let mut bench = CpuBench::new(Some(2));
        let selection = selection(&mut bench, None).unwrap();
        let batch = batch("f16");
        let shape = batch_shape_of(&batch).unwrap();
        let other = reference(&batch, &[1]).unwrap();
        let ours =
            measure(&mut bench, &selection, (&batch, &shape), &[], &[0], &other, &|| false).unwrap().unwrap();
        let Outcome::LeftOut { reason } = &ours.selector else { panic!("{ours:?}") };
        assert!(reason.starts_with("wrong: a row is off by"), "{reason}");
        assert!(ours.tiles.iter().all(|tile| tile.outcome.us().is_none()));
        let expected = reference(&batch, &[0]).unwrap();
        assert_eq!(
            measure(&mut bench, &selection, (&batch, &shape), &[], &[0], &expected, &|| true).unwrap(),
            None
        );
        let ours = measure(&mut bench, &selection, (&batch, &shape), &[], &[6], &expected, &|| false)
            .unwrap()
            .unwrap();
        let Outcome::LeftOut { reason } = ours.selector else { panic!("there is no request 6") };
        assert!(reason.contains("no request 6"), "{reason}");
    }
}
