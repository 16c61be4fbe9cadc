//! How a plan is made.

use crate::{Packing, Prices};

/// How long walks are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Split {
    /// Not at all.
    None,
    /// PAT's rule (PAT, section 6): packs longer than the mean are cut into equal parts of at most the mean.
    Mean,
    /// Walks longer than an equal share of all CTAs' tokens over the slots are cut, so that few long packs fill a GPU; where there are
    /// more CTAs than slots already, nothing is cut and no partial is written. Never shorter than [`SHORTEST_PART`] tokens.
    Fill,
    /// Cut so that all slots finish together, as list scheduling predicts it, partials, starts of CTAs and that there is a merge at all
    /// counted; where cutting does not pay, nothing is cut. [`Plan::predicted_idle`](crate::Plan::predicted_idle) says what is left idle.
    #[default]
    Waves,
}

/// Tokens that are worth a CTA of their own: shorter parts take less time than finding their pages and merging what they leave.
pub const SHORTEST_PART: u32 = 128;

/// How a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanOptions {
    /// How nodes become packs.
    pub packing: Packing,
    /// How long walks are cut.
    pub split: Split,
    /// CTAs that the device runs at once.
    pub slots: u32,
    /// What [`Packing::Priced`] and [`Split::Waves`] go by.
    pub prices: Prices,
}

impl Default for PlanOptions {
    /// Packs by price, cut until an NVIDIA H200 is full with two CTAs an SM.
    fn default() -> Self {
        Self { packing: Packing::default(), split: Split::default(), slots: 264, prices: Prices::default() }
    }
}
