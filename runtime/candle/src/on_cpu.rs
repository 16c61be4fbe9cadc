//! The op on the CPU.

use crate::tensors::{Tensors, refuse_types};
use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, Error, Layout, Result, Shape, WithDType};
use std::borrow::Cow;
use tilewright_runtime::cpu::Element;
use tilewright_runtime::{Attention, AttentionPlan, Cpu, Dtype, KvCache, KvLayout, Planned as _};

/// Query, K and V.
pub(crate) fn run(
    attention: &Attention<Cpu>,
    plan: &AttentionPlan<Cpu>,
    largest_page: Option<i32>,
    storages: [&CpuStorage; 3],
    layouts: [&Layout; 3],
) -> Result<(CpuStorage, Shape)> {
    use CpuStorage::{BF16, F16, F32};
    match (plan.plan().geometry().dtype, storages) {
        (Dtype::F32, [F32(query), F32(keys), F32(values)]) => {
            run_as(attention, plan, largest_page, [query, keys, values], layouts)
        }
        (Dtype::F16, [F16(query), F16(keys), F16(values)]) => {
            run_as(attention, plan, largest_page, [query, keys, values], layouts)
        }
        (Dtype::Bf16, [BF16(query), BF16(keys), BF16(values)]) => {
            run_as(attention, plan, largest_page, [query, keys, values], layouts)
        }
        (planned, _) => refuse_types(planned, storages.map(|storage| storage.dtype())),
    }
}

fn run_as<E: Element + WithDType>(
    attention: &Attention<Cpu>,
    plan: &AttentionPlan<Cpu>,
    largest_page: Option<i32>,
    elements: [&[E]; 3],
    layouts: [&Layout; 3],
) -> Result<(CpuStorage, Shape)> {
    let at = Tensors::new(plan.plan(), largest_page, layouts, elements.map(<[E]>::len))?;
    let [query, keys, values] = elements;
    let query = dense(&query[at.query..], layouts[0].dims(), at.query_strides);
    let mut output = vec![E::from_f32(0.0); query.len()];
    let cache = KvCache::new(&keys[at.keys..], &values[at.values..], KvLayout::Strides(at.kv_strides));
    attention.run(plan, &(), &query, &cache, &mut output).map_err(Error::wrap)?;
    Ok((E::to_cpu_storage_owned(output), layouts[0].shape().clone()))
}

/// The query without gaps: a part of a fused projection has some, and is small.
fn dense<'a, E: Copy>(elements: &'a [E], shape: &[usize], (request, head): (usize, usize)) -> Cow<'a, [E]> {
    let [requests, heads, dim] = *shape else { return Cow::Borrowed(&[]) };
    if (head, request) == (dim, heads * dim) {
        return Cow::Borrowed(&elements[..requests * heads * dim]);
    }
    let rows = (0..requests).flat_map(|row| (0..heads).map(move |column| row * request + column * head));
    Cow::Owned(rows.flat_map(|start| &elements[start..start + dim]).copied().collect())
}
