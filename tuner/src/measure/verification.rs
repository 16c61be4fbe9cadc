//! Awkward batches that every variant computes against the f64 reference before it is timed.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_heuristics::{Dtype, Geometry};
use tilewright_kernel_templates::Class;

/// A small batch with what goes wrong first: edges of pages and tiles, shared prefixes, scattered pages, garbage behind lengths.
#[derive(Clone, Debug)]
pub(super) struct AwkwardBatch {
    /// The layout.
    pub(super) geometry: Geometry,
    /// `[batch, max_pages]`; garbage past each request's pages.
    pub(super) page_table: Vec<i32>,
    /// Columns of the page table.
    pub(super) max_pages: usize,
    /// Tokens of each request.
    pub(super) seq_lens: Vec<u32>,
    /// Physical pages; not all are in use.
    pub(super) pages: usize,
}

/// The largest relative error that a correct variant may have (norm of the difference over norm of the reference).
pub(super) const fn tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => 2e-3,
        Dtype::Bf16 => 1e-2,
        Dtype::F32 => 1e-5,
    }
}

/// The awkward batches of a class.
pub(super) fn awkward_batches(class: &Class) -> Vec<AwkwardBatch> {
    let geometry = |q_heads, kv_heads, page_size| Geometry {
        q_heads,
        kv_heads,
        head_dim: class.head_dim,
        page_size,
        dtype: class.dtype,
    };
    vec![
        // An odd ratio, lengths around page and tile edges, all behind two shared pages; an empty request among them.
        batch(geometry(6, 2, 16), 32, &[33, 47, 48, 49, 0, 63, 64, 65, 130], 1),
        // One head, one request, one token; then a long one whose length is a multiple of nothing.
        batch(geometry(1, 1, 32), 0, &[1], 2),
        batch(geometry(4, 1, 32), 0, &[523], 3),
        // Many rows over one prefix, more than any m: identical requests that end with it, and pages of one token.
        batch(geometry(8, 1, 1), 40, &[40, 40, 40, 41, 40, 40, 40, 40, 40, 40, 40, 40, 40], 4),
    ]
}

/// Requests of these lengths that share their first `shared` tokens (whole pages).
fn batch(geometry: Geometry, shared: u32, seq_lens: &[u32], seed: u64) -> AwkwardBatch {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let page_size = geometry.page_size;
    let pages_of = |len: u32| len.div_ceil(page_size) as usize;
    let shared_pages = (shared / page_size) as usize;
    let longest = seq_lens.iter().map(|&len| pages_of(len)).max().unwrap_or(0);
    let max_pages = longest + 2;
    let own: usize = seq_lens.iter().map(|&len| pages_of(len).saturating_sub(shared_pages)).sum();
    let pages = shared_pages + own + 3;
    let mut free: Vec<i32> = (0..pages as i32).collect();
    free.shuffle(&mut rng);
    let prefix: Vec<i32> = free.drain(..shared_pages).collect();
    let mut page_table = Vec::with_capacity(seq_lens.len() * max_pages);
    for &len in seq_lens {
        let used = pages_of(len);
        let mut row: Vec<i32> = prefix.iter().copied().take(used).collect();
        row.extend(free.drain(..used.saturating_sub(shared_pages)));
        // What lies behind a request's pages must never be read: no page has these ids.
        row.resize_with(max_pages, || if rng.random_bool(0.5) { -1 } else { i32::MAX });
        page_table.extend(row);
    }
    AwkwardBatch { geometry, page_table, max_pages, seq_lens: seq_lens.to_vec(), pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_their_prefix_and_nothing_else() {
        for batch in awkward_batches(&Class { head_dim: 64, dtype: Dtype::F32 }) {
            assert_eq!(batch.geometry.validate(), Ok(()));
            let mut owners = std::collections::BTreeMap::new();
            for (request, &len) in batch.seq_lens.iter().enumerate() {
                let used = len.div_ceil(batch.geometry.page_size) as usize;
                let row = &batch.page_table[request * batch.max_pages..][..batch.max_pages];
                for (column, &page) in row[..used].iter().enumerate() {
                    assert!((0..batch.pages as i32).contains(&page));
                    assert_eq!(
                        *owners.entry(page).or_insert(column),
                        column,
                        "a page stands at one place of its requests"
                    );
                }
                assert!(row[used..].iter().all(|&page| page < 0 || page >= batch.pages as i32));
            }
        }
    }
}
