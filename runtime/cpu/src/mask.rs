//! Masking: which of a step's scores count, and how they are bounded.

use super::kernel::LOG2_E;
use tilewright_heuristics::Mask;

/// A [`Mask`] of scores, which are logits to base 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masking {
    mask: Mask,
    /// Bound of the scores.
    bound: Option<f32>,
}

impl Masking {
    pub(super) fn new(mask: Mask) -> Self {
        Self { mask, bound: mask.softcap.map(|softcap| softcap * LOG2_E) }
    }

    /// The first token that a query sees which sees none from `end` on.
    #[inline(always)]
    pub(super) const fn first_seen(&self, end: u32) -> u32 {
        self.mask.first_seen(end)
    }

    /// Bounds the scores of a query with neighbouring tokens, and makes -inf of those that it does not see. The first one is the request's
    /// token `position`; the query sees none from `end` on.
    #[inline(always)]
    pub(super) fn apply(&self, scores: &mut [f32], position: u32, end: u32) {
        if let Some(bound) = self.bound {
            scores.iter_mut().for_each(|score| *score = bound * (*score / bound).tanh());
        }
        let seen = end.saturating_sub(position) as usize;
        if seen < scores.len() {
            scores[seen..].fill(f32::NEG_INFINITY);
        }
        let unseen = self.first_seen(end).saturating_sub(position) as usize;
        let unseen = unseen.min(scores.len());
        scores[..unseen].fill(f32::NEG_INFINITY);
    }
}
