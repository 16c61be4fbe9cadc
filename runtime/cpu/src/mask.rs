//! Masking beyond a request's end: the sliding window, and the bound of the logits.

use super::kernel::LOG2_E;

/// What a row sees, and how its logits are bounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    /// Tokens that a query sees up to its own.
    window: u32,
    /// Bound of the scores, which are to base 2.
    bound: Option<f32>,
}

impl Mask {
    pub(super) fn new(window: Option<u32>, softcap: Option<f32>) -> Self {
        Self { window: window.unwrap_or(u32::MAX), bound: softcap.map(|softcap| softcap * LOG2_E) }
    }

    /// The first token that a query sees whose request has `visible` tokens up to it.
    #[inline(always)]
    pub(super) const fn first_seen(&self, end: u32) -> u32 {
        end.saturating_sub(self.window)
    }

    /// Bounds scores.
    #[inline(always)]
    pub(super) fn cap(&self, scores: &mut [f32]) {
        if let Some(bound) = self.bound {
            scores.iter_mut().for_each(|score| *score = bound * (*score / bound).tanh());
        }
    }
}
