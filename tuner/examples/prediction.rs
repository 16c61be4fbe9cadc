//! Would the planner's prediction choose better than the tree? For every recorded batch that the catalogue still makes, the time of the set that is
//! predicted to be fastest, and of the set that the emitted selector chooses, over that of the best set measured on it.
//!
//! `cargo run --release -p tilewright-tuner --example prediction -- heuristics/measurements/nvidia_h200.parquet`

use anyhow::Context as _;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tilewright_heuristics::{BatchShape, TileSetBuf};
use tilewright_plan::{Forest, PageTable, Plan, batch_shape};
use tilewright_scenarios::{Batch, catalogue};
use tilewright_tuner::explain::NamedDevice;
use tilewright_tuner::statistics::{geometric_mean, median};
use tilewright_tuner::store::{Level, Status, read};

/// The ratios of each policy, over the best measured set of the batch.
type Ratios = BTreeMap<(String, &'static str), Vec<f64>>;

fn main() -> anyhow::Result<()> {
    let path = PathBuf::from(std::env::args().nth(1).context("name a file of measurements")?);
    let recording = read(&path)?;
    let device = NamedDevice::find(Some(&recording.provenance.device.name))?;
    let selection = device.selection(None)?;
    let options = device.plan_options(&selection);
    let backend = device.as_device().backend;

    let mut batches: BTreeMap<String, Batch> = BTreeMap::new();
    for scenario in catalogue(backend).iter().filter(|scenario| !scenario.is_pack_sweep()) {
        for spec in scenario.batches()? {
            batches.insert(spec.name().to_owned(), spec.build()?);
        }
    }
    type Times = BTreeMap<TileSetBuf, Vec<f64>>;
    let mut recorded: BTreeMap<(&str, bool, BatchShape), Times> = BTreeMap::new();
    for row in recording.rows.iter().filter(|row| row.level == Level::Batch && row.selector_hash.is_empty()) {
        let (Some(shape), Ok(set)) = (row.batch, row.choice.parse::<TileSetBuf>()) else { continue };
        if row.status == Status::Correct && !row.samples_us.is_empty() {
            let times = recorded.entry((&row.workload, row.held_out, shape)).or_default();
            times.entry(set).or_default().extend(&row.samples_us);
        }
    }
    let (mut ratios, mut absent) = (Ratios::new(), 0);
    for ((name, held_out, shape), times) in &recorded {
        let batch = batches.get(*name);
        let Some(batch) = batch else {
            absent += 1;
            continue;
        };
        let geometry = &batch.geometry;
        let table = PageTable::new(&batch.page_table, batch.max_pages, &batch.seq_lens, geometry.page_size)?;
        if batch_shape(geometry, &Forest::build(&table)) != *shape {
            absent += 1;
            continue;
        }
        let times: Vec<(TileSetBuf, f64)> = times
            .iter()
            .map(|(set, us)| Some((*set, median(us)?)))
            .collect::<Option<_>>()
            .unwrap_or_default();
        let best = times.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
        let best_single = times
            .iter()
            .filter(|(set, _)| set.single().is_some())
            .map(|(_, us)| *us)
            .fold(f64::INFINITY, f64::min);
        let mut predicted = Vec::new();
        for (set, us) in &times {
            let plan = Plan::build(geometry, &table, &options, set.as_set())?;
            predicted.push((plan.predicted(&options, backend, true).us(), *set, *us));
        }
        predicted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let chosen = TileSetBuf::from(selection.select(shape));
        let time_of = |set: &TileSetBuf| times.iter().find(|(other, _)| other == set).map(|(_, us)| *us);
        let kind = format!(
            "{}{}",
            name.split('/').next().unwrap_or(name),
            if *held_out { " (held out)" } else { "" }
        );
        let mut note = |way, us: Option<f64>| {
            if let Some(us) = us {
                for kind in [kind.clone(), if *held_out { "all held out" } else { "all fitted" }.to_owned()] {
                    ratios.entry((kind, way)).or_default().push(us / best_single);
                }
            }
        };
        note("best set", Some(best));
        note("selector", time_of(&chosen));
        note("predicted fastest", predicted.first().map(|(_, _, us)| *us));
        let known = |set: &TileSetBuf| selection.sets().iter().any(|other| TileSetBuf::from(*other) == *set);
        note(
            "predicted fastest of the selector's",
            predicted.iter().find(|(_, set, _)| known(set)).map(|(_, _, us)| *us),
        );
        let single = |set: &TileSetBuf| set.single().is_some();
        note(
            "predicted fastest tile",
            predicted.iter().find(|(_, set, _)| single(set)).map(|(_, _, us)| *us),
        );
        // Prediction only where it disagrees clearly with the tree.
        let of_chosen = predicted.iter().find(|(_, set, _)| *set == chosen);
        let first = predicted.iter().find(|(_, set, _)| known(set));
        if let (Some(of_chosen), Some(first)) = (of_chosen, first) {
            let by_far = first.0 * 1.15 < of_chosen.0;
            note("tree, but what is predicted 15 % faster", Some(if by_far { first.2 } else { of_chosen.2 }));
        }
    }
    println!(
        "over the best single tile measured on each batch; {absent} recorded batches are no longer made"
    );
    for ((kind, way), ratios) in &ratios {
        let worst = ratios.iter().copied().fold(0.0, f64::max);
        println!(
            "{kind:36} {way:40} {:4} batches  {:.3}  worst {worst:.2}",
            ratios.len(),
            geometric_mean(ratios).unwrap_or(f64::NAN)
        );
    }
    Ok(())
}
