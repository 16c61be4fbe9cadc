//! A decode loop as an engine writes it, on a GPU: `decode_loop` with K, V and everything between the layers in device memory.
//!
//! `cargo run -p tilewright-runtime --example cuda_decode_loop`. What is not attention is in `model`. A step whose requests only grow inside
//! their last pages keeps the plan on the device, and writes no more than the lengths.

mod model;

use half::f16;
use model::{LAYERS, Outcome, PAGE_SIZE, Projection, ROW, Request, geometry, project, sample};
use std::collections::VecDeque;
use std::sync::Arc;
use tilewright_runtime::cuda::CudaDevice;
use tilewright_runtime::pages::{Appended, Created, Csr, PageManager, PagePool, RequestId};
use tilewright_runtime::{
    Attention, AttentionOptions, AttentionPlan, Cuda, KvCache, KvCacheMut, KvStrides, NewTokens, PageTable,
};

use cudarc::driver::{CudaSlice, CudaStream};

/// Pages of the KV cache: enough for all requests at once.
const PAGES: u32 = 64;

struct Engine {
    pages: PageManager,
    stream: Arc<CudaStream>,
    /// K and V of each layer, `[page, token, head, element]`.
    layers: Vec<(CudaSlice<f16>, CudaSlice<f16>)>,
    attention: Attention<Cuda>,
    /// The plan, and the pages that it was made for.
    plan: AttentionPlan<Cuda>,
    planned: Csr,
    plans: usize,
}

impl Engine {
    fn new(device: &CudaDevice) -> Outcome<Self> {
        // One stream, so that all is in order without an event. An engine passes its own context and its own stream.
        let stream = device.context().new_stream()?;
        let options = AttentionOptions { fetch_nvrtc: true, ..AttentionOptions::default() };
        let attention = Attention::cuda(Arc::clone(device.context()), model::HEADS, options)?;
        // Compiles what the selector can choose; the next start takes it from the cache.
        attention.prepare(PAGE_SIZE)?;
        let elements = PAGES as usize * KvStrides::nhd(&geometry::<f16>()).page;
        let cache = || stream.alloc_zeros::<f16>(elements);
        Ok(Self {
            pages: PageManager::new(Arc::new(PagePool::new(PAGES)?), PAGE_SIZE)?,
            layers: (0..LAYERS).map(|_| Ok((cache()?, cache()?))).collect::<Outcome<_>>()?,
            plan: attention.plan(&PageTable::new(&[], 0, &[], PAGE_SIZE)?)?,
            attention,
            planned: Csr::default(),
            plans: 0,
            stream,
        })
    }

    /// Starts a request: its pages, and K and V of the tokens that no page holds yet.
    fn admit(&mut self, prompt: &[u32], answer: u32) -> Outcome<Request> {
        let (&next, prompt) = prompt.split_last().ok_or("the prompt is empty")?;
        let Created { request: id, cached_tokens } = self.pages.create(0, prompt)?;
        let rest = &prompt[cached_tokens as usize..];
        self.pages.reserve(id, u32::try_from(rest.len())? + answer)?;
        let request = Request { id, tokens: prompt.to_vec(), next, left: answer };
        let appended = self.pages.append(id, rest)?;
        self.write(&request, &appended)?;
        Ok(request)
    }

    /// Writes K and V of appended tokens, in every layer.
    fn write(&mut self, request: &Request, appended: &Appended) -> Outcome<()> {
        let KvStrides { page, token, .. } = KvStrides::nhd(&geometry::<f16>());
        let slots = self.pages.slots(request.id, appended.tokens.clone())?;
        let slots: Vec<i64> =
            slots.map(|slot| i64::from(slot.page) * i64::from(PAGE_SIZE) + i64::from(slot.slot)).collect();
        for (layer, (keys, values)) in self.layers.iter_mut().enumerate() {
            if let Some(copy) = appended.copy {
                let (from, to) = (copy.from as usize * page, copy.to as usize * page);
                let elements = copy.tokens as usize * token;
                for cache in [&mut *keys, &mut *values] {
                    let shared = self.stream.clone_dtod(&cache.slice(from..from + elements))?;
                    self.stream.memcpy_dtod(&shared, &mut cache.slice_mut(to..to + elements))?;
                }
            }
            if slots.is_empty() {
                continue;
            }
            // A model has them on the device.
            let vectors = |what| -> Vec<f16> {
                let vector =
                    |position: u32| project(what, layer, request.tokens[position as usize], position);
                appended.tokens.clone().flat_map(vector).collect()
            };
            let (k, v) = (vectors(Projection::Key), vectors(Projection::Value));
            let (k, v) = (self.stream.clone_htod(&k)?, self.stream.clone_htod(&v)?);
            let slots = self.stream.clone_htod(&slots)?;
            let tokens = NewTokens::new(&k, &v, &slots);
            self.attention.append(PAGE_SIZE, &self.stream, &tokens, &mut KvCacheMut::nhd(keys, values))?;
        }
        Ok(())
    }

    /// Plans the batch again, or gives the plan its new lengths.
    fn plan(&mut self, running: &[Request]) -> Outcome<()> {
        let mut csr = Csr::default();
        let ids: Vec<RequestId> = running.iter().map(|request| request.id).collect();
        self.pages.write_csr(&ids, &mut csr)?;
        let Csr { indptr, indices, last_page_len } = &csr;
        let table = PageTable::from_csr(indptr, indices, last_page_len, PAGE_SIZE)?;
        // Counts of pages would not do: a copied page takes the place of a shared one, and a shared one that of an equal one.
        if (indptr, indices) == (&self.planned.indptr, &self.planned.indices) {
            return Ok(self.plan.set_lengths(&table.seq_lens().collect::<Vec<_>>())?);
        }
        self.plan = self.attention.plan(&table)?;
        (self.planned, self.plans) = (csr, self.plans + 1);
        Ok(())
    }

    /// One token for every request. Returns the last layer's query and output, `[batch, q_heads, head_dim]`.
    fn step(&mut self, running: &mut [Request]) -> Outcome<(Vec<f16>, Vec<f16>)> {
        for request in &mut *running {
            let appended = self.pages.append(request.id, &[request.next])?;
            request.tokens.push(request.next);
            self.write(request, &appended)?;
        }
        self.plan(running)?;

        // What a layer gives is what the next one asks.
        let first: Vec<f16> = running.iter().flat_map(Request::first_query).collect();
        let mut query = self.stream.alloc_zeros(first.len())?;
        let mut output = self.stream.clone_htod(&first)?;
        for (keys, values) in &self.layers {
            std::mem::swap(&mut query, &mut output);
            let cache = KvCache::nhd(keys, values);
            self.attention.run(&self.plan, &self.stream, &query, &cache, &mut output)?;
        }
        let (query, output) = (self.stream.clone_dtoh(&query)?, self.stream.clone_dtoh(&output)?);
        self.stream.synchronize()?;
        for (request, logits) in running.iter_mut().zip(output.chunks(ROW)) {
            (request.next, request.left) = (sample(logits, 0), request.left - 1);
        }
        Ok((query, output))
    }
}

fn main() -> Outcome<()> {
    if CudaDevice::count() == 0 {
        println!("no CUDA device: nothing to run; `decode_loop` is the same on the CPU");
        return Ok(());
    }
    let device = CudaDevice::open(0)?;
    let mut engine = Engine::new(&device)?;
    let mut waiting: VecDeque<(Vec<u32>, u32)> = model::traffic().collect();
    let mut running: Vec<Request> = Vec::new();
    let (mut steps, mut tokens, mut worst) = (0, 0, 0.0f64);
    while !(waiting.is_empty() && running.is_empty()) {
        if let Some((prompt, answer)) = waiting.pop_front() {
            running.push(engine.admit(&prompt, answer)?);
        }
        let (query, output) = engine.step(&mut running)?;
        (steps, tokens) = (steps + 1, tokens + running.len());
        for (request, row) in running.iter().zip(0..).filter(|(request, _)| request.left == 0) {
            let row = row * ROW..(row + 1) * ROW;
            worst = worst.max(model::check(&request.tokens, &query[row.clone()], &output[row])?);
            engine.pages.free(request.id)?;
        }
        if steps == 3 {
            // Another answer, with the second likeliest token.
            let id = engine.pages.fork(running[0].id)?;
            running.push(Request { id, next: sample(&output[..ROW], 1), ..running[0].clone() });
        }
        running.retain(|request| request.left > 0);
    }
    println!("{}: {steps} steps, {tokens} tokens, {} plans", device.name(), engine.plans);
    println!("every answer agrees with attention in f64: the largest error is {worst:.1e}");
    Ok(())
}
