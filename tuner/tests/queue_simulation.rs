//! Simulations, not measurements: what the division of a run over several GPUs would make of the times that one GPU recorded. They know nothing of what
//! GPUs of one host cost each other, and of compiling, planning and fitting.

use std::collections::BTreeMap;
use std::path::Path;
use tilewright_heuristics::Backend;
use tilewright_kernel_templates::{CudaLimits, Limits};
use tilewright_scenarios::catalogue;
use tilewright_tuner::shard::assign;
use tilewright_tuner::store::{Level, Recording, read};
use tilewright_tuner::workloads::{Scale, Workloads};

fn recording() -> Recording {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../heuristics/measurements/nvidia_h200.parquet"))
        .unwrap()
}

/// The end of the last piece, where each GPU takes the next one as soon as it has done its last.
fn queue(pieces: &[f64], gpus: usize) -> f64 {
    let mut ends = vec![0.0_f64; gpus];
    for piece in pieces {
        let next = ends.iter_mut().min_by(|a, b| a.total_cmp(b)).unwrap();
        *next += piece;
    }
    ends.into_iter().fold(0.0, f64::max)
}

#[test]
fn gpus_of_one_run_wait_for_each_other_less_than_for_a_batch() {
    let recording = recording();
    // What the samples of a batch took, the warm-up of each choice among them, in µs: raced under sets of tiles, and executed under the selector.
    let mut times: BTreeMap<(&str, bool), f64> = BTreeMap::new();
    for row in recording.rows.iter().filter(|row| row.level == Level::Batch) {
        let of_choice = row.samples_us.iter().sum::<f64>() + row.median_us().unwrap_or(0.0);
        *times.entry((&row.workload, row.selector_hash.is_empty())).or_default() += of_choice;
    }
    let limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
    let workloads = Workloads::load(&[], Backend::Cuda, &Scale::on(&limits, None), None).unwrap();
    let mut batches = workloads.batches;
    // As a run with several devices gives them out.
    batches.sort_by_key(|workload| std::cmp::Reverse(workload.sample_ns()));
    for (what, raced) in [("candidates", true), ("held-out batches", false)] {
        let pieces: Vec<f64> =
            batches.iter().filter_map(|workload| times.get(&(workload.name(), raced)).copied()).collect();
        assert!(pieces.len() > 100, "{what}: {}", pieces.len());
        let (total, longest) = (pieces.iter().sum::<f64>(), pieces.iter().copied().fold(0.0, f64::max));
        for gpus in [2, 4, 8] {
            let took = queue(&pieces, gpus);
            println!(
                "simulation of the queue, {what}, {gpus} GPUs: {:.2} times as fast as one ({} batches, {:.1} s of samples)",
                total / took,
                pieces.len(),
                total / 1e6
            );
            assert!(took <= total / gpus as f64 + longest, "{what}, {gpus}: {took} of {total}");
            assert!(took < 1.05 * total / gpus as f64, "{what}, {gpus}: {took} of {total}");
        }
    }
}

#[test]
fn the_longest_shard_of_the_h200s_times_is_little_longer_than_the_mean() {
    let recording = recording();
    // What a round of all candidates takes of each batch, in µs.
    let mut times: BTreeMap<&str, f64> = BTreeMap::new();
    for row in recording.rows.iter().filter(|row| row.level == Level::Batch && row.selector_hash.is_empty()) {
        *times.entry(&row.workload).or_default() += row.median_us().unwrap_or(0.0);
    }
    let scale = Scale::of(Backend::Cuda);
    let (mut work, mut took) = (Vec::new(), Vec::new());
    for scenario in catalogue(Backend::Cuda) {
        for spec in scenario.batches().unwrap() {
            if let Some(us) = times.get(spec.name()) {
                work.push(scale.work(&spec, scenario.is_pack_sweep(), Backend::Cuda).unwrap());
                took.push(*us);
            }
        }
    }
    assert!(took.len() * 10 >= times.len() * 9, "{} of {} batches are known", took.len(), times.len());
    let total: f64 = took.iter().sum();
    let longest = |shards: &[usize], count: usize| {
        let mut loads = vec![0.0; count];
        shards.iter().zip(&took).for_each(|(&shard, us)| loads[shard] += us);
        loads.into_iter().fold(0.0, f64::max)
    };
    for count in [4, 8] {
        let by_work = longest(&assign(&work, count), count);
        let by_count = longest(&(0..took.len()).map(|i| i % count).collect::<Vec<_>>(), count);
        println!(
            "simulation of shards, {count} GPUs: {:.2} times as fast as one by work, {:.2} by count",
            total / by_work,
            total / by_count
        );
        assert!(by_work < 1.15 * total / count as f64, "{count}: {by_work} of {total}");
    }
}
