//! Where the arguments of a call lie, checked against the plan.

use candle_core::{DType, Layout, Result, bail};
use tilewright_runtime::plan::Plan;
use tilewright_runtime::{Dtype, Geometry, KvStrides};

/// Offsets and strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensors {
    /// Where the first query begins.
    pub(crate) query: usize,
    /// From query to query, and from head to head.
    pub(crate) query_strides: (usize, usize),
    /// Where K's first page begins.
    pub(crate) keys: usize,
    /// Where V's first page begins.
    pub(crate) values: usize,
    /// Of K and of V.
    pub(crate) kv_strides: KvStrides,
}

impl Tensors {
    /// Query, K and V, whose storages have `lens` elements, for a plan that reads pages up to `largest_page`.
    pub(crate) fn new(
        plan: &Plan,
        largest_page: Option<i32>,
        layouts: [&Layout; 3],
        lens: [usize; 3],
    ) -> Result<Self> {
        let Geometry { q_heads, kv_heads, head_dim, page_size, .. } = *plan.geometry();
        let [q_heads, kv_heads, head_dim, page_size] =
            [q_heads, kv_heads, head_dim, page_size].map(|size| size as usize);
        let [query, keys, values] = layouts;
        let [query_len, keys_len, values_len] = lens;
        // Any number of pages: how many have to be there is said by the page table.
        let pages = |layout: &Layout| layout.dims().first().copied().unwrap_or(0);
        let query_strides = strides("query", query, [plan.batch(), q_heads, head_dim], query_len)?;
        let [page, token, head, _] =
            strides("keys", keys, [pages(keys), page_size, kv_heads, head_dim], keys_len)?;
        let of_values =
            strides("values", values, [pages(values), page_size, kv_heads, head_dim], values_len)?;
        if of_values[..3] != [page, token, head] {
            bail!(
                "paged-decode: `keys` has the strides {:?} and `values` {:?}; both have to lie in the same way: call `contiguous()` on both",
                keys.stride(),
                values.stride()
            );
        }
        let largest = largest_page.and_then(|page| usize::try_from(page).ok());
        for (name, layout) in [("keys", keys), ("values", values)] {
            if let Some(page) = largest.filter(|&page| page >= pages(layout)) {
                bail!(
                    "paged-decode: the page table names page {page}, but `{name}` has {} pages",
                    pages(layout)
                );
            }
        }
        Ok(Self {
            query: query.start_offset(),
            query_strides: (query_strides[0], query_strides[1]),
            keys: keys.start_offset(),
            values: values.start_offset(),
            kv_strides: KvStrides { page, token, head },
        })
    }
}

/// The strides of a tensor that has this shape, neighbours in its last dimension, and an end within its storage. Where a dimension is 1, its
/// stride is that of a tensor without gaps: candle keeps any number there.
fn strides<const N: usize>(name: &str, layout: &Layout, shape: [usize; N], len: usize) -> Result<[usize; N]> {
    if layout.dims() != shape {
        bail!("paged-decode: `{name}` has the shape {:?}, the plan needs {shape:?}", layout.dims());
    }
    let mut strides = [1; N];
    let mut inner = 1;
    for (dim, stride) in strides.iter_mut().enumerate().rev() {
        *stride = if shape[dim] > 1 { layout.stride()[dim] } else { inner };
        inner = stride.saturating_mul(shape[dim]);
    }
    if strides[N - 1] != 1 {
        bail!(
            "paged-decode: `{name}` has the strides {:?}, but the elements of one head have to be neighbours: call `contiguous()` first",
            layout.stride()
        );
    }
    let last = shape.iter().zip(strides).fold(layout.start_offset(), |last, (&size, stride)| {
        last.saturating_add(size.saturating_sub(1).saturating_mul(stride))
    });
    if !shape.contains(&0) && last >= len {
        bail!("paged-decode: `{name}` has an element {last}, its storage ends before {len}");
    }
    Ok(strides)
}

/// Says which types were given where one was planned.
pub(crate) fn refuse_types<T>(planned: Dtype, given: [DType; 3]) -> Result<T> {
    let planned = match planned {
        Dtype::F32 => "f32",
        Dtype::Bf16 => "bf16",
        _ => "f16",
    };
    let [query, keys, values] = given.map(|dtype| dtype.as_str());
    bail!(
        "paged-decode: `query` is {query}, `keys` {keys} and `values` {values}, but `AttentionOptions::dtype` says {planned} for all three: convert them with `to_dtype`"
    )
}
