//! How a run's workloads are divided.

use super::*;
use tilewright_kernel_templates::CudaLimits;

/// The names of a shard of the catalogue.
fn shard(scale: &Scale, backend: Backend, shard: Option<Shard>) -> Vec<String> {
    let workloads = Workloads::load(&[], backend, scale, shard).unwrap();
    workloads.batches.iter().map(|workload| workload.name().to_owned()).collect()
}

/// How long each workload of the catalogue takes, by its name.
fn work(scale: &Scale, backend: Backend) -> BTreeMap<String, u64> {
    let of = |scenario: &Scenario| {
        let specs = scenario.batches().unwrap().into_iter();
        let work = |spec: BatchSpec| scale.work(&spec, scenario.is_pack_sweep(), backend).unwrap();
        specs.map(|spec| (spec.name().to_owned(), work(spec))).collect::<Vec<_>>()
    };
    catalogue(backend).iter().flat_map(of).collect()
}

#[test]
fn shards_of_the_catalogue_have_all_workloads_once_and_even_work() {
    for backend in [Backend::Cpu, Backend::Cuda] {
        let scale = Scale::of(backend);
        let (all, work) = (shard(&scale, backend, None), work(&scale, backend));
        let (sum, largest) = (work.values().sum::<u64>(), *work.values().max().unwrap());
        let count = 3;
        let shards: Vec<Vec<String>> =
            (0..count).map(|index| shard(&scale, backend, Some(Shard { index, count }))).collect();
        let mut together: Vec<&String> = shards.iter().flatten().collect();
        together.sort_unstable();
        let mut expected: Vec<&String> = all.iter().collect();
        expected.sort_unstable();
        assert_eq!(together, expected);
        for shard in &shards {
            let load: u64 = shard.iter().map(|name| work[name]).sum();
            assert!(load <= sum / count as u64 + largest, "{load} of {sum}");
        }
    }
}

#[test]
fn a_device_of_less_memory_divides_a_run_alike() {
    let large = CudaLimits::named("h200").unwrap();
    let small = CudaLimits { memory_bytes: 8 << 30, ..large.clone() };
    let [large, small] = [large, small].map(|limits| Scale::on(&Limits::Cuda(limits), None));
    assert!(small.max_bytes < large.max_bytes);
    let of = |scale| shard(scale, Backend::Cuda, Some(Shard { index: 1, count: 3 }));
    assert_eq!(of(&small), of(&large));
}
