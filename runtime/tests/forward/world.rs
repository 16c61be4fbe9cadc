//! A batch as serving changes it: requests that come, grow, fork and leave.

use super::{TILES, select_of};
use cudarc::driver::CudaStream;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use tilewright_conformance as conformance;
use tilewright_conformance::reference::{self, Attention};
use tilewright_cpu::{self as cpu, Element};
use tilewright_cuda::{Bucket, CudaBackend, CudaElement, DecodeMemory, DevicePlan, GraphStep, LaunchMode};
use tilewright_heuristics::{Geometry, Mask, PackShape, Tile};
use tilewright_kernel_templates::cuda::KernelOptions;
use tilewright_plan::{KvStrides, PageTable, Plan, PlanOptions, Split};

const PAGES: usize = 256;
const MOST_PAGES: usize = 12;
pub(super) const MOST_REQUESTS: usize = 16;

/// A request: its pages, and how many tokens of them it has.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pages: Vec<i32>,
    tokens: u32,
}

/// A batch that changes from step to step over pages that are full of noise, so that a token is there as soon as a length says so.
pub(super) struct World<E> {
    pub(super) geometry: Geometry,
    keys: Vec<E>,
    values: Vec<E>,
    pub(super) query: Vec<E>,
    pub(super) requests: Vec<Request>,
    free: Vec<i32>,
    rng: ChaCha8Rng,
}

impl<E: Element + CudaElement> World<E> {
    pub(super) fn new(head_dim: u32, seed: u64) -> Self {
        let dtype = <E as Element>::DTYPE;
        let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim, page_size: 16, dtype };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut noise = |count: usize, amplitude: f32| -> Vec<E> {
            (0..count).map(|_| E::from_f32(rng.random_range(-amplitude..amplitude))).collect()
        };
        let cache = PAGES * KvStrides::nhd(&geometry).page;
        let vector = (geometry.q_heads * head_dim) as usize;
        Self {
            keys: noise(cache, 2.0),
            values: noise(cache, 1.0),
            query: noise(MOST_REQUESTS * vector, 2.0),
            requests: Vec::new(),
            free: (0..PAGES as i32).rev().collect(),
            geometry,
            rng,
        }
    }

    pub(super) fn options(&self) -> KernelOptions {
        KernelOptions::for_pages(self.geometry.page_size)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.geometry.head_dim as f32).sqrt()
    }

    fn page(&mut self) -> i32 {
        let index = self.rng.random_range(0..self.free.len());
        self.free.swap_remove(index)
    }

    pub(super) fn arrive(&mut self, tokens: u32) {
        let pages = (0..tokens.div_ceil(self.geometry.page_size)).map(|_| self.page()).collect();
        self.requests.push(Request { pages, tokens });
    }

    /// A request that shares the full pages of another, and has a last page of its own.
    pub(super) fn fork(&mut self) {
        let Some(of) = self.requests.choose(&mut self.rng).cloned() else { return self.arrive(40) };
        let full = (of.tokens / self.geometry.page_size) as usize;
        let mut pages = of.pages[..full].to_vec();
        let tokens = full as u32 * self.geometry.page_size + 1;
        if pages.len() < MOST_PAGES {
            pages.push(self.page());
            self.requests.push(Request { pages, tokens });
        }
    }

    fn leave(&mut self) {
        if self.requests.len() < 2 {
            return;
        }
        let index = self.rng.random_range(0..self.requests.len());
        let gone = self.requests.swap_remove(index);
        let in_use = |page: &i32| self.requests.iter().any(|request| request.pages.contains(page));
        let freed: Vec<i32> = gone.pages.into_iter().filter(|page| !in_use(page)).collect();
        self.free.extend(freed);
    }

    /// A token for each request that has room in its last page; whether there was one.
    fn grow_in_pages(&mut self) -> bool {
        let page_size = self.geometry.page_size;
        let mut grown = false;
        for request in &mut self.requests {
            if request.tokens % page_size != 0 {
                request.tokens += 1;
                grown = true;
            }
        }
        grown
    }

    /// Each request has another number of tokens in its last page.
    pub(super) fn change_lengths(&mut self) {
        let page_size = self.geometry.page_size;
        for request in self.requests.iter_mut().filter(|request| request.tokens > 0) {
            let before_page = (request.tokens - 1) / page_size * page_size;
            request.tokens = before_page + self.rng.random_range(1..=page_size);
        }
    }

    /// A page more for a request.
    fn grow_by_a_page(&mut self) {
        let index = self.rng.random_range(0..self.requests.len());
        if self.requests[index].pages.len() < MOST_PAGES {
            let page = self.page();
            let request = &mut self.requests[index];
            request.tokens = request.pages.len() as u32 * self.geometry.page_size + 1;
            request.pages.push(page);
        }
    }

    /// Some step of serving; whether the page table changed.
    pub(super) fn step(&mut self) -> bool {
        let room = self.requests.len() + 1 < MOST_REQUESTS;
        match self.rng.random_range(0..10) {
            0..4 if self.grow_in_pages() => return false,
            4 | 5 if room => {
                let tokens = self.rng.random_range(0..150);
                self.arrive(tokens);
            }
            6 | 7 if room => self.fork(),
            8 => self.leave(),
            _ => self.grow_by_a_page(),
        }
        true
    }

    pub(super) fn lens(&self) -> Vec<u32> {
        self.requests.iter().map(|request| request.tokens).collect()
    }

    fn entries(&self) -> Vec<i32> {
        let row = |request: &Request| {
            let garbage = std::iter::repeat_n(i32::MAX, MOST_PAGES - request.pages.len());
            request.pages.iter().copied().chain(garbage).collect::<Vec<_>>()
        };
        self.requests.iter().flat_map(row).collect()
    }

    pub(super) fn plan(&self, split: Split) -> Plan {
        self.plan_of(&TILES, split)
    }

    pub(super) fn plan_of(&self, tiles: &[Tile; 4], split: Split) -> Plan {
        let (entries, lens) = (self.entries(), self.lens());
        let table = PageTable::new(&entries, MOST_PAGES, &lens, self.geometry.page_size).unwrap();
        let options = PlanOptions { split, ..PlanOptions::default() }.with_max_concurrent_ctas(64);
        Plan::build(&self.geometry, &table, &options, |shape: &PackShape| select_of(tiles, shape)).unwrap()
    }

    /// Compares the rows of the batch with the f64 reference.
    pub(super) fn check(&self, output: &[E], lse: &[f32], what: &str) {
        let (entries, lens) = (self.entries(), self.lens());
        let table = PageTable::new(&entries, MOST_PAGES, &lens, self.geometry.page_size).unwrap();
        let cache =
            cpu::KvCache { keys: &self.keys, values: &self.values, strides: KvStrides::nhd(&self.geometry) };
        let rows = lens.len() * self.geometry.q_heads as usize;
        let elements = rows * self.geometry.head_dim as usize;
        let attention = Attention::plain(self.scale());
        let (expected, expected_lse) =
            reference::decode(&self.geometry, &table, &self.query[..elements], &cache, &attention);
        let (mut difference, mut norm) = (0.0, 0.0);
        for (found, expected) in output[..elements].iter().zip(&expected) {
            difference += (f64::from(found.to_f32()) - expected).powi(2);
            norm += expected.powi(2);
        }
        let (error, tolerance) =
            ((difference / norm.max(1e-30)).sqrt(), conformance::tolerance(self.geometry.dtype));
        assert!(error < tolerance, "{what}: the output's error is {error:.1e}");
        for (row, (&found, &expected)) in lse[..rows].iter().zip(&expected_lse).enumerate() {
            let near = (f64::from(found) - expected).abs() < tolerance * expected.abs().max(1.0);
            assert!(near || f64::from(found) == expected, "{what}: LSE {found} for {expected} in row {row}");
        }
    }

    /// One for all batches that this can become.
    pub(super) fn bucket(&self, forward: LaunchMode, tiles: &[Tile; 4]) -> Bucket {
        let pages = (MOST_REQUESTS * MOST_PAGES) as u32;
        Bucket::for_batch(&self.geometry, forward, tiles, MOST_REQUESTS as u32, pages).unwrap()
    }

    /// A captured step over its cache.
    pub(super) fn capture(
        &self,
        backend: &CudaBackend,
        stream: &Arc<CudaStream>,
        bucket: Bucket,
    ) -> GraphStep<DecodeMemory<E>> {
        let memory = self.memory(stream, &bucket);
        let plan = DevicePlan::with_bucket(backend.device(), bucket).unwrap();
        GraphStep::with_memory(backend, stream, plan, memory).unwrap()
    }

    pub(super) fn memory(&self, stream: &Arc<CudaStream>, bucket: &Bucket) -> DecodeMemory<E> {
        let nan = vec![E::from_f32(f32::NAN); self.query.len()];
        let rows = MOST_REQUESTS * self.geometry.q_heads as usize;
        DecodeMemory {
            query: stream.clone_htod(&self.query).unwrap(),
            keys: stream.clone_htod(&self.keys).unwrap(),
            values: stream.clone_htod(&self.values).unwrap(),
            kv_strides: KvStrides::nhd(&self.geometry),
            output: stream.clone_htod(&nan).unwrap(),
            workspace: stream.alloc_zeros(bucket.workspace_bytes()).unwrap(),
            lse: Some(stream.alloc_zeros(rows).unwrap()),
            scale: Some(self.scale()),
            mask: Mask::NONE,
            sinks: None,
        }
    }
}
