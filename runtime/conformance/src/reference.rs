//! Attention in f64, straight from the page table: what every variant is compared with. No forest, no plan, no tiles.

use rayon::prelude::*;
use tilewright_cpu::{Element, KvPages, Number};
use tilewright_heuristics::{Geometry, Mask};
use tilewright_plan::{KvScales, KvStrides, PageTable};

/// Tokens that are converted to f64 at a time: a long request needs no second copy of all of its K and V.
const BLOCK: usize = 256;

/// What attention computes, beside Q, K and V.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention<'a> {
    /// Factor of the logits, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Which tokens a query sees, and how its logits are bounded.
    pub mask: Mask,
    /// A logit of each query head, `[q_heads]`, that stands beside those of its tokens: it takes part in the softmax and the
    /// LSE, and weighs zeros. Neither scaled nor capped.
    pub sinks: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// Plain attention over all tokens.
    pub const fn plain(scale: f32) -> Self {
        Self { scale, mask: Mask::NONE, sinks: None }
    }
}

/// The norm of the difference over that of what was expected; 0 where they are equal, whatever their size.
pub fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    let difference = norm(found.iter().zip(expected).map(|(a, b)| a - b));
    if difference == 0.0 { 0.0 } else { difference / norm(expected.iter().copied()) }
}

/// The Euclidean norm.
pub fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

/// Output `[batch, q_heads, head_dim]` and natural-log LSE `[batch, q_heads]`, where the batch is the table's queries
/// ([`PageTable::batch`]). Where a request has no tokens, or all logits of a query are -inf, the output is 0 and the LSE that of the sink,
/// or -inf without sinks.
///
/// # Panics
/// If a slice is shorter than the geometry and the page table say: this is a tool for tests and verification.
pub fn decode<E: Element, C: KvPages<E>>(
    geometry: &Geometry,
    table: &PageTable<'_>,
    query: &[E],
    cache: &C,
    attention: &Attention<'_>,
) -> (Vec<f64>, Vec<f64>) {
    let stored = cache.stored();
    let pages = Pages {
        keys: &|at, wide| copy_wide(stored.keys, at, wide),
        values: &|at, wide| copy_wide(stored.values, at, wide),
        strides: stored.strides,
        scales: cache.scales(),
    };
    let mut wide = vec![0.0; query.len()];
    E::copy_wide(query, &mut wide);
    let query = to_f64(&wide);
    decode_pages(geometry, table, &query, &pages, attention)
}

fn copy_wide<K: Number>(elements: &[K], at: usize, wide: &mut [f32]) {
    K::copy_wide(&elements[at..][..wide.len()], wide);
}

/// As f64, exactly.
pub(super) fn to_f64(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

/// K and V of any type of elements: what computes with them is compiled once.
struct Pages<'a> {
    keys: Vectors<'a>,
    values: Vectors<'a>,
    strides: KvStrides,
    scales: Option<KvScales<'a>>,
}

/// Writes as many elements as the slice takes, from an element on, as f32.
type Vectors<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

fn decode_pages(
    geometry: &Geometry,
    table: &PageTable<'_>,
    query: &[f64],
    pages: &Pages<'_>,
    attention: &Attention<'_>,
) -> (Vec<f64>, Vec<f64>) {
    let scales = pages.scales;
    let head_dim = geometry.head_dim as usize;
    let q_heads = geometry.q_heads as usize;
    let row = q_heads * head_dim;
    let mut output = vec![0.0; table.batch() * row];
    let mut lse = vec![f64::NEG_INFINITY; table.batch() * q_heads];
    let queries = output.par_chunks_mut(row.max(1)).zip(lse.par_chunks_mut(q_heads.max(1)));
    queries.enumerate().for_each_init(Scratch::default, |scratch, (index, (output, lse))| {
        let tokens = tokens(table, &pages.strides, index);
        let mut query = query[index * row..][..row].to_vec();
        query.iter_mut().for_each(|q| *q *= f64::from(attention.scale));
        let ratio = geometry.gqa_ratio() as usize;
        for kv_head in 0..geometry.kv_heads as usize {
            let heads = kv_head * ratio..(kv_head + 1) * ratio;
            let elements = heads.start * head_dim..heads.end * head_dim;
            let group = Group {
                query: &query[elements.clone()],
                offset: kv_head * pages.strides.head,
                sinks: attention.sinks.map(|sinks| &sinks[heads.clone()]),
                mask: attention.mask,
                head_dim,
                key_scale: scales.map_or(1.0, |scales| f64::from(scales.keys.of_head(kv_head))),
                value_scale: scales.map_or(1.0, |scales| f64::from(scales.values.of_head(kv_head))),
            };
            group.decode(&tokens, pages, scratch, &mut output[elements], &mut lse[heads]);
        }
    });
    (output, lse)
}

/// Where the tokens up to a query's own begin, without the offset of the head.
fn tokens(table: &PageTable<'_>, strides: &KvStrides, query: usize) -> Vec<usize> {
    let pages = table.pages(query);
    let place = |token: u32| {
        let page = pages[(token / table.page_size()) as usize] as usize;
        page * strides.page + (token % table.page_size()) as usize * strides.token
    };
    (0..table.seq_len(query)).map(place).collect()
}

/// The heads of one query that share a KV head.
struct Group<'a> {
    /// Already scaled, `[heads, head_dim]`.
    query: &'a [f64],
    /// Of the KV head, behind where a token begins.
    offset: usize,
    sinks: Option<&'a [f32]>,
    mask: Mask,
    head_dim: usize,
    /// What stored numbers are multiplied by.
    key_scale: f64,
    value_scale: f64,
}

#[derive(Default)]
struct Scratch {
    /// Vectors of a block of tokens, as they are converted.
    narrow: Vec<f32>,
    wide: Vec<f64>,
    /// `[heads, tokens]`.
    scores: Vec<f64>,
}

impl Group<'_> {
    fn decode(
        &self,
        tokens: &[usize],
        pages: &Pages<'_>,
        scratch: &mut Scratch,
        output: &mut [f64],
        lse: &mut [f64],
    ) {
        let head_dim = self.head_dim;
        let Scratch { narrow, wide, scores } = scratch;
        scores.clear();
        scores.resize(lse.len() * tokens.len(), 0.0);
        for (block, tokens_of_block) in tokens.chunks(BLOCK).enumerate() {
            self.convert(pages.keys, self.key_scale, tokens_of_block, narrow, wide);
            for (head, q) in self.query.chunks(head_dim).enumerate() {
                let scores = &mut scores[head * tokens.len() + block * BLOCK..];
                for (score, k) in scores.iter_mut().zip(wide.chunks(head_dim)) {
                    *score = dot(q, k);
                }
            }
        }
        for (head, lse) in lse.iter_mut().enumerate() {
            let sink = self.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
            let scores = &mut scores[head * tokens.len()..][..tokens.len()];
            self.mask.apply(scores);
            *lse = softmax(scores, sink);
        }
        for (block, tokens_of_block) in tokens.chunks(BLOCK).enumerate() {
            self.convert(pages.values, self.value_scale, tokens_of_block, narrow, wide);
            for (head, output) in output.chunks_mut(head_dim).enumerate() {
                let weights = &scores[head * tokens.len() + block * BLOCK..];
                for (weight, v) in weights.iter().zip(wide.chunks(head_dim)) {
                    output.iter_mut().zip(v).for_each(|(out, v)| *out += weight * v);
                }
            }
        }
    }

    /// The vectors of these tokens, once for all heads of the group.
    fn convert(
        &self,
        vectors: Vectors<'_>,
        scale: f64,
        tokens: &[usize],
        narrow: &mut Vec<f32>,
        wide: &mut Vec<f64>,
    ) {
        narrow.resize(self.head_dim, 0.0);
        wide.clear();
        for &token in tokens {
            vectors(token + self.offset, narrow);
            wide.extend(narrow.iter().map(|&x| f64::from(x) * scale));
        }
    }
}

/// Turns logits into weights; gives the LSE. Logits that are all -inf weigh nothing.
fn softmax(scores: &mut [f64], sink: f64) -> f64 {
    let max = scores.iter().copied().fold(sink, f64::max);
    if max == f64::NEG_INFINITY {
        scores.fill(0.0);
        return max;
    }
    let mut sum = (sink - max).exp();
    for score in &mut *scores {
        *score = (*score - max).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
    max + sum.ln()
}

/// Eight sums side by side, so that it vectorises.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a_blocks, a_rest) = a.as_chunks::<8>();
    let (b_blocks, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}
