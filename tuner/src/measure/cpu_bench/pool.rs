//! Pages of K and V that samples go through, so that each reads cold ones.

use super::super::numbers::{self, Stream};
use half::{bf16, f16};
use tilewright_cpu::{Fp8KvCache, KvCache, Number};
use tilewright_plan::{E4m3, E5m2, KvScales, KvStrides};

/// A pool of each element type.
#[derive(Debug, Default)]
pub(super) struct Pools {
    f16: Pool<f16>,
    bf16: Pool<bf16>,
    f32: Pool<f32>,
    e4m3: Pool<E4m3>,
    e5m2: Pool<E5m2>,
}

/// K and V pages of one element type; samples go through it.
#[derive(Debug, Default)]
pub(super) struct Pool<E> {
    pub(super) keys: Vec<E>,
    pub(super) values: Vec<E>,
    /// Where the next sample begins to read.
    pub(super) next: usize,
}

/// An element of K and V with a pool of its own.
pub(super) trait PoolElement: Number {
    type Cache<'c>;
    fn pool(pools: &mut Pools) -> &mut Pool<Self>;
    fn cache<'c>(keys: &'c [Self], values: &'c [Self], strides: KvStrides) -> Self::Cache<'c>;
}

/// Elements that need no scales.
macro_rules! plain_elements {
    ($($element:ident),*) => {$(
        impl PoolElement for $element {
            type Cache<'c> = KvCache<'c, Self>;

            fn pool(pools: &mut Pools) -> &mut Pool<Self> {
                &mut pools.$element
            }

            fn cache<'c>(keys: &'c [Self], values: &'c [Self], strides: KvStrides) -> Self::Cache<'c> {
                KvCache { keys, values, strides }
            }
        }
    )*};
}
plain_elements!(f16, bf16, f32);

/// Formats of FP8, whose scales are 1.
macro_rules! fp8_elements {
    ($($element:ident $pool:ident),*) => {$(
        impl PoolElement for $element {
            type Cache<'c> = Fp8KvCache<'c, Self>;

            fn pool(pools: &mut Pools) -> &mut Pool<Self> {
                &mut pools.$pool
            }

            fn cache<'c>(keys: &'c [Self], values: &'c [Self], strides: KvStrides) -> Self::Cache<'c> {
                Fp8KvCache { keys, values, strides, scales: KvScales::new(1.0, 1.0) }
            }
        }
    )*};
}
fp8_elements!(E4m3 e4m3, E5m2 e5m2);

impl<K: Number> Pool<K> {
    /// Makes room for `elements` of K and of V: copies of one block, which is far cheaper to make than as many numbers.
    pub(super) fn grow(&mut self, elements: usize) {
        if self.keys.len() >= elements {
            return;
        }
        for (stream, pages) in [(Stream::Keys, &mut self.keys), (Stream::Values, &mut self.values)] {
            *pages = repeated(&numbers::block(stream, elements, K::from_f32), elements);
        }
        // Writing left the end of the pool in the caches: begin where it is cold.
        self.next = 0;
    }
}

/// The first `len` elements of endless copies of a block.
pub(super) fn repeated<T: Copy>(block: &[T], len: usize) -> Vec<T> {
    let mut all = Vec::with_capacity(len);
    while all.len() < len && !block.is_empty() {
        all.extend_from_slice(&block[..block.len().min(len - all.len())]);
    }
    all
}
