//! K and V in FP8 (e4m3 and e5m2): the same as attention over the numbers that bytes and scales stand for, and errors that say what is missing.

use half::f16;
use proptest::prelude::*;
use tilewright_conformance::reference::{self, Attention};
use tilewright_cpu::ExecError;
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, Fp8KvCache, Fp8Number, KvCache, KvPages};
use tilewright_heuristics::{Dtype, Geometry, Tile};
use tilewright_plan::{E4m3, E5m2, KvScales, KvStrides, PageTable, Plan, PlanOptions};

const HEADS: usize = 3;
const GEOMETRY: Geometry =
    Geometry { q_heads: 6, kv_heads: HEADS as u32, head_dim: 64, page_size: 16, dtype: Dtype::Fp8F32 };
const TILE: Tile = Tile::of("m4n32w1s2");
const ENTRIES: [i32; 6] = [3, 0, 4, 3, 2, 1];
const SEQ_LENS: [u32; 2] = [48, 37];
const ELEMENTS: usize = 5 * 16 * HEADS * 64;

fn table() -> PageTable<'static> {
    PageTable::new(&ENTRIES, 3, &SEQ_LENS, GEOMETRY.page_size).unwrap()
}

/// A format, and a byte of it by its sign and a draw: of |x| < 4, so that no token takes all the weight.
trait Drawn: Fp8Number {
    fn draw(sign: u8, draw: u64) -> Self;
}

impl Drawn for E4m3 {
    fn draw(sign: u8, draw: u64) -> Self {
        Self::from_bits(sign | (draw % 0x48) as u8)
    }
}

impl Drawn for E5m2 {
    fn draw(sign: u8, draw: u64) -> Self {
        Self::from_bits(sign | (draw % 0x44) as u8)
    }
}

fn bytes<F: Drawn>(count: usize, seed: u64) -> Vec<F> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        F::draw((state >> 40) as u8 & 0x80, state >> 32)
    };
    (0..count).map(|_| next()).collect()
}

fn run<E: Element, C: KvPages<E>>(geometry: &Geometry, query: &[E], cache: C) -> Result<Vec<f32>, ExecError> {
    let plan = Plan::build(geometry, &table(), &PlanOptions::default(), TILE).unwrap();
    let mut output = vec![E::from_f32(f32::NAN); query.len()];
    let args = DecodeArgs { scale: Some(0.125), ..DecodeArgs::new(query, cache, &mut output) };
    CpuBackend::new(2).decode(&plan, args)?;
    Ok(output.into_iter().map(E::to_f32).collect())
}

/// What the bytes stand for under a scale a head.
fn real<F: Drawn>(bytes: &[F], scales: &[f32]) -> Vec<f32> {
    bytes.iter().enumerate().map(|(i, byte)| byte.to_f32() * scales[i / 64 % HEADS]).collect()
}

fn check<F: Drawn>(seed: u64, key_scales: [f32; 3], value_scales: [f32; 3]) -> Result<(), TestCaseError> {
    let geometry = Geometry { dtype: GEOMETRY.dtype.with_kv(F::FORMAT), ..GEOMETRY };
    let (keys, values) = (bytes::<F>(ELEMENTS, seed), bytes::<F>(ELEMENTS, !seed));
    let query: Vec<f32> = bytes::<F>(2 * 6 * 64, seed ^ 1).into_iter().map(F::to_f32).collect();
    let strides = KvStrides::nhd(&geometry);
    let scales = KvScales::new(&key_scales[..], &value_scales[..]);
    let cache = Fp8KvCache { keys: &keys, values: &values, strides, scales };
    let (wide_keys, wide_values) = (real(&keys, &key_scales), real(&values, &value_scales));
    let wide = KvCache { keys: &wide_keys[..], values: &wide_values[..], strides };

    let attention = Attention::plain(0.125);
    let (expected, lse) = reference::decode(&geometry, &table(), &query, &wide, &attention);
    let (found, found_lse) = reference::decode(&geometry, &table(), &query, &cache, &attention);
    // The wide numbers were rounded to f32 once.
    for (found, expected) in found.iter().chain(&found_lse).zip(expected.iter().chain(&lse)) {
        prop_assert!((found - expected).abs() < 1e-5 * expected.abs().max(1.0), "{found} for {expected}");
    }
    let found = run(&geometry, &query, cache).unwrap();
    let expected = run(&Geometry { dtype: Dtype::F32, ..GEOMETRY }, &query, wide).unwrap();
    for (found, expected) in found.iter().zip(&expected) {
        prop_assert!((found - expected).abs() < 1e-4 * expected.abs().max(1.0), "{found} for {expected}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn fp8_is_attention_over_the_numbers_that_it_stands_for(
        seed: u64, key_scales in prop::array::uniform3(0.01f32..0.5), value_scales in prop::array::uniform3(0.01f32..4.0),
    ) {
        if seed % 2 == 0 {
            check::<E4m3>(seed, key_scales, value_scales)?;
        } else {
            check::<E5m2>(seed, key_scales, value_scales)?;
        }
    }
}

#[test]
fn one_scale_is_the_same_scale_for_every_head() {
    let (keys, values) = (bytes::<E4m3>(ELEMENTS, 1), bytes::<E4m3>(ELEMENTS, 2));
    let query: Vec<f16> =
        bytes::<E4m3>(2 * 6 * 64, 3).into_iter().map(|x| f16::from_f32(x.to_f32())).collect();
    let geometry = Geometry { dtype: Dtype::Fp8F16, ..GEOMETRY };
    let strides = KvStrides::hnd(&geometry);
    let with = |scales| run(&geometry, &query, Fp8KvCache { keys: &keys, values: &values, strides, scales });
    let all = with(KvScales::new(&[0.3; HEADS][..], &[0.7; HEADS][..])).unwrap();
    assert_eq!(with(KvScales::new(0.3, 0.7)).unwrap(), all);
    assert_ne!(with(KvScales::new(0.3, 0.8)).unwrap(), all);
    assert_ne!(with(KvScales::new(0.2, 0.7)).unwrap(), all);
}

#[test]
fn what_does_not_fit_is_said_before_anything_is_computed() {
    let (keys, query) = (bytes::<E4m3>(ELEMENTS, 1), vec![0.5f32; 2 * 6 * 64]);
    let strides = KvStrides::nhd(&GEOMETRY);
    let cache = |scales| Fp8KvCache { keys: &keys, values: &keys, strides, scales };
    let error = run(&GEOMETRY, &query, cache(KvScales::new(1.0, &[1.0; 2][..]))).unwrap_err();
    assert_eq!(error, ExecError::Length { name: "value scales", found: 2, needed: 3 });
    let error = run(&GEOMETRY, &query, cache(KvScales::new(&[][..], 1.0))).unwrap_err();
    assert!(matches!(error, ExecError::Length { name: "key scales", found: 0, .. }), "{error}");
    // A cache of the query's type has no scales, and a plan for FP8 does not take it.
    let wide = vec![0.0f32; ELEMENTS];
    let error = run(&GEOMETRY, &query, KvCache { keys: &wide, values: &wide, strides }).unwrap_err();
    assert_eq!(error, ExecError::Dtype { planned: Dtype::Fp8F32, given: Dtype::F32 });
    let plain = Geometry { dtype: Dtype::F32, ..GEOMETRY };
    let error = run(&plain, &query, cache(KvScales::new(1.0, 1.0))).unwrap_err();
    assert!(error.to_string().contains("fp8-f32"), "{error}");
    // Nor does a plan for one format take the other.
    let other = bytes::<E5m2>(ELEMENTS, 1);
    let scales = KvScales::new(1.0, 1.0);
    let e5m2 = Fp8KvCache { keys: &other, values: &other, strides, scales };
    let error = run(&GEOMETRY, &query, e5m2).unwrap_err();
    assert_eq!(error, ExecError::Dtype { planned: Dtype::Fp8F32, given: Dtype::E5m2F32 });
}
