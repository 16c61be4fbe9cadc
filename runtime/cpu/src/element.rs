//! Element types of Q, K, V and the output.

use super::instances::{Conversions, Instances};
use super::load::Load;
use half::{bf16, f16};
use tilewright_heuristics::Dtype;
use tilewright_plan::E4m3;

/// What memory holds: f16, bf16, f32 or FP8. Arithmetic is always f32.
pub trait Number: Load + Conversions + Copy + Send + Sync + std::fmt::Debug + 'static {
    /// As f32, exactly.
    fn to_f32(self) -> f32;

    /// From f32, to the nearest.
    fn from_f32(value: f32) -> Self;

    /// The elements themselves, if they are f32.
    fn as_f32(elements: &[Self]) -> Option<&[f32]>;

    /// Widens as many elements as `wide` takes. Written so that it vectorises inside of a SIMD dispatch.
    fn widen(elements: &[Self], wide: &mut [f32]);
}

/// f16, bf16 or f32: what Q and the output are.
pub trait Element: Number + Instances {
    /// Its name at run time, where K and V are the same.
    const DTYPE: Dtype;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

impl Number for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn as_f32(elements: &[Self]) -> Option<&[f32]> {
        Some(elements)
    }

    #[inline(always)]
    fn widen(elements: &[Self], wide: &mut [f32]) {
        wide.copy_from_slice(elements);
    }
}

impl Number for E4m3 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        E4m3::to_f32(self)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        E4m3::from_f32(value)
    }

    #[inline(always)]
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn widen(elements: &[Self], wide: &mut [f32]) {
        for (wide, element) in wide.iter_mut().zip(elements) {
            *wide = E4m3::to_f32(*element);
        }
    }
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}

impl Number for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }

    #[inline(always)]
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn widen(elements: &[Self], wide: &mut [f32]) {
        for (wide, element) in wide.iter_mut().zip(elements) {
            *wide = f32::from_bits(u32::from(element.to_bits()) << 16);
        }
    }
}

impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;
}

impl Number for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }

    #[inline(always)]
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }

    /// In integer arithmetic: it vectorises in the caller's dispatch, where a call of the F16C instruction for eight
    /// elements at a time could not be inlined.
    #[inline(always)]
    fn widen(elements: &[Self], wide: &mut [f32]) {
        // Moves the exponent from bias 15 to bias 127 by a multiplication, which also normalises subnormal numbers.
        const REBIAS: f32 = f32::from_bits((254 - 15) << 23);
        for (wide, element) in wide.iter_mut().zip(elements) {
            let bits = u32::from(element.to_bits());
            let magnitude = f32::from_bits((bits & 0x7fff) << 13) * REBIAS;
            // Infinities and NaN keep their fraction and take the largest exponent.
            let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
            *wide = f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_to_what_the_half_crate_says() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut wide = vec![0.0; halves.len()];
        f16::widen(&halves, &mut wide);
        for (half, wide) in halves.iter().zip(wide) {
            assert!(
                wide == half.to_f32() || wide.is_nan() && half.is_nan(),
                "{:#06x}: {wide}",
                half.to_bits()
            );
        }
    }

    #[test]
    fn every_fp8_number_widens_to_itself() {
        let all: Vec<E4m3> = (0..=u8::MAX).map(E4m3::from_bits).collect();
        let mut wide = vec![0.0; all.len()];
        E4m3::widen(&all, &mut wide);
        assert!(all.iter().zip(wide).all(|(number, wide)| E4m3::to_f32(*number).to_bits() == wide.to_bits()));
    }

    #[test]
    fn every_bfloat_widens_to_what_the_half_crate_says() {
        let halves: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let mut wide = vec![0.0; halves.len()];
        bf16::widen(&halves, &mut wide);
        for (half, wide) in halves.iter().zip(wide) {
            assert!(
                wide == half.to_f32() || wide.is_nan() && half.is_nan(),
                "{:#06x}: {wide}",
                half.to_bits()
            );
        }
    }
}
