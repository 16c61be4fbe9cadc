//! FP8 with five bits of exponent: e5m2 of the OCP 8-bit floating point specification (revision 1.0, section 5).

/// An FP8 number with a sign, five bits of exponent (bias 15) and two of mantissa: from 2^-16 to 57344 in both signs, the upper byte of an
/// IEEE half. `0x7c` and `0xfc` are infinities; bytes above them are NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct E5m2(u8);

/// 2^112: exponents of f32 have the bias 127, those of e5m2 15.
const REBIAS: f32 = f32::from_bits((127 + 112) << 23);

impl E5m2 {
    /// The largest finite number, 57344.
    pub const MAX: Self = Self(0x7b);

    /// From its bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// The nearest finite number, ties to the even one. Saturates, as GPUs do: what is beyond 57344, infinity too, becomes 57344 in its sign.
    /// NaN stays NaN.
    pub const fn from_f32(value: f32) -> Self {
        // Sums with it are multiples of 2^-16, which is its last bit.
        const SHIFT: f32 = 128.0;
        let bits = value.to_bits();
        let (sign, magnitude) = ((bits >> 24 & 0x80) as u8, bits & 0x7fff_ffff);
        let rounded = if magnitude > 0x7f80_0000 {
            0x7f
        } else if magnitude >= 57_344f32.to_bits() {
            0x7b
        } else if magnitude < (127 - 14) << 23 {
            (f32::from_bits(magnitude) + SHIFT).to_bits() - SHIFT.to_bits()
        } else {
            // Half of what is cut off, a little less where the number before is even; a carry goes into the exponent.
            (magnitude - ((127 - 15) << 23) + 0xf_ffff + (magnitude >> 21 & 1)) >> 21
        };
        Self(sign | rounded as u8)
    }

    /// As f32, exactly.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        let bits = self.0 as u32;
        // Numbers below 2^-14 are subnormal here as there, and the multiplication normalises them.
        let magnitude = f32::from_bits((bits & 0x7f) << 21) * REBIAS;
        // Infinities and NaN keep their mantissa and take the largest exponent; NaN is quiet.
        let infinite = if bits & 0x7c == 0x7c { 0x7f80_0000 } else { 0 };
        let nan = if bits & 0x7f > 0x7c { 0x0040_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | infinite | nan | (bits & 0x80) << 24)
    }
}

impl From<E5m2> for f32 {
    fn from(value: E5m2) -> Self {
        value.to_f32()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    /// By the definition of the format.
    fn defined(bits: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(bits >> 2 & 31), f64::from(bits & 3));
        let magnitude = match (exponent, bits & 3) {
            (31, 0) => f64::INFINITY,
            (31, _) => f64::NAN,
            (0, _) => mantissa * 2f64.powi(-16),
            _ => (1.0 + mantissa / 4.0) * 2f64.powi(exponent - 15),
        };
        if bits & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_byte_is_the_number_that_the_format_defines() {
        for bits in 0..=u8::MAX {
            let wide = E5m2::from_bits(bits).to_f32();
            let expected = defined(bits);
            assert!(f64::from(wide) == expected || wide.is_nan() && expected.is_nan(), "{bits:#04x}: {wide}");
            assert_eq!(wide.is_sign_negative(), bits & 0x80 != 0, "{bits:#04x}");
            let half = f16::from_bits(u16::from(bits) << 8).to_f32();
            assert!(wide == half || wide.is_nan() && half.is_nan(), "{bits:#04x}: {wide}, as a half {half}");
            if wide.is_finite() {
                let back = E5m2::from_f32(wide);
                assert!(back.to_bits() == bits, "{bits:#04x} comes back as {back:?}");
            }
        }
    }

    #[test]
    fn large_numbers_saturate() {
        let max = E5m2::MAX.to_bits();
        for value in [57_344.0, 61_440.0, 65_536.0, 1e30, f32::INFINITY] {
            assert_eq!((E5m2::from_f32(value).0, E5m2::from_f32(-value).0), (max, max | 0x80), "{value}");
        }
        assert_eq!(E5m2::MAX.to_f32(), 57_344.0);
        assert!(E5m2::from_f32(f32::NAN).to_f32().is_nan());
    }

    /// The nearest finite number by trying all; of two equally near the even one.
    fn nearest(value: f32) -> f64 {
        // Differences to much larger numbers would all be the same.
        let value = f64::from(value).clamp(-1e6, 1e6);
        let numbers = (0..=u8::MAX).filter(|bits| bits & 0x7c != 0x7c);
        let key = |bits: &u8| ((defined(*bits) - value).abs(), bits & 1);
        let best = numbers.min_by(|a, b| key(a).partial_cmp(&key(b)).unwrap());
        defined(best.unwrap())
    }

    proptest! {
        #[test]
        fn rounding_is_to_the_nearest_even(bits: u32, exponent in -19i32..17, steps in 0u32..32) {
            // Any float, numbers of the format's range, and ties among them.
            let any = f32::from_bits(bits);
            let inside = (1.0 + (bits as f32 / u32::MAX as f32)) * 2f32.powi(exponent);
            let tie = (1.0 + steps as f32 / 8.0) * 2f32.powi(exponent);
            for value in [any, inside, -inside, tie, -tie] {
                if value.is_finite() {
                    prop_assert_eq!(f64::from(E5m2::from_f32(value).to_f32()), nearest(value), "{}", value);
                }
            }
        }
    }
}
