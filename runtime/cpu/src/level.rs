//! SIMD levels: the vector operations that the kernels are made of, and the choice of a level at run time.
//!
//! `pulp` knows neither F16C nor sums of several vectors at once, and both bound attention over K and V of 16 bits: x86 has levels of its
//! own here, other processors go through `pulp`.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod x86;

use half::{bf16, f16};
use pulp::{Simd, WithSimd};
use tilewright_plan::{E4m3, E5m2};

/// The vector operations of one SIMD level. A value of it is the proof that the processor has the level.
pub trait Level: Copy {
    /// [`Level::LANES`] numbers.
    type Vector: Copy;
    /// Numbers of a vector; divides 16.
    const LANES: usize;
    /// Vectors that registers hold.
    const REGISTERS: usize;
    /// Whether narrow elements become vectors without a detour through memory.
    const WIDENS: bool;
    /// Whether a multiply-add of single numbers, rounded once, is an instruction.
    const FUSES: bool;

    /// The same number in all lanes.
    fn splat(self, value: f32) -> Self::Vector;

    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// The sum of each vector's lanes. A sum has the same bits in every place.
    fn sums(self, vectors: [Self::Vector; 8]) -> [f32; 8];

    /// As [`Level::sums`], of 16 vectors: the same bits.
    #[inline(always)]
    fn sums_of_16(self, vectors: [Self::Vector; 16]) -> [f32; 16] {
        let ([a, b, c, d, e, f, g, h, rest @ ..], mut sums) = (vectors, [0.0; 16]);
        sums[..8].copy_from_slice(&self.sums([a, b, c, d, e, f, g, h]));
        sums[8..].copy_from_slice(&self.sums(rest));
        sums
    }

    /// As [`Level::sums`], of four vectors: the same bits.
    fn sums_of_four(self, vectors: [Self::Vector; 4]) -> [f32; 4];

    /// Reads a vector.
    ///
    /// # Safety
    /// [`Level::LANES`] elements can be read at `from`.
    unsafe fn load(self, from: *const f32) -> Self::Vector;

    /// Writes a vector.
    ///
    /// # Safety
    /// [`Level::LANES`] elements can be written at `to`.
    unsafe fn store(self, to: *mut f32, vector: Self::Vector);

    /// Reads a vector of f16.
    ///
    /// # Safety
    /// As for [`Level::load`].
    unsafe fn load_f16(self, from: *const f16) -> Self::Vector;

    /// Reads a vector of bf16.
    ///
    /// # Safety
    /// As for [`Level::load`].
    unsafe fn load_bf16(self, from: *const bf16) -> Self::Vector;

    /// Reads a vector of FP8 (e4m3).
    ///
    /// # Safety
    /// As for [`Level::load`].
    unsafe fn load_e4m3(self, from: *const E4m3) -> Self::Vector;

    /// Reads a vector of FP8 (e5m2).
    ///
    /// # Safety
    /// As for [`Level::load`].
    unsafe fn load_e5m2(self, from: *const E5m2) -> Self::Vector;

    /// Writes a vector as f16, rounded to the nearest.
    ///
    /// # Safety
    /// As for [`Level::store`].
    unsafe fn store_f16(self, to: *mut f16, vector: Self::Vector);
}

/// A level that multiplies bf16 by an instruction of its own and adds the products up in f32.
pub(crate) trait Bf16Level: Level {
    /// Pairs of neighbouring numbers, one for each lane of a vector.
    type Pairs: Copy;

    /// Reads pairs.
    ///
    /// # Safety
    /// Twice [`Level::LANES`] elements can be read at `from`.
    unsafe fn load_pairs(self, from: *const bf16) -> Self::Pairs;

    /// Adds to each lane of `c` the product of its pairs' second numbers, then that of the first ones. Each of both sums is rounded once, to
    /// the nearest; subnormal numbers are zeros.
    fn mul_add_pairs(self, a: Self::Pairs, b: Self::Pairs, c: Self::Vector) -> Self::Vector;
}

/// What runs at any level. `run` and all that it calls are inlined into a function that is compiled for the level.
pub(super) trait Kernel {
    /// What it returns.
    type Output;

    /// Runs it.
    fn run<L: Level>(self, level: L) -> Self::Output;
}

/// As [`Kernel`], of what multiplies bf16 by the level's instruction.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86 has such a level"))]
pub(super) trait Bf16Kernel {
    /// What it returns.
    type Output;

    /// Runs it.
    fn run<L: Bf16Level>(self, level: L) -> Self::Output;
}

/// The level of this processor.
#[derive(Clone, Copy, Debug)]
pub enum Isa {
    /// AVX-512 with 512-bit vectors and products of bf16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(x86::Avx512<true>),
    /// AVX-512 with 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512<false>),
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    /// What `pulp` has for all others.
    Portable(pulp::Arch),
}

impl Isa {
    /// The best level that the processor has.
    pub(super) fn detect() -> Self {
        Self::available().next().expect("every processor has a level")
    }

    /// All levels that the processor has, best first.
    pub(super) fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let own = [
            x86::Avx512::<true>::detect().map(Self::Avx512Bf16),
            x86::Avx512::<false>::detect().map(Self::Avx512),
            x86::Avx2::detect().map(Self::Avx2),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let own: [Option<Self>; 0] = [];
        own.into_iter().flatten().chain([Self::Portable(pulp::Arch::new())])
    }

    /// Its name in a device's capability. Products of bf16 are no part of it: selectors are found by it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(_) | Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            Self::Portable(_) if cfg!(target_arch = "aarch64") => "neon",
            Self::Portable(_) => "scalar",
        }
    }

    /// Whether it has products of bf16.
    pub(super) const fn multiplies_bf16(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(_) => true,
            _ => false,
        }
    }

    /// Runs a kernel with products of bf16, where there are such, and as at any level elsewhere.
    #[inline]
    pub(super) fn run_bf16<K: Kernel + Bf16Kernel<Output = <K as Kernel>::Output>>(
        self,
        kernel: K,
    ) -> <K as Kernel>::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(level) => level.run_bf16(kernel),
            _ => self.run(kernel),
        }
    }

    /// Runs a kernel at this level, without products of bf16.
    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(level) => level.without_bf16().run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(level) => level.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(level) => level.run(kernel),
            // Without AVX2 there is only code of one lane for x86.
            #[cfg(target_arch = "x86_64")]
            Self::Portable(_) => kernel.run(Portable(pulp::Scalar)),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Portable(arch) => arch.dispatch(OnPulp(kernel)),
        }
    }
}

/// A level of `pulp`.
#[derive(Clone, Copy, Debug)]
struct Portable<S>(S);

/// A kernel as `pulp` runs it.
#[cfg_attr(target_arch = "x86_64", expect(dead_code, reason = "x86 has levels of its own"))]
struct OnPulp<K>(K);

impl<K: Kernel> WithSimd for OnPulp<K> {
    type Output = K::Output;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> K::Output {
        self.0.run(Portable(simd))
    }
}

/// The widest vector of `pulp`.
const MOST_LANES: usize = 16;

impl<S: Simd> Portable<S> {
    /// # Safety
    /// As for [`Level::load`].
    #[inline(always)]
    unsafe fn load_as<K: Copy>(self, from: *const K, widen: impl Fn(K) -> f32) -> S::f32s {
        let mut wide = [0.0; MOST_LANES];
        for (lane, wide) in wide.iter_mut().enumerate().take(Self::LANES) {
            // SAFETY: the caller has as many elements there.
            *wide = widen(unsafe { *from.add(lane) });
        }
        S::as_simd_f32s(&wide[..Self::LANES]).0[0]
    }
}

impl<S: Simd> Level for Portable<S> {
    type Vector = S::f32s;
    const LANES: usize = size_of::<S::f32s>() / size_of::<f32>();
    const REGISTERS: usize = 16;
    const WIDENS: bool = false;
    const FUSES: bool = cfg!(target_arch = "aarch64");

    #[inline(always)]
    fn splat(self, value: f32) -> S::f32s {
        self.0.splat_f32s(value)
    }

    #[inline(always)]
    fn mul_add(self, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
        self.0.mul_add_f32s(a, b, c)
    }

    #[inline(always)]
    fn sums(self, vectors: [S::f32s; 8]) -> [f32; 8] {
        vectors.map(|vector| self.0.reduce_sum_f32s(vector))
    }

    #[inline(always)]
    fn sums_of_four(self, vectors: [S::f32s; 4]) -> [f32; 4] {
        vectors.map(|vector| self.0.reduce_sum_f32s(vector))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> S::f32s {
        // SAFETY: the caller has as many elements there; a vector is plain numbers.
        unsafe { from.cast::<S::f32s>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: S::f32s) {
        // SAFETY: as for `load`.
        unsafe { to.cast::<S::f32s>().write_unaligned(vector) };
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> S::f32s {
        // SAFETY: the caller's.
        unsafe { self.load_as(from, f16::to_f32) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> S::f32s {
        // SAFETY: the caller's.
        unsafe { self.load_as(from, bf16::to_f32) }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const E4m3) -> S::f32s {
        // SAFETY: the caller's.
        unsafe { self.load_as(from, E4m3::to_f32) }
    }

    #[inline(always)]
    unsafe fn load_e5m2(self, from: *const E5m2) -> S::f32s {
        // SAFETY: the caller's.
        unsafe { self.load_as(from, E5m2::to_f32) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16, vector: S::f32s) {
        let mut wide = [0.0; MOST_LANES];
        S::as_mut_simd_f32s(&mut wide[..Self::LANES]).0[0] = vector;
        for (lane, wide) in wide.iter().enumerate().take(Self::LANES) {
            // SAFETY: the caller has room for as many elements there.
            unsafe { *to.add(lane) = f16::from_f32(*wide) };
        }
    }
}
