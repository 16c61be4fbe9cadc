//! What things cost on a device: by these prices work is packed and cut.

use crate::Backend;
use crate::record::whole_number_record;

whole_number_record! {
    /// What things cost on a device, in attoseconds (1e-18 s): whole numbers, so that sums are exact in any order. All of the device
    /// is at work: what one unit takes is divided by the units.
    ///
    /// `tilewright tune` measures them and emits them with the selector. The default is that of an NVIDIA H200, in round numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Prices: u64 {
        #[doc = "a byte of K or V, read from memory (HBM)"]
        hbm_byte,
        #[doc = "a byte of K or V, read again from L2 (cpu: from the last-level cache)"]
        l2_byte,
        #[doc = "a byte of a partial, written and read again"]
        partial_byte,
        #[doc = "a FLOP of the tensor cores (cpu: of the vector units); a multiply-add is two"]
        flop,
        #[doc = "a CTA (cpu: a work item): its start, finding its pages, waiting for the first tokens and its end, divided by those that run at once"]
        cta,
        #[doc = "the merge, however small: from the end of the last CTA of forward to the end of the merge; divided by nothing"]
        merge,
    }
}

/// Attoseconds of a second.
const SECOND: u64 = 1_000_000_000_000_000_000;
/// The most that is believed of a measured price: beyond a millisecond a byte, products with the bytes of a page would overflow.
const DEAREST: f64 = 1e15;

impl Prices {
    /// An NVIDIA H200, in round numbers: 4.5 TB/s read, 8 TB/s read again, 3.5 TB/s written, 300 TFLOP/s, five microseconds for each CTA
    /// of 264, four for merging at all (3 to 4.4 measured: `docs/deep-dive.md`).
    pub const H200: Self = Self {
        hbm_byte: SECOND / 4_500_000_000_000,
        l2_byte: SECOND / 8_000_000_000_000,
        partial_byte: SECOND / 3_500_000_000_000 + SECOND / 8_000_000_000_000,
        flop: SECOND / 300_000_000_000_000,
        cta: SECOND / 200_000 / 264,
        merge: SECOND / 250_000,
    };

    /// A small server's processor, in round numbers: 30 GB/s read, 60 GB/s read again, 200 GFLOP/s, half a microsecond a work item, two for
    /// threads that wait for each other before they merge, and 3 GB/s of partials: it is the merging of each row that takes time, not its bytes.
    pub const CPU: Self = Self {
        hbm_byte: SECOND / 30_000_000_000,
        l2_byte: SECOND / 60_000_000_000,
        partial_byte: SECOND / 3_000_000_000,
        flop: SECOND / 200_000_000_000,
        cta: SECOND / 2_000_000,
        merge: SECOND / 500_000,
    };

    /// The prices of a device of a backend on which none were measured.
    pub const fn default_for(backend: Backend) -> Self {
        match backend {
            Backend::Cpu => Self::CPU,
            Backend::Cuda => Self::H200,
        }
    }

    /// These prices on a device like the one that they were measured on, with other units and another read bandwidth (bytes a second; `None`
    /// if unknown): bytes of memory cost by bandwidth, all that happens on chip by the units.
    #[must_use]
    pub fn scaled(&self, (from_units, to_units): (u32, u32), to_bandwidth: Option<u64>) -> Self {
        // Of what the data sheet says an H200 reads 94 to 97 %.
        const READ_PERCENT: u128 = 95;
        let ratio = |price: u64, from: u128, to: u128| {
            u64::try_from((u128::from(price) * from).checked_div(to).unwrap_or(price.into()))
                .unwrap_or(u64::MAX)
                .max(1)
        };
        let by_units = |price: u64| ratio(price, from_units.into(), to_units.into());
        let hbm_byte = match to_bandwidth {
            Some(bandwidth) => ratio(SECOND, 100, u128::from(bandwidth) * READ_PERCENT),
            None => by_units(self.hbm_byte),
        };
        Self {
            hbm_byte,
            l2_byte: by_units(self.l2_byte),
            partial_byte: ratio(self.partial_byte, hbm_byte.into(), self.hbm_byte.max(1).into()),
            flop: by_units(self.flop),
            cta: by_units(self.cta),
            merge: self.merge,
        }
    }

    /// Bytes a second that are read at this price.
    pub const fn read_bandwidth(&self) -> u64 {
        SECOND / if self.hbm_byte == 0 { 1 } else { self.hbm_byte }
    }

    /// A price out of seconds: at least an attosecond, at most a millisecond; what is no number is an attosecond.
    pub const fn of_seconds(seconds: f64) -> u64 {
        (seconds * SECOND as f64).max(1.0).min(DEAREST) as u64
    }

    /// The prices for people: what each is, and how much of it there is in a second (of CTAs and merging: how long they take).
    pub fn facts(&self) -> [(String, String); Self::COUNT] {
        let per_second = |price: u64| SECOND as f64 / price.max(1) as f64;
        let bytes = |price: u64| format!("{:.1} GB/s", per_second(price) / 1e9);
        let fact = |name: &str, value: String| (name.to_owned(), value);
        [
            fact("price of an HBM byte", bytes(self.hbm_byte)),
            fact("price of an L2 byte", bytes(self.l2_byte)),
            fact("price of a partial's byte", bytes(self.partial_byte)),
            fact("price of a FLOP", format!("{:.1} GFLOP/s", per_second(self.flop) / 1e9)),
            fact("price of a CTA", format!("{:.1} ns", self.cta as f64 / 1e9)),
            fact("price of a merge", format!("{:.1} us", self.merge as f64 / 1e12)),
        ]
    }
}

impl Default for Prices {
    fn default() -> Self {
        Self::H200
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_prices_of_every_backend_make_sense() {
        for backend in [Backend::Cpu, Backend::Cuda] {
            let prices = Prices::default_for(backend);
            assert!(prices.values().iter().all(|&price| price > 0), "{backend}: {prices:?}");
            assert!(prices.l2_byte < prices.hbm_byte, "{backend}: a cache is faster than memory");
            assert!(prices.l2_byte < prices.partial_byte, "{backend}: a partial is written, too");
            assert!(prices.flop < prices.l2_byte && prices.partial_byte < prices.cta, "{backend}");
            assert!(prices.cta < prices.merge, "{backend}: a merge is at least one more CTA");
        }
        assert_eq!(Prices::default(), Prices::default_for(Backend::Cuda));
    }

    #[test]
    fn prices_go_with_bandwidth_and_units() {
        let half = Prices::H200.scaled((132, 66), Some(2_400_000_000_000));
        let times = |a: u64, b: u64| a as f64 / b as f64;
        assert!((times(half.hbm_byte, Prices::H200.hbm_byte) - 4.5 / (2.4 * 0.95)).abs() < 0.01);
        for (price, of) in [
            (half.flop, Prices::H200.flop),
            (half.cta, Prices::H200.cta),
            (half.l2_byte, Prices::H200.l2_byte),
        ] {
            assert!((times(price, of) - 2.0).abs() < 0.01, "{half:?}");
        }
        assert_eq!(half.merge, Prices::H200.merge);
        assert_eq!(Prices::H200.scaled((132, 132), None), Prices::H200);
        assert_eq!(
            Prices::H200.scaled((132, 0), Some(0)).cta,
            Prices::H200.cta,
            "no unit is no reason to divide by it"
        );
    }

    #[test]
    fn people_are_told_rates() {
        let facts = Prices::H200.facts().map(|(_, value)| value);
        assert_eq!(
            facts,
            ["4500.0 GB/s", "8000.0 GB/s", "2434.8 GB/s", "300030.0 GFLOP/s", "18.9 ns", "4.0 us"]
        );
    }

    #[test]
    fn what_is_no_time_is_still_a_price() {
        for (seconds, price) in
            [(f64::NAN, 1), (-1.0, 1), (0.0, 1), (f64::INFINITY, 1_000_000_000_000_000), (2e-13, 200_000)]
        {
            assert_eq!(Prices::of_seconds(seconds), price, "{seconds} s");
        }
    }

    proptest! {
        #[test]
        fn a_price_is_the_time_to_a_thousandth(price in 1_000u64..1_000_000_000_000) {
            let found = Prices::of_seconds(price as f64 / SECOND as f64);
            prop_assert!(found.abs_diff(price) <= price / 1000, "{found} of {price}");
        }
    }
}
