//! What K, V and Q of an conformance batch hold.

use super::ConformanceCase;
use super::random::{Random, seed_of};
use tilewright_cpu::{Element, Fp8KvCache, Fp8Number, Number};
use tilewright_heuristics::Fp8;
use tilewright_plan::{E4m3, E5m2, KvScales, KvStrides, Scale};

/// How K and Q are drawn. V is always uniform in [-2, 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// Uniform in [-2, 2): logits have a standard deviation of 4/3.
    #[default]
    Uniform,
    /// Logits between -1e4 and 1e4, either exactly equal or at least 128 apart (in f32 as well, whatever the order of the
    /// sum): what is left of a wrong softmax is overflow, not rounding.
    Extreme,
    /// All keys of a head are equal, and so are all logits of a row.
    Equal,
    /// All logits are equal and far below -1e5, where some kernels' number for what is masked lies.
    Deep,
    /// K is -inf in one element of every token but the first of each request.
    OnlyFirst,
    /// Of every token but the middle one of each request.
    OnlyMiddle,
    /// Of every token but the last one of each request.
    OnlyLast,
    /// Of every token.
    NoneFinite,
}

/// What a number is for.
#[derive(Clone, Copy)]
enum Purpose {
    Key,
    Value,
    Query,
    Sink,
    Pattern,
    KeyScale,
    ValueScale,
}

/// Amplitude of the query under [`Values::Extreme`].
const EXTREME_QUERY: f32 = 16.0;
/// Of the query and of K under [`Values::Deep`]: a power of two that every type has, and whose products sum up exactly.
const DEEP: f32 = 256.0;

impl Values {
    /// Whether FP8 can hold them: e4m3 has no infinities, and what is rounded to e5m2 becomes none.
    pub(super) const fn are_finite(self) -> bool {
        matches!(self, Self::Uniform | Self::Extreme | Self::Equal | Self::Deep)
    }
}

/// K and V of a case as its [`tilewright_heuristics::Dtype`] says, beside queries of type `E`.
#[derive(Clone, Debug)]
pub enum CaseCache<E> {
    /// Of the query's type.
    Plain {
        /// K.
        keys: Vec<E>,
        /// V.
        values: Vec<E>,
    },
    /// FP8 (e4m3).
    E4m3(Fp8Pages<E4m3>),
    /// FP8 (e5m2).
    E5m2(Fp8Pages<E5m2>),
}

/// K and V in a format of FP8.
#[derive(Clone, Debug)]
pub struct Fp8Pages<F> {
    /// K.
    pub keys: Vec<F>,
    /// V.
    pub values: Vec<F>,
    /// What K is multiplied by: one number, or one a KV head.
    pub key_scales: Vec<f32>,
    /// The same of V.
    pub value_scales: Vec<f32>,
}

impl<F> Fp8Pages<F> {
    /// As the CPU backend takes them.
    pub fn on_cpu(&self, strides: KvStrides) -> Fp8KvCache<'_, F> {
        let Self { keys, values, key_scales, value_scales } = self;
        Fp8KvCache { keys, values, strides, scales: kv_scales(key_scales, value_scales) }
    }
}

/// The scales in lists as [`ConformanceCase::scales`] gives them.
fn kv_scales<'a>(keys: &'a [f32], values: &'a [f32]) -> KvScales<'a> {
    let scale = |list: &'a [f32]| if let &[one] = list { Scale::Tensor(one) } else { Scale::Heads(list) };
    KvScales { keys: scale(keys), values: scale(values) }
}

impl ConformanceCase {
    /// K and V.
    pub fn cache<E: Element>(&self) -> CaseCache<E> {
        match self.geometry.dtype.fp8() {
            None => CaseCache::Plain { keys: self.keys(), values: self.values() },
            Some(Fp8::E4m3) => CaseCache::E4m3(self.pages()),
            Some(Fp8::E5m2) => CaseCache::E5m2(self.pages()),
        }
    }

    fn pages<F: Fp8Number>(&self) -> Fp8Pages<F> {
        let [key_scales, value_scales] = self.scales().unwrap_or_default();
        Fp8Pages { keys: self.keys(), values: self.values(), key_scales, value_scales }
    }

    /// What K and V are multiplied by where they are FP8, from 0.5 to 1: in some cases one number, in others one a KV head. No two are
    /// equal, so that a wrong one shows.
    pub fn scales(&self) -> Option<[Vec<f32>; 2]> {
        let heads = if self.seed.is_multiple_of(2) { 1 } else { self.geometry.kv_heads as usize };
        let draw = |purpose| {
            let scale = |head| 0.5 + self.random(purpose, &[head]).uniform().abs() / 4.0;
            (0..heads).map(scale).collect()
        };
        self.geometry.dtype.has_fp8_kv().then(|| [draw(Purpose::KeyScale), draw(Purpose::ValueScale)])
    }

    /// K, with [`ConformanceCase::strides`]: NaN wherever no request has a token. In FP8 these are the stored
    /// numbers, before [`ConformanceCase::scales`].
    pub fn keys<E: Number>(&self) -> Vec<E> {
        E::narrowed(&self.wide_keys())
    }

    fn wide_keys(&self) -> Vec<f32> {
        let finite = self.finite_slots();
        let page_size = self.geometry.page_size as usize;
        let largest = (1e4 / (EXTREME_QUERY * (self.geometry.head_dim as f32).sqrt())).floor();
        let patterns: Vec<Vec<f32>> = (0..self.geometry.kv_heads as usize)
            .map(|head| {
                let mut random = self.random(Purpose::Pattern, &[head]);
                (0..self.geometry.head_dim).map(|_| random.uniform()).collect()
            })
            .collect();
        self.fill(|page, token, head, key| {
            let mut random = self.random(Purpose::Key, &[page, token, head]);
            match self.values {
                Values::Equal => {
                    key.iter_mut().zip(&patterns[head]).for_each(|(k, p)| *k = *p);
                }
                Values::Deep => key.fill(-DEEP),
                Values::Extreme => {
                    let level = random.below(2 * largest as usize + 1) as f32 - largest;
                    let pattern = &patterns[head];
                    key.iter_mut().zip(pattern).for_each(|(k, p)| *k = level * sign(*p));
                }
                _ => key.iter_mut().for_each(|k| *k = random.uniform()),
            }
            if finite.as_ref().is_some_and(|finite| !finite[page * page_size + token]) {
                key[0] = f32::NEG_INFINITY;
            }
        })
    }

    /// V, laid out like K.
    pub fn values<E: Number>(&self) -> Vec<E> {
        E::narrowed(&self.fill(|page, token, head, value| {
            let mut random = self.random(Purpose::Value, &[page, token, head]);
            value.iter_mut().for_each(|v| *v = random.uniform());
        }))
    }

    /// Q, `[queries, q_heads, head_dim]`.
    pub fn query<E: Element>(&self) -> Vec<E> {
        E::narrowed(&self.wide_query())
    }

    fn wide_query(&self) -> Vec<f32> {
        let (q_heads, head_dim) = (self.geometry.q_heads as usize, self.geometry.head_dim as usize);
        let mut query = Vec::with_capacity(self.queries() * q_heads * head_dim);
        for row in 0..self.queries() * q_heads {
            let mut random = self.random(Purpose::Query, &[row]);
            let first = query.len();
            if self.values == Values::Extreme {
                let kv_head = row % q_heads / self.geometry.gqa_ratio() as usize;
                let mut pattern = self.random(Purpose::Pattern, &[kv_head]);
                let amplitude = EXTREME_QUERY * random.sign();
                query.extend((0..head_dim).map(|_| amplitude * sign(pattern.uniform())));
            } else if self.values == Values::Deep {
                query.extend((0..head_dim).map(|_| DEEP));
            } else {
                query.extend((0..head_dim).map(|_| random.uniform()));
            }
            if self.finite_slots_matter() {
                // Times -inf, it has to be -inf.
                query[first] = 0.5 + random.uniform().abs();
            }
        }
        query
    }

    /// The heads' sinks, if the case has any: the first one outweighs all tokens, the last one weighs nothing.
    pub fn sinks(&self) -> Option<Vec<f32>> {
        let q_heads = self.geometry.q_heads as usize;
        self.sinks.then(|| {
            (0..q_heads)
                .map(|head| match head {
                    0 => 80.0,
                    head if head + 1 == q_heads => -1e4,
                    head => self.random(Purpose::Sink, &[head]).uniform(),
                })
                .collect()
        })
    }

    /// Numbers that depend on where in the batch they are, not on how it is laid out.
    fn random(&self, purpose: Purpose, place: &[usize]) -> Random {
        let [a, b, c] = [0, 1, 2].map(|i| place.get(i).map_or(0, |&part| part as u64));
        Random::new(seed_of(self.seed, &[purpose as u64, a, b, c]))
    }

    const fn finite_slots_matter(&self) -> bool {
        matches!(self.values, Values::OnlyFirst | Values::OnlyMiddle | Values::OnlyLast | Values::NoneFinite)
    }

    /// For each slot of each page whether its key is finite; `None` if all are.
    fn finite_slots(&self) -> Option<Vec<bool>> {
        self.finite_slots_matter().then(|| {
            let page_size = self.geometry.page_size as usize;
            let mut finite = vec![false; self.pages * page_size];
            for (request, &len) in self.seq_lens.iter().enumerate() {
                let Some(last) = (len as usize).checked_sub(1) else { continue };
                let token = match self.values {
                    Values::OnlyFirst => 0,
                    Values::OnlyMiddle => last / 2,
                    Values::OnlyLast => last,
                    _ => continue,
                };
                let page = self.page_table[request * self.max_pages + token / page_size] as usize;
                finite[page * page_size + token % page_size] = true;
            }
            finite
        })
    }

    /// Elements of the cache: `vector` writes those of each (page, token, head) that a request has; all others are NaN.
    fn fill(&self, mut vector: impl FnMut(usize, usize, usize, &mut [f32])) -> Vec<f32> {
        let strides = self.strides();
        let mut elements = poison(self.pages * strides.page);
        for (page, tokens) in self.tokens_of_pages().into_iter().enumerate() {
            for token in 0..tokens as usize {
                for head in 0..self.geometry.kv_heads as usize {
                    let at = page * strides.page + token * strides.token + head * strides.head;
                    vector(page, token, head, &mut elements[at..][..self.geometry.head_dim as usize]);
                }
            }
        }
        elements
    }

    /// How many of each page's slots hold a token of some request.
    fn tokens_of_pages(&self) -> Vec<u32> {
        let page_size = self.geometry.page_size;
        let mut tokens = vec![0; self.pages];
        let table = self.table_of_requests();
        for (request, &len) in self.seq_lens.iter().enumerate() {
            for (column, &page) in table.pages(request).iter().enumerate() {
                let of_page = (len - column as u32 * page_size).min(page_size);
                let tokens: &mut u32 = &mut tokens[page as usize];
                *tokens = (*tokens).max(of_page);
            }
        }
        tokens
    }
}

/// NaN: what nobody writes to stays it, and shows.
pub(super) fn poison(count: usize) -> Vec<f32> {
    vec![f32::NAN; count]
}

fn sign(x: f32) -> f32 {
    1f32.copysign(x)
}
