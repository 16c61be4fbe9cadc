//! What the planner of batch-invariant plans knows of a device beside prices.

use tilewright_heuristics::Prices;

/// How batch-invariant plans are cut, and by what ways to plan a batch are weighed, in 64ths of what prices say.
///
/// Weights are fitted to the times of 11 700 plans of 418 batches, so that the way that should end first is as fast as can be (`docs/tried.md`, "What
/// batch-invariant plans are weighed by"). How long the chosen plan takes, prices tell better as they are: [`Plan::predicted`](crate::Plan::predicted)
/// has only [`InvariantProfile::tall_tiles`] and [`InvariantProfile::long_steps`] from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InvariantProfile {
    /// A byte of K or V that no item has read before. Items that share tokens read them at the same time: the first of them waits for memory hardly
    /// longer than the others.
    pub hbm_byte: u64,
    /// A byte that another item has read.
    pub l2_byte: u64,
    /// A byte of a partial.
    pub partial_byte: u64,
    /// The merge, however small.
    pub merge: u64,
    /// Plans of tall tiles, where a warpgroup waits for what prices do not know: for warps that widen K and V in FP8, and, with up to 64 elements, for
    /// its softmax rather than for products.
    pub tall_tiles: u64,
    /// Plans of tiles whose steps have several softmaxes, with K and V in 16 bits: fewer steps wait for each other.
    pub long_steps: u64,
    /// The time of a token of a CTA that has an SM for itself, in place of [`Occupancy::pace_alone`](crate::Occupancy::pace_alone), in its 16ths; 0 for the
    /// same.
    pub pace_alone: u64,
    /// Items take so many quarters at most of a CTA's share of all work, where they are cut, if as many CTAs of their tile as run at once share it out.
    /// Each of these is weighed.
    pub quarters: [u64; 4],
}

impl InvariantProfile {
    /// As prices say, in 64ths.
    pub const AS_PRICED: u64 = 64;

    /// Measured on an H200.
    pub const H200: Self = Self {
        hbm_byte: 54,
        l2_byte: 86,
        partial_byte: 128,
        merge: 16,
        tall_tiles: 82,
        long_steps: 61,
        pace_alone: 11,
        quarters: [4, 5, 7, 10],
    };

    /// A processor's threads: all is as prices say. An item costs next to nothing to start, so that threads share short ones out more evenly.
    pub const CPU: Self = Self {
        hbm_byte: Self::AS_PRICED,
        l2_byte: Self::AS_PRICED,
        partial_byte: Self::AS_PRICED,
        merge: Self::AS_PRICED,
        tall_tiles: Self::AS_PRICED,
        long_steps: Self::AS_PRICED,
        pace_alone: 0,
        quarters: [4, 2, 8, 1],
    };

    /// These weights times the prices of a device.
    pub const fn of(&self, prices: &Prices) -> Prices {
        const fn times(price: u64, weight: u64) -> u64 {
            price.saturating_mul(weight) / InvariantProfile::AS_PRICED
        }
        Prices {
            hbm_byte: times(prices.hbm_byte, self.hbm_byte),
            l2_byte: times(prices.l2_byte, self.l2_byte),
            partial_byte: times(prices.partial_byte, self.partial_byte),
            merge: times(prices.merge, self.merge),
            ..*prices
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{DeviceProfile, InvariantProfile};

    #[test]
    fn what_weighs_is_weighed_once() {
        let device = DeviceProfile::H200;
        let weighed = device.to_weigh_invariant_plans();
        let InvariantProfile { hbm_byte, merge, tall_tiles, pace_alone, .. } = device.invariant;
        assert_eq!(weighed.prices.hbm_byte, device.prices.hbm_byte * hbm_byte / 64);
        assert_eq!(weighed.prices.merge, device.prices.merge * merge / 64);
        assert_eq!(weighed.prices.cta, device.prices.cta);
        assert_eq!((weighed.occupancy.pace_alone, weighed.invariant.tall_tiles), (pace_alone, tall_tiles));
        assert_eq!(weighed.to_weigh_invariant_plans(), weighed);
    }

    #[test]
    fn threads_weigh_by_their_prices() {
        let processor = DeviceProfile::of_units(tilewright_heuristics::Backend::Cpu, 16);
        assert_eq!(processor.to_weigh_invariant_plans(), processor);
    }
}
