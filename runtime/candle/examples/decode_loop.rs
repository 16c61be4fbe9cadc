//! A few decode steps on candle's tensors: requests share the pages of their prefix, and grow. Every step is compared with attention by
//! candle's own `matmul`.
//!
//! `cargo run -p tilewright-candle --example decode_loop`; with `--features cuda` it runs on the first GPU.

use candle_core::{D, DType, Device, Result, Tensor};
use tilewright_candle::{AttentionOptions, Dtype, Heads, PageTable, PagedAttention};

const HEADS: Heads = Heads { query: 8, kv: 2, dim: 64 };
const PAGE_SIZE: usize = 16;
const SCALE: f64 = 0.125;
/// Two requests share pages 0 and 1; the third one is alone.
const ENTRIES: [[i32; 4]; 3] = [[0, 1, 2, 3], [0, 1, 4, -1], [5, -1, -1, -1]];
const PAGES: usize = 6;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device = if cfg!(feature = "cuda") { Device::new_cuda_with_stream(0)? } else { Device::Cpu };
    let mut types = vec![(DType::F16, Dtype::F16, 5e-4), (DType::BF16, Dtype::Bf16, 4e-3)];
    types.extend(device.is_cpu().then_some((DType::F32, Dtype::F32, 1e-5)));
    for (dtype, element, bound) in types {
        let options =
            AttentionOptions { dtype: element, scale: Some(SCALE as f32), ..AttentionOptions::default() };
        let attention = PagedAttention::new(&device, HEADS, options)?;
        let random = |shape: &[usize]| Tensor::rand(-1f32, 1.0, shape, &device)?.to_dtype(dtype);
        let [keys, values] = [random(&[PAGES, PAGE_SIZE, 2, 64])?, random(&[PAGES, PAGE_SIZE, 2, 64])?];
        let mut lens = [55, 33, 7];
        // The pages are those of four steps, so the plan is too: only lengths change.
        let mut step =
            attention.plan(&PageTable::new(ENTRIES.as_flattened(), 4, &lens, PAGE_SIZE as u32)?)?;
        for number in 0..4 {
            for (row, len) in ENTRIES.iter().zip(&mut lens) {
                let slot = row[*len as usize / PAGE_SIZE] as usize * PAGE_SIZE + *len as usize % PAGE_SIZE;
                for cache in [&keys, &values] {
                    cache.flatten(0, 1)?.slice_set(&random(&[1, 2, 64])?, 0, slot)?;
                }
                *len += 1;
            }
            step.set_lengths(&lens)?;
            let query = random(&[3, 8, 64])?;
            let output = step.forward(&query, &keys, &values)?;

            let wanted = by_matmul(&query, &keys, &values, lens)?;
            let errors = (output.to_dtype(DType::F32)? - wanted)?.abs()?.flatten_all()?.to_vec1::<f32>()?;
            // In this order NaN is the largest.
            let error = errors.into_iter().max_by(f32::total_cmp).unwrap_or(f32::NAN);
            println!("{dtype:?}, step {number}: at most {error:.1e} from candle's own attention");
            if error.is_nan() || error > bound {
                return Err(format!("{dtype:?} is wrong: {bound:e} is allowed").into());
            }
        }
    }
    Ok(())
}

/// The same by candle alone, in f32: pages are gathered and heads repeated, one request after the other.
fn by_matmul(query: &Tensor, keys: &Tensor, values: &Tensor, lens: [u32; 3]) -> Result<Tensor> {
    let mut outputs = Vec::new();
    for (request, (row, len)) in ENTRIES.iter().zip(lens).enumerate() {
        let row: Vec<u32> = row.iter().filter_map(|&page| u32::try_from(page).ok()).collect();
        let row = Tensor::new(row, query.device())?;
        // [pages, page_size, kv_heads, head_dim] -> [q_heads, tokens, head_dim]
        let gather = |pages: &Tensor| {
            let tokens = pages.to_dtype(DType::F32)?.index_select(&row, 0)?.flatten(0, 1)?;
            let heads = tokens.narrow(0, 0, len as usize)?.transpose(0, 1)?.unsqueeze(1)?;
            heads.repeat((1, 4, 1, 1))?.flatten(0, 1)
        };
        let query = query.get(request)?.to_dtype(DType::F32)?.unsqueeze(1)?;
        let logits = (query.matmul(&gather(keys)?.transpose(1, 2)?)? * SCALE)?;
        let weights = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
        outputs.push(weights.matmul(&gather(values)?)?.squeeze(1)?);
    }
    Tensor::stack(&outputs, 0)
}
