//! What an attention layer is, and how it is computed.

use crate::AttentionError;
use tilewright_cuda::CubinArchive;
use tilewright_heuristics::{Dtype, Geometry, Mask, Selector};

/// The heads of an attention layer on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads.
    pub query: u32,
    /// KV heads; divides `query`.
    pub kv: u32,
    /// Elements of one head's vector.
    pub dim: u32,
}

impl Heads {
    pub(crate) const fn geometry(self, dtype: Dtype, page_size: u32) -> Geometry {
        Geometry { q_heads: self.query, kv_heads: self.kv, head_dim: self.dim, page_size, dtype }
    }
}

/// How attention is computed: equal for all layers that use one [`Attention`](crate::Attention).
#[derive(Clone, Copy, Debug)]
pub struct AttentionOptions {
    /// Element types: one of Q and the output, and of K and V the same or FP8. f16 by default.
    pub dtype: Dtype,
    /// Factor of the logits; `1 / sqrt(dim)` if absent.
    pub scale: Option<f32>,
    /// Which tokens a query sees (sliding window), and how its logits are bounded (soft-cap); all of them, and not at all, by default.
    pub mask: Mask,
    /// Threads of the CPU backend; all that the process may run on if absent.
    pub threads: Option<u32>,
    /// The tile selector, from a file ([`Selector::load`]). If absent, the device's among the files of the folder that `TILEWRIGHT_SELECTORS`
    /// names and those compiled in, else the most alike device's.
    pub selector: Option<&'static Selector>,
    /// Kernels that were compiled elsewhere, for GPUs ([`CubinArchive::load`]): where they are enough, NVRTC is not looked for. If absent, those
    /// of the file that `TILEWRIGHT_CUBINS` names.
    pub cubins: Option<&'static CubinArchive>,
    /// See [`AttentionOptions::invariant`].
    pub invariant: bool,
    /// Fetch NVRTC where the machine has none. By default that is an error.
    pub fetch_nvrtc: bool,
}

impl AttentionOptions {
    /// Batch-invariant attention: for given Q, K and V of a request, output and LSE have the same bits whatever else is in the batch, however
    /// requests share pages, whichever pages they have and in which order they come, planned from nothing or followed live, launched in any
    /// mode or captured. It holds for one device, one set of options, and finite K and V; several query tokens of a request get what they
    /// would get one at a time.
    ///
    /// One tile serves all batches, and KV ranges are cut at fixed positions. Pages have a multiple of 16 tokens.
    ///
    /// ```
    /// # use tilewright_runtime::AttentionOptions;
    /// assert!(AttentionOptions::default().invariant().invariant);
    /// ```
    #[must_use]
    pub const fn invariant(self) -> Self {
        Self { invariant: true, ..self }
    }

    /// Whether pages are such that they can be.
    pub(crate) const fn check_invariant(&self, geometry: &Geometry) -> Result<(), AttentionError> {
        if self.invariant && !geometry.page_size.is_multiple_of(16) {
            return Err(AttentionError::InvariantPages { page_size: geometry.page_size });
        }
        Ok(())
    }
}

impl Default for AttentionOptions {
    fn default() -> Self {
        Self {
            dtype: Dtype::F16,
            scale: None,
            mask: Mask::NONE,
            threads: None,
            selector: None,
            cubins: None,
            invariant: false,
            fetch_nvrtc: false,
        }
    }
}

/// What a call reads and writes for each row or head beside Q, K, V and the output.
#[derive(Debug)]
pub struct PerRow<'a, F: ?Sized> {
    /// Is written: natural-log sum of exponentials of the logits, `[batch, query heads]`; -inf for a request without tokens and sinks.
    pub lse: Option<&'a mut F>,
    /// `[query heads]`: a logit that each head has beside its tokens (attention sink).
    pub sinks: Option<&'a F>,
}

impl<F: ?Sized> Default for PerRow<'_, F> {
    fn default() -> Self {
        Self { lse: None, sinks: None }
    }
}
