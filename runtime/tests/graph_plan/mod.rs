//! The suite's part about plans that a graph captures once: two layers, captured for a bucket, compute every plan that is uploaded.
#![allow(unsafe_code)]

use super::{device, into_cuda};
use cudarc::driver::{CudaSlice, DevicePtr};
use half::f16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use tilewright_cuda::{CudaError, FitError, Graph, RawArgs};
use tilewright_runtime::{
    Attention, AttentionError, AttentionOptions, AttentionPlan, Cuda, GraphPlan, Heads, KvCache, PageTable,
};

const HEADS: Heads = Heads { query: 16, kv: 4, dim: 128 };
const PAGES: usize = 64;
const COLUMNS: usize = 10;
const ROW: usize = 16 * 128;

/// What was captured, its graph, the query, and the output of each layer.
type Captured = (GraphPlan, Graph, CudaSlice<f16>, [CudaSlice<f16>; 2]);

/// Requests of random lengths, which share their first pages.
fn plan(attention: &Attention<Cuda>, requests: usize, seed: u64) -> (AttentionPlan<Cuda>, Vec<u32>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let shared = rng.random_range(0..4);
    let entries: Vec<i32> = (0..requests * COLUMNS)
        .map(|at| match at % COLUMNS {
            column if column < shared => column as i32,
            _ => rng.random_range(4..PAGES as i32),
        })
        .collect();
    let lens: Vec<u32> = (0..requests).map(|_| rng.random_range(0..=16 * COLUMNS as u32)).collect();
    (attention.plan(&PageTable::new(&entries, COLUMNS, &lens, 16).unwrap()).unwrap(), lens)
}

#[test]
fn a_graph_of_all_layers_serves_every_plan_that_fits() {
    let device = device();
    let context = Arc::clone(device.context());
    let stream = context.new_stream().unwrap();
    let options = AttentionOptions { fetch_nvrtc: true, ..AttentionOptions::default() };
    let attention = Attention::cuda(context, HEADS, options).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut random = |count: usize| {
        let numbers: Vec<f16> = (0..count).map(|_| f16::from_f32(rng.random_range(-1.0..1.0))).collect();
        stream.clone_htod(&numbers).unwrap()
    };
    let cache = PAGES * 16 * 4 * 128;
    let caches = [[random(cache), random(cache)], [random(cache), random(cache)]];
    let nan = |rows: usize| stream.clone_htod(&vec![f16::NAN; rows * ROW]).unwrap();
    let read = |slice: &CudaSlice<f16>| -> Vec<f16> { stream.clone_dtoh(slice).unwrap() };
    let address = |slice: &CudaSlice<f16>| slice.device_ptr(&stream).0;

    let mut steps: Vec<Captured> = Vec::new();
    for (requests, seed) in [(12, 1), (3, 2), (16, 3), (1, 4), (9, 5), (5, 6), (16, 7), (12, 1)] {
        let (mut plan, lens) = plan(&attention, requests, seed);
        let fits = steps.iter().position(|(step, ..)| step.check(&plan).is_ok());
        let index = fits.unwrap_or_else(|| {
            let step = attention.graph_plan(&plan, 16, 4096).unwrap();
            let rows = step.bucket().capacities().requests as usize;
            let query = random(rows * ROW);
            let outputs = [nan(rows), nan(rows)];
            let args = |layer: usize, query: &CudaSlice<f16>| RawArgs {
                query: address(query),
                keys: address(&caches[layer][0]),
                values: address(&caches[layer][1]),
                output: address(&outputs[layer]),
                ..RawArgs::dense(&attention.geometry(16))
            };
            let layers = [args(0, &query), args(1, &outputs[0])];
            // SAFETY: the slices are as large as the bucket's requests and the cache's pages, and outlive the graph.
            let graph = unsafe {
                Graph::capture(&stream, || {
                    let refused = step.upload(&plan, &stream).unwrap_err();
                    assert!(matches!(refused, AttentionError::Captured { .. }), "{refused}");
                    layers.iter().try_for_each(|args| step.run_raw(&stream, args).map_err(into_cuda))
                })
                .unwrap()
            };
            steps.push((step, graph, query, outputs));
            steps.len() - 1
        });
        let (step, graph, query, outputs) = &mut steps[index];
        for grown in [false, true] {
            if grown {
                // All pages full: only lengths are copied.
                let lens: Vec<u32> = lens.iter().map(|len| len.next_multiple_of(16)).collect();
                plan.set_lengths(&lens).unwrap();
            }
            for output in outputs.iter_mut() {
                let rows = output.len();
                stream.memcpy_htod(&vec![f16::NAN; rows], output).unwrap();
            }
            step.upload(&plan, &stream).unwrap();
            graph.launch(&stream).unwrap();
            let mut input = stream.clone_htod(&read(query)[..requests * ROW]).unwrap();
            for (layer, found) in outputs.iter().enumerate() {
                let mut expected = nan(requests);
                let [keys, values] = &caches[layer];
                attention.run(&plan, &stream, &input, &KvCache::nhd(keys, values), &mut expected).unwrap();
                let found = read(found);
                let (batch, behind) = found.split_at(requests * ROW);
                for (at, (a, b)) in batch.iter().zip(read(&expected)).enumerate() {
                    let close = (a.to_f32() - b.to_f32()).abs() < 3e-3;
                    assert!(close, "{a} for {b} at {at} of layer {layer}, {requests} requests, seed {seed}");
                }
                assert!(behind.iter().all(|x| x.is_nan()), "rows behind the batch are left as they are");
                input = expected;
            }
        }
    }
    println!("{} graphs serve 8 batches", steps.len());
    assert!(steps.len() <= 5, "{} graphs for 8 batches", steps.len());

    let (many, _) = plan(&attention, 17, 8);
    let error = steps[0].0.upload(&many, &stream).unwrap_err();
    let fit = |error: &AttentionError| {
        matches!(
            error,
            AttentionError::Cuda(CudaError::Fit(
                FitError::Capacity { .. } | FitError::Tile { .. } | FitError::Items { .. }
            ))
        )
    };
    assert!(fit(&error), "{error}");
}
