//! Element types of Q, K, V and the output.

use super::instances::{Conversions, Instances};
use super::load::Load;
use super::timeline::Recorder;
use super::{CpuBackend, DecodeArgs, ExecError, Fp8KvCache};
use half::{bf16, f16};
use tilewright_heuristics::{Dtype, Fp8};
use tilewright_plan::{E4m3, E5m2, Plan};

/// What memory holds: f16, bf16, f32 or FP8. Sums are always f32, and so are factors, but for queries and K in bf16 where the processor multiplies
/// these by an instruction of its own.
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

/// A format of FP8: what K and V may be beside any [`Element`].
pub trait Fp8Number: Number {
    /// Its name at run time.
    const FORMAT: Fp8;

    /// Executes a plan over pages of it, by the code that this crate has for both types.
    #[doc(hidden)]
    fn decode<E: Element>(
        backend: &mut CpuBackend,
        plan: &Plan,
        args: DecodeArgs<'_, E, Fp8KvCache<'_, Self>>,
        recorder: Option<&Recorder>,
    ) -> Result<(), ExecError>;
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

/// The formats of FP8, each with the function of [`Instances`] that decodes over it.
macro_rules! fp8_numbers {
    ($($number:ident $decode:ident),+) => {$(
        impl Number for $number {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $number::to_f32(self)
            }

            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                $number::from_f32(value)
            }

            #[inline(always)]
            fn as_f32(_: &[Self]) -> Option<&[f32]> {
                None
            }

            #[inline(always)]
            fn widen(elements: &[Self], wide: &mut [f32]) {
                for (wide, element) in wide.iter_mut().zip(elements) {
                    *wide = $number::to_f32(*element);
                }
            }
        }

        impl Fp8Number for $number {
            const FORMAT: Fp8 = Fp8::$number;

            fn decode<E: Element>(
                backend: &mut CpuBackend,
                plan: &Plan,
                args: DecodeArgs<'_, E, Fp8KvCache<'_, Self>>,
                recorder: Option<&Recorder>,
            ) -> Result<(), ExecError> {
                E::$decode(backend, plan, args, recorder)
            }
        }
    )+};
}

fp8_numbers!(E4m3 decode_e4m3, E5m2 decode_e5m2);

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
        fn check<F: Fp8Number>(from_bits: fn(u8) -> F) {
            let all: Vec<F> = (0..=u8::MAX).map(from_bits).collect();
            let mut wide = vec![0.0; all.len()];
            F::widen(&all, &mut wide);
            assert!(all.iter().zip(wide).all(|(number, wide)| number.to_f32().to_bits() == wide.to_bits()));
        }
        check(E4m3::from_bits);
        check(E5m2::from_bits);
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
