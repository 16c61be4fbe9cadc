//! Tests of appends: where tokens go, and rotations against their definition in f64.

use super::*;
use half::{bf16, f16};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_heuristics::Dtype;
use tilewright_plan::{E4m3, E5m2};

const GEOMETRY: Geometry =
    Geometry { q_heads: 2, kv_heads: 2, head_dim: 16, page_size: 4, dtype: Dtype::F32 };

/// Three tokens of two heads: numbers from 1 on.
fn tokens<E: Element>() -> Vec<E> {
    (1..=3 * 2 * 16).map(|number| E::from_f32(number as f32)).collect()
}

/// Every element that was written, as (page, token of the page, head, first number).
fn found<S: Number>(pages: &[S], strides: &KvStrides) -> Vec<(usize, usize, usize, f32)> {
    let mut found = Vec::new();
    for (page, token, head) in
        (0..3).flat_map(|page| (0..4).flat_map(move |token| (0..2).map(move |head| (page, token, head))))
    {
        let at = page * strides.page + token * strides.token + head * strides.head;
        let vector = &pages[at..at + 16];
        if vector.iter().any(|number| number.to_f32() != 0.0) {
            found.push((page, token, head, vector[0].to_f32()));
        }
    }
    found
}

fn written<E: Element>() {
    for strides in [KvStrides::nhd(&GEOMETRY), KvStrides::hnd(&GEOMETRY)] {
        let mut pages = vec![E::from_f32(0.0); 3 * 4 * 2 * 16];
        append(&GEOMETRY, &tokens::<E>(), &[9, -1, 2], &mut pages, &strides, Scale::Tensor(1.0), None)
            .unwrap();
        let expected = [(0, 2, 0, 65.0), (0, 2, 1, 81.0), (2, 1, 0, 1.0), (2, 1, 1, 17.0)];
        assert_eq!(found(&pages, &strides), expected);
    }
}

#[test]
fn tokens_go_to_their_slots_in_every_layout_and_type() {
    written::<f32>();
    written::<f16>();
    written::<bf16>();
}

#[test]
fn fp8_pages_hold_what_the_scales_make_of_it() {
    let strides = KvStrides::nhd(&GEOMETRY);
    let mut pages = vec![E4m3::from_f32(0.0); 3 * 4 * 2 * 16];
    let scales = [0.125, 0.5];
    append(&GEOMETRY, &tokens::<f32>(), &[0, 1, 2], &mut pages, &strides, Scale::Heads(&scales), None)
        .unwrap();
    // 65 / 0.125 is beyond 448; 49 / 0.5 = 98 lies between 96 and 104.
    let first = [(1.0 / 0.125, 17.0 / 0.5), (264.0, 49.0 / 0.5), (448.0, 162.0)];
    for (token, (one, other)) in first.into_iter().enumerate() {
        let at = token * strides.token;
        assert_eq!(pages[at].to_f32(), E4m3::from_f32(one).to_f32());
        assert_eq!(pages[at + 16].to_f32(), E4m3::from_f32(other).to_f32());
    }
}

#[test]
fn e5m2_pages_round_more_and_reach_further() {
    let strides = KvStrides::nhd(&GEOMETRY);
    let mut pages = vec![E5m2::default(); 3 * 4 * 2 * 16];
    let scales = [0.125, 2f32.powi(-10)];
    append(&GEOMETRY, &tokens::<f32>(), &[0, 1, 2], &mut pages, &strides, Scale::Heads(&scales), None)
        .unwrap();
    // 33 / 0.125 = 264 lies between 256 and 320; 65 x 1024 and more are beyond 57344.
    let first = [(8.0, 16_384.0), (256.0, 49_152.0), (512.0, 57_344.0)];
    for (token, expected) in first.into_iter().enumerate() {
        let at = token * strides.token;
        assert_eq!((pages[at].to_f32(), pages[at + 16].to_f32()), expected);
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let strides = KvStrides::nhd(&GEOMETRY);
    let mut pages = vec![0.0f32; 3 * 4 * 2 * 16];
    let mut refused = |slots: &[i64], scale: Scale<'_>| {
        append(&GEOMETRY, &tokens::<f32>(), slots, &mut pages, &strides, scale, None).unwrap_err()
    };
    let one = Scale::Tensor(1.0);
    assert_eq!(
        refused(&[0, 1], one),
        ExecError::Append(AppendError::Length { name: "tokens", found: 96, needed: 64 })
    );
    assert_eq!(refused(&[0, 1, 12], one), ExecError::Slot { token: 2, slot: 12, found: 384 });
    assert_eq!(refused(&[0, 1, i64::MAX], one), ExecError::Slot { token: 2, slot: i64::MAX, found: 384 });
    let short = ExecError::Append(AppendError::Length { name: "scales", found: 1, needed: 2 });
    assert_eq!(refused(&[0, 1, 2], Scale::Heads(&[1.0])), short);
    assert!(pages.iter().all(|number| *number == 0.0));
}

/// Angles as models have them.
fn table(positions: usize, dim: usize) -> Vec<f32> {
    let angle = |position: usize, pair: usize| position as f64 / 1e4f64.powf(2.0 * pair as f64 / dim as f64);
    let row = |position: usize| {
        let cosines = (0..dim / 2).map(move |pair| angle(position, pair).cos() as f32);
        cosines.chain((0..dim / 2).map(move |pair| angle(position, pair).sin() as f32))
    };
    (0..positions).flat_map(row).collect()
}

proptest! {
    #[test]
    fn keys_are_rotated_as_complex_numbers(
        seed: u64,
        rotated in 1usize..=4,
        interleaved: bool,
        of_lengths: bool,
        positions in prop::collection::vec(0usize..100, 1..5),
    ) {
        let (dim, count) = (rotated * 16, positions.len());
        let geometry = Geometry { head_dim: 64, ..GEOMETRY };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let tokens: Vec<f32> = (0..count * 2 * 64).map(|_| rng.random_range(-8.0..8.0)).collect();
        let pairs = if interleaved { RotaryPairs::Interleaved } else { RotaryPairs::Halves };
        let given: Vec<i64> = positions.iter().map(|&position| position as i64).collect();
        let lengths: Vec<i32> = positions.iter().map(|&position| position as i32 + 1).collect();
        let table = table(100, dim);
        let rotary = Rotary {
            table: &table,
            dim: dim as u32,
            pairs,
            positions: if of_lengths { Positions::OfLengths(&lengths) } else { Positions::Given(&given) },
        };
        let slots: Vec<i64> = (0..count as i64).map(|token| 2 * token).collect();
        let strides = KvStrides::hnd(&geometry);
        let mut pages = vec![f32::NAN; 3 * 4 * 2 * 64];
        append(&geometry, &tokens, &slots, &mut pages, &strides, Scale::Tensor(1.0), Some(&rotary)).unwrap();
        for (token, head) in (0..count).flat_map(|token| [(token, 0), (token, 1)]) {
            let from = &tokens[(token * 2 + head) * 64..][..64];
            let to = &pages[token / 2 * strides.page + token % 2 * 2 * strides.token + head * strides.head..][..64];
            let row = &table[positions[token] * dim..][..dim];
            prop_assert_eq!(&from[dim..], &to[dim..]);
            for angle in 0..dim / 2 {
                let (first, second) = pairs.elements(angle, dim);
                let [a, b, cosine, sine] = [from[first], from[second], row[angle], row[dim / 2 + angle]].map(f64::from);
                let (real, imaginary) = (a * cosine - b * sine, a * sine + b * cosine);
                // The smaller product and the sum are rounded once each, of numbers up to 8.
                for (found, expected) in [(to[first], real), (to[second], imaginary)] {
                    prop_assert!((f64::from(found) - expected).abs() < 16.0 * 2f64.powi(-24), "{} for {}", found, expected);
                }
            }
        }
    }
}

#[test]
fn rotations_that_make_no_sense_are_refused() {
    let strides = KvStrides::nhd(&GEOMETRY);
    let mut pages = vec![0.0f32; 3 * 4 * 2 * 16];
    let table = table(9, 16);
    let good = Rotary {
        table: &table,
        dim: 16,
        pairs: RotaryPairs::Halves,
        positions: Positions::Given(&[0, 8, -7]),
    };
    let mut error = |rotary: Rotary<'_>| {
        let (slots, one) = ([0, 1, -1], Scale::Tensor(1.0));
        let error =
            append(&GEOMETRY, &tokens::<f32>(), &slots, &mut pages, &strides, one, Some(&rotary)).err();
        assert!(error.is_none() || pages.iter().all(|number| *number == 0.0));
        error
    };
    for dim in [0, 8, 24, 32] {
        let refused = AppendError::RotaryDim { dim, head_dim: 16 };
        assert_eq!(error(Rotary { dim, ..good }), Some(refused.into()));
    }
    let refused = AppendError::Table { found: 143, dim: 16 };
    assert_eq!(error(Rotary { table: &table[1..], ..good }), Some(refused.into()));
    let refused = AppendError::Length { name: "positions", found: 2, needed: 3 };
    assert_eq!(error(Rotary { positions: Positions::OfLengths(&[1, 2]), ..good }), Some(refused.into()));
    for (positions, token, position) in [
        (Positions::Given(&[0, 9, 0]), 1, 9),
        (Positions::Given(&[-1, 0, 0]), 0, -1),
        (Positions::OfLengths(&[0, 1, 1]), 0, -1),
        (Positions::OfLengths(&[1, 10, 1]), 1, 9),
    ] {
        let refused = AppendError::Position { token, position, rows: 9 };
        assert_eq!(error(Rotary { positions, ..good }), Some(refused.into()));
    }
    assert_eq!(error(good), None, "the position of a token without a slot does not matter");
}

/// Appends to pages of marks, and compares every element with what the slots and the scales say of it, in f64.
fn check_against_the_definition<E: Element, S: Number>(
    (heads, page_size, hnd): (u32, u32, bool),
    slots: &[i64],
    scales: &[f32],
    seed: u64,
) -> Result<(), TestCaseError> {
    let geometry = Geometry { q_heads: heads, kv_heads: heads, page_size, ..GEOMETRY };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let tokens: Vec<E> = (0..slots.len() * heads as usize * 16)
        .map(|_| E::from_f32(rng.random_range(-600.0..600.0)))
        .collect();
    let strides = if hnd { KvStrides::hnd(&geometry) } else { KvStrides::nhd(&geometry) };
    let (mark, pages) = (S::from_f32(-1.5), 8);
    let mut cache = vec![mark; pages * (page_size * heads * 16) as usize];
    append(&geometry, &tokens, slots, &mut cache, &strides, Scale::Heads(scales), None)
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    for (slot, head) in
        (0..pages * page_size as usize).flat_map(|slot| (0..heads as usize).map(move |head| (slot, head)))
    {
        let (page, place) = (slot / page_size as usize, slot % page_size as usize);
        let found = &cache[page * strides.page + place * strides.token + head * strides.head..][..16];
        let token = slots.iter().rposition(|&own| own == slot as i64);
        for (element, found) in found.iter().enumerate() {
            let expected = match token {
                None => mark,
                Some(token) => {
                    let number = tokens[(token * heads as usize + head) * 16 + element].to_f32();
                    S::from_f32((f64::from(number) / f64::from(scales[head])) as f32)
                }
            };
            prop_assert_eq!(
                found.to_f32().to_bits(),
                expected.to_f32().to_bits(),
                "slot {}, head {}",
                slot,
                head
            );
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_element_is_what_the_slots_say(
        heads in 1u32..=3,
        page_size in 1u32..=9,
        hnd: bool,
        places in prop::collection::vec(-1i64..8, 0..20),
        scales in prop::array::uniform4(0.01f32..40.0),
        seed: u64,
    ) {
        // Of any place in its page; below 0 there is none.
        let place_in = |place: i64| (seed >> (place & 31)) as i64 % i64::from(page_size);
        let slot = |&place: &i64| if place < 0 { place } else { place * i64::from(page_size) + place_in(place).abs() };
        let slots: Vec<i64> = places.iter().map(slot).collect();
        let layout = (heads, page_size, hnd);
        check_against_the_definition::<f32, f32>(layout, &slots, &scales, seed)?;
        check_against_the_definition::<f16, f16>(layout, &slots, &scales, seed)?;
        check_against_the_definition::<bf16, bf16>(layout, &slots, &scales, seed)?;
        check_against_the_definition::<bf16, E4m3>(layout, &slots, &scales, seed)?;
        check_against_the_definition::<f16, E4m3>(layout, &slots, &scales, seed)?;
        check_against_the_definition::<f16, E5m2>(layout, &slots, &scales, seed)?;
    }
}
