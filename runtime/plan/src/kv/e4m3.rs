//! FP8 with four bits of exponent: e4m3fn of the OCP 8-bit floating point specification (revision 1.0, section 5).

/// An FP8 number with a sign, four bits of exponent (bias 7) and three of mantissa: from 2^-9 to 448 in both signs. There is no
/// infinity; `0x7f` and `0xff` are NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct E4m3(u8);

/// 2^120: exponents of f32 have the bias 127, those of e4m3 7.
const REBIAS: f32 = f32::from_bits((127 + 120) << 23);

impl E4m3 {
    /// The largest number, 448.
    pub const MAX: Self = Self(0x7e);

    /// From its bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// The nearest number, ties to the even one. Saturates: what is beyond 448, infinity too, becomes 448 in its sign. NaN stays NaN.
    pub const fn from_f32(value: f32) -> Self {
        // Sums with it are multiples of 2^-9, which is its last bit.
        const SHIFT: f32 = 16_384.0;
        let bits = value.to_bits();
        let (sign, magnitude) = ((bits >> 24 & 0x80) as u8, bits & 0x7fff_ffff);
        let rounded = if magnitude > 0x7f80_0000 {
            0x7f
        } else if magnitude >= 448f32.to_bits() {
            0x7e
        } else if magnitude < (127 - 6) << 23 {
            (f32::from_bits(magnitude) + SHIFT).to_bits() - SHIFT.to_bits()
        } else {
            // Half of what is cut off, a little less where the number before is even; a carry goes into the exponent.
            (magnitude - ((127 - 7) << 23) + 0x7_ffff + (magnitude >> 20 & 1)) >> 20
        };
        Self(sign | rounded as u8)
    }

    /// As f32, exactly.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        let bits = self.0 as u32;
        // Numbers below 2^-6 are subnormal here as there, and the multiplication normalises them.
        let magnitude = f32::from_bits((bits & 0x7f) << 20) * REBIAS;
        let nan = if bits & 0x7f == 0x7f { 0x7fc0_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | nan | (bits & 0x80) << 24)
    }
}

impl From<E4m3> for f32 {
    fn from(value: E4m3) -> Self {
        value.to_f32()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By the definition of the format.
    fn defined(bits: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
        let magnitude = match (exponent, bits & 7) {
            (15, 7) => f64::NAN,
            (0, _) => mantissa * 2f64.powi(-9),
            _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
        };
        if bits & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_byte_is_the_number_that_the_format_defines() {
        for bits in 0..=u8::MAX {
            let wide = E4m3::from_bits(bits).to_f32();
            let expected = defined(bits);
            assert!(f64::from(wide) == expected || wide.is_nan() && expected.is_nan(), "{bits:#04x}: {wide}");
            assert_eq!(wide.is_sign_negative(), bits & 0x80 != 0, "{bits:#04x}");
            let back = E4m3::from_f32(wide);
            assert!(back.to_bits() == bits, "{bits:#04x} comes back as {back:?}");
        }
    }

    #[test]
    fn large_numbers_saturate() {
        for (value, bits) in [(448.0, 0x7e), (464.0, 0x7e), (1e30, 0x7e), (f32::INFINITY, 0x7e)] {
            assert_eq!((E4m3::from_f32(value).0, E4m3::from_f32(-value).0), (bits, bits | 0x80), "{value}");
        }
        assert!(E4m3::from_f32(f32::NAN).to_f32().is_nan());
    }

    /// The nearest by trying all; of two equally near the even one.
    fn nearest(value: f32) -> f64 {
        // Differences to much larger numbers would all be the same.
        let value = f64::from(value).clamp(-1e4, 1e4);
        let numbers = (0..=u8::MAX).filter(|bits| bits & 0x7f != 0x7f);
        let key = |bits: &u8| ((defined(*bits) - value).abs(), bits & 1);
        let best = numbers.min_by(|a, b| key(a).partial_cmp(&key(b)).unwrap());
        defined(best.unwrap())
    }

    proptest! {
        #[test]
        fn rounding_is_to_the_nearest_even(bits: u32, exponent in -12i32..10, steps in 0u32..64) {
            // Any float, numbers of the format's range, and ties among them.
            let any = f32::from_bits(bits);
            let inside = (1.0 + (bits as f32 / u32::MAX as f32)) * 2f32.powi(exponent);
            let tie = (1.0 + steps as f32 / 16.0) * 2f32.powi(exponent);
            for value in [any, inside, -inside, tie, -tie] {
                if value.is_finite() {
                    prop_assert_eq!(f64::from(E4m3::from_f32(value).to_f32()), nearest(value), "{}", value);
                }
            }
        }
    }
}
