//! What one decode step of one layer reads and writes: raw addresses, and typed slices above them.

use super::tensor_maps::kv_load_up_to;
use super::{CudaElement, CudaError, DevicePlan, KvCache, KvPages, MergeBy};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use tilewright_heuristics::{Dtype, Geometry, Mask};
use tilewright_kernel_templates::cuda::KernelOptions;
use tilewright_plan::KvStrides;

/// Distances in elements between the vectors of queries or outputs. The elements of one head's vector are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowStrides {
    /// From query to query: from request to request, where each brings one.
    pub request: usize,
    /// From query head to query head.
    pub head: usize,
}

impl RowStrides {
    /// `[batch, q_heads, head_dim]` without gaps.
    pub const fn dense(geometry: &Geometry) -> Self {
        let head = geometry.head_dim as usize;
        Self { request: head * geometry.q_heads as usize, head }
    }
}

/// Addresses of the scales of K and V in FP8: f32, multiples of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawScales {
    /// What K is multiplied by.
    pub keys: u64,
    /// What V is multiplied by.
    pub values: u64,
    /// Whether each is `[kv_heads]`; otherwise one number for all heads.
    pub per_head: bool,
}

/// Raw pointers and strides; only alignment is checked. Addresses and strides are multiples of 16 bytes: of
/// 8 elements, of 16 for FP8. The batch is that of the plan: its queries ([`super::DevicePlan::batch`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawArgs {
    /// Elements `[batch, q_heads, head_dim]`.
    pub query: u64,
    /// Distances of the query.
    pub query_strides: RowStrides,
    /// Pages of K: elements of the query's type, or of FP8 if the plan says so.
    pub keys: u64,
    /// Pages of V, of the same type as K.
    pub values: u64,
    /// Where a page, token and head of K and V lie.
    pub kv_strides: KvStrides,
    /// Elements `[batch, q_heads, head_dim]`; every one is written.
    pub output: u64,
    /// Distances of the output.
    pub output_strides: RowStrides,
    /// f32 `[batch, q_heads]`, natural logarithm; -inf for a request without tokens and sinks.
    pub lse: Option<u64>,
    /// At least [`super::DevicePlan::workspace_bytes`] bytes, for partials.
    pub workspace: u64,
    /// Factor of the logits, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Which tokens a query sees, and how its logits are bounded.
    pub mask: Mask,
    /// f32 `[q_heads]`: a logit that each head has beside its tokens. It takes part in the softmax and in the LSE, and weighs zeros.
    pub sinks: Option<u64>,
    /// Of K and V; needed if they are FP8, and only read then.
    pub scales: Option<RawScales>,
    /// i32 `[batch]`: the tokens that each query sees, read here and not where the plan has them. Each ends in the page that the plan's ends in.
    pub lengths: Option<u64>,
    /// Where the CTAs of forward note when they did what: [`super::DevicePlan::timeline_entries`] of
    /// [`tilewright_kernel_templates::cuda::TimelineEntry`].
    pub timeline: Option<u64>,
}

impl RawArgs {
    /// Plain attention over dense memory in the order `[batch, q_heads, head_dim]` and `[page, token, head, element]`, scaled by
    /// `1 / sqrt(head_dim)`. It has no addresses: those of the query, K, V, the output and the workspace are to be filled in, by a struct update.
    pub fn dense(geometry: &Geometry) -> Self {
        Self {
            query: 0,
            query_strides: RowStrides::dense(geometry),
            keys: 0,
            values: 0,
            kv_strides: KvStrides::nhd(geometry),
            output: 0,
            output_strides: RowStrides::dense(geometry),
            lse: None,
            workspace: 0,
            scale: 1.0 / (geometry.head_dim as f32).sqrt(),
            mask: Mask::NONE,
            sinks: None,
            scales: None,
            lengths: None,
            timeline: None,
        }
    }

    /// What has to be compiled in. How K and V are loaded depends on their strides and on the plan's pages.
    pub const fn options(&self, plan: &DevicePlan) -> KernelOptions {
        KernelOptions {
            mask: self.mask.options(),
            sinks: self.sinks.is_some(),
            timeline: self.timeline.is_some(),
            kv_load: kv_load_up_to(&self.kv_strides, plan.geometry(), plan.largest_page()),
            invariant: plan.is_invariant(),
            merge_by_last_cta: matches!(plan.launch_mode().merge, MergeBy::LastCta),
        }
    }

    /// Checks what the kernels' wide loads need.
    pub(super) fn check(&self, dtype: Dtype) -> Result<(), CudaError> {
        let addresses = [
            ("query", self.query),
            ("keys", self.keys),
            ("values", self.values),
            ("output", self.output),
            ("workspace", self.workspace),
        ];
        if let Some(&(name, value)) = addresses.iter().find(|(_, address)| !address.is_multiple_of(16)) {
            return Err(CudaError::Misaligned { name, value: value as i64, multiple: 16, unit: "bytes" });
        }
        let kv = 16 / dtype.kv_bytes();
        let strides = [
            ("query_strides.request", self.query_strides.request, 8),
            ("query_strides.head", self.query_strides.head, 8),
            ("output_strides.request", self.output_strides.request, 8),
            ("output_strides.head", self.output_strides.head, 8),
            ("kv_strides.page", self.kv_strides.page, kv),
            ("kv_strides.token", self.kv_strides.token, kv),
            ("kv_strides.head", self.kv_strides.head, kv),
        ];
        if let Some(&(name, value, multiple)) =
            strides.iter().find(|(_, stride, multiple)| !stride.is_multiple_of(*multiple))
        {
            let (value, multiple) = (value as i64, multiple as i64);
            return Err(CudaError::Misaligned { name, value, multiple, unit: "elements" });
        }
        if let Some(value) = self.lengths.filter(|address| !address.is_multiple_of(4)) {
            let value = value as i64;
            return Err(CudaError::Misaligned { name: "lengths", value, multiple: 4, unit: "bytes" });
        }
        match self.scales {
            Some(RawScales { keys, values, .. }) => {
                let addresses = [("scales.keys", keys), ("scales.values", values)];
                if let Some(&(name, value)) = addresses.iter().find(|(_, value)| !value.is_multiple_of(4)) {
                    let value = value as i64;
                    return Err(CudaError::Misaligned { name, value, multiple: 4, unit: "bytes" });
                }
            }
            None if dtype.has_fp8_kv() => {
                let message = "K and V in FP8 have scales; give the address of an f32 of 1 if theirs is 1";
                return Err(CudaError::Option { name: "scales", value: "missing".to_owned(), message });
            }
            None => {}
        }
        Ok(self.mask.check()?)
    }
}

/// Keeps the slices of a call in use until its launches are queued: dropped, they record these as the slices' last uses.
pub(super) type Guards<'a> = [Option<SyncOnDrop<'a>>; 9];

/// Slices of device memory, checked against the plan. The batch is the plan's: its queries ([`super::DevicePlan::batch`]).
#[derive(Debug)]
pub struct DecodeArgs<'a, E, C = KvCache<'a, E>> {
    /// `[batch, q_heads, head_dim]`.
    pub query: &'a CudaSlice<E>,
    /// The paged KV cache: a [`KvCache`], or an [`super::Fp8KvCache`].
    pub cache: C,
    /// `[batch, q_heads, head_dim]`; every element is written.
    pub output: &'a mut CudaSlice<E>,
    /// At least [`super::DevicePlan::workspace_bytes`] bytes.
    pub workspace: &'a mut CudaSlice<u8>,
    /// Natural-log sum of exponentials of the logits, `[batch, q_heads]`.
    pub lse: Option<&'a mut CudaSlice<f32>>,
    /// Factor of the logits; `1 / sqrt(head_dim)` if absent.
    pub scale: Option<f32>,
    /// As in [`RawArgs::mask`].
    pub mask: Mask,
    /// As in [`RawArgs::sinks`].
    pub sinks: Option<&'a CudaSlice<f32>>,
}

impl<'a, E: CudaElement, C: KvPages<E>> DecodeArgs<'a, E, C> {
    /// Plain attention: no LSE and no options.
    pub const fn new(
        query: &'a CudaSlice<E>,
        cache: C,
        output: &'a mut CudaSlice<E>,
        workspace: &'a mut CudaSlice<u8>,
    ) -> Self {
        Self { query, cache, output, workspace, lse: None, scale: None, mask: Mask::NONE, sinks: None }
    }

    /// Checks shapes against a plan, and leaves the types behind. The guards have to outlive the queueing of the
    /// launches.
    pub(super) fn raw<'s>(
        &'s mut self,
        stream: &'s CudaStream,
        plan: &DevicePlan,
        requests: usize,
    ) -> Result<(RawArgs, Guards<'s>), CudaError> {
        let geometry = plan.geometry();
        let given = C::dtype(geometry.dtype);
        if geometry.dtype != given {
            return Err(CudaError::Dtype { planned: geometry.dtype, given });
        }
        let (cache, scales) = (self.cache.stored(), self.cache.scales());
        let per_head = scales.is_some_and(|scales| scales.keys.len() != 1 || scales.values.len() != 1);
        let scale_count = if per_head { geometry.kv_heads as usize } else { 1 };
        let heads = requests * geometry.q_heads as usize;
        let vectors = heads * geometry.head_dim as usize;
        let page_end = match plan.largest_page() {
            Some(page) => cache.strides.end_of_page(geometry, page).unwrap_or(usize::MAX),
            None => 0,
        };
        let lengths = [
            ("query", self.query.len(), vectors),
            ("output", self.output.len(), vectors),
            ("keys", cache.keys.len(), page_end),
            ("values", cache.values.len(), page_end),
            ("workspace", self.workspace.len(), plan.workspace_bytes()),
            ("lse", self.lse.as_ref().map_or(heads, |lse| lse.len()), heads),
            ("sinks", self.sinks.map_or(usize::MAX, CudaSlice::len), geometry.q_heads as usize),
            ("key_scales", scales.map_or(usize::MAX, |scales| scales.keys.len()), scale_count),
            ("value_scales", scales.map_or(usize::MAX, |scales| scales.values.len()), scale_count),
        ];
        if let Some(&(name, found, needed)) = lengths.iter().find(|(_, found, needed)| found < needed) {
            return Err(CudaError::Length { name, found, needed });
        }
        // Each orders the stream after the slice's last uses.
        let (query, query_guard) = self.query.device_ptr(stream);
        let (keys, keys_guard) = cache.keys.device_ptr(stream);
        let (values, values_guard) = cache.values.device_ptr(stream);
        let (key_scales, key_scales_guard) = scales.map(|scales| scales.keys.device_ptr(stream)).unzip();
        let (value_scales, value_scales_guard) =
            scales.map(|scales| scales.values.device_ptr(stream)).unzip();
        let (output, output_guard) = self.output.device_ptr_mut(stream);
        let (workspace, workspace_guard) = self.workspace.device_ptr_mut(stream);
        let (lse, lse_guard) = self.lse.as_mut().map(|lse| lse.device_ptr_mut(stream)).unzip();
        let (sinks, sinks_guard) = self.sinks.map(|sinks| sinks.device_ptr(stream)).unzip();
        let raw = RawArgs {
            query,
            query_strides: RowStrides::dense(geometry),
            keys,
            values,
            kv_strides: cache.strides,
            output,
            output_strides: RowStrides::dense(geometry),
            lse,
            workspace,
            scale: self.scale.unwrap_or_else(|| 1.0 / (geometry.head_dim as f32).sqrt()),
            mask: self.mask,
            sinks,
            scales: key_scales.zip(value_scales).map(|(keys, values)| RawScales { keys, values, per_head }),
            lengths: None,
            timeline: None,
        };
        let guards = [
            Some(query_guard),
            Some(keys_guard),
            Some(values_guard),
            Some(output_guard),
            Some(workspace_guard),
            lse_guard,
            sinks_guard,
            key_scales_guard,
            value_scales_guard,
        ];
        Ok((raw, guards))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: RawArgs = RawArgs {
        query: 0,
        query_strides: RowStrides { request: 8, head: 8 },
        keys: 0,
        values: 0,
        kv_strides: KvStrides { page: 24, token: 24, head: 24 },
        output: 0,
        output_strides: RowStrides { request: 8, head: 8 },
        lse: None,
        workspace: 0,
        scale: 1.0,
        mask: Mask::NONE,
        sinks: None,
        scales: None,
        lengths: None,
        timeline: None,
    };

    #[test]
    fn fp8_needs_scales_and_distances_of_whole_loads() {
        assert!(RAW.check(Dtype::F16).is_ok());
        let error = |raw: RawArgs| raw.check(Dtype::Fp8F16).unwrap_err().to_string();
        let odd = error(RAW);
        assert!(odd.contains("kv_strides.page") && odd.contains("multiple of 16 elements"), "{odd}");
        let whole = RawArgs { kv_strides: KvStrides { page: 48, token: 16, head: 16 }, ..RAW };
        let missing = error(whole);
        assert!(missing.contains("scales") && missing.contains("an f32 of 1"), "{missing}");
        let scales = RawScales { keys: 4, values: 8, per_head: true };
        assert!(RawArgs { scales: Some(scales), ..whole }.check(Dtype::Fp8F16).is_ok());
        let bytes = error(RawArgs { scales: Some(RawScales { values: 6, ..scales }), ..whole });
        assert!(bytes.contains("scales.values") && bytes.contains("multiple of 4 bytes"), "{bytes}");
        let lengths = RawArgs { lengths: Some(2), ..RAW }.check(Dtype::F16).unwrap_err().to_string();
        assert!(lengths.contains("lengths") && lengths.contains("multiple of 4 bytes"), "{lengths}");
    }
}
