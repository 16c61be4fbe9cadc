//! What some requests of a batch should be, in f64, and how far an implementation is from it.

use super::dtypes::use_compared;
use crate::measure::BenchError;
use crate::measure::numbers::{BLOCK, Stream, block};
use half::{bf16, f16};
use std::collections::HashMap;
use tilewright_conformance::reference::{Attention, decode};
use tilewright_cpu::{Element, Fp8KvCache, KvCache, KvPages, Number};
use tilewright_heuristics::{Dtype, Geometry};
use tilewright_plan::{E4m3, KvScales, KvStrides, PageTable};
use tilewright_scenarios::Batch;

/// Requests of a batch whose outputs are checked: the first, the last, and two between them.
pub fn sampled_requests(batch: &Batch) -> Vec<usize> {
    let count = batch.requests();
    let mut requests = vec![0, count / 3, count / 2, count.saturating_sub(1)];
    requests.dedup();
    requests.retain(|&request| request < count);
    requests
}

/// What these requests should be: `[requests, q_heads, head_dim]`. Only the pages that they read are made.
///
/// # Errors
/// An element type that peers do not have, or a page table that makes no sense.
pub fn reference(batch: &Batch, requests: &[usize]) -> Result<Vec<f64>, BenchError> {
    match batch.geometry.dtype {
        Dtype::F16 => Sampled::<f16, f16>::new(batch, requests).decode(batch, plain),
        Dtype::Bf16 => Sampled::<bf16, bf16>::new(batch, requests).decode(batch, plain),
        Dtype::Fp8F16 => Sampled::<f16, E4m3>::new(batch, requests).decode(batch, fp8),
        Dtype::Fp8Bf16 => Sampled::<bf16, E4m3>::new(batch, requests).decode(batch, fp8),
        Dtype::F32 | Dtype::Fp8F32 | Dtype::E5m2F16 | Dtype::E5m2Bf16 | Dtype::E5m2F32 => {
            Err(BenchError::Device {
                batch: batch.name.clone(),
                message: format!("{} is not compared; {}", batch.geometry.dtype, use_compared()),
            })
        }
    }
}

/// Factor of the logits.
pub(super) fn scale(geometry: &Geometry) -> f32 {
    1.0 / (geometry.head_dim as f32).sqrt()
}

fn plain<'a, E: Element>(keys: &'a [E], values: &'a [E], strides: KvStrides) -> KvCache<'a, E> {
    KvCache { keys, values, strides }
}

/// With the scales that the benches have.
fn fp8<'a>(keys: &'a [E4m3], values: &'a [E4m3], strides: KvStrides) -> Fp8KvCache<'a> {
    Fp8KvCache { keys, values, strides, scales: KvScales::new(1.0, 1.0) }
}

/// Some requests of a batch, and what they read.
struct Sampled<E, K> {
    /// `[requests, max_pages]`, renumbered in the order of their first use.
    entries: Vec<i32>,
    seq_lens: Vec<u32>,
    keys: Vec<K>,
    values: Vec<K>,
    query: Vec<E>,
}

impl<E: Element, K: Number> Sampled<E, K> {
    fn new(batch: &Batch, requests: &[usize]) -> Self {
        let geometry = &batch.geometry;
        let [keys, values] =
            [Stream::Keys, Stream::Values].map(|stream| block(stream, BLOCK, <K as Number>::from_f32));
        let query = block(Stream::Query, BLOCK, <E as Number>::from_f32);
        let page = (geometry.page_size * geometry.kv_heads * geometry.head_dim) as usize;
        let row = (geometry.q_heads * geometry.head_dim) as usize;
        let mut sampled = Self {
            entries: vec![-1; requests.len() * batch.max_pages],
            seq_lens: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            query: Vec::new(),
        };
        let mut known: HashMap<i32, i32> = HashMap::new();
        for (&request, entries) in requests.iter().zip(sampled.entries.chunks_mut(batch.max_pages.max(1))) {
            for (entry, &id) in entries.iter_mut().zip(batch.row(request)) {
                let next = i32::try_from(known.len()).unwrap_or(i32::MAX);
                *entry = *known.entry(id).or_insert_with(|| {
                    let begin = usize::try_from(id).unwrap_or(0) * page;
                    extend_with(&mut sampled.keys, &keys, begin, page);
                    extend_with(&mut sampled.values, &values, begin, page);
                    next
                });
            }
            sampled.seq_lens.push(batch.seq_lens[request]);
            extend_with(&mut sampled.query, &query, request * row, row);
        }
        sampled
    }

    fn decode<'a, C: KvPages<E>>(
        &'a self,
        batch: &Batch,
        cache: impl FnOnce(&'a [K], &'a [K], KvStrides) -> C,
    ) -> Result<Vec<f64>, BenchError> {
        let geometry = &batch.geometry;
        let table = PageTable::new(&self.entries, batch.max_pages, &self.seq_lens, geometry.page_size)
            .map_err(|source| BenchError::Plan { batch: batch.name.clone(), source })?;
        let cache = cache(&self.keys, &self.values, KvStrides::nhd(geometry));
        let attention = Attention::plain(scale(geometry));
        Ok(decode(geometry, &table, &self.query, &cache, &attention).0)
    }
}

/// Appends the elements from `begin` on of endless copies of a block.
fn extend_with<T: Copy>(to: &mut Vec<T>, block: &[T], begin: usize, count: usize) {
    let mut at = begin % block.len().max(1);
    let end = to.len() + count;
    while to.len() < end && !block.is_empty() {
        let piece = &block[at..block.len().min(at + end - to.len())];
        to.extend_from_slice(piece);
        at = 0;
    }
}

/// How far two references are apart, relative to the norm of the first; infinite where they are not of the same length.
pub(super) fn apart(ours: &[f64], theirs: &[f64]) -> f64 {
    if ours.len() != theirs.len() {
        return f64::INFINITY;
    }
    let off: f64 = ours.iter().zip(theirs).map(|(a, b)| (a - b).powi(2)).sum();
    let norm: f64 = ours.iter().map(|a| a * a).sum();
    if off == 0.0 { 0.0 } else { (off / norm).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_scenarios::Scenario;

    fn batch(yaml: &str) -> Batch {
        Scenario::parse(yaml, "t.yaml").unwrap().batches().unwrap()[0].build().unwrap()
    }

    #[test]
    fn sampled_requests_are_there_and_each_once() {
        for (tree, requests) in [("1_32", vec![0]), ("2_32", vec![0, 1]), ("8_32", vec![0, 2, 4, 7])] {
            assert_eq!(sampled_requests(&batch(&format!("name: t\ntrees: ['{tree}']\n"))), requests);
        }
    }

    #[test]
    fn the_reference_of_some_requests_is_that_of_the_whole_batch() {
        let batch = batch("name: t\nheads: [[4, 2]]\nhead_dims: [64]\ntrees: ['1,2,8_64,32,40']\n");
        let geometry = &batch.geometry;
        let elements = (batch.pages * geometry.page_size * geometry.kv_heads * geometry.head_dim) as usize;
        let row = (geometry.q_heads * geometry.head_dim) as usize;
        let [keys, values, query] =
            [(Stream::Keys, elements), (Stream::Values, elements), (Stream::Query, batch.requests() * row)]
                .map(|(stream, count)| {
                    let mut all = Vec::new();
                    extend_with(&mut all, &block(stream, BLOCK, f16::from_f32), 0, count);
                    all
                });
        let table =
            PageTable::new(&batch.page_table, batch.max_pages, &batch.seq_lens, geometry.page_size).unwrap();
        let cache = KvCache { keys: &keys, values: &values, strides: KvStrides::nhd(geometry) };
        let (whole, _) = decode(geometry, &table, &query, &cache, &Attention::plain(scale(geometry)));
        let requests = [7, 0, 3];
        let expected: Vec<f64> =
            requests.iter().flat_map(|&request| &whole[request * row..][..row]).copied().collect();
        assert_eq!(reference(&batch, &requests).unwrap(), expected);
    }

    #[test]
    fn blocks_go_on_from_any_place() {
        let block: Vec<usize> = (0..10).collect();
        for begin in 0..25 {
            let mut to = vec![99];
            extend_with(&mut to, &block, begin, 23);
            let expected: Vec<usize> = (begin..begin + 23).map(|at| at % 10).collect();
            assert_eq!(to[1..], expected);
        }
    }

    #[test]
    fn other_element_types_are_refused() {
        let error = reference(&batch("name: t\ndtypes: [f32]\ntrees: ['1_32']\n"), &[0]).unwrap_err();
        assert!(error.to_string().contains("--dtype f16, bf16, fp8-f16 or fp8-bf16"), "{error}");
    }

    #[test]
    fn fp8_is_that_of_numbers_that_were_rounded_to_it() {
        let text =
            "name: t\nheads: [[4, 2]]\nhead_dims: [64]\ndtypes: [fp8-f16]\ntrees: ['1,2,6_64,32,45']\n";
        let (mut batch, requests) = (batch(text), [0, 5]);
        let found = reference(&batch, &requests).unwrap();
        // Numbers of FP8 are numbers of f16: the same batch with a cache of those.
        let fp8 = Sampled::<f16, E4m3>::new(&batch, &requests);
        let wide = |from: &[E4m3]| from.iter().map(|x| f16::from_f32(x.to_f32())).collect();
        let Sampled { entries, seq_lens, keys, values, query } = fp8;
        let rounded = Sampled { entries, seq_lens, keys: wide(&keys), values: wide(&values), query };
        assert_eq!(rounded.decode(&batch, plain::<f16>).unwrap(), found);
        batch.geometry.dtype = Dtype::F16;
        let apart = apart(&reference(&batch, &requests).unwrap(), &found);
        assert!((1e-3..0.1).contains(&apart), "rounding leaves its mark: {apart}");
    }

    #[test]
    fn references_are_apart_by_the_norm_of_their_difference() {
        assert!((apart(&[3.0, 4.0], &[3.0, 4.5]) - 0.1).abs() < 1e-9);
        assert_eq!(apart(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        assert!(apart(&[1.0], &[f64::NAN]).is_nan());
    }
}
