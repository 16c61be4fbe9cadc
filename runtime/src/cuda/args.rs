//! What one decode step of one layer reads and writes: raw addresses, and typed slices above them.

use super::CudaError;
use crate::KvStrides;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop};
use half::{bf16, f16};
use tilewright_heuristics::{Dtype, Geometry};
use tilewright_kernel_templates::cuda::AttentionOptions;

/// Distances in elements between the vectors of queries or outputs. The elements of one head's vector are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowStrides {
    /// From request to request.
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

/// Addresses of device memory and distances; nothing is checked but alignment. Addresses are multiples of 16 bytes, distances of 8
/// elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawArgs {
    /// Elements `[batch, q_heads, head_dim]`.
    pub query: u64,
    /// Distances of the query.
    pub query_strides: RowStrides,
    /// Pages of K.
    pub keys: u64,
    /// Pages of V.
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
    /// A query sees the last so many tokens of its request, its own among them.
    pub window: Option<u32>,
    /// Logits are bounded: `softcap * tanh(logit / softcap)`.
    pub softcap: Option<f32>,
    /// f32 `[q_heads]`: a logit that each head has beside its tokens. It takes part in the softmax and in the LSE, and weighs zeros.
    pub sinks: Option<u64>,
}

impl RawArgs {
    /// What has to be compiled in.
    pub const fn options(&self) -> AttentionOptions {
        AttentionOptions {
            window: self.window.is_some(),
            softcap: self.softcap.is_some(),
            sinks: self.sinks.is_some(),
        }
    }

    /// Checks what the kernels' wide loads need.
    pub(super) fn check(&self) -> Result<(), CudaError> {
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
        let distances = [
            ("query_strides.request", self.query_strides.request),
            ("query_strides.head", self.query_strides.head),
            ("output_strides.request", self.output_strides.request),
            ("output_strides.head", self.output_strides.head),
            ("kv_strides.page", self.kv_strides.page),
            ("kv_strides.token", self.kv_strides.token),
            ("kv_strides.head", self.kv_strides.head),
        ];
        if let Some(&(name, value)) = distances.iter().find(|(_, distance)| !distance.is_multiple_of(8)) {
            return Err(CudaError::Misaligned { name, value: value as i64, multiple: 8, unit: "elements" });
        }
        if self.window == Some(0) {
            let message = "a query sees at least its own token; leave the window out to see all";
            return Err(CudaError::Option { name: "window", value: "0".to_owned(), message });
        }
        if let Some(softcap) = self.softcap.filter(|softcap| !(softcap.is_finite() && *softcap > 0.0)) {
            let message = "the bound of the logits is a positive number; leave it out for none";
            return Err(CudaError::Option { name: "softcap", value: softcap.to_string(), message });
        }
        Ok(())
    }
}

/// An element type of the kernels.
pub trait CudaElement: DeviceRepr {
    /// Its name in plans.
    const DTYPE: Dtype;
}

impl CudaElement for f16 {
    const DTYPE: Dtype = Dtype::F16;
}

impl CudaElement for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}

/// The paged KV cache of one layer.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a, E> {
    /// K.
    pub keys: &'a CudaSlice<E>,
    /// V, laid out like K.
    pub values: &'a CudaSlice<E>,
    /// Where a page, token and head lies.
    pub strides: KvStrides,
}

/// Keeps the slices of a call in use until its launches are queued: dropped, they record these as the slices' last uses.
pub(super) type Guards<'a> = [Option<SyncOnDrop<'a>>; 7];

/// Slices of device memory, checked against the plan.
#[derive(Debug)]
pub struct DecodeArgs<'a, E> {
    /// `[batch, q_heads, head_dim]`.
    pub query: &'a CudaSlice<E>,
    /// The paged KV cache.
    pub cache: KvCache<'a, E>,
    /// `[batch, q_heads, head_dim]`; every element is written.
    pub output: &'a mut CudaSlice<E>,
    /// At least [`super::DevicePlan::workspace_bytes`] bytes.
    pub workspace: &'a mut CudaSlice<u8>,
    /// Natural-log sum of exponentials of the logits, `[batch, q_heads]`.
    pub lse: Option<&'a mut CudaSlice<f32>>,
    /// Factor of the logits; `1 / sqrt(head_dim)` if absent.
    pub scale: Option<f32>,
    /// As in [`RawArgs::window`].
    pub window: Option<u32>,
    /// As in [`RawArgs::softcap`].
    pub softcap: Option<f32>,
    /// As in [`RawArgs::sinks`].
    pub sinks: Option<&'a CudaSlice<f32>>,
}

impl<'a, E: CudaElement> DecodeArgs<'a, E> {
    /// Plain attention: no LSE and no options.
    pub const fn new(
        query: &'a CudaSlice<E>,
        cache: KvCache<'a, E>,
        output: &'a mut CudaSlice<E>,
        workspace: &'a mut CudaSlice<u8>,
    ) -> Self {
        Self {
            query,
            cache,
            output,
            workspace,
            lse: None,
            scale: None,
            window: None,
            softcap: None,
            sinks: None,
        }
    }

    /// Checks shapes against a plan, for so many requests, and leaves the types behind. The guards have to outlive the queueing of the
    /// launches.
    pub(super) fn into_raw(
        self,
        stream: &'a CudaStream,
        plan: &super::DevicePlan,
        requests: usize,
    ) -> Result<(RawArgs, Guards<'a>), CudaError> {
        let geometry = plan.geometry();
        if geometry.dtype != E::DTYPE {
            return Err(CudaError::Dtype { planned: geometry.dtype, given: E::DTYPE });
        }
        let heads = requests * geometry.q_heads as usize;
        let vectors = heads * geometry.head_dim as usize;
        let page_end = match plan.largest_page() {
            Some(page) => self.cache.strides.end_of_page(geometry, page).unwrap_or(usize::MAX),
            None => 0,
        };
        let lengths = [
            ("query", self.query.len(), vectors),
            ("output", self.output.len(), vectors),
            ("keys", self.cache.keys.len(), page_end),
            ("values", self.cache.values.len(), page_end),
            ("workspace", self.workspace.len(), plan.workspace_bytes()),
            ("lse", self.lse.as_ref().map_or(heads, |lse| lse.len()), heads),
            ("sinks", self.sinks.map_or(usize::MAX, CudaSlice::len), geometry.q_heads as usize),
        ];
        if let Some(&(name, found, needed)) = lengths.iter().find(|(_, found, needed)| found < needed) {
            return Err(CudaError::Length { name, found, needed });
        }
        // Each orders the stream after the slice's last uses.
        let (query, query_guard) = self.query.device_ptr(stream);
        let (keys, keys_guard) = self.cache.keys.device_ptr(stream);
        let (values, values_guard) = self.cache.values.device_ptr(stream);
        let (output, output_guard) = self.output.device_ptr_mut(stream);
        let (workspace, workspace_guard) = self.workspace.device_ptr_mut(stream);
        let (lse, lse_guard) = self.lse.map(|lse| lse.device_ptr_mut(stream)).unzip();
        let (sinks, sinks_guard) = self.sinks.map(|sinks| sinks.device_ptr(stream)).unzip();
        let raw = RawArgs {
            query,
            query_strides: RowStrides::dense(geometry),
            keys,
            values,
            kv_strides: self.cache.strides,
            output,
            output_strides: RowStrides::dense(geometry),
            lse,
            workspace,
            scale: self.scale.unwrap_or_else(|| 1.0 / (geometry.head_dim as f32).sqrt()),
            window: self.window,
            softcap: self.softcap,
            sinks,
        };
        let guards = [
            Some(query_guard),
            Some(keys_guard),
            Some(values_guard),
            Some(output_guard),
            Some(workspace_guard),
            lse_guard,
            sinks_guard,
        ];
        Ok((raw, guards))
    }
}
