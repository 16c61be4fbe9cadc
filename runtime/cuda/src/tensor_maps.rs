//! Tensor maps of K and V for TMA: when a cache can have them, and the driver's encoding.
#![allow(unsafe_code)]

use super::{CudaError, RawArgs};
use cudarc::driver::DriverError;
use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle, cuTensorMapEncodeTiled,
};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};
use tilewright_heuristics::{Dtype, Geometry};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{
    BOX_TOKENS, CLIPPED_TOKENS, GRANULE, KernelOptions, KvLoad, TensorMap, VALUE_MAPS, panel_row_bytes,
};
use tilewright_plan::KvStrides;

/// Strides of a tensor map are less than this, in bytes.
const FARTHEST_BYTES: usize = 1 << 40;

/// Tensors that are remembered: those of as many layers. All are forgotten when there are more, so that caches that come and go leave nothing.
const MOST_REMEMBERED: usize = 512;

/// How kernels load a cache. TMA needs pages of a multiple of 16 tokens whose stride is a multiple of that of KV heads; then both are one
/// dimension of a tensor.
pub const fn kv_load(strides: &KvStrides, geometry: &Geometry) -> KvLoad {
    let strides = meaningful(strides, geometry);
    let tokens = strides.token.saturating_mul(8);
    let farthest = if strides.head > tokens { strides.head } else { tokens };
    if strides.head == 0
        || !strides.page.is_multiple_of(strides.head)
        || farthest >= FARTHEST_BYTES / geometry.dtype.kv_bytes()
    {
        return KvLoad::CpAsync;
    }
    KernelOptions::for_pages(geometry.page_size).kv_load
}

/// The strides without what a tensor says of a dimension of size 1: with one KV head a page is all of its head, and frameworks give the stride to a
/// next one as they please, often 1.
pub(super) const fn meaningful(strides: &KvStrides, geometry: &Geometry) -> KvStrides {
    let KvStrides { page, token, head } = *strides;
    KvStrides { page, token, head: if geometry.kv_heads == 1 { page } else { head } }
}

/// Page stride over head stride, where TMA can load the cache.
pub(super) const fn heads_a_page(strides: &KvStrides) -> usize {
    match strides.page.checked_div(strides.head) {
        Some(heads) => heads,
        None => 0,
    }
}

/// The last page that TMA coordinates reach: page x heads a page + KV head in 31 bits.
pub(super) const fn last_tma_page(strides: &KvStrides, geometry: &Geometry) -> i32 {
    let most = (i32::MAX as usize).saturating_sub(geometry.kv_heads as usize);
    match most.checked_div(heads_a_page(&meaningful(strides, geometry))) {
        Some(page) if page < i32::MAX as usize => page as i32,
        _ => i32::MAX,
    }
}

/// As [`kv_load`], of pages up to this one: TMA counts in 31 bits.
pub const fn kv_load_up_to(strides: &KvStrides, geometry: &Geometry, largest_page: Option<i32>) -> KvLoad {
    match largest_page {
        Some(page) if page > last_tma_page(strides, geometry) => KvLoad::CpAsync,
        _ => kv_load(strides, geometry),
    }
}

/// Boxes of K, and of V by their tokens ([`BOX_TOKENS`]), the clipped ones last.
pub(super) type TensorMaps = (TensorMap, [TensorMap; VALUE_MAPS]);

/// All that they are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tensors {
    keys: u64,
    values: u64,
    token: usize,
    head: usize,
    page_size: u32,
    head_dim: u32,
    dtype: Dtype,
}

/// Tensors as the driver encoded them. Each layer has its own, the same in every step: a launch need not wait for the driver to encode six again.
#[derive(Debug, Default)]
pub(super) struct KnownTensors(Mutex<HashMap<Tensors, TensorMaps>>);

impl KnownTensors {
    /// Those of a launch, encoded on the host alone unless they are known.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn of(&self, args: &RawArgs, geometry: &Geometry) -> Result<TensorMaps, CudaError> {
        let Geometry { head_dim, page_size, dtype, .. } = *geometry;
        let KvStrides { token, head, .. } = args.kv_strides;
        let RawArgs { keys, values, .. } = *args;
        self.get_or(Tensors { keys, values, token, head, page_size, head_dim, dtype }, Tensors::encode)
    }

    fn get_or(
        &self,
        tensors: Tensors,
        encode: impl FnOnce(&Tensors) -> Result<TensorMaps, CudaError>,
    ) -> Result<TensorMaps, CudaError> {
        // A thread that panicked with the lock left whole entries.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(maps) = known.get(&tensors) {
            return Ok(*maps);
        }
        let maps = encode(&tensors)?;
        if known.len() >= MOST_REMEMBERED {
            known.clear();
        }
        known.insert(tensors, maps);
        Ok(maps)
    }
}

impl Tensors {
    fn encode(&self) -> Result<TensorMaps, CudaError> {
        let mut values = [TensorMap::default(); VALUE_MAPS];
        for (map, &tokens) in values.iter_mut().zip(&BOX_TOKENS) {
            *map = self.boxes(self.values, tokens)?;
        }
        values[BOX_TOKENS.len()] = self.clipped_boxes(self.values)?;
        Ok((self.boxes(self.keys, GRANULE)?, values))
    }

    /// The tensor map with boxes of `tokens` tokens of one page and KV head, as wide as a row of shared memory.
    fn boxes(&self, address: u64, tokens: u32) -> Result<TensorMap, CudaError> {
        let (elements, panels, row_bytes) = self.panels();
        // Two rows of 64 bytes are what a box can begin with: one token is a box of two, the other of which lies outside of the tensor.
        let (inner, outer, of_box) = match tokens {
            1 if row_bytes < 128 => (1, self.page_size, [elements, 2, 1, 1, 1]),
            0..8 => (8, self.page_size / 8, [elements, tokens, 1, 1, 1]),
            _ => (8, self.page_size / 8, [elements, 8, panels, tokens / 8, 1]),
        };
        self.tensor_map(address, (inner, inner as usize * self.token), outer, of_box)
    }

    /// The tensor map with boxes of [`CLIPPED_TOKENS`] tokens of all panels, of which the last lie outside of the tensor: its second dimension are the
    /// tokens behind the one of the fourth, which begins as many before the page. Kernels read nothing there.
    fn clipped_boxes(&self, address: u64) -> Result<TensorMap, CudaError> {
        let (elements, panels, _) = self.panels();
        let before = CLIPPED_TOKENS as usize * self.token * self.dtype.kv_bytes();
        let of_box = [elements, CLIPPED_TOKENS, panels, 1, 1];
        self.tensor_map(
            address.wrapping_sub(before as u64),
            (CLIPPED_TOKENS, self.token),
            self.page_size,
            of_box,
        )
    }

    /// Elements of a panel, panels of a row, and a panel's bytes.
    fn panels(&self) -> (u32, u32, u32) {
        let row_bytes = panel_row_bytes(&Class { head_dim: self.head_dim, dtype: self.dtype });
        let elements = row_bytes / self.dtype.kv_bytes() as u32;
        (elements, self.head_dim / elements, row_bytes)
    }

    /// A tensor map of elements of a panel, `inner` tokens, panels, `outer` tokens with a stride in elements, pages and KV heads.
    fn tensor_map(
        &self,
        address: u64,
        (inner, outer_stride): (u32, usize),
        outer: u32,
        of_box: [u32; 5],
    ) -> Result<TensorMap, CudaError> {
        let bytes = self.dtype.kv_bytes() as u64;
        let (elements, panels, row_bytes) = self.panels();
        let element = match self.dtype {
            Dtype::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Dtype::F32 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            Dtype::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Dtype::Fp8F16
            | Dtype::Fp8Bf16
            | Dtype::Fp8F32
            | Dtype::E5m2F16
            | Dtype::E5m2Bf16
            | Dtype::E5m2F32 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        };
        // Which pages there are is the caller's promise.
        let sizes = [elements, inner, panels, outer, i32::MAX as u32].map(u64::from);
        let strides =
            [self.token, elements as usize, outer_stride, self.head].map(|elements| elements as u64 * bytes);
        let swizzle = match row_bytes {
            128.. => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            _ => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        };
        let mut map = MaybeUninit::<CUtensorMap>::uninit();
        // SAFETY: all lists have five numbers, or one less of the strides.
        unsafe {
            cuTensorMapEncodeTiled(
                map.as_mut_ptr(),
                element,
                5,
                address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                of_box.as_ptr(),
                [1u32; 5].as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(|error: DriverError| CudaError::driver("cannot describe K and V as tensors")(error))?;
        // SAFETY: the driver has written it.
        Ok(TensorMap { words: unsafe { map.assume_init() }.opaque })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const GEOMETRY: Geometry =
        Geometry { q_heads: 32, kv_heads: 8, head_dim: 128, page_size: 16, dtype: Dtype::F16 };

    fn takes(strides: KvStrides, geometry: &Geometry) -> bool {
        let load = kv_load_up_to(&strides, geometry, Some(1000));
        assert_eq!(load, kv_load(&strides, geometry), "no page is too far");
        load == KvLoad::Tma
    }

    #[test]
    fn tma_loads_pages_of_whole_granules_in_either_layout() {
        for page_size in [16, 32, 48, 256] {
            let geometry = Geometry { page_size, ..GEOMETRY };
            assert!(takes(KvStrides::nhd(&geometry), &geometry), "{page_size}");
            assert!(takes(KvStrides::hnd(&geometry), &geometry), "{page_size}");
        }
        for page_size in [1, 8, 24] {
            let geometry = Geometry { page_size, ..GEOMETRY };
            assert!(!takes(KvStrides::nhd(&geometry), &geometry), "{page_size}");
            assert!(!takes(KvStrides::hnd(&geometry), &geometry), "{page_size}");
        }
        assert_eq!(heads_a_page(&KvStrides::nhd(&GEOMETRY)), 16 * 8);
        assert_eq!(heads_a_page(&KvStrides::hnd(&GEOMETRY)), 8);
    }

    #[test]
    fn k_and_v_may_alternate_by_page_by_token_or_by_head() {
        for strides in [KvStrides::nhd(&GEOMETRY), KvStrides::hnd(&GEOMETRY)] {
            assert!(takes(KvStrides { page: 2 * strides.page, ..strides }, &GEOMETRY), "pages of K, then V");
        }
        let nhd = KvStrides::nhd(&GEOMETRY);
        assert!(takes(KvStrides { page: 2 * nhd.page, token: 2 * nhd.token, ..nhd }, &GEOMETRY), "tokens");
        assert!(takes(KvStrides { page: 2 * nhd.page, token: 2 * nhd.token, head: 2 * nhd.head }, &GEOMETRY));
    }

    #[test]
    fn pages_that_are_no_whole_heads_apart_need_cp_async() {
        for strides in [KvStrides::nhd(&GEOMETRY), KvStrides::hnd(&GEOMETRY)] {
            assert!(!takes(KvStrides { page: strides.page + 8, ..strides }, &GEOMETRY));
            assert!(takes(KvStrides { page: strides.page + strides.head, ..strides }, &GEOMETRY));
            // All heads the same, or one behind all pages of the other.
            assert!(!takes(KvStrides { head: 0, ..strides }, &GEOMETRY));
            assert!(!takes(KvStrides { head: 0, page: 0, ..strides }, &GEOMETRY));
            assert!(!takes(KvStrides { head: 1000 * strides.page, ..strides }, &GEOMETRY));
        }
        let gapped = KvStrides { page: 16 * 144 * 8 + 64, token: 144 * 8, head: 144 };
        assert!(!takes(gapped, &GEOMETRY));
        let far = KvStrides { page: 1 << 40, token: 1024, head: 1 << 39 };
        assert!(!takes(far, &GEOMETRY), "2^40 bytes from head to head");
        assert!(!takes(KvStrides { token: usize::MAX - 15, ..far }, &GEOMETRY));
    }

    #[test]
    fn one_kv_head_may_be_any_distance_from_the_next() {
        // A tensor with one head a rank tells any stride of a dimension of size 1.
        let geometry = Geometry { kv_heads: 1, q_heads: 4, ..GEOMETRY };
        for strides in [KvStrides::nhd(&geometry), KvStrides::hnd(&geometry)] {
            assert!(takes(strides, &geometry));
            for head in [0, 1, 8, 127, 128, strides.token, strides.page, 1 << 39, usize::MAX] {
                let told = KvStrides { head, ..strides };
                assert!(takes(told, &geometry), "{told:?}");
                assert_eq!(heads_a_page(&meaningful(&told, &geometry)), 1);
            }
        }
        let strides = KvStrides { head: 1, ..KvStrides::nhd(&GEOMETRY) };
        assert_eq!(meaningful(&strides, &GEOMETRY), strides, "several heads are where they are told to be");
    }

    #[test]
    fn pages_are_counted_to_the_last_that_31_bits_reach() {
        let strides = KvStrides::nhd(&GEOMETRY);
        let last = last_tma_page(&strides, &GEOMETRY);
        assert!(i64::from(last) * 128 + 8 <= i64::from(i32::MAX));
        assert!(i64::from(last + 1) * 128 + 8 > i64::from(i32::MAX));
        let loads = [None, Some(last), Some(last + 1)].map(|page| kv_load_up_to(&strides, &GEOMETRY, page));
        assert_eq!(loads, [KvLoad::Tma, KvLoad::Tma, KvLoad::CpAsync]);
        let same = KvStrides { page: 0, ..strides };
        assert_eq!(last_tma_page(&same, &GEOMETRY), i32::MAX, "every page is page 0");
        assert_eq!(last_tma_page(&KvStrides { head: 0, ..strides }, &GEOMETRY), i32::MAX);
    }

    #[test]
    fn tensors_are_encoded_once_until_there_are_too_many() {
        let (known, encoded) = (KnownTensors::default(), Cell::new(0));
        let of = |keys: u64| {
            let KvStrides { token, head, .. } = KvStrides::nhd(&GEOMETRY);
            let Geometry { head_dim, page_size, dtype, .. } = GEOMETRY;
            let tensors = Tensors { keys, values: 0, token, head, page_size, head_dim, dtype };
            let maps = known.get_or(tensors, |tensors| {
                encoded.set(encoded.get() + 1);
                Ok((TensorMap { words: [tensors.keys; 16] }, Default::default()))
            });
            assert_eq!(maps.unwrap().0.words[0], keys);
        };
        (0..64).for_each(of);
        (0..64).for_each(of);
        assert_eq!(encoded.get(), 64);
        (0..=MOST_REMEMBERED as u64).for_each(of);
        assert_eq!((encoded.get(), known.0.lock().unwrap().len()), (MOST_REMEMBERED + 1, 1));
        // A refusal is told, and asked for again.
        let refused = Tensors {
            keys: u64::MAX,
            values: 0,
            token: 0,
            head: 0,
            page_size: 0,
            head_dim: 0,
            dtype: Dtype::F16,
        };
        assert!(known.get_or(refused, |_| Err(CudaError::NotUploaded)).is_err());
        assert!(known.get_or(refused, |_| Ok(Default::default())).is_ok());
    }
}
