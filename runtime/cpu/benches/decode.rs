//! How near a decode step comes to merely reading its bytes: a batch like `256_1024`, nothing shared, cold caches.
//!
//! Prints, for each element type, the bytes of K and V over the median time, beside the machine's own read bandwidth,
//! measured in the same run.

use half::{bf16, f16};
use std::time::Instant;
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, HostDevice, KvCache, probe};
use tilewright_heuristics::{Geometry, Tile};
use tilewright_plan::{KvStrides, PageTable, Plan, PlanOptions};

const REQUESTS: u32 = 64;
const TOKENS: u32 = 1024;
const SAMPLES: usize = 9;
/// More than any cache: between two reads of a byte, all other bytes of the batch are read.
const PROBE_BYTES: usize = 512 << 20;

fn main() {
    let host = HostDevice::detect();
    println!("{} ({})", host.name, host.capability);
    let bandwidth = probe::read_bandwidth(host.limits.threads, PROBE_BYTES);
    let flops = probe::fma_flops(host.limits.threads);
    println!("read bandwidth {:.1} GB/s, multiply-add peak {:.0} GFLOP/s", bandwidth / 1e9, flops / 1e9);
    println!(
        "{:<6} {:>5} {:>14} {:>10} {:>10} {:>12}",
        "dtype", "heads", "tile", "ms", "GB/s", "of bandwidth"
    );
    let mut backend = CpuBackend::new(host.limits.threads);
    for (q_heads, kv_heads) in [(32, 32), (32, 8)] {
        bench::<f32>(&mut backend, q_heads, kv_heads, bandwidth);
        bench::<f16>(&mut backend, q_heads, kv_heads, bandwidth);
        bench::<bf16>(&mut backend, q_heads, kv_heads, bandwidth);
    }
}

fn bench<E: Element>(backend: &mut CpuBackend, q_heads: u32, kv_heads: u32, bandwidth: f64) {
    // Fewer requests where there are more heads, so that every case reads as much.
    let requests = REQUESTS * 8 / kv_heads;
    let geometry = Geometry { q_heads, kv_heads, head_dim: 128, page_size: 32, dtype: E::DTYPE };
    let pages = requests * TOKENS / geometry.page_size;
    let elements = pages as usize * (geometry.page_size * kv_heads * geometry.head_dim) as usize;
    let numbers =
        |count: usize| (0..count).map(|i| E::from_f32((i % 251) as f32 / 125.0 - 1.0)).collect::<Vec<E>>();
    let (keys, values) = (numbers(elements), numbers(elements));
    let query = numbers((requests * q_heads * geometry.head_dim) as usize);
    let mut output = query.clone();
    // Physical pages are scattered: a stride that is coprime to any power of two.
    let entries: Vec<i32> =
        (0..pages).map(|page| (page.wrapping_mul(2_654_435_761) % pages) as i32).collect();
    let seq_lens = vec![TOKENS; requests as usize];
    let table =
        PageTable::new(&entries, (TOKENS / geometry.page_size) as usize, &seq_lens, geometry.page_size)
            .expect("the batch is well formed");
    let cache = KvCache { keys: &keys, values: &values, strides: KvStrides::nhd(&geometry) };
    let bytes = 2 * elements * E::DTYPE.kv_bytes();
    for tile in [
        Tile::of("m4n32w1s1"),
        Tile::of("m4n32w1s2"),
        Tile::of("m4n64w1s2"),
        Tile::of("m4n16w1s2"),
        Tile::of("m4n128w1s2"),
        Tile::of("m4n16w1s3"),
        Tile::of("m4n64w2s2"),
    ] {
        let plan =
            Plan::build(&geometry, &table, &PlanOptions::default(), tile).expect("the batch can be planned");
        let mut samples: Vec<f64> = (0..=SAMPLES)
            .map(|_| {
                let args = DecodeArgs { scale: Some(0.088), ..DecodeArgs::new(&query, cache, &mut output) };
                let begin = Instant::now();
                backend.decode(&plan, args).expect("the arguments fit the plan");
                begin.elapsed().as_secs_f64()
            })
            .skip(1)
            .collect();
        samples.sort_by(f64::total_cmp);
        let median = samples[SAMPLES / 2];
        let reached = bytes as f64 / median;
        println!(
            "{:<6} {:>5} {:>14} {:>10.2} {:>10.1} {:>10.0} %",
            E::DTYPE.name(),
            format!("{q_heads}/{kv_heads}"),
            tile.to_string(),
            median * 1e3,
            reached / 1e9,
            100.0 * reached / bandwidth
        );
    }
}
