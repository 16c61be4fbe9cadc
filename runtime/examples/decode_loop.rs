//! A decode loop as an engine writes it, on the CPU: requests arrive, share the pages of their prefix, fork, grow and finish.
//!
//! `cargo run -p tilewright-runtime --example decode_loop`. What is not attention is in `model`. Every answer is compared with attention
//! in f64 before its request ends.

mod model;

use model::{LAYERS, Outcome, PAGE_SIZE, Projection, ROW, Request, geometry, project, sample};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tilewright_runtime::pages::{Appended, Created, Csr, PageError, PageManager, PagePool, RequestId};
use tilewright_runtime::{Attention, AttentionOptions, Cpu, KvCache, KvStrides, PageTable};

/// Pages of the KV cache: too few for all requests at once, so that some wait.
const PAGES: u32 = 24;

struct Engine {
    pages: PageManager,
    /// K and V of each layer, `[page, token, head, element]`.
    layers: Vec<(Vec<f32>, Vec<f32>)>,
    attention: Attention<Cpu>,
    /// The batch, in memory that every step uses again.
    csr: Csr,
}

impl Engine {
    fn new() -> Outcome<Self> {
        let pages = PageManager::new(Arc::new(PagePool::new(PAGES)?), PAGE_SIZE)?;
        let cache = vec![0.0; PAGES as usize * KvStrides::nhd(&geometry::<f32>()).page];
        let layers = vec![(cache.clone(), cache); LAYERS];
        let geometry = geometry::<f32>();
        let scale = 1.0 / (geometry.head_dim as f32).sqrt();
        let options =
            AttentionOptions { dtype: geometry.dtype, scale: Some(scale), ..AttentionOptions::default() };
        let attention = Attention::cpu(model::HEADS, options)?;
        Ok(Self { pages, layers, attention, csr: Csr::default() })
    }

    /// Starts a request, or does not while there is no room for it.
    fn admit(&mut self, prompt: &[u32], answer: u32) -> Outcome<Option<Request>> {
        // The first step computes the prompt's last token: from its output, the first one of the answer is sampled.
        let (&next, prompt) = prompt.split_last().ok_or("the prompt is empty")?;
        let Created { request: id, cached_tokens } = self.pages.create(0, prompt)?;
        let rest = &prompt[cached_tokens as usize..];
        // All that it can need is reserved now, so that it never runs out of pages halfway.
        match self.pages.reserve(id, u32::try_from(rest.len())? + answer) {
            Err(PageError::OutOfPages { .. }) => {
                self.pages.discard(id)?;
                return Ok(None);
            }
            reserved => reserved?,
        }
        let request = Request { id, tokens: prompt.to_vec(), next, left: answer };
        let appended = self.pages.append(id, rest)?;
        self.write(&request, &appended)?; // the prefill, of those tokens only that are in no page yet
        Ok(Some(request))
    }

    /// Begins another answer with another token. It shares all pages; of the last one, who first writes to it makes a copy.
    fn fork(&mut self, request: &Request, next: u32) -> Outcome<Request> {
        let fork = Request { id: self.pages.fork(request.id)?, next, ..request.clone() };
        self.pages.reserve(fork.id, fork.left)?;
        self.pages.reserve(request.id, request.left)?; // room for that copy
        Ok(fork)
    }

    /// Writes K and V of appended tokens, in every layer.
    fn write(&mut self, request: &Request, appended: &Appended) -> Outcome<()> {
        let KvStrides { page, token, .. } = KvStrides::nhd(&geometry::<f32>());
        for (layer, (keys, values)) in self.layers.iter_mut().enumerate() {
            for (cache, what) in [(keys, Projection::Key), (values, Projection::Value)] {
                if let Some(copy) = appended.copy {
                    let from = copy.from as usize * page;
                    cache.copy_within(from..from + copy.tokens as usize * token, copy.to as usize * page);
                }
                let slots = self.pages.slots(request.id, appended.tokens.clone())?;
                for (slot, position) in slots.zip(appended.tokens.clone()) {
                    let vectors = project(what, layer, request.tokens[position as usize], position);
                    let at = slot.page as usize * page + slot.slot as usize * token;
                    cache[at..][..token].copy_from_slice(&vectors);
                }
            }
        }
        Ok(())
    }

    /// One token for every request. Returns the last layer's query and output, `[batch, q_heads, head_dim]`.
    fn step(&mut self, running: &mut [Request]) -> Outcome<(Vec<f32>, Vec<f32>)> {
        for request in &mut *running {
            let appended = self.pages.append(request.id, &[request.next])?;
            request.tokens.push(request.next);
            self.write(request, &appended)?;
        }
        let ids: Vec<RequestId> = running.iter().map(|request| request.id).collect();
        self.pages.write_csr(&ids, &mut self.csr)?;
        let Csr { indptr, indices, last_page_len } = &self.csr;
        let table = PageTable::from_csr(indptr, indices, last_page_len, PAGE_SIZE)?;
        let plan = self.attention.plan(&table)?; // once a step: it serves all layers

        // What a layer gives is what the next one asks.
        let mut query = Vec::new();
        let mut output = running.iter().flat_map(Request::first_query).collect::<Vec<f32>>();
        for (keys, values) in &self.layers {
            query = std::mem::replace(&mut output, vec![0.0; running.len() * ROW]);
            self.attention.run(&plan, &(), &query, &KvCache::nhd(keys, values), &mut output)?;
        }
        for (request, logits) in running.iter_mut().zip(output.chunks(ROW)) {
            (request.next, request.left) = (sample(logits, 0), request.left - 1);
        }
        Ok((query, output))
    }
}

fn main() -> Outcome<()> {
    let mut engine = Engine::new()?;
    let mut waiting: VecDeque<(Vec<u32>, u32)> = model::traffic().collect();
    let mut running: Vec<Request> = Vec::new();
    let (mut steps, mut tokens, mut entries, mut held, mut worst) = (0, 0, 0, 0, 0.0f64);
    while !(waiting.is_empty() && running.is_empty()) {
        if let Some((prompt, answer)) = waiting.front()
            && let Some(request) = engine.admit(prompt, *answer)?
        {
            running.push(request);
            waiting.pop_front();
        }
        let (query, output) = engine.step(&mut running)?;
        let (requests, all) = (running.len(), engine.csr.indices.len());
        let distinct = engine.csr.indices.iter().collect::<BTreeSet<_>>().len();
        (steps, tokens, entries, held) = (steps + 1, tokens + requests, entries + all, held + distinct);
        if steps % 10 == 0 {
            println!("step {steps}: requests {requests}, pages in their tables {all}, in memory {distinct}");
        }
        for (request, row) in running.iter().zip(0..).filter(|(request, _)| request.left == 0) {
            let row = row * ROW..(row + 1) * ROW;
            worst = worst.max(model::check(&request.tokens, &query[row.clone()], &output[row])?);
            engine.pages.free(request.id)?; // its full pages stay cached until their room is needed
        }
        if steps == 3 {
            let fork = engine.fork(&running[0], sample(&output[..ROW], 1))?;
            running.push(fork);
        }
        running.retain(|request| request.left > 0);
    }
    println!("{steps} steps, {tokens} tokens; of {entries} pages read, sharing saved {}", entries - held);
    println!("every answer agrees with attention in f64: the largest error is {worst:.1e}");
    Ok(())
}
