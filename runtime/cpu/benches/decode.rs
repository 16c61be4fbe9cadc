//! How near a decode step comes to merely reading its bytes: a batch like `256_1024`, nothing shared, cold caches.
//!
//! Prints, for each element type, the bytes of K and V over the best time, beside the machine's own read bandwidth, measured in the same
//! run. On Linux it prints the threads' own time as well, which other programs on the machine lengthen less.

use half::{bf16, f16};
use std::time::Instant;
use tilewright_cpu::{
    CpuBackend, DecodeArgs, Element, Fp8KvCache, Fp8Number, HostDevice, KvCache, KvPages, Number, probe,
};
use tilewright_heuristics::{Backend, Dtype, Geometry, Tile};
use tilewright_plan::{DeviceProfile, E4m3, E5m2, KvScales, KvStrides, PageTable, Plan, PlanOptions};

const REQUESTS: u32 = 64;
const TOKENS: u32 = 1024;
const SAMPLES: usize = 9;
/// More than any cache: between two reads of a byte, all other bytes of the batch are read.
const PROBE_BYTES: usize = 512 << 20;
const TILES: [Tile; 6] = [
    Tile::of("m4n32w1s2"),
    Tile::of("m4n64w1s1"),
    Tile::of("m4n64w1s2"),
    Tile::of("m4n128w1s2"),
    Tile::of("m4n64w2s2"),
    Tile::of("m64n64w2s2"),
];

/// What is measured of every case.
struct Bench {
    backend: CpuBackend,
    read_bandwidth: f64,
}

fn main() {
    let host = HostDevice::detect();
    println!("{} ({})", host.name, host.capability);
    let read_bandwidth = probe::read_bandwidth(host.limits.threads, PROBE_BYTES);
    let flops = probe::fma_flops(host.limits.threads);
    println!("read bandwidth {:.1} GB/s, multiply-add peak {:.0} GFLOP/s", read_bandwidth / 1e9, flops / 1e9);
    println!(
        "{:<9} {:>5} {:>12} {:>9} {:>9} {:>9} {:>9} {:>13}",
        "type", "heads", "tile", "median ms", "best ms", "own ms", "best GB/s", "of bandwidth"
    );
    let mut bench = Bench { backend: CpuBackend::new(host.limits.threads), read_bandwidth };
    for heads in [(32, 32), (32, 8), (64, 8)] {
        bench.plain::<f32>(heads);
        bench.plain::<f16>(heads);
        bench.plain::<bf16>(heads);
        bench.fp8::<E4m3>(heads);
        bench.fp8::<E5m2>(heads);
    }
}

/// Seconds that this process's threads have run, as Linux tells; 0 elsewhere.
fn thread_seconds() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let nanoseconds = tasks.flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() * 1e-9
}

/// Numbers between -1 and 1.
fn numbers<K: Number>(count: usize) -> Vec<K> {
    (0..count).map(|i| K::from_f32((i % 251) as f32 / 125.0 - 1.0)).collect()
}

fn geometry((q_heads, kv_heads): (u32, u32), dtype: Dtype) -> Geometry {
    Geometry { q_heads, kv_heads, head_dim: 128, page_size: 32, dtype }
}

/// Fewer requests where there are more heads, so that every case reads as many elements.
const fn requests(kv_heads: u32) -> u32 {
    REQUESTS * 8 / kv_heads
}

/// Elements of K.
const fn elements(geometry: &Geometry) -> usize {
    (requests(geometry.kv_heads) * TOKENS * geometry.kv_heads * geometry.head_dim) as usize
}

impl Bench {
    fn plain<E: Element>(&mut self, heads: (u32, u32)) {
        let geometry = geometry(heads, E::DTYPE);
        let (keys, values) = (numbers::<E>(elements(&geometry)), numbers::<E>(elements(&geometry)));
        let strides = KvStrides::nhd(&geometry);
        self.run::<E, _>(&geometry, KvCache { keys: &keys, values: &values, strides });
    }

    fn fp8<F: Fp8Number>(&mut self, heads: (u32, u32)) {
        let geometry = geometry(heads, Dtype::F16.with_kv(F::FORMAT));
        let (keys, values) = (numbers::<F>(elements(&geometry)), numbers::<F>(elements(&geometry)));
        let (strides, scales) = (KvStrides::nhd(&geometry), KvScales::new(1.0, 1.0));
        self.run::<f16, _>(&geometry, Fp8KvCache { keys: &keys, values: &values, strides, scales });
    }

    fn run<E: Element, C: KvPages<E>>(&mut self, geometry: &Geometry, cache: C) {
        let requests = requests(geometry.kv_heads);
        let query = numbers::<E>((requests * geometry.q_heads * geometry.head_dim) as usize);
        let mut output = query.clone();
        let pages = requests * TOKENS / geometry.page_size;
        // Physical pages are scattered: a stride that is coprime to any power of two.
        let entries: Vec<i32> =
            (0..pages).map(|page| (page.wrapping_mul(2_654_435_761) % pages) as i32).collect();
        let (pages, seq_lens) = ((TOKENS / geometry.page_size) as usize, vec![TOKENS; requests as usize]);
        let table = PageTable::new(&entries, pages, &seq_lens, geometry.page_size).expect("a good batch");
        let bytes = (2 * elements(geometry) * C::DTYPE.kv_bytes()) as f64;
        for tile in TILES {
            let device = DeviceProfile::of_units(Backend::Cpu, self.backend.threads());
            let options = PlanOptions::on(device);
            let plan = Plan::build(geometry, &table, &options, tile).expect("the batch can be planned");
            let mut own = f64::INFINITY;
            let mut samples: Vec<f64> = (0..=SAMPLES)
                .map(|_| {
                    let args =
                        DecodeArgs { scale: Some(0.088), ..DecodeArgs::new(&query, cache, &mut output) };
                    let (begin, own_begin) = (Instant::now(), thread_seconds());
                    self.backend.decode(&plan, args).expect("the arguments fit the plan");
                    own = own.min((thread_seconds() - own_begin) / f64::from(self.backend.threads()));
                    begin.elapsed().as_secs_f64()
                })
                .skip(1)
                .collect();
            samples.sort_by(f64::total_cmp);
            let (median, best) = (samples[SAMPLES / 2], samples[0]);
            println!(
                "{:<9} {:>5} {:>12} {:>9.2} {:>9.2} {:>9.2} {:>9.1} {:>11.0} %",
                C::DTYPE.name(),
                format!("{}/{}", geometry.q_heads, geometry.kv_heads),
                tile.to_string(),
                median * 1e3,
                best * 1e3,
                own * 1e3,
                bytes / best / 1e9,
                100.0 * bytes / best / self.read_bandwidth
            );
        }
    }
}
