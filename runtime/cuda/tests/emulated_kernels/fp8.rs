//! K and V in FP8: both formats, every byte, by both producers.

use super::*;

/// Tiles of FP8: one warp, warps that share rows, many rows; every head dimension; with and without options. Formats take turns beside both
/// types of queries.
fn fp8_cases() -> Vec<Case> {
    let all = KernelOptions { mask: MaskOptions::ALL, sinks: true, ..KernelOptions::default() };
    let variants = [
        ((16, 32, 1, 1), 64, CASE.options),
        ((16, 64, 4, 3), 64, all),
        ((16, 32, 2, 2), 128, CASE.options),
        ((32, 64, 8, 2), 128, all),
        ((64, 48, 4, 4), 128, CASE.options),
        ((16, 96, 2, 2), 256, all),
        ((64, 64, 8, 3), 256, CASE.options),
        ((128, 32, 8, 2), 64, KernelOptions { mask: WINDOW, ..CASE.options }),
        ((16, 64, 4, 2), 96, all),
        ((64, 32, 4, 3), 96, CASE.options),
        ((32, 32, 4, 1), 192, CASE.options),
        ((64, 64, 4, 2), 192, all),
        ((16, 64, 4, 2), 512, CASE.options),
        ((32, 32, 8, 3), 512, all),
    ];
    let mut cases = Vec::new();
    for ((m, n, warps, stages), head_dim, options) in variants {
        for query in [Dtype::F16, Dtype::Bf16] {
            let seed = cases.len() as u64 * 3;
            let dtype = query.with_kv([Fp8::E4m3, Fp8::E5m2, Fp8::E5m2, Fp8::E4m3][cases.len() % 4]);
            let (tile, class) = (Tile::new(m, n, warps, stages), Class { head_dim, dtype });
            let packing = [Packing::Pat, Packing::PerNode][cases.len() / 2 % 2];
            let (gqa_ratio, page_size) = ([4, 1, 8][cases.len() % 3], [16, 1, 64][cases.len() / 3 % 3]);
            let (grown, hnd) = (cases.len() % 4 < 2, cases.len() % 3 == 0);
            cases.push(Case {
                tile,
                class,
                options,
                gqa_ratio,
                page_size,
                packing,
                grown,
                hnd,
                seed,
                kv_heads: 3,
                own: 0,
                queries: (seed % 4) as u32,
                warpgroups: false,
                mixed: &[],
            });
        }
    }
    cases
}

#[test]
fn fp8_agrees_with_the_reference() {
    let cases = fp8_cases();
    check_all(&Emulator::build(&kernels_of(&cases), &[]), &cases);
}

#[test]
fn fp8_agrees_with_the_reference_where_the_device_converts() {
    let cases: Vec<Case> = fp8_cases().into_iter().filter(|case| case.class.dtype == Dtype::Fp8F16).collect();
    check_all(&Emulator::build(&kernels_of(&cases), &[FP8_CONVERSION]), &cases);
}

/// FP8 by TMA, in warps beside one producer and in warpgroups beside two, with a private KV phase.
#[test]
fn fp8_beside_a_producer_agrees_with_the_reference() {
    let tiles = [
        (128, (16, 32, 2, 3)),
        (128, (16, 64, 4, 1)),
        (128, (32, 32, 4, 2)),
        (128, (64, 64, 4, 2)),
        (128, (64, 32, 8, 3)),
        (128, (64, 128, 8, 1)),
        (128, (64, 128, 4, 1)),
        (128, (128, 64, 8, 4)),
        // Rows of one panel of 64 bytes, which are widened to one of 128.
        (64, (16, 64, 4, 2)),
        (64, (64, 64, 4, 2)),
        (64, (64, 16, 4, 4)),
        (64, (128, 96, 8, 3)),
        // Three panels of 64 bytes, and two or four of 128, which are widened to three, four and eight of 128 beside a query in shared memory.
        (192, (32, 64, 4, 3)),
        (192, (64, 32, 4, 2)),
        (192, (128, 64, 8, 1)),
        (256, (64, 32, 4, 2)),
        (256, (64, 64, 4, 1)),
        (256, (128, 16, 8, 3)),
        (512, (16, 32, 2, 3)),
        (512, (32, 32, 8, 2)),
        (512, (64, 32, 8, 2)),
        // Transposed products.
        (128, (32, 64, 4, 1)),
        (128, (32, 64, 4, 2)),
        (128, (32, 64, 4, 3)),
        (64, (32, 64, 4, 3)),
        (64, (32, 64, 4, 2)),
        (192, (32, 64, 4, 2)),
        (256, (32, 64, 4, 2)),
        (256, (32, 64, 4, 1)),
    ];
    let window = KernelOptions { mask: MaskOptions::ALL, sinks: true, ..CASE.options };
    let mut cases = Vec::new();
    for (index, (head_dim, (m, n, warps, stages))) in tiles.into_iter().enumerate() {
        for (query, options) in
            [(Dtype::F16, CASE.options), (Dtype::Bf16, window), (Dtype::Bf16, CASE.options)]
        {
            for (packing, own) in [(Packing::PerTree, 70), (Packing::PerRequest, 300)] {
                // All combinations at the usual head dimension, at others two or four in turn.
                let is_plain = options == CASE.options;
                if head_dim != 128 && (is_plain == (packing == Packing::PerTree)) == index.is_multiple_of(2) {
                    continue;
                }
                let seed = cases.len() as u64;
                let format = if cases.len() % 3 == 1 { Fp8::E5m2 } else { Fp8::E4m3 };
                let class = Class { head_dim, dtype: query.with_kv(format) };
                let tile = Tile::new(m, n, warps, stages);
                let (page_size, hnd) = ([16, 32, 48, 64][cases.len() % 4], cases.len() % 3 == 0);
                let (queries, grown) = ((seed % 3) as u32, cases.len() % 5 == 0);
                // Of transposed products rows of one request may begin anywhere.
                let gqa_ratio = if m == 32 { [7, 5, 4, 6, 3][cases.len() % 5] } else { CASE.gqa_ratio };
                cases.push(Case {
                    tile,
                    class,
                    options,
                    packing,
                    own,
                    gqa_ratio,
                    page_size,
                    hnd,
                    queries,
                    grown,
                    seed,
                    warpgroups: true,
                    ..CASE
                });
            }
        }
    }
    check_all(&Emulator::build(&kernels_of(&cases), &[WARPGROUPS, FP8_CONVERSION]), &cases);
}

/// One request a byte, each of one token: its output is V, and its LSE the one element of K that the query picks. Exactly.
fn assert_every_byte<E: Element, F: Fp8Number>(
    from_bits: fn(u8) -> F,
    cache: fn(Fp8Pages<F>) -> CaseCache<E>,
    flags: &[&str],
) {
    let (head_dim, dtype) = (128, E::DTYPE.with_kv(F::FORMAT));
    let case = Case {
        class: Class { head_dim, dtype },
        gqa_ratio: 1,
        kv_heads: 1,
        page_size: 1,
        packing: Packing::PerRequest,
        ..CASE
    };
    let dim = head_dim as usize;
    // Every byte at every place, but for NaN and infinities, whose products with the query's zeros are NaN.
    let byte = |request: usize, d: usize, by: usize| {
        let number = from_bits((request + d * by) as u8);
        if number.to_f32().is_finite() { number } else { from_bits(0) }
    };
    let pages = |by| (0..256 * dim).map(|i| byte(i / dim, i % dim, by)).collect();
    let mut query = vec![E::from_f32(0.0); 256 * dim];
    (0..256).for_each(|request| query[request * dim + request % dim] = E::from_f32(1.0));
    let geometry = case.geometry();
    let (key_scales, value_scales) = (vec![0.25], vec![2.0]);
    let batch = Batch {
        geometry,
        entries: (0..256).collect(),
        max_pages: 1,
        seq_lens: vec![1; 256],
        planned_lens: None,
        query_lens: None,
        strides: KvStrides::nhd(&geometry),
        cache: cache(Fp8Pages { keys: pages(1), values: pages(3), key_scales, value_scales }),
        query,
        sinks: Vec::new(),
        scale: 1.0,
        mask: Mask::NONE,
        pages_before: 0,
    };
    let emulator = Emulator::build(&kernels_of(&[case]), flags);
    for outcome in batch.launch(&case, &case.plan_options(Split::None), &emulator, 0).unwrap() {
        for request in 0..256 {
            for (d, found) in outcome.output[request * dim..][..dim].iter().enumerate() {
                // Twice the largest number of e5m2 is beyond f16.
                let expected = E::from_f32(2.0 * byte(request, d, 3).to_f32()).to_f32();
                assert_eq!(found.to_f32(), expected, "{dtype}: element {d} of V in request {request}");
            }
            let expected = 0.25 * byte(request, request % dim, 1).to_f32();
            let error = (outcome.lse[request] - expected).abs();
            assert!(error <= 1e-6 * expected.abs(), "{dtype}: {} for {expected}", outcome.lse[request]);
        }
    }
}

#[test]
fn every_byte_of_fp8_is_read_as_what_it_is() {
    assert_every_byte::<f16, _>(E4m3::from_bits, CaseCache::E4m3, &[]);
    assert_every_byte::<f16, _>(E4m3::from_bits, CaseCache::E4m3, &[FP8_CONVERSION]);
    assert_every_byte::<bf16, _>(E4m3::from_bits, CaseCache::E4m3, &[]);
    assert_every_byte::<f16, _>(E5m2::from_bits, CaseCache::E5m2, &[]);
    assert_every_byte::<bf16, _>(E5m2::from_bits, CaseCache::E5m2, &[FP8_CONVERSION]);
}
