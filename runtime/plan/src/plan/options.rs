//! How a plan is made.

use crate::{Packing, Prices};
use tilewright_heuristics::{Backend, Device, Selection, Tile};

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

/// CTAs that an SM runs at once, as plans take it: so many as the tiles with the most bytes in flight have. One that has an SM for itself is
/// up to so many times as fast; measured on an H200: 15 to 17 ns a token, where all slots together take 30 ns for a token each.
pub const CTAS_PER_SM: u32 = 2;

/// The same of one tile. The registers of more than four warps leave no room for another CTA (260 of 276 variants of eight warps on an H200);
/// shared memory is not looked at, which leaves none beside a third of the variants of four warps, those of many stages or elements.
pub(crate) const fn ctas_per_sm(tile: &Tile) -> u32 {
    if tile.warps > 4 { 1 } else { CTAS_PER_SM }
}

/// How a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanOptions {
    /// How nodes become packs.
    pub packing: Packing,
    /// How long walks are cut.
    pub split: Split,
    /// CTAs that the device runs at once, two on each SM. Where fewer run, [`Split::Waves`] takes each for up to twice as fast; of tiles with
    /// more than four warps an SM runs but one.
    pub slots: u32,
    /// What [`Packing::Priced`] and [`Split::Waves`] go by.
    pub prices: Prices,
}

impl PlanOptions {
    /// How a decoder plans on a device: as many slots as it has threads, or two CTAs for each of its SMs; the prices measured with its selector,
    /// else those of its backend.
    pub fn of_decoder(device: &Device<'_>, selection: &Selection) -> Self {
        let slots = match device.backend {
            Backend::Cpu => device.units,
            Backend::Cuda => device.units.saturating_mul(CTAS_PER_SM),
        };
        let prices = selection.prices().unwrap_or(Prices::default_for(device.backend));
        Self { slots, prices, ..Self::default() }
    }
}

impl Default for PlanOptions {
    /// Packs by price, cut until an NVIDIA H200 is full with two CTAs an SM.
    fn default() -> Self {
        Self {
            packing: Packing::default(),
            split: Split::default(),
            slots: 132 * CTAS_PER_SM,
            prices: Prices::default(),
        }
    }
}
