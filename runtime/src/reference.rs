//! Attention in f64, straight from the page table: what every variant is compared with. No forest, no plan, no tiles.

use crate::PageTable;
use crate::cpu::{Element, KvCache};
use tilewright_heuristics::Geometry;

/// Output `[batch, q_heads, head_dim]` and natural-log LSE `[batch, q_heads]`. A request without tokens has output 0 and
/// LSE -inf.
///
/// # Panics
/// If a slice is shorter than the geometry and the page table say: this is a tool for tests and verification.
pub fn decode<E: Element>(
    geometry: &Geometry,
    table: &PageTable<'_>,
    query: &[E],
    cache: &KvCache<'_, E>,
    scale: f32,
) -> (Vec<f64>, Vec<f64>) {
    let head_dim = geometry.head_dim as usize;
    let q_heads = geometry.q_heads as usize;
    let mut output = vec![0.0; table.batch() * q_heads * head_dim];
    let mut lse = vec![f64::NEG_INFINITY; table.batch() * q_heads];
    for request in 0..table.batch() {
        let tokens: Vec<usize> = (0..table.seq_lens()[request])
            .map(|token| {
                let page = table.pages(request)[(token / geometry.page_size) as usize] as usize;
                page * cache.strides.page + (token % geometry.page_size) as usize * cache.strides.token
            })
            .collect();
        if tokens.is_empty() {
            continue;
        }
        for head in 0..q_heads {
            let row = request * q_heads + head;
            let kv_head = head / geometry.gqa_ratio() as usize * cache.strides.head;
            let q: Vec<f64> = query[row * head_dim..][..head_dim].iter().map(wide).collect();
            let dot = |token: &usize| {
                let k = &cache.keys[token + kv_head..][..head_dim];
                f64::from(scale) * q.iter().zip(k).map(|(q, k)| q * wide(k)).sum::<f64>()
            };
            let scores: Vec<f64> = tokens.iter().map(dot).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            lse[row] = max + sum.ln();
            let out = &mut output[row * head_dim..][..head_dim];
            for (token, score) in tokens.iter().zip(&scores) {
                let weight = (score - max).exp() / sum;
                for (out, v) in out.iter_mut().zip(&cache.values[token + kv_head..][..head_dim]) {
                    *out += weight * wide(v);
                }
            }
        }
    }
    (output, lse)
}

fn wide<E: Element>(element: &E) -> f64 {
    f64::from(element.to_f32())
}
