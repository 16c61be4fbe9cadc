//! K and V in host memory.

use super::{Element, Number};
use tilewright_heuristics::Dtype;
use tilewright_plan::{E4m3, KvScales, KvStrides};

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

/// The paged KV cache of one layer in FP8: half the memory and half the bytes to read of a cache of 16 bits. A number is its byte's value
/// times its head's scale. Plans for it are of a [`Dtype`] with FP8 K and V.
///
/// ```
/// use tilewright_heuristics::{Dtype, Geometry};
/// use tilewright_cpu::{DecodeArgs, Fp8KvCache};
/// use tilewright_cpu::Decoder;
/// use tilewright_plan::{E4m3, KvScales, KvStrides, PageTable};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::Fp8F32 };
/// let table = PageTable::new(&[0], 1, &[16], geometry.page_size)?;
/// let keys = vec![E4m3::from_f32(1.5); 16 * 2 * 64];
/// let values = vec![E4m3::from_f32(8.0); 16 * 2 * 64];
/// let scales = KvScales::new(0.5, &[0.25, 0.125][..]); // one number for K, one a KV head for V
/// let cache = Fp8KvCache { keys: &keys, values: &values, strides: KvStrides::nhd(&geometry), scales };
///
/// let query = vec![0.3f32; 8 * 64];
/// let mut output = vec![0.0f32; 8 * 64];
/// let mut decoder = Decoder::new();
/// let args = DecodeArgs::new(&query, cache, &mut output);
/// decoder.decode(&geometry, &table, args)?;
/// assert!(output[..256].iter().all(|x| (x - 2.0).abs() < 1e-5));
/// assert!(output[256..].iter().all(|x| (x - 1.0).abs() < 1e-5));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fp8KvCache<'a> {
    /// K.
    pub keys: &'a [E4m3],
    /// V, laid out like K.
    pub values: &'a [E4m3],
    /// Where a page, token and head lies.
    pub strides: KvStrides,
    /// What the elements of each head are multiplied by.
    pub scales: KvScales<'a>,
}

/// A cache that queries of the type `E` can attend: [`KvCache`] of the same type, or [`Fp8KvCache`].
pub trait KvPages<E>: Copy {
    /// Of K and V.
    type Stored: Number;
    /// What a plan has to be made for.
    const DTYPE: Dtype;

    /// Pages as they are stored.
    fn stored(&self) -> KvCache<'_, Self::Stored>;

    /// What they are multiplied by, if by anything.
    fn scales(&self) -> Option<KvScales<'_>>;
}

impl<E: Element> KvPages<E> for KvCache<'_, E> {
    type Stored = E;
    const DTYPE: Dtype = E::DTYPE;

    fn stored(&self) -> KvCache<'_, E> {
        *self
    }

    fn scales(&self) -> Option<KvScales<'_>> {
        None
    }
}

impl<E: Element> KvPages<E> for Fp8KvCache<'_> {
    type Stored = E4m3;
    const DTYPE: Dtype = E::DTYPE.with_fp8_kv();

    fn stored(&self) -> KvCache<'_, E4m3> {
        KvCache { keys: self.keys, values: self.values, strides: self.strides }
    }

    fn scales(&self) -> Option<KvScales<'_>> {
        Some(self.scales)
    }
}
