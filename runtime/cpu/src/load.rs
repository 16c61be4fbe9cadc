//! What the kernels ask of an element type. It seals [`super::Number`]: the types are those that kernels are compiled for.
#![allow(unsafe_code)]

use super::kernel::Pass;
use super::level::{Isa, Kernel, Level};
use super::simd;
use half::{bf16, f16};
use tilewright_plan::{E4m3, E5m2};

/// An element type as the kernels see it. What takes an [`Isa`] is no generic function of each type, so that it is compiled in this crate,
/// once for all that use it.
pub trait Load: Sized {
    /// Elements are f32, and are never widened.
    const IS_F32: bool = false;

    /// Reads a vector as f32.
    ///
    /// # Safety
    /// As many elements as a vector has lanes can be read at `from`.
    unsafe fn load<L: Level>(level: L, from: *const Self) -> L::Vector;

    /// Rounds numbers to the nearest. As many as there are, a multiple of 16.
    fn narrow<L: Level>(level: L, wide: &[f32], narrow: &mut [Self]);

    /// Whether a pass over K and V of this type, which then is that of the queries, takes queries in bf16.
    fn takes_bf16(_isa: Isa, _head_dim: usize) -> bool {
        false
    }

    /// The elements themselves, if they are bf16.
    fn as_bf16(_elements: &[Self]) -> Option<&[bf16]> {
        None
    }

    /// Computes a pass over K and V of this type.
    fn pass(isa: Isa, pass: Pass<'_, Self>);

    /// Elements as f32, a multiple of 16 of them.
    fn widen_vectors(isa: Isa, elements: &[Self], wide: &mut [f32]);

    /// `narrow = wide * factor`, rounded to the nearest, a multiple of 16 of them.
    fn narrow_scaled(isa: Isa, wide: &mut [f32], factor: f32, narrow: &mut [Self]);
}

struct WidenVectors<'a, E> {
    elements: &'a [E],
    wide: &'a mut [f32],
}

impl<E: Load> Kernel for WidenVectors<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Level>(self, level: L) {
        let Self { elements, wide } = self;
        for (elements, wide) in elements.chunks_exact(L::LANES).zip(wide.chunks_exact_mut(L::LANES)) {
            // SAFETY: both have a vector's lanes.
            unsafe { level.store(wide.as_mut_ptr(), E::load(level, elements.as_ptr())) };
        }
    }
}

struct NarrowScaled<'a, E> {
    wide: &'a mut [f32],
    factor: f32,
    narrow: &'a mut [E],
}

impl<E: Load> Kernel for NarrowScaled<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Level>(self, level: L) {
        simd::scale(self.wide, self.factor);
        E::narrow(level, self.wide, self.narrow);
    }
}

/// The functions that are compiled for one type each.
macro_rules! entries {
    () => {
        fn pass(isa: Isa, pass: Pass<'_, Self>) {
            isa.run(pass);
        }

        entries!(conversions);
    };
    (conversions) => {
        fn widen_vectors(isa: Isa, elements: &[Self], wide: &mut [f32]) {
            isa.run(WidenVectors { elements, wide });
        }

        fn narrow_scaled(isa: Isa, wide: &mut [f32], factor: f32, narrow: &mut [Self]) {
            isa.run(NarrowScaled { wide, factor, narrow });
        }
    };
}

impl Load for f32 {
    const IS_F32: bool = true;

    #[inline(always)]
    unsafe fn load<L: Level>(level: L, from: *const Self) -> L::Vector {
        // SAFETY: the caller's.
        unsafe { level.load(from) }
    }

    #[inline(always)]
    fn narrow<L: Level>(_: L, wide: &[f32], narrow: &mut [Self]) {
        narrow.copy_from_slice(wide);
    }

    entries!();
}

impl Load for f16 {
    #[inline(always)]
    unsafe fn load<L: Level>(level: L, from: *const Self) -> L::Vector {
        // SAFETY: the caller's.
        unsafe { level.load_f16(from) }
    }

    #[inline(always)]
    fn narrow<L: Level>(level: L, wide: &[f32], narrow: &mut [Self]) {
        for (wide, narrow) in wide.chunks_exact(L::LANES).zip(narrow.chunks_exact_mut(L::LANES)) {
            // SAFETY: both have a vector's lanes.
            unsafe { level.store_f16(narrow.as_mut_ptr(), level.load(wide.as_ptr())) };
        }
    }

    entries!();
}

impl Load for bf16 {
    #[inline(always)]
    unsafe fn load<L: Level>(level: L, from: *const Self) -> L::Vector {
        // SAFETY: the caller's.
        unsafe { level.load_bf16(from) }
    }

    /// In integer arithmetic, which vectorises.
    #[inline(always)]
    fn narrow<L: Level>(_: L, wide: &[f32], narrow: &mut [Self]) {
        for (wide, narrow) in wide.iter().zip(narrow) {
            let bits = wide.to_bits();
            let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
            // The upper bits of a NaN may be those of an infinity.
            let nan = bits >> 16 | 0x40;
            let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
            *narrow = Self::from_bits(if is_nan { nan } else { nearest } as u16);
        }
    }

    fn takes_bf16(isa: Isa, head_dim: usize) -> bool {
        isa.multiplies_bf16() && head_dim.is_multiple_of(32)
    }

    fn as_bf16(elements: &[Self]) -> Option<&[bf16]> {
        Some(elements)
    }

    fn pass(isa: Isa, pass: Pass<'_, Self>) {
        if pass.in_bf16 {
            isa.run_bf16(pass);
        } else {
            isa.run(pass);
        }
    }

    entries!(conversions);
}

impl Load for E4m3 {
    #[inline(always)]
    unsafe fn load<L: Level>(level: L, from: *const Self) -> L::Vector {
        // SAFETY: the caller's.
        unsafe { level.load_e4m3(from) }
    }

    #[inline(always)]
    fn narrow<L: Level>(_: L, wide: &[f32], narrow: &mut [Self]) {
        for (wide, narrow) in wide.iter().zip(narrow) {
            *narrow = Self::from_f32(*wide);
        }
    }

    entries!();
}

impl Load for E5m2 {
    #[inline(always)]
    unsafe fn load<L: Level>(level: L, from: *const Self) -> L::Vector {
        // SAFETY: the caller's.
        unsafe { level.load_e5m2(from) }
    }

    #[inline(always)]
    fn narrow<L: Level>(_: L, wide: &[f32], narrow: &mut [Self]) {
        for (wide, narrow) in wide.iter().zip(narrow) {
            *narrow = Self::from_f32(*wide);
        }
    }

    entries!();
}
