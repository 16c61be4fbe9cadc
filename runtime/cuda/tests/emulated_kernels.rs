//! The CUDA kernels, run on the host by an emulation of the machine, against the f64 reference: numerics, tails, the order of the
//! pipeline, splits and merges.

mod emulation;
#[path = "emulated_kernels/fp8.rs"]
mod fp8;
mod kernel_cases;
#[path = "emulated_kernels/missing.rs"]
mod missing;

use emulation::{EARLY_READ, Emulator, FP8_CONVERSION};
use half::{bf16, f16};
use kernel_cases::{Batch, CASE, Case, Outcome, SOFTCAP, WINDOW, check_all, for_all, kernels_of};
use std::collections::BTreeSet;
use tilewright_conformance::{self as conformance, CaseCache, ConformanceCase, Fp8Pages};
use tilewright_cpu::{Element, Fp8Number};
use tilewright_heuristics::{Backend, Dtype, Fp8, Mask, MaskOptions, Tile};
use tilewright_kernel_templates::cuda::{KernelOptions, sources};
use tilewright_kernel_templates::{Class, CudaLimits, Limits, Space, check};
use tilewright_plan::{E4m3, E5m2, KvStrides, Packing, Split};

/// Emulates a device on which four warps multiply together.
const WARPGROUPS: &str = "-DTILEWRIGHT_EMULATE_WARPGROUPS";

/// For tests that compile more than they run.
const QUICK: &str = "-O0";

/// Every tile of the space that some class can run on the largest device. The other dimensions go round.
fn cases() -> Vec<Case> {
    let largest = Limits::Cuda(CudaLimits::named("h200").unwrap());
    let mut cases = Vec::new();
    let options: Vec<KernelOptions> = KernelOptions::all().collect();
    for &tile in Space::of(Backend::Cuda).tiles() {
        let i = cases.len();
        let dtype = [Dtype::F16, Dtype::Bf16][(i / 3) % 2];
        let class = (0..6)
            .map(|more| Class { head_dim: [256, 96, 128, 192, 64, 512][(i + i / 4 + more) % 6], dtype })
            .find(|class| check(&tile, class, &largest).is_ok());
        let Some(class) = class else { continue };
        cases.push(Case {
            tile,
            class,
            options: if i % 3 == 0 { options[0] } else { options[i / 3 * 3 % 8] },
            gqa_ratio: [4, 1, 8, 3][(i + i / 4) % 4],
            kv_heads: [2, 1, 1][i % 3],
            page_size: [16, 1, 64, 32][(i + i / 16) % 4],
            packing: [Packing::Pat, Packing::PerNode, Packing::Pat, Packing::PerRequest][i / 2 % 4],
            grown: i % 4 < 2,
            hnd: i % 7 < 3,
            own: 0,
            queries: 0,
            seed: i as u64 % 5 + i as u64 / 5,
            warpgroups: false,
            mixed: &[],
        });
    }
    cases
}

#[test]
fn the_cases_have_every_value_of_every_dimension() {
    fn assert_all<T: PartialEq + std::fmt::Debug>(wanted: &[T], of: impl Fn(&Case) -> T) {
        let found: Vec<T> = cases().iter().map(of).collect();
        for value in wanted {
            assert!(found.contains(value), "no case has {value:?}");
        }
    }
    assert_all(&[1, 2, 3, 4, 6], |case| case.tile.stages);
    assert_all(&[16, 32, 64, 128], |case| case.tile.m);
    assert!(cases().len() >= 200);
    assert_all(&Class::HEAD_DIMS.map(|dim| (dim, Dtype::F16)), |case| {
        (case.class.head_dim, case.class.dtype)
    });
    assert_all(&Class::HEAD_DIMS.map(|dim| (dim, Dtype::Bf16)), |case| {
        (case.class.head_dim, case.class.dtype)
    });
    assert_all(&[1, 3, 4, 8], |case| case.gqa_ratio);
    assert_all(&[1, 16, 32, 64], |case| case.page_size);
    assert_all(&[(true, true), (true, false), (false, true), (false, false)], |case| (case.grown, case.hnd));
    assert_all(&KernelOptions::all().collect::<Vec<_>>(), |case| case.options);
    assert_all(&[Packing::Pat, Packing::PerNode, Packing::PerRequest], |case| case.packing);
    for head_dim in Class::HEAD_DIMS {
        for stages in 1..=4 {
            assert_all(&[(head_dim, stages)], |case| (case.class.head_dim, case.tile.stages));
        }
    }
}

#[test]
fn every_variant_agrees_with_the_reference() {
    let cases = cases();
    let started = std::time::Instant::now();
    let emulator = Emulator::build(&kernels_of(&cases), &[]);
    let built = started.elapsed();
    check_all(&emulator, &cases);
    println!("{} cases: {built:.1?} to compile, {:.1?} to run", cases.len(), started.elapsed() - built);
}

#[test]
fn one_variant_agrees_for_every_ratio_page_size_and_packing() {
    let mut cases = Vec::new();
    for gqa_ratio in [1, 3, 4, 5, 6, 7, 8, 16] {
        for page_size in [1, 16, 32, 48, 64, 128, 256] {
            for packing in [Packing::Pat, Packing::PerNode, Packing::PerRequest] {
                let seed = cases.len() as u64;
                let (grown, hnd) = (seed.is_multiple_of(2), seed.is_multiple_of(3));
                cases.push(Case { gqa_ratio, page_size, packing, grown, hnd, seed, ..CASE });
            }
        }
    }
    check_all(&Emulator::build(&kernels_of(&[CASE]), &[]), &cases);
}

/// That the arrays of all these tests end where nothing may be touched, and what is read cannot be written.
#[test]
fn an_access_beyond_an_array_is_noticed() {
    let options = KernelOptions { sinks: true, ..CASE.options };
    let case = Case { options, gqa_ratio: 3, kv_heads: 1, ..CASE };
    let emulator = Emulator::build(&kernels_of(&[case]), &[]);
    let launch = |change: fn(&mut Batch<f16>)| {
        let mut batch = Batch::<f16>::new(&case);
        change(&mut batch);
        batch.launch(&case, &case.plan_options(Split::None), &emulator, 0).map(|outcomes| outcomes.len())
    };
    assert_eq!(launch(|_| ()), Ok(3));
    for (what, shorten) in [
        ("sinks", (|batch| batch.sinks.truncate(2)) as fn(&mut Batch<f16>)),
        ("pages of V", |batch| {
            let CaseCache::Plain { values, .. } = &mut batch.cache else { return };
            values.truncate(values.len() / 2);
        }),
    ] {
        assert!(launch(shorten).is_err(), "{what} that end too early");
    }
    let store = |name: &str, text: &str| match name {
        "decode.cuh" => {
            let begin = text.find("launch_dependents();").expect("every CTA comes by there");
            let written = "*(volatile u32 *)arguments.lengths = 1;";
            format!("{}{written} {}", &text[..begin], &text[begin..])
        }
        _ => text.to_owned(),
    };
    let writes = Emulator::build_changed(&kernels_of(&[case]), &[], store);
    let written = Batch::<f16>::new(&case).launch(&case, &case.plan_options(Split::None), &writes, 0);
    assert!(written.is_err(), "lengths that a kernel writes");
}

/// Page times stride beyond 2^31 and beyond 2^32 elements, by both producers: the cache begins so far before what the batch has of it.
#[test]
fn pages_beyond_32_bits_are_read_where_they_are() {
    let by_tma = Case { tile: tile(64, 64, 4, 2), warpgroups: true, seed: 1, ..CASE };
    let fp8 = Case { class: Class { dtype: Dtype::E5m2F16, ..CASE.class }, ..CASE };
    for case in [CASE, by_tma, Case { page_size: 1, ..CASE }, fp8] {
        let flags: &[&str] = if case.warpgroups { &[WARPGROUPS] } else { &[] };
        let emulator = Emulator::build(&kernels_of(&[case]), flags);
        let stride = Batch::<f16>::new(&case).strides.page as u64;
        for elements in [1_u64 << 31, 1 << 32, 3 << 32] {
            let pages = i32::try_from(elements / stride + 1).unwrap();
            let batch = Batch::<f16>::new(&case).behind_pages(pages);
            batch
                .check(&case, &emulator)
                .unwrap_or_else(|error| panic!("{error} behind {pages} pages: {case:?}"));
        }
    }
}

#[test]
fn several_queries_a_request_agree_with_the_reference() {
    let mut cases = Vec::new();
    let packings = [Packing::Priced, Packing::PerTree, Packing::Pat, Packing::PerNode, Packing::PerRequest];
    for (index, packing) in (0u64..).zip(packings) {
        for (gqa_ratio, page_size, queries) in
            [(1, 16, 4), (4, 1, 16), (8, 64, 5), (5, 48, 16), (1, 16, 40), (2, 1, 40)]
        {
            let (grown, hnd) = (page_size > 1 && queries < 40, index % 2 == 1);
            let options = KernelOptions {
                mask: if cases.len() % 3 == 2 { WINDOW } else { MaskOptions::NONE },
                ..CASE.options
            };
            let tile = Tile { m: if queries == 40 { 32 } else { 16 }, ..CASE.tile };
            let seed = cases.len() as u64;
            cases.push(Case {
                tile,
                options,
                gqa_ratio,
                page_size,
                packing,
                grown,
                hnd,
                queries,
                seed,
                ..CASE
            });
        }
    }
    check_all(&Emulator::build(&kernels_of(&cases), &[]), &cases);
}

/// Trees with a private KV phase: one granule a warp and two, one and two warps for the same rows, KV chunks that
/// begin inside it, and KV ranges that one warp has nearly alone, which have none.
#[test]
fn private_kv_phases_agree_with_the_reference() {
    let cases = private_phase_cases();
    check_all(&Emulator::build(&kernels_of(&cases), &[]), &cases);
}

fn private_phase_cases() -> Vec<Case> {
    let tiles = [(32, 64, 2, 2), (32, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 1), (128, 128, 8, 2)];
    let mut cases = Vec::new();
    for (m, n, warps, stages) in tiles {
        for (gqa_ratio, page_size, own) in [(4, 16, 70), (1, 1, 24), (8, 32, 3)] {
            let (tile, seed) = (Tile::new(m, n, warps, stages), cases.len() as u64);
            let options = KernelOptions {
                mask: if seed % 3 == 1 { SOFTCAP } else { MaskOptions::NONE },
                ..CASE.options
            };
            let (packing, grown) = (Packing::PerTree, seed.is_multiple_of(2));
            cases.push(Case { tile, options, gqa_ratio, page_size, packing, own, grown, seed, ..CASE });
        }
    }
    cases
}

/// Every second tile whose warps can multiply together: with a private KV phase and without, whole granules and windows, each width of a product.
#[test]
fn warps_that_multiply_together_agree_with_the_reference() {
    let together = |case: &Case| case.tile.m.is_multiple_of(64);
    let mut cases: Vec<Case> = cases()
        .into_iter()
        .filter(together)
        .step_by(2)
        .chain(private_phase_cases().into_iter().filter(together))
        .collect();
    assert!(cases.len() >= 35, "{}", cases.len());
    cases.iter_mut().for_each(|case| case.warpgroups = true);
    let per_tree = |case: &Case| Case { packing: Packing::PerTree, own: 3, ..*case };
    cases.extend(cases.iter().step_by(3).map(per_tree).collect::<Vec<_>>());
    check_all(&Emulator::build(&kernels_of(&cases), &[WARPGROUPS]), &cases);
}

/// Heads of 96 and 192 elements, which have three panels: of 64 bytes a row, of which TMA brings no token alone, and of 128. By both producers, in
/// warps and in warpgroups, with windows that begin within a granule, private KV phases, and warps that share rows.
#[test]
fn heads_of_three_panels_agree_with_the_reference() {
    let tiles =
        [(16, 32, 1, 3), (16, 64, 4, 2), (32, 64, 2, 2), (64, 64, 4, 2), (64, 32, 8, 3), (128, 96, 8, 1)];
    let windows = KernelOptions { mask: MaskOptions::ALL, sinks: true, ..CASE.options };
    let of_device = |warpgroups: bool| -> Vec<Case> {
        let mut cases = Vec::new();
        for (m, n, warps, stages) in tiles {
            for (head_dim, dtype) in [(96, Dtype::F16), (192, Dtype::Bf16)] {
                for (options, packing, own) in [
                    (CASE.options, Packing::PerTree, 70),
                    (windows, Packing::Pat, 0),
                    (windows, Packing::PerRequest, 300),
                ] {
                    let seed = cases.len() as u64;
                    let page_sizes = if warpgroups { [16, 1, 48] } else { [1, 16, 64] };
                    cases.push(Case {
                        tile: Tile::new(m, n, warps, stages),
                        class: Class { head_dim, dtype },
                        options,
                        packing,
                        own,
                        page_size: page_sizes[cases.len() / 2 % 3],
                        gqa_ratio: [4, 8, 1, 5][cases.len() % 4],
                        hnd: cases.len().is_multiple_of(3),
                        queries: (seed % 3) as u32,
                        grown: cases.len() % 4 == 1,
                        seed,
                        warpgroups,
                        ..CASE
                    });
                }
            }
        }
        cases
    };
    for (warpgroups, flags) in [(true, &[WARPGROUPS][..]), (false, &[])] {
        let cases = of_device(warpgroups);
        check_all(&Emulator::build(&kernels_of(&cases), flags), &cases);
    }
}

/// Heads of 512 elements, which two, four and eight warps split among themselves. By both producers, with private KV phases and without, and windows.
#[test]
fn heads_that_warps_split_agree_with_the_reference() {
    let tiles = [
        (16, 32, 2, 2),
        (16, 16, 4, 3),
        (16, 32, 8, 2),
        (32, 32, 4, 1),
        (32, 32, 8, 3),
        (64, 16, 8, 4),
        (64, 32, 8, 2),
    ];
    let windows = KernelOptions { mask: MaskOptions::ALL, sinks: true, ..CASE.options };
    let of_device = |warpgroups: bool| -> Vec<Case> {
        let mut cases = Vec::new();
        for (m, n, warps, stages) in tiles {
            for (options, packing, own) in [
                (CASE.options, Packing::PerTree, 70),
                (windows, Packing::Pat, 0),
                (windows, Packing::PerTree, 3),
            ] {
                let seed = cases.len() as u64;
                let dtype = [Dtype::F16, Dtype::Bf16, Dtype::Fp8F16][cases.len() / 2 % 3];
                let page_sizes = if warpgroups { [16, 1, 48] } else { [1, 16, 64] };
                cases.push(Case {
                    tile: Tile::new(m, n, warps, stages),
                    class: Class { head_dim: 512, dtype },
                    options,
                    packing,
                    own,
                    page_size: page_sizes[cases.len() / 3 % 3],
                    gqa_ratio: [4, 8, 1, 5][cases.len() % 4],
                    kv_heads: [1, 2][cases.len() % 2],
                    grown: cases.len() % 5 < 2,
                    hnd: cases.len() % 3 == 0,
                    seed,
                    warpgroups,
                    ..CASE
                });
            }
        }
        cases
    };
    for (warpgroups, flags) in [(true, &[WARPGROUPS][..]), (false, &[])] {
        let cases: Vec<Case> = of_device(warpgroups).into_iter().skip(warpgroups.into()).step_by(2).collect();
        check_all(&Emulator::build(&kernels_of(&cases), flags), &cases);
    }
}

/// Tiles of few rows on a device with TMA: one producer warp, and consumers that multiply warp by warp release its buffers. With
/// granules that are seen in part, and windows that begin within one.
#[test]
fn tiles_of_few_rows_beside_a_producer_agree_with_the_reference() {
    let few_rows = |case: &Case| case.tile.m < 64;
    let all: Vec<Case> = cases().into_iter().filter(few_rows).collect();
    let mut cases: Vec<Case> =
        all.iter().step_by(4).copied().chain(private_phase_cases().into_iter().filter(few_rows)).collect();
    for (index, case) in cases.iter_mut().enumerate() {
        case.warpgroups = true;
        // Pages that TMA cannot load are the other tests' cases.
        case.page_size = [16, 32, 48, 64][index % 4];
    }
    assert!(cases.len() >= 25, "{}", cases.len());
    assert!(cases.iter().any(|case| case.options.mask.window) && cases.iter().any(|case| case.own > 0));
    check_all(&Emulator::build(&kernels_of(&cases), &[WARPGROUPS]), &cases);
}

/// A plan promises tokens that kernels begin to copy before they know the lengths. Where these are shorter all the same, nothing is left on its
/// way when a CTA ends.
#[test]
fn lengths_shorter_than_planned_count() {
    let tile = Tile::of("m64n16w4s3");
    let case = Case { tile, packing: Packing::PerRequest, own: 300, warpgroups: true, ..CASE };
    let emulator = Emulator::build(&kernels_of(&[case]), &[WARPGROUPS]);
    for length in [1, 20, 40] {
        let mut batch = Batch::<f16>::new(&case);
        batch.planned_lens = Some(batch.seq_lens.clone());
        assert!(batch.seq_lens.iter().any(|&planned| planned > length + 3 * 16 + case.page_size));
        batch.seq_lens.iter_mut().for_each(|seen| *seen = (*seen).min(length));
        if let Err(error) = batch.check(&case, &emulator) {
            panic!("{length} tokens: {error}: {case:?}");
        }
    }
}

/// A chunk whose first tokens are shared by three of eight requests, then come private ones of all. Where those three turn out to be short, what was
/// asked for early stays in front of the private KV phase.
#[test]
fn private_kv_phases_begin_behind_what_was_asked_for() {
    const PAGE: u32 = 16;
    let tile = Tile::of("m64n64w4s2");
    let packing = Packing::PerTree;
    let case = Case { tile, packing, gqa_ratio: 8, page_size: PAGE, own: 1000, warpgroups: true, ..CASE };
    let emulator = Emulator::build(&kernels_of(&[case]), &[WARPGROUPS]);
    let mut batch = Batch::<f16>::new(&case);
    let rows = batch.entries.chunks(batch.max_pages).zip(&batch.seq_lens);
    let whole: BTreeSet<i32> =
        rows.flat_map(|(row, len)| row[..(len / PAGE) as usize].iter().copied()).collect();
    let mut whole = whole.into_iter();
    let mut pages = |count: usize| whole.by_ref().take(count).collect::<Vec<_>>();
    let (root, branch) = (pages(41), pages(8));
    batch.max_pages = 60;
    batch.entries.clear();
    batch.seq_lens.clear();
    for (request, own) in [8, 1, 1, 7, 4, 4, 4, 4].map(&mut pages).iter().enumerate() {
        let shared: &[i32] = if request < 3 { &branch } else { &[] };
        batch.entries.extend([&root, shared, own].into_iter().flatten());
        batch.entries.resize((request + 1) * batch.max_pages, -1);
        batch.seq_lens.push((root.len() + shared.len() + own.len()) as u32 * PAGE);
    }
    batch.query.truncate(8 * (batch.geometry.q_heads * batch.geometry.head_dim) as usize);
    batch.planned_lens = Some(batch.seq_lens.clone());
    batch.seq_lens[..3].fill(20);
    // Two chunks: the second one begins with the branch.
    let options = case.plan_options(Split::Fill).with_max_concurrent_ctas(2 * case.kv_heads);
    if let Err(error) = batch.check_plans(&case, &emulator, &[options]) {
        panic!("{error}: {case:?}");
    }
}

#[test]
fn ctas_note_when_they_did_what() {
    let tiles = [(CASE.tile, false), (Tile::of("m64n64w4s2"), true)];
    for (tile, warpgroups) in tiles {
        let options = KernelOptions { timeline: true, ..CASE.options };
        let case = Case { tile, warpgroups, options, ..CASE };
        let flags: &[&str] = if warpgroups { &[WARPGROUPS] } else { &[] };
        check_all(&Emulator::build(&kernels_of(&[case]), flags), &[case]);
    }
}

/// The kernels give a negative scale's sign to the query, and take none for a very small one.
#[test]
fn every_sign_of_the_scale_agrees_with_the_reference() {
    let options = [CASE.options, KernelOptions { mask: SOFTCAP, ..CASE.options }];
    let of = |classes: &[(u32, Dtype)], tile: Tile, warpgroups: bool| -> Vec<Case> {
        let case = |class| options.map(|options| Case { tile, class, options, warpgroups, ..CASE });
        classes.iter().flat_map(|&(head_dim, dtype)| case(Class { head_dim, dtype })).collect()
    };
    let alone = of(&[(64, Dtype::F16), (64, Dtype::E5m2F16), (256, Dtype::F16)], CASE.tile, false);
    // The query in registers, or in shared memory; K and V widened.
    let together = of(
        &[(128, Dtype::F16), (256, Dtype::F16), (128, Dtype::Fp8F16), (256, Dtype::Fp8F16)],
        Tile::of("m64n32w4s2"),
        true,
    );
    let transposed = of(&[(128, Dtype::Fp8F16), (64, Dtype::Fp8F16)], Tile::of("m32n64w4s2"), true);
    let devices: [(&[Case], &[&str]); 3] = [
        (&alone, &[]),
        (&together, &[WARPGROUPS, FP8_CONVERSION]),
        (&transposed, &[WARPGROUPS, FP8_CONVERSION]),
    ];
    for (cases, flags) in devices {
        let emulator = Emulator::build(&kernels_of(cases), flags);
        for case in cases {
            for scale in [-0.125, 0.0] {
                let mut batch = Batch::<f16>::new(case);
                batch.scale = scale;
                if let Err(error) = batch.check(case, &emulator) {
                    panic!("scale {scale}: {error}: {case:?}");
                }
            }
        }
    }
}

/// Rows times tokens beyond which a batch keeps the emulation too long.
const MUCH_WORK: u64 = 1 << 15;

/// What a variant is verified by on a device, where one that hangs has a process to be killed in: warps that share
/// out a step along its tokens, one warpgroup, and two; and both tiles of batch-invariant plans.
#[test]
fn conformance_batches_agree_with_the_reference() {
    let work = |batch: &ConformanceCase| -> u64 {
        batch.table().seq_lens().map(|len| u64::from(len * batch.geometry.q_heads)).sum()
    };
    let alone = |m, n, warps, warpgroups| (tile(m, n, warps, 2), warpgroups, &[][..], false);
    let together = |mixed: &'static [Tile]| (*mixed.last().unwrap(), true, mixed, false);
    let invariant = |m, warps, warpgroups| (tile(m, 64, warps, 2), warpgroups, &[][..], true);
    let kernels = [
        alone(16, 64, 4, false),
        alone(64, 32, 4, true),
        alone(128, 16, 8, true),
        together(MIXES[2]),
        together(MIXES[3]),
        invariant(16, 1, false),
        invariant(64, 4, true),
    ];
    for (tile, warpgroups, mixed, invariant) in kernels {
        let case_of = |batch: ConformanceCase| {
            let options = KernelOptions {
                mask: batch.mask.options(),
                sinks: batch.sinks,
                timeline: false,
                kv_load: tilewright_cuda::kv_load(&batch.strides(), &batch.geometry),
                invariant,
                merge_by_last_cta: false,
            };
            (Case { tile, mixed, options, warpgroups, page_size: batch.geometry.page_size, ..CASE }, batch)
        };
        let (cases, batches): (Vec<Case>, Vec<ConformanceCase>) = conformance::cases(&CASE.class, 3)
            .into_iter()
            .chain(conformance::tile_cases(&CASE.class, &tile, 3))
            .filter(|batch| work(batch) <= MUCH_WORK)
            .chain(conformance::invariant_cases(&CASE.class, 3).into_iter().filter(|_| invariant))
            .filter(|batch| !invariant || batch.serves_invariant_plans())
            .map(case_of)
            .unzip();
        assert!(cases.len() >= 60, "{}", cases.len());
        let emulator = Emulator::build(&kernels_of(&cases), if warpgroups { &[WARPGROUPS] } else { &[] });
        let pairs: Vec<(&Case, &ConformanceCase)> = cases.iter().zip(&batches).collect();
        for_all(&pairs, |(case, batch)| {
            case.check_case(batch, &emulator)
                .map_err(|error| format!("{tile} {mixed:?}, {}: {error}", batch.name))
        });
    }
}

const fn tile(m: u16, n: u16, warps: u16, stages: u16) -> Tile {
    Tile::new(m, n, warps, stages)
}

/// Sets of tiles in one kernel beside TMA producers: a producer warpgroup beside four consumer warps and beside eight, and one warp.
const MIXES: [&[Tile]; 5] = [
    &[tile(16, 64, 4, 2), tile(64, 64, 4, 2)],
    &[tile(16, 128, 4, 1), tile(64, 64, 4, 2)],
    &[tile(16, 64, 4, 3), tile(32, 64, 4, 2), tile(64, 64, 4, 2)],
    &[tile(16, 128, 8, 2), tile(64, 64, 8, 3), tile(128, 64, 8, 2)],
    &[tile(16, 32, 2, 3), tile(32, 32, 2, 2)],
];

/// Several tiles in one launch, in every class that uses TMA, with and without options, in trees, packs and long KV ranges.
#[test]
fn several_tiles_in_one_kernel_agree_with_the_reference() {
    let all = KernelOptions { mask: MaskOptions::ALL, sinks: true, ..CASE.options };
    let classes = [(128, Dtype::F16), (64, Dtype::Bf16), (128, Dtype::Fp8F16)];
    let mut cases = Vec::new();
    for mixed in MIXES {
        for (head_dim, dtype) in classes {
            let class = Class { head_dim, dtype };
            for (packing, own, options) in [
                (Packing::PerTree, 70, CASE.options),
                (Packing::Priced, 3, all),
                (Packing::PerRequest, 300, KernelOptions { timeline: true, ..CASE.options }),
            ] {
                let seed = cases.len() as u64;
                let tile = *mixed.last().unwrap();
                let (page_size, hnd) = ([16, 32, 48, 64][cases.len() % 4], cases.len() % 3 == 0);
                let (gqa_ratio, queries) = ([4, 8, 1, 3, 5][cases.len() % 5], (seed % 3) as u32);
                let grown = cases.len() % 4 == 1;
                cases.push(Case {
                    tile,
                    mixed,
                    class,
                    options,
                    packing,
                    own,
                    page_size,
                    hnd,
                    gqa_ratio,
                    queries,
                    grown,
                    seed,
                    warpgroups: true,
                    ..CASE
                });
            }
        }
    }
    // Pages that TMA cannot load: the same tiles with `cp.async`.
    let cp_async = |case: &Case| Case { page_size: 1, ..*case };
    cases.extend(cases.iter().step_by(9).map(cp_async).collect::<Vec<_>>());
    check_all(&Emulator::build(&kernels_of(&cases), &[WARPGROUPS, FP8_CONVERSION]), &cases);
}

#[test]
fn the_order_of_warps_changes_no_bit() {
    let tile = Tile::of("m32n64w8s3");
    let case = Case {
        tile,
        options: KernelOptions { mask: MaskOptions::ALL, sinks: true, ..KernelOptions::default() },
        ..CASE
    };
    let emulator = Emulator::build(&kernels_of(&[case]), &[]);
    let batch = Batch::<f16>::new(&case);
    let bits = |seed| -> Vec<(Vec<u16>, Vec<u32>)> {
        let outcomes = batch.launch(&case, &case.plan_options(Split::Mean), &emulator, seed).unwrap();
        let bits = |outcome: &Outcome<f16>| {
            let output = outcome.output.iter().map(|x| x.to_bits()).collect();
            (output, outcome.lse.iter().map(|x| x.to_bits()).collect())
        };
        outcomes.iter().map(bits).collect()
    };
    let first = bits(0);
    for seed in 1..7 {
        assert_eq!(bits(seed), first, "seed {seed}");
    }
}
