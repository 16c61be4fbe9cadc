//! A batch whose requests share prefixes, on a device of candle's, and what attention in f64 makes of it.

use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};
use tilewright_candle::{AttentionOptions, Dtype, Heads, Mask, PageTable};
use tilewright_conformance::reference::{self, Attention as Reference};
use tilewright_runtime::cpu::{Element, KvCache};
use tilewright_runtime::{Attention, KvStrides};

pub(crate) const PAGE_SIZE: u32 = 16;

/// Seven requests in two trees: two deep, one that ends inside a shared page, one alone, one without tokens.
const ENTRIES: [[i32; 6]; 7] = [
    [0, 1, 2, 3, 4, 5],
    [0, 1, 2, 3, 6, -1],
    [0, 1, 2, 7, -1, -1],
    [0, 1, -1, -1, -1, -1],
    [8, 9, 10, -1, -1, -1],
    [8, 9, 11, 12, -1, -1],
    [-1, -1, -1, -1, -1, -1],
];
const SEQ_LENS: [u32; 7] = [96, 67, 64, 21, 48, 50, 0];
pub(crate) const PAGES: usize = 13;

pub(crate) fn table() -> PageTable<'static> {
    PageTable::new(ENTRIES.as_flattened(), 6, &SEQ_LENS, PAGE_SIZE).unwrap()
}

pub(crate) struct Batch {
    pub(crate) heads: Heads,
    pub(crate) query: Tensor,
    pub(crate) keys: Tensor,
    pub(crate) values: Tensor,
}

impl Batch {
    pub(crate) fn new(heads: Heads, dtype: DType, device: &Device) -> Result<Self> {
        let [query_heads, kv_heads, dim] = [heads.query, heads.kv, heads.dim].map(|size| size as usize);
        let random = |shape: &[usize]| {
            Tensor::rand(-1f32, 1.0, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
        };
        Ok(Self {
            heads,
            query: random(&[ENTRIES.len(), query_heads, dim])?,
            keys: random(&[PAGES, PAGE_SIZE as usize, kv_heads, dim])?,
            values: random(&[PAGES, PAGE_SIZE as usize, kv_heads, dim])?,
        })
    }

    /// The relative error of an output to attention in f64.
    pub(crate) fn error(&self, output: &Tensor, options: &AttentionOptions) -> f64 {
        let expected = match options.dtype {
            Dtype::F32 => self.expected::<f32>(options),
            Dtype::Bf16 => self.expected::<bf16>(options),
            _ => self.expected::<f16>(options),
        };
        reference::relative_error(
            &numbers::<f32>(output).iter().map(|&x| f64::from(x)).collect::<Vec<_>>(),
            &expected,
        )
    }

    fn expected<E: Element>(&self, options: &AttentionOptions) -> Vec<f64> {
        let geometry = Attention::cpu(self.heads, *options).unwrap().geometry(PAGE_SIZE);
        let [query, keys, values] = [&self.query, &self.keys, &self.values].map(numbers::<E>);
        let cache = KvCache { keys: &keys[..], values: &values[..], strides: KvStrides::nhd(&geometry) };
        let scale = options.scale.unwrap_or(1.0 / (self.heads.dim as f32).sqrt());
        let wanted = Reference { scale, mask: options.mask, sinks: None };
        reference::decode(&geometry, &table(), &query, &cache, &wanted).0
    }
}

/// The elements of a tensor, exactly, if E has room for them.
fn numbers<E: Element>(tensor: &Tensor) -> Vec<E> {
    let wide = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
    wide.to_vec1::<f32>().unwrap().into_iter().map(E::from_f32).collect()
}

/// Types, and the relative error that is allowed.
pub(crate) const TYPES: [(DType, Dtype, f64); 3] =
    [(DType::F32, Dtype::F32, 1e-5), (DType::F16, Dtype::F16, 2e-3), (DType::BF16, Dtype::Bf16, 1e-2)];

pub(crate) fn options(dtype: Dtype) -> AttentionOptions {
    AttentionOptions { dtype, threads: Some(2), mask: Mask::NONE, ..AttentionOptions::default() }
}

/// The first line of an error: candle adds a backtrace where these are on.
pub(crate) fn message<T>(result: Result<T>) -> String {
    let error = result.err().expect("an error").to_string();
    error.lines().next().unwrap_or_default().to_owned()
}
