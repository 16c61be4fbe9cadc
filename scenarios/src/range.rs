//! What a scenario draws from: ranges of whole numbers, and parts of a whole.
//!
//! All are checked while they are read, so that an error knows its key and line.

use rand::{Rng, RngExt};
use serde::de::{Error, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Numbers from `min` to `max`, both included, within `LEAST..=MOST`. In a file: `4` or `{min: 1, max: 48, log: true}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Range<const LEAST: u32, const MOST: u32> {
    pub(crate) min: u32,
    pub(crate) max: u32,
    /// Whether the numbers' logarithms are drawn evenly: as many numbers from 16 to 32 as from 1024 to 2048.
    log: bool,
}

impl<const LEAST: u32, const MOST: u32> Range<LEAST, MOST> {
    /// Every number is as likely as every other.
    pub(crate) const fn even(min: u32, max: u32) -> Self {
        Self { min, max, log: false }
    }

    /// Every octave is as likely as every other.
    pub(crate) const fn log(min: u32, max: u32) -> Self {
        Self { min, max, log: true }
    }

    /// Draws a number.
    pub(crate) fn draw(self, rng: &mut impl Rng) -> u32 {
        if !self.log {
            return rng.random_range(self.min..=self.max);
        }
        // Bisection at geometric means. Square roots are rounded alike on every machine; logarithms are not.
        let (mut low, mut high) = (f64::from(self.min), f64::from(self.max) + 1.0);
        let halves: u32 = rng.random();
        for bit in 0..u32::BITS {
            let middle = (low * high).sqrt();
            if halves >> bit & 1 == 1 {
                low = middle;
            } else {
                high = middle;
            }
        }
        (low as u32).clamp(self.min, self.max)
    }

    /// A part of the range: from one drawn number to another.
    pub(crate) fn draw_part(self, rng: &mut impl Rng) -> Self {
        let (one, other) = (self.draw(rng), self.draw(rng));
        Self { min: one.min(other), max: one.max(other), log: self.log }
    }

    fn checked(self) -> Result<Self, String> {
        let Self { min, max, log } = self;
        if min < LEAST || max > MOST {
            Err(format!("numbers from {min} to {max} must be from {LEAST} to {MOST}"))
        } else if min > max {
            Err(format!("`min` {min} must be at most `max` {max}"))
        } else if log && min == 0 {
            Err("a range with `log: true` must have a `min` of at least 1".to_owned())
        } else {
            Ok(self)
        }
    }
}

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for Range<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader<const LEAST: u32, const MOST: u32>;

impl<'de, const LEAST: u32, const MOST: u32> Visitor<'de> for Reader<LEAST, MOST> {
    type Value = Range<LEAST, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number, `{{min: .., max: ..}}` or `{{min: .., max: .., log: true}}`")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        Range::even(number, number).checked().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Keys {
            min: u32,
            max: u32,
            #[serde(default)]
            log: bool,
        }
        let Keys { min, max, log } = Keys::deserialize(MapAccessDeserializer::new(map))?;
        Range { min, max, log }.checked().map_err(A::Error::custom)
    }
}

/// A whole number from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Number<const LEAST: u32, const MOST: u32>(pub(crate) u32);

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for Number<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(NumberReader)
    }
}

struct NumberReader<const LEAST: u32, const MOST: u32>;

impl<const LEAST: u32, const MOST: u32> Visitor<'_> for NumberReader<LEAST, MOST> {
    type Value = Number<LEAST, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {LEAST} to {MOST}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        match u32::try_from(number) {
            Ok(found) if (LEAST..=MOST).contains(&found) => Ok(Number(found)),
            _ => Err(E::custom(format!("{number} must be from {LEAST} to {MOST}"))),
        }
    }
}

/// A part of a whole, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Part(pub(crate) f64);

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_f64(PartReader)
    }
}

struct PartReader;

impl Visitor<'_> for PartReader {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number from 0 to 1")
    }

    fn visit_f64<E: Error>(self, part: f64) -> Result<Part, E> {
        let good = (0.0..=1.0).contains(&part);
        if good { Ok(Part(part)) } else { Err(E::custom(format!("a part of {part} must be from 0 to 1"))) }
    }

    fn visit_u64<E: Error>(self, part: u64) -> Result<Part, E> {
        self.visit_f64(part as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn octaves_of_a_logarithmic_range_are_equally_likely() {
        let range = Range::<0, 4096>::log(1, 1023);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut octaves = [0u32; 10];
        for _ in 0..10_000 {
            octaves[range.draw(&mut rng).ilog2() as usize] += 1;
        }
        assert!(octaves.iter().all(|count| (850..1150).contains(count)), "{octaves:?}");
    }

    proptest! {
        #[test]
        fn what_is_drawn_is_in_the_range(min in 1u32..5000, more in 0u32..5000, log: bool, seed: u64) {
            let range = Range::<1, 10_000> { min, max: min + more, log };
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            for _ in 0..20 {
                let part = range.draw_part(&mut rng);
                let drawn = part.draw(&mut rng);
                prop_assert!(range.min <= part.min && part.min <= drawn);
                prop_assert!(drawn <= part.max && part.max <= range.max);
            }
        }
    }
}
