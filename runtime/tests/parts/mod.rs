//! A batch whose KV comes in parts, as Hydragen decomposes it: a prefix of all requests, a prefix of each group, and what is a request's
//! own. Each part has a page table of its own; attention over the whole is known from the f64 reference.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_conformance as conformance;
use tilewright_conformance::reference::{self, Attention, relative_error};
use tilewright_cpu::{Element, KvCache};
use tilewright_heuristics::Geometry;
use tilewright_plan::{KvStrides, PageTable};

/// One part of every request's KV.
pub(crate) struct Part {
    /// `[batch, max_pages]`.
    pub(crate) entries: Vec<i32>,
    /// Tokens of each request in this part; 0 where it has none.
    pub(crate) seq_lens: Vec<u32>,
    max_pages: usize,
}

impl Part {
    pub(crate) fn table(&self, geometry: &Geometry) -> PageTable<'_> {
        PageTable::new(&self.entries, self.max_pages, &self.seq_lens, geometry.page_size).unwrap()
    }
}

/// Tokens of the parts.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Of all requests but those without it.
    pub(crate) prefix: u32,
    /// Of each group; requests take turns.
    pub(crate) groups: Vec<u32>,
    /// Of each request alone.
    pub(crate) own: Vec<u32>,
    /// A request that has nothing but its own tokens.
    pub(crate) outsider: Option<usize>,
}

/// Parts, K, V and queries; NaN in all slots of pages that no request has a token in.
pub(crate) struct Parts<E> {
    pub(crate) geometry: Geometry,
    pub(crate) parts: Vec<Part>,
    pub(crate) keys: Vec<E>,
    pub(crate) values: Vec<E>,
    pub(crate) query: Vec<E>,
}

impl<E: Element> Parts<E> {
    pub(crate) fn new(geometry: Geometry, shape: &Shape, seed: u64) -> Self {
        let geometry = Geometry { dtype: E::DTYPE, ..geometry };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let token = (geometry.kv_heads * geometry.head_dim) as usize;
        let page_size = geometry.page_size as usize;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut pages = 0;
        // Pages filled in the order of their numbers.
        let mut take = |tokens: u32| -> Vec<i32> {
            let first = pages;
            pages += tokens.div_ceil(geometry.page_size) as i32;
            for cache in [&mut keys, &mut values] {
                cache.extend((0..tokens as usize * token).map(|_| E::from_f32(rng.random_range(-1.0..1.0))));
                cache.resize(pages as usize * page_size * token, E::from_f32(f32::NAN));
            }
            (first..pages).collect()
        };
        let batch = shape.own.len();
        let shared = |request: usize| shape.outsider != Some(request);
        let prefix = take(shape.prefix);
        let groups: Vec<Vec<i32>> = shape.groups.iter().map(|&tokens| take(tokens)).collect();
        let own: Vec<Vec<i32>> = shape.own.iter().map(|&tokens| take(tokens)).collect();
        let part = |of: &dyn Fn(usize) -> (Vec<i32>, u32)| {
            let (rows, seq_lens): (Vec<Vec<i32>>, Vec<u32>) = (0..batch).map(of).unzip();
            let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0);
            let padded = |mut row: Vec<i32>| {
                row.resize(max_pages, -1);
                row
            };
            Part { entries: rows.into_iter().flat_map(padded).collect(), seq_lens, max_pages }
        };
        let parts = vec![
            part(&|request| if shared(request) { (prefix.clone(), shape.prefix) } else { (Vec::new(), 0) }),
            part(&|request| {
                let group = request % shape.groups.len();
                if shared(request) { (groups[group].clone(), shape.groups[group]) } else { (Vec::new(), 0) }
            }),
            part(&|request| (own[request].clone(), shape.own[request])),
        ];
        let queries = batch * (geometry.q_heads * geometry.head_dim) as usize;
        let query = (0..queries).map(|_| E::from_f32(rng.random_range(-1.0..1.0))).collect();
        Self { geometry, parts, keys, values, query }
    }

    /// Rows (request, query head).
    pub(crate) fn rows(&self) -> usize {
        self.query.len() / self.geometry.head_dim as usize
    }

    pub(crate) fn scale(&self) -> f32 {
        1.0 / (self.geometry.head_dim as f32).sqrt()
    }

    /// Attention over all parts, computed at once: output and LSE. Parts may end inside a page, so a table of single tokens names them all.
    pub(crate) fn whole(&self) -> (Vec<f64>, Vec<f64>) {
        let geometry = Geometry { page_size: 1, ..self.geometry };
        let page_size = self.geometry.page_size;
        let mut rows: Vec<Vec<i32>> = vec![Vec::new(); self.parts[0].seq_lens.len()];
        for part in &self.parts {
            let table = part.table(&self.geometry);
            for (request, (row, &tokens)) in rows.iter_mut().zip(&part.seq_lens).enumerate() {
                let pages = table.pages(request);
                let slot = |token: u32| {
                    pages[(token / page_size) as usize] * page_size as i32 + (token % page_size) as i32
                };
                row.extend((0..tokens).map(slot));
            }
        }
        let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32).collect();
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        let padded = |mut row: Vec<i32>| {
            row.resize(longest, -1);
            row
        };
        let entries: Vec<i32> = rows.into_iter().flat_map(padded).collect();
        let table = PageTable::new(&entries, longest, &seq_lens, 1).unwrap();
        let cache = KvCache { keys: &self.keys, values: &self.values, strides: KvStrides::nhd(&geometry) };
        reference::decode(&geometry, &table, &self.query, &cache, &Attention::plain(self.scale()))
    }

    /// Panics unless the merged states are attention over the whole.
    pub(crate) fn check(&self, output: &[E], lse: &[f32]) {
        let (expected, expected_lse) = self.whole();
        let tolerance = conformance::tolerance(E::DTYPE);
        let head_dim = self.geometry.head_dim as usize;
        let output: Vec<f64> = output.iter().map(|x| f64::from(x.to_f32())).collect();
        let error = relative_error(&output, &expected);
        assert!(error < tolerance, "{error:.1e} over all");
        for (row, (found, expected)) in output.chunks(head_dim).zip(expected.chunks(head_dim)).enumerate() {
            // Where V cancels, a row's norm says little about the size of what was summed.
            let error = relative_error(found, expected);
            assert!(error < 8.0 * tolerance, "{error:.1e} in row {row}");
            let (found, expected) = (f64::from(lse[row]), expected_lse[row]);
            let close = found == expected || (found - expected).abs() <= tolerance * expected.abs().max(1.0);
            assert!(close, "LSE {found} for {expected} in row {row}");
        }
        assert_eq!((output.len(), lse.len()), (expected.len(), expected_lse.len()));
    }
}
