//! One decode step: what an engine would hand to the runtime.

use crate::Layout;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::path::PathBuf;
use tilewright_heuristics::Geometry;

/// How a batch was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance {
    /// The scenario's file.
    pub file: PathBuf,
    /// The scenario's name.
    pub scenario: String,
    /// The scenario's content hash.
    pub hash: String,
    /// The seed that scattered the pages.
    pub seed: u64,
    /// How it was scaled down, in words; empty if it was not.
    pub scaling: String,
}

/// A decode batch: which pages each request reads, and how many tokens of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its name, unique in a scenario.
    pub name: String,
    /// The attention layer's layout.
    pub geometry: Geometry,
    /// `[requests, max_pages]` page ids, scattered over `0..pages`; -1 past a request's pages.
    pub page_table: Vec<i32>,
    /// Columns of the page table.
    pub max_pages: usize,
    /// KV tokens of each request, at least 1.
    pub seq_lens: Vec<u32>,
    /// Physical pages.
    pub pages: u32,
    /// How it was made.
    pub provenance: Provenance,
    unique_tokens: u64,
}

impl Batch {
    /// Lays out a checked layout in pages.
    pub(crate) fn of(name: String, geometry: Geometry, layout: &Layout, provenance: Provenance) -> Self {
        let page_size = geometry.page_size;
        let used = layout.used_tokens();
        let first: Vec<u32> = used
            .iter()
            .scan(0u32, |next, &tokens| {
                let first = *next;
                *next += tokens.div_ceil(page_size);
                Some(first)
            })
            .collect();
        let pages: u32 = used.iter().map(|tokens| tokens.div_ceil(page_size)).sum();
        // Engines allocate as requests come and go: neighbours in a row are not neighbours in memory.
        let mut physical: Vec<i32> = (0..pages as i32).collect();
        physical.shuffle(&mut ChaCha8Rng::seed_from_u64(provenance.seed));

        let seq_lens: Vec<u32> = layout.seq_lens().into_iter().map(|len| len as u32).collect();
        let max_pages = seq_lens.iter().map(|len| len.div_ceil(page_size)).max().unwrap_or(0) as usize;
        let mut page_table = vec![-1; seq_lens.len() * max_pages];
        for ((request, row), &seq_len) in
            layout.requests.iter().zip(page_table.chunks_mut(max_pages.max(1))).zip(&seq_lens)
        {
            // From the last node upwards: each fills the columns before those of the one below.
            let mut end = seq_len.div_ceil(page_size) as usize;
            let (mut node, mut tokens) = (request.node, request.tokens);
            loop {
                let count = tokens.div_ceil(page_size) as usize;
                for (column, page) in row[end - count..end].iter_mut().zip(first[node as usize]..) {
                    *column = physical[page as usize];
                }
                end -= count;
                match layout.nodes[node as usize].parent {
                    Some(parent) => (node, tokens) = (parent, layout.nodes[parent as usize].tokens),
                    None => break,
                }
            }
        }
        let unique_tokens = used.into_iter().map(u64::from).sum();
        Self { name, geometry, page_table, max_pages, seq_lens, pages, provenance, unique_tokens }
    }

    /// A batch that was laid out before, from its parts. Its distinct tokens are counted again; whatever is malformed about
    /// the pages is left for a plan to refuse.
    pub fn from_pages(
        name: String,
        geometry: Geometry,
        page_table: Vec<i32>,
        max_pages: usize,
        seq_lens: Vec<u32>,
        pages: u32,
        provenance: Provenance,
    ) -> Self {
        let page_size = geometry.page_size.max(1);
        let mut used = vec![0u32; pages as usize];
        for (row, &len) in page_table.chunks(max_pages.max(1)).zip(&seq_lens) {
            for (column, &page) in (0..len.div_ceil(page_size)).zip(row) {
                let tokens = (len - column * page_size).min(page_size);
                if let Some(used) = usize::try_from(page).ok().and_then(|page| used.get_mut(page)) {
                    *used = tokens.max(*used);
                }
            }
        }
        let unique_tokens = used.into_iter().map(u64::from).sum();
        Self { name, geometry, page_table, max_pages, seq_lens, pages, provenance, unique_tokens }
    }

    /// Requests.
    pub fn requests(&self) -> usize {
        self.seq_lens.len()
    }

    /// Bytes of distinct K and V: each token of each page once, as far as any request has it.
    pub fn unique_bytes(&self) -> u64 {
        self.unique_tokens * self.geometry.kv_bytes_per_token() as u64
    }

    /// Bytes of K and V if nothing were shared.
    pub fn unshared_bytes(&self) -> u64 {
        let tokens: u64 = self.seq_lens.iter().map(|&len| u64::from(len)).sum();
        tokens * self.geometry.kv_bytes_per_token() as u64
    }

    /// Floating-point operations of QK and PV: a multiplication and an addition each, for every query head, token and element.
    pub fn flops(&self) -> f64 {
        let tokens: f64 = self.seq_lens.iter().map(|&len| f64::from(len)).sum();
        4.0 * f64::from(self.geometry.q_heads) * f64::from(self.geometry.head_dim) * tokens
    }

    /// The page ids of a request.
    pub fn row(&self, request: usize) -> &[i32] {
        let used = self.seq_lens[request].div_ceil(self.geometry.page_size) as usize;
        &self.page_table[request * self.max_pages..][..used]
    }
}
