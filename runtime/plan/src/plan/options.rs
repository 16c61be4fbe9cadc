//! How a plan is made.

use crate::{DeviceProfile, Packing, Prices};

/// How long KV ranges are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Split {
    /// Not at all.
    None,
    /// PAT's rule (PAT, section 6): packs longer than the mean are cut into equal chunks of at most the mean.
    Mean,
    /// KV ranges longer than an equal share of all CTAs' tokens over the concurrent CTAs are cut, so that few long packs fill a GPU; where there are
    /// more CTAs than run at once already, nothing is cut and no partial is written. Never shorter than [`SHORTEST_CHUNK`] tokens.
    Fill,
    /// Cut so that all CTA slots finish together, as list scheduling predicts it, partials, starts of CTAs and that there is a merge at all
    /// counted; where cutting does not pay, nothing is cut. [`Plan::predicted_idle`](crate::Plan::predicted_idle) says what is left idle.
    #[default]
    Waves,
    /// At positions that nothing but the position decides ([`chunk`](tilewright_heuristics::chunk)), so that a request's output has the same bits
    /// whatever else is in the batch and however requests share pages. For a family of [`chunk::families`](tilewright_heuristics::chunk::families), one of
    /// whose tiles the plan takes, on pages of a multiple of 16 tokens. Packs are whole trees, or with [`Packing::PerRequest`] requests that are not cut; other packings make no difference.
    Invariant,
}

/// Tokens that are worth a CTA of their own: shorter chunks take less time than finding their pages and merging what they leave.
pub const SHORTEST_CHUNK: u32 = 128;

/// How a plan is made. The default packs by price and cuts until an NVIDIA H200 is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlanOptions {
    /// How nodes become packs.
    pub packing: Packing,
    /// How long KV ranges are cut.
    pub split: Split,
    /// What [`Packing::Priced`] and [`Split::Waves`] go by.
    pub device: DeviceProfile,
}

impl PlanOptions {
    /// The default options on a device.
    pub fn on(device: DeviceProfile) -> Self {
        Self { device, ..Self::default() }
    }

    /// The same on a device that runs this many CTAs at once.
    #[must_use]
    pub const fn with_max_concurrent_ctas(mut self, ctas: u32) -> Self {
        self.device.max_concurrent_ctas = ctas;
        self
    }

    /// The same by other prices.
    #[must_use]
    pub const fn with_prices(mut self, prices: Prices) -> Self {
        self.device.prices = prices;
        self
    }
}
