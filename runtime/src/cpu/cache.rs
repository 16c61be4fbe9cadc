//! K and V in host memory.

use crate::KvStrides;

/// The paged KV cache of one layer.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a, E> {
    /// K.
    pub keys: &'a [E],
    /// V, laid out like K.
    pub values: &'a [E],
    /// Where a page, token and head lies.
    pub strides: KvStrides,
}
