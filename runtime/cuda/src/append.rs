//! K and V of new tokens, written to their places in the pages of a cache by one launch.
#![allow(unsafe_code)]

use super::kernels::Begins;
use super::tensor_maps::meaningful;
use super::{CudaBackend, CudaElement, CudaError, KvPagesMut, RawScales, RowStrides};
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use std::ffi::c_void;
use tilewright_heuristics::Geometry;
use tilewright_kernel_templates::cuda::{AppendArguments, Kernel};
use tilewright_kernel_templates::{Class, RotaryPairs};
use tilewright_plan::{AppendError, KvStrides};

/// K and V of new tokens in device memory, and the pages that they go to.
#[derive(Debug)]
pub struct AppendArgs<'a, E, C> {
    /// `[tokens, kv_heads, head_dim]`.
    pub keys: &'a CudaSlice<E>,
    /// `[tokens, kv_heads, head_dim]`.
    pub values: &'a CudaSlice<E>,
    /// `[tokens]`: as in [`RawAppend::slots`].
    pub slots: &'a CudaSlice<i64>,
    /// The paged KV cache: a [`KvCacheMut`](super::KvCacheMut), or an [`Fp8KvCacheMut`](super::Fp8KvCacheMut).
    pub cache: C,
    /// How K is rotated; not at all if absent.
    pub rotary: Option<Rotary<'a>>,
}

/// Rotary position embedding of keys.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// `[positions, dim]`: as in [`RawRotary::table`].
    pub table: &'a CudaSlice<f32>,
    /// As in [`RawRotary::dim`].
    pub dim: u32,
    /// Which elements are rotated together.
    pub pairs: RotaryPairs,
    /// Where the tokens stand.
    pub positions: Positions<'a>,
}

/// Where tokens stand in their requests.
#[derive(Clone, Copy, Debug)]
pub enum Positions<'a> {
    /// `[tokens]`.
    Given(&'a CudaSlice<i64>),
    /// `[tokens]`: each token is the last of so many.
    OfLengths(&'a CudaSlice<i32>),
}

/// Addresses of device memory, and strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawAppend {
    /// New tokens.
    pub tokens: usize,
    /// Elements `[tokens, kv_heads, head_dim]` of K. Read 16 bytes at a time where all addresses and strides of tokens are multiples of that.
    pub keys: u64,
    /// From token to token, and head to head.
    pub key_strides: RowStrides,
    /// Elements `[tokens, kv_heads, head_dim]` of V.
    pub values: u64,
    /// From token to token, and head to head.
    pub value_strides: RowStrides,
    /// i64 `[tokens]`: where each token goes, its page x `page_size` + its place in the page; a multiple of 8 bytes. A token whose slot is
    /// negative, as padding has it, or in no page is not written. Which of tokens with one slot stays is not defined.
    pub slots: u64,
    /// Pages of K; as the strides, a multiple of 16 bytes.
    pub key_pages: u64,
    /// Pages of V; as the strides, a multiple of 16 bytes.
    pub value_pages: u64,
    /// Where a page, token and head of the pages lies.
    pub kv_strides: KvStrides,
    /// Pages of the cache.
    pub pages: usize,
    /// What K and V are divided by; needed if the pages are FP8, and only read then.
    pub scales: Option<RawScales>,
    /// How K is rotated; not at all if absent.
    pub rotary: Option<RawRotary>,
}

/// Rotary position embedding, from addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawRotary {
    /// f32 `[rows, dim]`: for each position cosines of `dim / 2` angles, then their sines; a multiple of 16 bytes.
    pub table: u64,
    /// Positions of the table. A token that stands beyond them is not written.
    pub rows: usize,
    /// Elements of a head that are rotated, from the first on: a multiple of 16, up to the head dimension.
    pub dim: u32,
    /// Which of them together.
    pub pairs: RotaryPairs,
    /// Where the tokens stand.
    pub positions: RawPositions,
}

/// Where tokens stand in their requests, from addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawPositions {
    /// i64 `[tokens]`; a multiple of 8 bytes.
    Given(u64),
    /// i32 `[tokens]`: each token is the last of so many; a multiple of 4 bytes.
    OfLengths(u64),
}

impl CudaBackend {
    /// Compiles and loads the kernel that appends to caches of a class; what is loaded already costs nothing.
    ///
    /// # Errors
    /// A head dimension that there is no kernel for, or the compiler's or the driver's.
    pub fn prepare_append(&mut self, class: &Class, rotary: Option<RotaryPairs>) -> Result<(), CudaError> {
        check_head_dim(class.head_dim)?;
        self.kernels.prepare_append(class, rotary)
    }

    /// Whether [`CudaBackend::prepare_append`] has nothing to do.
    pub fn can_append(&self, class: &Class, rotary: Option<RotaryPairs>) -> bool {
        self.kernels.append(class, rotary).is_ok()
    }

    /// Writes K and V of new tokens to the pages of a cache, on the stream: one launch, no allocation and no synchronisation. What a page holds
    /// beside the tokens stays as it is.
    ///
    /// Numbers are those of the CPU backend to the bit, but for NaN in FP8, whose sign is lost: rotations are in f32, each sum rounded once;
    /// with FP8 a number is divided by its head's scale and rounded to the nearest, 448 at most (57344 in e5m2), and nothing is rounded before.
    ///
    /// May be captured into a graph as [`CudaBackend::decode`] may; tokens, slots and positions are read when it is launched.
    ///
    /// # Errors
    /// Lengths or types that do not fit, a class that was not prepared, or the driver's refusal. Slots and positions are on the device, where
    /// nothing is refused.
    pub fn append<E: CudaElement, C: KvPagesMut<E>>(
        &self,
        stream: &CudaStream,
        geometry: &Geometry,
        mut args: AppendArgs<'_, E, C>,
    ) -> Result<(), CudaError> {
        let given = C::dtype(geometry.dtype);
        if geometry.dtype != given {
            return Err(CudaError::Dtype { planned: geometry.dtype, given });
        }
        check_lengths(geometry, &args)?;
        let AppendArgs { keys, values, slots, rotary, .. } = args;
        let tokens = slots.len();
        let dense = RowStrides {
            request: (geometry.kv_heads * geometry.head_dim) as usize,
            head: geometry.head_dim as usize,
        };
        let (pages, scale_slices) = args.cache.parts();
        let per_head = scale_slices.is_some_and(|scales| scales.keys.len() != 1 || scales.values.len() != 1);
        let (key_scales, _key_scales) = scale_slices.map(|scales| scales.keys.device_ptr(stream)).unzip();
        let (value_scales, _value_scales) =
            scale_slices.map(|scales| scales.values.device_ptr(stream)).unzip();
        let scales = key_scales.zip(value_scales).map(|(keys, values)| RawScales { keys, values, per_head });
        let (table, _table) = rotary.map(|rotary| rotary.table.device_ptr(stream)).unzip();
        let (positions, _positions) = match rotary.map(|rotary| rotary.positions) {
            Some(Positions::Given(positions)) => {
                let (address, guard) = positions.device_ptr(stream);
                (Some(RawPositions::Given(address)), Some(guard))
            }
            Some(Positions::OfLengths(lengths)) => {
                let (address, guard) = lengths.device_ptr(stream);
                (Some(RawPositions::OfLengths(address)), Some(guard))
            }
            None => (None, None),
        };
        let raw_rotary = rotary.zip(table.zip(positions)).map(|(rotary, (table, positions))| RawRotary {
            table,
            rows: rotary.table.len() / rotary.dim.max(1) as usize,
            dim: rotary.dim,
            pairs: rotary.pairs,
            positions,
        });
        let (keys, _keys) = keys.device_ptr(stream);
        let (values, _values) = values.device_ptr(stream);
        let (slots, _slots) = slots.device_ptr(stream);
        let (key_pages, value_pages) = (pages.keys, pages.values);
        let of = |len| pages_within(geometry, &pages.strides, len);
        let count = of(key_pages.len()).min(of(value_pages.len()));
        let (key_pages, _key_pages) = key_pages.device_ptr_mut(stream);
        let (value_pages, _value_pages) = value_pages.device_ptr_mut(stream);
        let raw = RawAppend {
            tokens,
            keys,
            key_strides: dense,
            values,
            value_strides: dense,
            slots,
            key_pages,
            value_pages,
            kv_strides: pages.strides,
            pages: count,
            scales,
            rotary: raw_rotary,
        };
        // SAFETY: the slices hold as many tokens as was checked, and the kernel writes to pages that they hold alone; the guards, dropped when
        // the launch is queued, make cudarc free and reuse the slices after it.
        unsafe { self.append_raw(stream.cu_stream(), geometry, &raw) }
    }

    /// As [`CudaBackend::append`], from addresses.
    ///
    /// # Errors
    /// Addresses or strides that are not aligned, missing scales, a class that was not prepared, or the driver's refusal.
    ///
    /// # Safety
    /// The stream belongs to the device's context. All addresses point to device memory as large as the geometry, tokens, pages and strides
    /// say, which stays until the stream has passed this point; nothing else writes to it meanwhile. Pages overlap nothing that is read.
    pub unsafe fn append_raw(
        &self,
        stream: CUstream,
        geometry: &Geometry,
        args: &RawAppend,
    ) -> Result<(), CudaError> {
        geometry.validate().map_err(tilewright_plan::PlanError::from)?;
        let (mut arguments, chunks) = arguments(geometry, args)?;
        let kernel = self.kernels.append(&Class::of(geometry), args.rotary.map(|rotary| rotary.pairs))?;
        self.device().context().bind_to_thread().map_err(CudaError::driver("cannot use the device"))?;
        let ctas = chunks.div_ceil(Kernel::chunks_of_append());
        let mut parameters = [(&raw mut arguments).cast::<c_void>()];
        // SAFETY: the kernel takes one `AppendArguments`, which the driver copies; the caller vouches for the addresses.
        unsafe { kernel.launch(ctas, Begins::Late, stream, &mut parameters) }
    }
}

fn check_head_dim(head_dim: u32) -> Result<(), AppendError> {
    if Class::HEAD_DIMS.contains(&head_dim) {
        return Ok(());
    }
    Err(AppendError::HeadDim { head_dim, supported: Class::HEAD_DIMS_IN_WORDS })
}

/// Pages that lie in a slice.
fn pages_within(geometry: &Geometry, strides: &KvStrides, len: usize) -> usize {
    let first = strides.end_of_page(geometry, 0).unwrap_or(usize::MAX);
    len.checked_sub(first).map_or(0, |rest| rest / strides.page.max(1) + 1)
}

fn check_lengths<E: CudaElement, C: KvPagesMut<E>>(
    geometry: &Geometry,
    args: &AppendArgs<'_, E, C>,
) -> Result<(), AppendError> {
    let tokens = args.slots.len();
    let elements = tokens.saturating_mul((geometry.kv_heads * geometry.head_dim) as usize);
    let scales = args.cache.scales();
    let one = scales.is_none_or(|scales| scales.keys.len() == 1 && scales.values.len() == 1);
    let scale_count = if one { 1 } else { geometry.kv_heads as usize };
    let positions = args.rotary.map_or(tokens, |rotary| match rotary.positions {
        Positions::Given(positions) => positions.len(),
        Positions::OfLengths(lengths) => lengths.len(),
    });
    let lengths = [
        ("keys", args.keys.len(), elements),
        ("values", args.values.len(), elements),
        ("positions", positions, tokens),
        ("key_scales", scales.map_or(usize::MAX, |scales| scales.keys.len()), scale_count),
        ("value_scales", scales.map_or(usize::MAX, |scales| scales.values.len()), scale_count),
    ];
    match lengths.into_iter().find(|(_, found, needed)| found < needed) {
        Some((name, found, needed)) => Err(AppendError::Length { name, found, needed }),
        None => Ok(()),
    }
}

/// What the kernel takes, checked as far as addresses can be, and how many chunks there are.
fn arguments(geometry: &Geometry, args: &RawAppend) -> Result<(AppendArguments, u32), CudaError> {
    check_head_dim(geometry.head_dim)?;
    let dtype = geometry.dtype;
    let too_many = || AppendError::TooManyTokens(args.tokens);
    let (heads, dim) = (geometry.kv_heads as usize, geometry.head_dim as usize);
    // Threads of whole CTAs are counted in 32 bits.
    let chunks = args.tokens.checked_mul(heads * dim / 8).ok_or_else(too_many)?;
    let most = (u32::MAX - Kernel::chunks_of_append()) as usize;
    let chunks = u32::try_from(chunks).ok().filter(|_| chunks <= most).ok_or_else(too_many)?;

    if args.scales.is_none() && dtype.has_fp8_kv() {
        let message = "K and V in FP8 have scales; give the address of an f32 of 1 if theirs is 1";
        return Err(CudaError::Option { name: "scales", value: "missing".to_owned(), message });
    }
    if let Some(RawRotary { dim, .. }) = args.rotary
        && !RotaryPairs::serves(dim, geometry.head_dim)
    {
        return Err(AppendError::RotaryDim { dim, head_dim: geometry.head_dim }.into());
    }
    let (positions, lengths) = match args.rotary.map(|rotary| rotary.positions) {
        Some(RawPositions::Given(positions)) => (positions, 0),
        Some(RawPositions::OfLengths(lengths)) => (0, lengths),
        None => (0, 0),
    };
    let table = args.rotary.map_or(0, |rotary| rotary.table);
    let (key_scales, value_scales) = args.scales.map_or((0, 0), |scales| (scales.keys, scales.values));
    let addresses = [
        ("keys", args.keys, 2),
        ("values", args.values, 2),
        ("slots", args.slots, 8),
        ("key_pages", args.key_pages, 16),
        ("value_pages", args.value_pages, 16),
        ("scales.keys", key_scales, 4),
        ("scales.values", value_scales, 4),
        ("table", table, 16),
        ("positions", positions, 8),
        ("lengths", lengths, 4),
    ];
    if let Some((name, value, multiple)) =
        addresses.into_iter().find(|(_, address, multiple)| !address.is_multiple_of(*multiple))
    {
        let (value, multiple) = (value as i64, multiple as i64);
        return Err(CudaError::Misaligned { name, value, multiple, unit: "bytes" });
    }
    let kv_strides = meaningful(&args.kv_strides, geometry);
    let strides = [
        ("kv_strides.page", kv_strides.page),
        ("kv_strides.token", kv_strides.token),
        ("kv_strides.head", kv_strides.head),
    ];
    let multiple = 16 / dtype.kv_bytes();
    if let Some((name, value)) = strides.into_iter().find(|(_, stride)| !stride.is_multiple_of(multiple)) {
        let (value, multiple) = (value as i64, multiple as i64);
        return Err(CudaError::Misaligned { name, value, multiple, unit: "elements" });
    }

    let RowStrides { request: key_token, head: key_head } = args.key_strides;
    let RowStrides { request: value_token, head: value_head } = args.value_strides;
    let wide = args.keys.is_multiple_of(16)
        && args.values.is_multiple_of(16)
        && [key_token, key_head, value_token, value_head].iter().all(|stride| stride.is_multiple_of(8));
    let stride = |elements: usize| i64::try_from(elements).unwrap_or(i64::MAX);
    let arguments = AppendArguments {
        keys: args.keys,
        values: args.values,
        key_pages: args.key_pages,
        value_pages: args.value_pages,
        slots: args.slots,
        key_scales,
        value_scales,
        table,
        positions,
        lengths,
        key_token: stride(key_token),
        key_head: stride(key_head),
        value_token: stride(value_token),
        value_head: stride(value_head),
        page: stride(kv_strides.page),
        token: stride(kv_strides.token),
        head: stride(kv_strides.head),
        scale_head: args.scales.map_or(0, |scales| i64::from(scales.per_head)),
        table_rows: args.rotary.map_or(0, |rotary| rotary.rows as u64),
        tokens: args.tokens as u32,
        kv_heads: geometry.kv_heads,
        page_size: geometry.page_size,
        pages: u32::try_from(args.pages).unwrap_or(u32::MAX),
        rotary_dim: args.rotary.map_or(0, |rotary| rotary.dim),
        wide: u32::from(wide),
    };
    Ok((arguments, chunks))
}

#[cfg(test)]
#[path = "append_tests.rs"]
mod tests;
