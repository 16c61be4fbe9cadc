//! Paged decode attention as an op on candle's tensors, on the CPU; compared with attention by candle's own `matmul`.
//!
//! `cargo run -p tilewright-runtime --features candle --example candle_custom_op`
//!
//! On a GPU the op would have a `cuda_fwd`. It is not here, for candle's `cuda` feature compiles kernels of its own and needs `nvcc`, which
//! this workspace does without. An engine that has it writes a dozen lines:
//!
//! - Once: `CudaDevice::of` takes the context of candle's stream (`device.cuda_stream().context()`), and `CudaDecoder::prepare` compiles
//!   for the class of its layers and their pages (`AttentionOptions::for_pages`). That is one cudarc for both; if candle brings another version, `CudaDevice::open` opens the same primary
//!   context, and the raw calls take its `CUstream`.
//! - Once a step: plan, then `DevicePlan::upload` (or `upload_raw`) on candle's stream, and a workspace of `DevicePlan::workspace_bytes`.
//! - In `cuda_fwd`, for each layer: `as_cuda_slice` of the three storages and of a new output, their addresses with
//!   `device_ptr` (plus the layout's `start_offset` times the bytes of an element), into `RawArgs`; then
//!   `CudaBackend::decode_raw` with `stream.cu_stream()`. It takes any distances between pages, tokens and heads, so that a cache that was
//!   narrowed or transposed needs no copy, but heads have to be dense and aligned to 16 bytes.

use candle_core::{
    CpuStorage, CustomOp3, D, DType, Device, Error, Layout, Result, Shape, Tensor, WithDType, bail,
};
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_heuristics::{Dtype, Geometry};
use tilewright_runtime::cpu::{CpuBackend, DecodeArgs, Element, HostDevice, KvCache};
use tilewright_runtime::{Decoder, KvStrides, PageTable, Plan};

/// Decode attention of a query `[batch, q_heads, head_dim]` over pages of K and of V `[pages, page_size, kv_heads, head_dim]`.
/// The output is like the query.
///
/// Made once a step and applied in every layer: it holds the plan, and so the page table and the lengths of that step.
struct PagedDecode {
    plan: Plan,
    scale: f32,
    /// Threads and scratch, the same for all steps. The lock is never waited for: one layer runs at a time.
    backend: Arc<Mutex<CpuBackend>>,
}

impl PagedDecode {
    fn run<E: Element + WithDType>(
        &self,
        query: (&[E], &Layout),
        keys: (&[E], &Layout),
        values: (&[E], &Layout),
    ) -> Result<(CpuStorage, Shape)> {
        let Geometry { q_heads, kv_heads, head_dim, page_size, .. } = *self.plan.geometry();
        let [q_heads, kv_heads, head_dim, page_size] =
            [q_heads, kv_heads, head_dim, page_size].map(|size| size as usize);
        // The plan says which pages are read; that they exist is checked by the backend.
        let pages =
            |layout: &Layout| [layout.dims().first().copied().unwrap_or(0), page_size, kv_heads, head_dim];
        let shape = [self.plan.batch(), q_heads, head_dim];
        let query = dense("query", query, &shape)?;
        let cache = KvCache {
            keys: dense("keys", keys, &pages(keys.1))?,
            values: dense("values", values, &pages(values.1))?,
            strides: KvStrides::nhd(self.plan.geometry()),
        };
        let mut output = vec![E::from_f32(0.0); query.len()];
        let args = DecodeArgs { scale: Some(self.scale), ..DecodeArgs::new(query, cache, &mut output) };
        let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
        backend.decode(&self.plan, args).map_err(Error::wrap)?;
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
    let decoder = Decoder::new();
    let backend = Arc::new(Mutex::new(CpuBackend::new(HostDevice::detect().limits.threads)));
    for (dtype, element, bound) in
        [(DType::F32, Dtype::F32, 1e-5), (DType::F16, Dtype::F16, 5e-4), (DType::BF16, Dtype::Bf16, 4e-3)]
    {
        let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: element };
        let random = |shape: &[usize]| Tensor::rand(-1f32, 1.0, shape, &Device::Cpu)?.to_dtype(dtype);
        let query = random(&[3, 8, 64])?;
        let [keys, values] = [random(&[PAGES, 16, 2, 64])?, random(&[PAGES, 16, 2, 64])?];

        let table = PageTable::new(ENTRIES.as_flattened(), 4, &SEQ_LENS, geometry.page_size)?;
        let plan = decoder.plan(&geometry, &table)?;
        let op = PagedDecode { plan, scale: 0.125, backend: Arc::clone(&backend) };
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
