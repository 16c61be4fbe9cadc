//! The suite's part about plans that a graph captures once: two layers, captured once, compute every batch that is planned after it.
#![allow(unsafe_code)]

use super::lent::Lent;
use super::{device, into_cuda};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use half::f16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::Cell;
use std::sync::Arc;
use tilewright_cuda::{CudaError, Graph, RawArgs};
use tilewright_runtime::{
    Attention, AttentionError, AttentionOptions, Cuda, GraphPlan, Heads, KvCache, PageTable,
};

const HEADS: Heads = Heads { query: 16, kv: 4, dim: 128 };
const PAGES: usize = 64;
const COLUMNS: usize = 10;
const ROWS: usize = 16;
const ROW: usize = 16 * 128;

/// Requests of random lengths, which share their first pages, and rows behind them without tokens.
struct Batch {
    entries: Vec<i32>,
    lens: Vec<u32>,
}

impl Batch {
    fn random(requests: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let shared = rng.random_range(0..4);
        let rows = requests.max(ROWS);
        let entries = (0..rows * COLUMNS)
            .map(|at| match at % COLUMNS {
                column if column < shared => column as i32,
                _ => rng.random_range(4..PAGES as i32),
            })
            .collect();
        let mut lens: Vec<u32> = (0..requests).map(|_| rng.random_range(1..=16 * COLUMNS as u32)).collect();
        lens.resize(rows, 0);
        Self { entries, lens }
    }

    fn table(&self) -> PageTable<'_> {
        PageTable::new(&self.entries, COLUMNS, &self.lens, 16).unwrap()
    }
}

fn options() -> AttentionOptions {
    AttentionOptions { fetch_nvrtc: true, ..AttentionOptions::default() }
}

/// Two layers, the second of whose queries are the first one's output.
struct Step {
    attention: Attention<Cuda>,
    stream: Arc<CudaStream>,
    query: CudaSlice<f16>,
    caches: [[CudaSlice<f16>; 2]; 2],
    outputs: [CudaSlice<f16>; 2],
    /// Given back when all that lies on it is gone.
    _device: Lent,
}

impl Step {
    fn new() -> Self {
        Self::with(options())
    }

    fn with(options: AttentionOptions) -> Self {
        let device = device();
        let context = Arc::clone(device.context());
        let stream = context.new_stream().unwrap();
        let attention = Attention::cuda(context, HEADS, options).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut random = |count: usize| {
            let numbers: Vec<f16> = (0..count).map(|_| f16::from_f32(rng.random_range(-1.0..1.0))).collect();
            stream.clone_htod(&numbers).unwrap()
        };
        let cache = PAGES * 16 * 4 * 128;
        let caches = [[random(cache), random(cache)], [random(cache), random(cache)]];
        let (query, outputs) = (random(ROWS * ROW), [random(ROWS * ROW), random(ROWS * ROW)]);
        Self { attention, stream, query, caches, outputs, _device: device }
    }

    fn run(&self, plan: &GraphPlan) -> Result<(), AttentionError> {
        let address = |slice: &CudaSlice<f16>| slice.device_ptr(&self.stream).0;
        for (layer, query) in [&self.query, &self.outputs[0]].into_iter().enumerate() {
            let args = RawArgs {
                query: address(query),
                keys: address(&self.caches[layer][0]),
                values: address(&self.caches[layer][1]),
                output: address(&self.outputs[layer]),
                ..RawArgs::dense(&self.attention.geometry(16))
            };
            // SAFETY: the slices are as large as the plan's rows and the cache's pages, and outlive plans and graphs.
            unsafe { plan.run_raw(&self.stream, &args)? };
        }
        Ok(())
    }

    /// Runs the plan, which compiles what it needs, and captures it.
    fn capture(&self, plan: &mut GraphPlan, other: &Batch) -> Graph {
        self.run(plan).unwrap();
        let captured = || {
            let refused = plan.update(&other.table(), &self.stream).unwrap_err();
            assert!(matches!(refused, AttentionError::Captured { .. }), "{refused}");
            self.run(plan).map_err(into_cuda)
        };
        // SAFETY: what is captured outlives the graph.
        unsafe { Graph::capture(&self.stream, captured).unwrap() }
    }

    fn forget_outputs(&mut self) {
        for output in &mut self.outputs {
            self.stream.memcpy_htod(&vec![f16::NAN; ROWS * ROW], output).unwrap();
        }
    }

    /// Compares the outputs with those of a plan of the batch's own.
    fn check(&self, batch: &Batch, what: &str) {
        let requests = batch.lens.iter().filter(|&&len| len > 0).count();
        self.check_rows(batch, requests, what);
    }

    /// The same where some of the first `requests` may have no tokens.
    fn check_rows(&self, batch: &Batch, requests: usize, what: &str) {
        let read = |slice: &CudaSlice<f16>| -> Vec<f16> { self.stream.clone_dtoh(slice).unwrap() };
        let plan = self.attention.plan(&batch.table()).unwrap();
        let mut input = self.query.clone();
        for (layer, [keys, values]) in self.caches.iter().enumerate() {
            let mut expected = self.stream.clone_htod(&vec![f16::NAN; ROWS * ROW]).unwrap();
            let cache = KvCache::nhd(keys, values);
            self.attention.run(&plan, &self.stream, &input, &cache, &mut expected).unwrap();
            let found = read(&self.outputs[layer]);
            for (at, (a, b)) in found.iter().zip(read(&expected)).enumerate() {
                let close = (a.to_f32() - b.to_f32()).abs() < 3e-3;
                assert!(close, "{a} for {b} at {at} of layer {layer}: {what}");
            }
            assert!(
                found[requests * ROW..].iter().all(|x| x.to_f32() == 0.0),
                "rows behind the batch are zero"
            );
            input = expected;
        }
    }
}

const BATCHES: [(usize, u64); 8] = [(12, 1), (3, 2), (16, 3), (1, 4), (9, 5), (5, 6), (16, 7), (12, 1)];

#[test]
fn graphs_of_all_layers_serve_every_batch_that_fits() {
    let mut step = Step::new();
    let mut graphs: Vec<(GraphPlan, Graph)> = Vec::new();
    for (requests, seed) in BATCHES {
        let mut batch = Batch::random(requests, seed);
        let what = format!("{requests} requests, seed {seed}");
        let fits = graphs.iter_mut().position(|(plan, _)| match plan.update(&batch.table(), &step.stream) {
            Ok(()) => true,
            Err(error) => {
                assert!(matches!(error, AttentionError::Cuda(CudaError::Fit(_))), "{error}");
                false
            }
        });
        let index = fits.unwrap_or_else(|| {
            let mut plan = step.attention.graph_plan(&batch.table(), 4096, &step.stream).unwrap();
            let graph = step.capture(&mut plan, &Batch::random(2, 9));
            graphs.push((plan, graph));
            graphs.len() - 1
        });
        let (plan, graph) = &mut graphs[index];
        step.forget_outputs();
        graph.launch(&step.stream).unwrap();
        step.check(&batch, &what);

        // All pages full: only lengths are copied.
        batch.lens.iter_mut().for_each(|len| *len = len.next_multiple_of(16));
        plan.set_lengths(&batch.lens, &step.stream).unwrap();
        step.forget_outputs();
        graph.launch(&step.stream).unwrap();
        step.check(&batch, &what);

        // A batch of more rows is refused, and the plan stays as it is.
        let error = plan.update(&Batch::random(ROWS + 1, 8).table(), &step.stream).unwrap_err();
        assert!(matches!(error, AttentionError::Cuda(CudaError::Fit(_))), "{error}");
        step.forget_outputs();
        graph.launch(&step.stream).unwrap();
        step.check(&batch, &what);
    }
    println!("{} graphs serve {} batches", graphs.len(), BATCHES.len());
    assert!(graphs.len() <= 5, "{} graphs for {} batches", graphs.len(), BATCHES.len());
}

#[test]
fn one_graph_for_any_batch_serves_all() {
    let mut step = Step::new();
    let pages = (ROWS * COLUMNS) as u32;
    let mut plan = step.attention.graph_plan_for_any(16, ROWS as u32, pages, &step.stream).unwrap();
    let graph = step.capture(&mut plan, &Batch::random(2, 9));
    for (requests, seed) in BATCHES {
        let batch = Batch::random(requests, seed);
        plan.update(&batch.table(), &step.stream).unwrap();
        step.forget_outputs();
        graph.launch(&step.stream).unwrap();
        step.check(&batch, &format!("{requests} requests, seed {seed}"));
    }
}

/// Requests grow, gain pages, come and go: each step is compared with the one before, and its plan copied as far as it changed. Kernels read
/// lengths that updates copy, or those of the engine.
#[test]
fn a_graph_follows_its_batch() {
    for (invariant, of_engine) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut step = Step::with(AttentionOptions { invariant, ..options() });
        let pages = (ROWS * COLUMNS) as u32;
        let mut plan = step.attention.graph_plan_for_any(16, ROWS as u32, pages, &step.stream).unwrap();
        let mut lens = step.stream.alloc_zeros::<u32>(ROWS).unwrap();
        if of_engine {
            // SAFETY: as many as the plan has rows, written before each launch, and dropped after the graph.
            plan = unsafe { plan.with_lengths_at(lens.device_ptr(&step.stream).0) };
        }
        let mut copied = [0, 0];
        let graph = step.capture(&mut plan, &Batch::random(2, 9));
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut batch = Batch::random(12, 1);
        for number in 0..60 {
            let what = format!("step {number}, invariant: {invariant}, the engine's lengths: {of_engine}");
            let may_stay = number % 3 == 1;
            for request in 0..12 {
                let len = batch.lens[request];
                let change = if may_stay { 40 } else { rng.random_range(0..40) };
                batch.lens[request] = match change {
                    0 => 0,
                    1 => {
                        let row = &mut batch.entries[request * COLUMNS..][..COLUMNS];
                        row.fill_with(|| rng.random_range(4..PAGES as i32));
                        rng.random_range(1..=16 * COLUMNS as u32)
                    }
                    2..10 => len.next_multiple_of(16).max(1),
                    // Inside its last page.
                    40 => (len + 1).min(len.next_multiple_of(16)),
                    _ if len > 0 => (len + 1).min(16 * COLUMNS as u32),
                    _ => len,
                };
            }
            if of_engine {
                step.stream.memcpy_htod(&batch.lens, &mut lens).unwrap();
            }
            plan.compare(&batch.table().into(), 0).unwrap();
            assert!(!may_stay || plan.copies_nothing() == of_engine, "{what}");
            let asked = Cell::new(false);
            let stream = || {
                asked.set(true);
                Arc::clone(&step.stream)
            };
            plan.update_compared(stream).unwrap();
            copied[usize::from(asked.get())] += 1;
            step.forget_outputs();
            graph.launch(&step.stream).unwrap();
            step.check_rows(&batch, 12, &what);
            // A batch that is refused leaves the plan.
            let error = plan.update(&Batch::random(ROWS + 1, 8).table(), &step.stream).unwrap_err();
            assert!(matches!(error, AttentionError::Cuda(CudaError::Fit(_))), "{error}");
        }
        println!(
            "the engine's lengths: {of_engine}: nothing copied in {} steps, something in {}",
            copied[0], copied[1]
        );
        assert_eq!(copied[0] >= 20, of_engine, "a third of the steps changes lengths alone");
    }
}
