//! Paged decode attention as an op on candle's tensors, on the CPU; compared with attention by candle's own `matmul`.
//!
//! `cargo run -p tilewright-runtime --features candle --example candle_custom_op`
//!
//! On a GPU the op would have a `cuda_fwd`. It is not here, for candle's `cuda` feature compiles kernels of its own and needs `nvcc`, which
//! this workspace does without. An engine that has it writes a dozen lines:
//!
//! - Once: `Attention::cuda` with the context of candle's stream (`device.cuda_stream().context()`).
//! - Once a step: `Attention::plan`.
//! - In `cuda_fwd`, for each layer: `as_cuda_slice` of the three storages and of a new output, then `Attention::run` on candle's stream. A cache that
//!   was narrowed or transposed needs no copy: `KvCache::new` takes its strides.

use candle_core::{
    CpuStorage, CustomOp3, D, DType, Device, Error, Layout, Result, Shape, Tensor, WithDType, bail,
};
use tilewright_runtime::cpu::Element;
use tilewright_runtime::{
    Attention, AttentionOptions, AttentionPlan, Cpu, Dtype, Heads, KvCache, PageTable, Planned,
};

/// Decode attention of a query `[batch, q_heads, head_dim]` over pages of K and of V `[pages, page_size, kv_heads, head_dim]`.
/// The output is like the query.
///
/// Made once a step and applied in every layer: it holds the plan, and so the page table and the lengths of that step.
struct PagedDecode {
    attention: Attention<Cpu>,
    plan: AttentionPlan<Cpu>,
}

impl PagedDecode {
    fn run<E: Element + WithDType>(
        &self,
        query: (&[E], &Layout),
        keys: (&[E], &Layout),
        values: (&[E], &Layout),
    ) -> Result<(CpuStorage, Shape)> {
        let plan = self.plan.plan();
        let geometry = plan.geometry();
        let [q_heads, kv_heads, head_dim, page_size] =
            [geometry.q_heads, geometry.kv_heads, geometry.head_dim, geometry.page_size]
                .map(|size| size as usize);
        // The plan says which pages are read; that they exist is checked by the backend.
        let pages =
            |layout: &Layout| [layout.dims().first().copied().unwrap_or(0), page_size, kv_heads, head_dim];
        let shape = [plan.batch(), q_heads, head_dim];
        let query = dense("query", query, &shape)?;
        let (keys, values) =
            (dense("keys", keys, &pages(keys.1))?, dense("values", values, &pages(values.1))?);
        let mut output = vec![E::from_f32(0.0); query.len()];
        self.attention
            .run(&self.plan, &(), query, &KvCache::nhd(keys, values), &mut output)
            .map_err(Error::wrap)?;
        Ok((E::to_cpu_storage_owned(output), Shape::from(&shape)))
    }
}

/// The elements of a tensor, if it has this shape and no gaps.
fn dense<'a, E>(name: &str, (elements, layout): (&'a [E], &Layout), shape: &[usize]) -> Result<&'a [E]> {
    if layout.dims() != shape {
        bail!("paged-decode: `{name}` has the shape {:?}, the plan needs {shape:?}", layout.dims());
    }
    let Some((begin, end)) = layout.contiguous_offsets() else {
        bail!("paged-decode: `{name}` has the strides {:?}: call `contiguous()` first", layout.stride());
    };
    Ok(&elements[begin..end])
}

impl CustomOp3 for PagedDecode {
    fn name(&self) -> &'static str {
        "paged-decode"
    }

    fn cpu_fwd(
        &self,
        query: &CpuStorage,
        query_layout: &Layout,
        keys: &CpuStorage,
        keys_layout: &Layout,
        values: &CpuStorage,
        values_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        use CpuStorage::{BF16, F16, F32};
        let [q, k, v] = [query_layout, keys_layout, values_layout];
        match (query, keys, values) {
            (F32(query), F32(keys), F32(values)) => self.run((query, q), (keys, k), (values, v)),
            (F16(query), F16(keys), F16(values)) => self.run((query, q), (keys, k), (values, v)),
            (BF16(query), BF16(keys), BF16(values)) => self.run((query, q), (keys, k), (values, v)),
            _ => bail!("paged-decode: query, keys and values have to be all f32, all f16 or all bf16"),
        }
    }
}

/// Two requests share pages 0 and 1; the third one is alone.
const ENTRIES: [[i32; 4]; 3] = [[0, 1, 2, 3], [0, 1, 4, -1], [5, -1, -1, -1]];
const SEQ_LENS: [u32; 3] = [55, 33, 7];
const PAGES: usize = 6;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    for (dtype, element, bound) in
        [(DType::F32, Dtype::F32, 1e-5), (DType::F16, Dtype::F16, 5e-4), (DType::BF16, Dtype::Bf16, 4e-3)]
    {
        let heads = Heads { query: 8, kv: 2, dim: 64 };
        let options = AttentionOptions { dtype: element, scale: Some(0.125), ..AttentionOptions::default() };
        let attention_on_cpu = Attention::cpu(heads, options)?;
        let random = |shape: &[usize]| Tensor::rand(-1f32, 1.0, shape, &Device::Cpu)?.to_dtype(dtype);
        let query = random(&[3, 8, 64])?;
        let [keys, values] = [random(&[PAGES, 16, 2, 64])?, random(&[PAGES, 16, 2, 64])?];

        let table = PageTable::new(ENTRIES.as_flattened(), 4, &SEQ_LENS, 16)?;
        let op = PagedDecode { plan: attention_on_cpu.plan(&table)?, attention: attention_on_cpu };
        let output = query.apply_op3_no_bwd(&keys, &values, &op)?;

        let wanted = attention(&query, &keys, &values, 0.125)?;
        let errors = (output.to_dtype(DType::F32)? - wanted)?.abs()?.flatten_all()?.to_vec1::<f32>()?;
        // In this order NaN is the largest.
        let error = errors.into_iter().max_by(f32::total_cmp).unwrap_or(f32::NAN);
        println!("{dtype:?}: {:?}, at most {error:.1e} from candle's own attention", output.shape());
        if error.is_nan() || error > bound {
            return Err(format!("{dtype:?} is wrong: {bound:e} is allowed").into());
        }
        let transposed = keys.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
        match query.apply_op3_no_bwd(&transposed, &values, &op) {
            // The first line: candle adds a backtrace where these are on.
            Err(refused) => println!("{dtype:?}: {}", refused.to_string().lines().next().unwrap_or_default()),
            Ok(_) => return Err("keys that are not contiguous were taken".into()),
        }
    }
    Ok(())
}

/// The same by candle alone, in f32: pages are gathered and heads repeated, one request after the other.
fn attention(query: &Tensor, keys: &Tensor, values: &Tensor, scale: f64) -> Result<Tensor> {
    let mut outputs = Vec::new();
    for (request, (row, len)) in ENTRIES.iter().zip(SEQ_LENS).enumerate() {
        let row: Vec<u32> = row.iter().filter_map(|&page| u32::try_from(page).ok()).collect();
        let row = Tensor::new(row, &Device::Cpu)?;
        // [pages, page_size, kv_heads, head_dim] -> [q_heads, tokens, head_dim]
        let gather = |pages: &Tensor| {
            let tokens = pages.to_dtype(DType::F32)?.index_select(&row, 0)?.flatten(0, 1)?;
            let heads = tokens.narrow(0, 0, len as usize)?.transpose(0, 1)?.unsqueeze(1)?;
            heads.repeat((1, 4, 1, 1))?.flatten(0, 1)
        };
        let query = query.get(request)?.to_dtype(DType::F32)?.unsqueeze(1)?;
        let logits = (query.matmul(&gather(keys)?.transpose(1, 2)?)? * scale)?;
        let weights = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
        outputs.push(weights.matmul(&gather(values)?)?.squeeze(1)?);
    }
    Tensor::stack(&outputs, 0)
}
