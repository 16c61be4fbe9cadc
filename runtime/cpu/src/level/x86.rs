//! AVX2 with F16C, and AVX-512.

use super::{Bf16Kernel, Bf16Level, Kernel, Level};
use half::{bf16, f16};
use std::arch::x86_64::*;
use tilewright_plan::{E4m3, E5m2};

/// AVX2, FMA and F16C. Only [`Avx2::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// AVX-512 F, BW, DQ and VL beside AVX2, and AVX512-BF16 if `BF16`. Only `detect` makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx512<const BF16: bool>(Avx2);

impl Avx2 {
    /// If the processor has them.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2");
        has.then_some(Self(()))
    }

    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2")]
        fn with_features<K: Kernel>(level: Avx2, kernel: K) -> K::Output {
            kernel.run(level)
        }
        // SAFETY: `self` proves that the processor has these features.
        unsafe { with_features(self, kernel) }
    }
}

impl Avx512<false> {
    /// If the processor has them.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        Avx2::detect().filter(|_| has).map(Self)
    }

    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2")]
        fn with_features<K: Kernel>(level: Avx512<false>, kernel: K) -> K::Output {
            kernel.run(level)
        }
        // SAFETY: `self` proves that the processor has these features.
        unsafe { with_features(self, kernel) }
    }
}

impl Avx512<true> {
    /// If the processor has them.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512bf16");
        Avx512::<false>::detect().filter(|_| has).map(|Avx512(avx2)| Self(avx2))
    }

    /// What all kernels but those of bf16 are compiled for.
    pub(super) const fn without_bf16(self) -> Avx512<false> {
        Avx512(self.0)
    }

    pub(super) fn run_bf16<K: Bf16Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2")]
        fn with_features<K: Bf16Kernel>(level: Avx512<true>, kernel: K) -> K::Output {
            kernel.run(level)
        }
        // SAFETY: `self` proves that the processor has these features.
        unsafe { with_features(self, kernel) }
    }
}

/// e4m3 as f16 of a 256th: exponents of f16 have the bias 15, those of e4m3 7. Subnormal numbers are subnormal in both; NaN becomes NaN.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn halves(bytes: __m128i) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        // The sign in bits 14 and 15, the other seven bits below.
        let shifted = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(bytes));
        let numbers = _mm256_and_si256(shifted, _mm256_set1_epi16(0xbfff_u16.cast_signed()));
        // The last bit of the mantissa, added, reaches bit 14 only where all seven bits are ones, which is NaN.
        let carried = _mm256_add_epi16(numbers, _mm256_set1_epi16(0x80));
        _mm256_or_si256(numbers, _mm256_and_si256(carried, _mm256_set1_epi16(0x4000)))
    }
}

/// As [`halves`], of eight numbers.
///
/// # Safety
/// The processor has AVX.
#[inline(always)]
unsafe fn eight_halves(bytes: __m128i) -> __m128i {
    // SAFETY: the caller's.
    unsafe {
        let shifted = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(bytes));
        let numbers = _mm_and_si128(shifted, _mm_set1_epi16(0xbfff_u16.cast_signed()));
        let carried = _mm_add_epi16(numbers, _mm_set1_epi16(0x80));
        _mm_or_si128(numbers, _mm_and_si128(carried, _mm_set1_epi16(0x4000)))
    }
}

/// `(0 + 2) + (1 + 3)` of the lower halves of four vectors, and the same of the upper ones.
///
/// # Safety
/// The processor has AVX.
#[inline(always)]
unsafe fn sums_of_halves(a: __m256, b: __m256, c: __m256, d: __m256) -> __m256 {
    // SAFETY: the caller's.
    unsafe {
        let ab = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)));
        let cd = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d)));
        let (even, odd) = (_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd));
        _mm256_add_ps(_mm256_castpd_ps(even), _mm256_castpd_ps(odd))
    }
}

/// The upper half of a vector added to the lower one.
///
/// # Safety
/// The processor has AVX-512 DQ.
#[inline(always)]
unsafe fn folded(vector: __m512) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_add_ps(_mm512_castps512_ps256(vector), _mm512_extractf32x8_ps::<1>(vector)) }
}

/// The upper half of each vector added to the lower one, and of that [`sums_of_halves`]: for the first four vectors in the lower half, for the
/// others in the upper one.
///
/// # Safety
/// The processor has AVX-512.
#[inline(always)]
unsafe fn sums_of_quarters(v: [__m512; 8]) -> __m512 {
    // SAFETY: the caller's.
    unsafe {
        let folded = |a, b| {
            let (low, high) =
                (_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b));
            _mm512_add_ps(low, high)
        };
        let (a, b, c, d) = (folded(v[0], v[4]), folded(v[1], v[5]), folded(v[2], v[6]), folded(v[3], v[7]));
        let ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
        let cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
        let (even, odd) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
        _mm512_add_ps(_mm512_castpd_ps(even), _mm512_castpd_ps(odd))
    }
}

/// What [`halves`] are multiplied by.
const OF_HALVES: f32 = 256.0;

/// Rounding of f16: to the nearest, ties to even.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

impl Level for Avx2 {
    type Vector = __m256;
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    const WIDENS: bool = true;
    const FUSES: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: `self` proves that the processor has AVX2, FMA and F16C; so it does in all functions here.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as for `splat`.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    /// Of each vector `((0 + 2) + (1 + 3)) + ((4 + 6) + (5 + 7))`: 14 shuffles and 7 additions for all eight.
    #[inline(always)]
    fn sums(self, v: [__m256; 8]) -> [f32; 8] {
        // SAFETY: as for `splat`; the array has room for a vector.
        unsafe {
            let first = sums_of_halves(v[0], v[1], v[2], v[3]);
            let second = sums_of_halves(v[4], v[5], v[6], v[7]);
            let low = _mm256_permute2f128_ps::<0x20>(first, second);
            let high = _mm256_permute2f128_ps::<0x31>(first, second);
            let mut sums = [0.0; 8];
            _mm256_storeu_ps(sums.as_mut_ptr(), _mm256_add_ps(low, high));
            sums
        }
    }

    #[inline(always)]
    fn sums_of_four(self, v: [__m256; 4]) -> [f32; 4] {
        // SAFETY: as for `splat`; the array has room for half a vector.
        unsafe {
            let halves = sums_of_halves(v[0], v[1], v[2], v[3]);
            let sum = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
            let mut sums = [0.0; 4];
            _mm_storeu_ps(sums.as_mut_ptr(), sum);
            sums
        }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: the caller has eight elements there.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: __m256) {
        // SAFETY: the caller has room for eight elements there.
        unsafe { _mm256_storeu_ps(to, vector) };
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> __m256 {
        // SAFETY: the caller has eight elements of two bytes there.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m256 {
        // SAFETY: the caller has eight elements of two bytes there.
        let wide = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())) };
        // SAFETY: as for `splat`.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)) }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const E4m3) -> __m256 {
        // SAFETY: the caller has eight elements of a byte there.
        let halves = unsafe { eight_halves(_mm_loadl_epi64(from.cast())) };
        // SAFETY: as for `splat`.
        unsafe { _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(OF_HALVES)) }
    }

    #[inline(always)]
    unsafe fn load_e5m2(self, from: *const E5m2) -> __m256 {
        // SAFETY: the caller has eight elements of a byte there, which are the upper bytes of halves.
        unsafe { _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16, vector: __m256) {
        // SAFETY: the caller has room for eight elements of two bytes there.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<NEAREST>(vector)) };
    }
}

impl<const BF16: bool> Level for Avx512<BF16> {
    type Vector = __m512;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    const WIDENS: bool = true;
    const FUSES: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: `self` proves that the processor has AVX-512 F, BW, DQ and VL; so it does in all functions here.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as for `splat`.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    /// The upper half of each vector is added to the lower one, then as AVX2 does: 16 shuffles and 8 additions for all eight.
    #[inline(always)]
    fn sums(self, v: [__m512; 8]) -> [f32; 8] {
        // SAFETY: as for `splat`; the array has room for half a vector.
        unsafe {
            let quarters = sums_of_quarters(v);
            let sums = _mm512_add_ps(quarters, _mm512_shuffle_f32x4::<0b10_11_00_01>(quarters, quarters));
            let packed = _mm512_shuffle_f32x4::<0b10_00_10_00>(sums, sums);
            let mut sums = [0.0; 8];
            _mm256_storeu_ps(sums.as_mut_ptr(), _mm512_castps512_ps256(packed));
            sums
        }
    }

    /// 30 shuffles and 15 additions.
    #[inline(always)]
    fn sums_of_16(self, v: [__m512; 16]) -> [f32; 16] {
        let [a, b, c, d, e, f, g, h, rest @ ..] = v;
        // SAFETY: as for `splat`; the array has room for a vector.
        unsafe {
            let (first, second) = (sums_of_quarters([a, b, c, d, e, f, g, h]), sums_of_quarters(rest));
            let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(first, second);
            let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(first, second);
            let mut sums = [0.0; 16];
            _mm512_storeu_ps(sums.as_mut_ptr(), _mm512_add_ps(low, high));
            sums
        }
    }

    #[inline(always)]
    fn sums_of_four(self, v: [__m512; 4]) -> [f32; 4] {
        // SAFETY: as for `splat`.
        self.0.sums_of_four(unsafe { [folded(v[0]), folded(v[1]), folded(v[2]), folded(v[3])] })
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller has 16 elements there.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: __m512) {
        // SAFETY: the caller has room for 16 elements there.
        unsafe { _mm512_storeu_ps(to, vector) };
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> __m512 {
        // SAFETY: the caller has 16 elements of two bytes there.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m512 {
        // SAFETY: the caller has 16 elements of two bytes there.
        let wide = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())) };
        // SAFETY: as for `splat`.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)) }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const E4m3) -> __m512 {
        // SAFETY: the caller has 16 elements of a byte there.
        let halves = unsafe { halves(_mm_loadu_si128(from.cast())) };
        // SAFETY: as for `splat`.
        unsafe { _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(OF_HALVES)) }
    }

    #[inline(always)]
    unsafe fn load_e5m2(self, from: *const E5m2) -> __m512 {
        // SAFETY: the caller has 16 elements of a byte there, which are the upper bytes of halves.
        let wide = unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast())) };
        // SAFETY: as for `splat`.
        unsafe { _mm512_cvtph_ps(_mm256_slli_epi16::<8>(wide)) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16, vector: __m512) {
        // SAFETY: the caller has room for 16 elements of two bytes there.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<NEAREST>(vector)) };
    }
}

impl Bf16Level for Avx512<true> {
    type Pairs = __m512bh;

    #[inline(always)]
    unsafe fn load_pairs(self, from: *const bf16) -> __m512bh {
        // SAFETY: the caller has 32 elements of two bytes there.
        unsafe { from.cast::<__m512bh>().read_unaligned() }
    }

    #[inline(always)]
    fn mul_add_pairs(self, a: __m512bh, b: __m512bh, c: __m512) -> __m512 {
        // SAFETY: `self` proves that the processor has AVX512-BF16.
        unsafe { _mm512_dpbf16_ps(c, a, b) }
    }
}
