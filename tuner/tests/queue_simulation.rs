//! A simulation of the queue, not a measurement: what the division of a run over several GPUs would make of the times that one GPU recorded. It
//! knows nothing of what GPUs of one host cost each other.

use std::collections::BTreeMap;
use std::path::Path;
use tilewright_heuristics::Backend;
use tilewright_scenarios::catalogue;
use tilewright_tuner::shard::assign;
use tilewright_tuner::store::{Level, read};
use tilewright_tuner::workloads::Scale;

#[test]
fn the_longest_shard_of_the_h200s_times_is_little_longer_than_the_mean() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../heuristics/measurements/nvidia_h200.parquet");
    let recording = read(&path).unwrap();
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
            "simulation of the queue, {count} GPUs: {:.2} times as fast as one by work, {:.2} by count",
            total / by_work,
            total / by_count
        );
        assert!(by_work < 1.15 * total / count as f64, "{count}: {by_work} of {total}");
    }
}
