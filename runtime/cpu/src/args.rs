//! What one decode step of one layer reads and writes, and what of it has to fit the plan.

use super::{Element, KvCache, KvPages};
use crate::ExecError;
use tilewright_heuristics::{Geometry, Mask};
use tilewright_plan::Plan;

/// What one decode step of one layer reads and writes. The batch is that of the plan: its queries ([`Plan::batch`]).
/// [`DecodeArgs::new`] is plain attention; options go beside it: `DecodeArgs { mask: Mask::window(512), ..DecodeArgs::new(query, cache, output) }`.
#[derive(Debug)]
pub struct DecodeArgs<'a, E, C = KvCache<'a, E>> {
    /// `[batch, q_heads, head_dim]`.
    pub query: &'a [E],
    /// The paged KV cache: a [`KvCache`], or a [`super::Fp8KvCache`].
    pub cache: C,
    /// `[batch, q_heads, head_dim]`; every element is written.
    pub output: &'a mut [E],
    /// Natural-log sum of exponentials of the logits, `[batch, q_heads]`; -inf for a request without tokens and sinks.
    pub lse: Option<&'a mut [f32]>,
    /// Factor of the logits; `1 / sqrt(head_dim)` if absent.
    pub scale: Option<f32>,
    /// Which tokens a query sees, and how its logits are bounded.
    pub mask: Mask,
    /// `[q_heads]`: a logit that each head has beside its tokens. It takes part in the softmax and in the LSE, and weighs zeros.
    pub sinks: Option<&'a [f32]>,
}

impl<'a, E: Element, C: KvPages<E>> DecodeArgs<'a, E, C> {
    /// Plain attention: no LSE and no options.
    pub const fn new(query: &'a [E], cache: C, output: &'a mut [E]) -> Self {
        Self { query, cache, output, lse: None, scale: None, mask: Mask::NONE, sinks: None }
    }

    /// The factor of the logits.
    pub(super) fn scale_of(&self, geometry: &Geometry) -> f32 {
        self.scale.unwrap_or_else(|| 1.0 / (geometry.head_dim as f32).sqrt())
    }

    /// Checks types, lengths and options against a plan.
    pub(super) fn check(&self, plan: &Plan) -> Result<(), ExecError> {
        let geometry = plan.geometry();
        if geometry.dtype != C::DTYPE {
            return Err(ExecError::Dtype { planned: geometry.dtype, given: C::DTYPE });
        }
        if !geometry.head_dim.is_multiple_of(16) {
            return Err(ExecError::HeadDim(geometry.head_dim));
        }
        self.mask.check()?;
        self.check_lengths(plan)?;
        let cache = self.cache.stored();
        let Some(page) = plan.largest_page() else { return Ok(()) };
        let end = cache.strides.end_of_page(geometry, page).unwrap_or(usize::MAX);
        for (name, found) in [("keys", cache.keys.len()), ("values", cache.values.len())] {
            if end > found {
                return Err(ExecError::PageOutside { name, page, end, found });
            }
        }
        Ok(())
    }

    fn check_lengths(&self, plan: &Plan) -> Result<(), ExecError> {
        let geometry = plan.geometry();
        let q_heads = geometry.q_heads as usize;
        let heads = plan.batch() * q_heads;
        let vectors = heads * geometry.head_dim as usize;
        let lengths = [
            ("query", self.query.len(), vectors),
            ("output", self.output.len(), vectors),
            ("lse", self.lse.as_ref().map_or(heads, |lse| lse.len()), heads),
            ("sinks", self.sinks.map_or(q_heads, <[f32]>::len), q_heads),
        ];
        if let Some(&(name, found, needed)) = lengths.iter().find(|(_, found, needed)| found != needed) {
            return Err(ExecError::Length { name, found, needed });
        }
        let Some(scales) = self.cache.scales() else { return Ok(()) };
        let needed = geometry.kv_heads as usize;
        for (name, scale) in [("key scales", scales.keys), ("value scales", scales.values)] {
            if scale.heads() < needed {
                return Err(ExecError::Length { name, found: scale.heads(), needed });
            }
        }
        Ok(())
    }
}
