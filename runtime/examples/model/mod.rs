//! What an engine has beside attention, as small as it can be: a model, a sampler, traffic, and a check. The examples share it.

use tilewright_conformance::reference::{self, Attention};
use tilewright_heuristics::Geometry;
use tilewright_runtime::cpu::{Element, KvCache};
use tilewright_runtime::pages::RequestId;
use tilewright_runtime::{Heads, KvStrides, PageTable};

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Layers of the model; all have the same heads.
pub(crate) const LAYERS: usize = 4;
/// Tokens of a page.
pub(crate) const PAGE_SIZE: u32 = 16;

/// Elements of a request's query, and of its output: `[q_heads, head_dim]`.
pub(crate) const ROW: usize = 8 * 64;

/// The heads of a layer.
pub(crate) const HEADS: Heads = Heads { query: 8, kv: 2, dim: 64 };

/// A layer's layout.
pub(crate) const fn geometry<E: Element>() -> Geometry {
    Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: PAGE_SIZE, dtype: E::DTYPE }
}

/// A request that runs.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    /// Prompt and answer so far: the tokens in its pages.
    pub(crate) tokens: Vec<u32>,
    /// Sampled, and not computed yet.
    pub(crate) next: u32,
    /// Tokens of the answer that are left to compute.
    pub(crate) left: u32,
}

impl Request {
    /// What the last token asks in the first layer.
    pub(crate) fn first_query<E: Element>(&self) -> Vec<E> {
        let last = self.tokens.iter().zip(0..).last();
        last.map_or_else(Vec::new, |(&token, position)| project(Projection::Query, 0, token, position))
    }
}

/// What a token is projected to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Projection {
    Query,
    Key,
    Value,
}

/// Stands for a layer's weights: vectors in [-2, 2) that follow from the layer, the token and its position, and from nothing else.
/// `[heads, head_dim]`.
pub(crate) fn project<E: Element>(what: Projection, layer: usize, token: u32, position: u32) -> Vec<E> {
    let heads = match what {
        Projection::Query => geometry::<E>().q_heads,
        Projection::Key | Projection::Value => geometry::<E>().kv_heads,
    };
    let seed = [what as u64, layer as u64, u64::from(token), u64::from(position)];
    let mut state = seed.into_iter().fold(0, |state, part| mix(state ^ part));
    let elements = 0..heads * geometry::<E>().head_dim;
    elements
        .map(|_| {
            state = mix(state);
            E::from_f32((state >> 40) as f32 / (1 << 22) as f32 - 2.0)
        })
        .collect()
}

/// `SplitMix64`.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Greedy sampling. `rank` 0 is the likeliest token, 1 the next one.
pub(crate) fn sample<E: Element>(logits: &[E], rank: usize) -> u32 {
    let mut tokens: Vec<usize> = (0..logits.len()).collect();
    tokens.sort_by(|&a, &b| logits[b].to_f32().total_cmp(&logits[a].to_f32()));
    tokens.get(rank).map_or(0, |&token| token as u32)
}

/// What users send: a system prompt of 100 tokens that all share, and a question of their own. With each, tokens of its answer.
pub(crate) fn traffic() -> impl Iterator<Item = (Vec<u32>, u32)> {
    (0..10).map(|user: u32| {
        let question = (0..8 + 5 * (user % 4)).map(move |word| 1000 * (user + 1) + word);
        ((0..100).chain(question).collect(), 12 + 7 * (user % 5))
    })
}

/// Compares the last layer's output for a request with attention in f64 over K and V made anew from its tokens: no page table, no
/// sharing, no copies. Returns the largest error, in multiples of the largest value.
///
/// # Errors
/// The error is beyond what rounding to the element type explains.
pub(crate) fn check<E: Element>(tokens: &[u32], query: &[E], output: &[E]) -> Outcome<f64> {
    let made = |what| -> Vec<E> {
        let tokens = tokens.iter().zip(0..);
        let mut made: Vec<E> =
            tokens.flat_map(|(&token, position)| project(what, LAYERS - 1, token, position)).collect();
        // The last page is a whole one.
        let page = KvStrides::nhd(&geometry::<E>()).page;
        made.resize(made.len().next_multiple_of(page), E::from_f32(f32::NAN));
        made
    };
    let (keys, values) = (made(Projection::Key), made(Projection::Value));
    let geometry = geometry::<E>();
    let cache = KvCache { keys: &keys, values: &values, strides: KvStrides::nhd(&geometry) };
    let seq_lens = [u32::try_from(tokens.len())?];
    let entries: Vec<i32> = (0..i32::try_from(seq_lens[0].div_ceil(PAGE_SIZE))?).collect();
    let table = PageTable::new(&entries, entries.len(), &seq_lens, PAGE_SIZE)?;
    let attention = Attention::plain(1.0 / (geometry.head_dim as f32).sqrt());
    let (wanted, _) = reference::decode(&geometry, &table, query, &cache, &attention);

    let largest = wanted.iter().fold(0.0, |largest: f64, wanted| largest.max(wanted.abs()));
    let errors = output.iter().zip(&wanted).map(|(found, wanted)| (f64::from(found.to_f32()) - wanted).abs());
    // In this order NaN is the largest.
    let error = errors.max_by(f64::total_cmp).ok_or("the request has no output")? / largest;
    let bound = if size_of::<E>() == 4 { 1e-5 } else { 2e-3 };
    if error <= bound { Ok(error) } else { Err(format!("wrong by {error:e}, {bound:e} is allowed").into()) }
}
