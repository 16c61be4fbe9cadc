use super::*;
use crate::{Choices, Domain};

static SETS: [TileSet<'static>; 1] = [TileSet::new(&[TILE])];

const TILE: Tile = Tile::of("m4n64w1s1");
const ANY: Domain = Domain {
    min: BatchShape::from_values([0; BatchShape::COUNT]),
    max: BatchShape::from_values([u32::MAX; BatchShape::COUNT]),
};

const fn selector(name: &'static str, units: u32) -> Selector {
    let device = Device { backend: Backend::Cpu, name, capability: "avx2", units };
    let prices = Prices { cta: units as u64, ..Prices::CPU };
    Selector {
        device,
        domain: ANY,
        sets: &SETS,
        safe_default: TILE,
        prices,
        safe_set: SETS[0],
        choices: Choices::Code { choose: |_| SETS[0], follow: |_, _| SETS[0], ranked: |_| (&[0], 1) },
    }
}

static SMALL: Selector = selector("small", 2);
static LARGE: Selector = selector("large", 8);

fn found(name: &str, capability: &str, units: u32) -> Match {
    let device = Device { backend: Backend::Cpu, name, capability, units };
    lookup_among(&[&SMALL, &LARGE], &device, None, &[TILE]).matched
}

#[test]
fn the_exact_device_comes_first() {
    assert!(matches!(found("small", "avx2", 2), Match::Exact(s) if s.device.name == "small"));
}

#[test]
fn a_gpu_follows_the_nearest_of_its_architecture() {
    let gpu = |selector: &Selector| Selector {
        device: Device { backend: Backend::Cuda, capability: "sm_90a", ..selector.device },
        ..*selector
    };
    let selectors: [&'static Selector; 2] = [&SMALL, &LARGE].map(|s| &*Box::leak(Box::new(gpu(s))));
    for (units, nearest) in [(1, "small"), (4, "small"), (6, "large"), (132, "large")] {
        let device = Device { backend: Backend::Cuda, name: "other", capability: "sm_90a", units };
        // No tile runs all classes of kernels, and no selector needs that.
        let matched = lookup_among(&selectors, &device, None, &[Tile { m: 1, ..TILE }]).matched;
        assert!(matches!(matched, Match::SameCapability(s) if s.device.name == nearest), "{units}");
    }
}

#[test]
fn then_the_largest_alike_device_that_is_not_larger() {
    assert!(matches!(found("other", "avx2", 4), Match::SameCapability(s) if s.device.name == "small"));
    assert!(matches!(found("other", "avx2", 16), Match::SameCapability(s) if s.device.name == "large"));
}

#[test]
fn then_the_analytic_rules() {
    assert!(matches!(found("other", "neon", 4), Match::Analytic));
    assert!(matches!(found("other", "avx2", 1), Match::Analytic));
}

#[test]
fn rules_choose_among_tiles_that_run() {
    let device = Device { backend: Backend::Cpu, name: "other", capability: "neon", units: 4 };
    let [low, high] = [Tile { m: 1, ..TILE }, TILE];
    let mut selection = lookup_among(&[], &device, None, &[low, high]);
    let batch = BatchShape::from_values([4; BatchShape::COUNT]);
    let first = selection.select(&batch).tiles()[0];
    let other = if first == low { high } else { low };
    selection.leave_out(4, Dtype::Fp8Bf16, &[first]);
    assert_eq!(selection.select(&batch).tiles(), [other]);
    selection.leave_out(4, Dtype::Fp8Bf16, &[low, high]);
    assert_eq!(selection.select(&batch).tiles().len(), 1, "there is always a choice");
}

#[test]
fn prices_come_with_the_selector() {
    let prices = |name, capability, units| {
        let device = Device { backend: Backend::Cpu, name, capability, units };
        lookup_among(&[&SMALL, &LARGE], &device, None, &[TILE]).prices()
    };
    assert_eq!(prices("large", "avx2", 8), Some(LARGE.prices));
    assert_eq!(prices("other", "avx2", 4), Some(SMALL.prices.scaled((2, 4), None)), "of the same capability");
    assert_eq!(prices("other", "neon", 4), None);
}

#[test]
fn a_selector_without_a_runnable_tile_is_passed_over() {
    let device = Device { backend: Backend::Cpu, name: "other", capability: "avx2", units: 8 };
    let others = [Tile { m: 1, ..TILE }];
    let selection = lookup_among(&[&SMALL, &LARGE], &device, None, &others);
    assert!(matches!(selection.matched, Match::Analytic));
    assert_eq!(selection.select(&BatchShape::from_values([1; BatchShape::COUNT])).tiles(), others);
}

const PAIR: [Tile; 2] = [Tile::of("m64n64w4s2"), Tile::of("m16n64w4s2")];
static GPU_SETS: [TileSet<'static>; 2] = [TileSet::new(&[PAIR[0]]), TileSet::new(&[PAIR[1]])];

/// A GPU's selector, which prefers 64 rows to 16.
const fn gpu(name: &'static str, capability: &'static str, units: u32, gigabytes_a_second: u64) -> Selector {
    let device = Device { backend: Backend::Cuda, name, capability, units };
    let prices = Prices { hbm_byte: 1_000_000_000 / gigabytes_a_second, ..Prices::H200 };
    Selector {
        device,
        domain: ANY,
        sets: &GPU_SETS,
        safe_default: PAIR[1],
        prices,
        safe_set: GPU_SETS[1],
        choices: Choices::Code {
            choose: |_| GPU_SETS[0],
            follow: |_, _| GPU_SETS[0],
            ranked: |_| (&[0, 1], 0b11),
        },
    }
}

static A100: Selector = gpu("NVIDIA A100-SXM4-80GB", "sm_80", 108, 1_850);
static H100: Selector = gpu("NVIDIA H100 80GB HBM3", "sm_90a", 132, 3_100);
static H200: Selector = gpu("NVIDIA H200", "sm_90a", 132, 4_600);

fn gpu_selection(name: &str, capability: &str, units: u32, gigabytes_a_second: u64) -> Selection {
    let device = Device { backend: Backend::Cuda, name, capability, units };
    let bandwidth = Some(gigabytes_a_second * 1_000_000_000);
    lookup_among(&[&A100, &H100, &H200], &device, bandwidth, &[PAIR[1]])
}

#[test]
fn gpus_follow_their_model_then_the_most_alike() {
    for (name, capability, units, bandwidth, followed, how) in [
        ("NVIDIA H200", "sm_90a", 132, 4_800, "NVIDIA H200", "exact"),
        ("NVIDIA H100 PCIe", "sm_90a", 114, 2_000, "NVIDIA H100 80GB HBM3", "same capability"),
        ("NVIDIA H100 NVL", "sm_90a", 132, 3_900, "NVIDIA H100 80GB HBM3", "same capability"),
        ("NVIDIA H200 NVL", "sm_90a", 132, 4_800, "NVIDIA H200", "same capability"),
        ("NVIDIA GH200 480GB", "sm_90a", 132, 4_000, "NVIDIA H200", "same capability"),
        ("NVIDIA H20", "sm_90a", 78, 4_000, "NVIDIA H200", "same capability"),
        ("NVIDIA A100-PCIE-40GB", "sm_80", 108, 1_555, "NVIDIA A100-SXM4-80GB", "same capability"),
        ("NVIDIA GeForce RTX 4090", "sm_89", 128, 1_008, "NVIDIA A100-SXM4-80GB", "other architecture"),
        ("NVIDIA B200", "sm_100a", 148, 8_000, "NVIDIA H200", "other architecture"),
    ] {
        let selection = gpu_selection(name, capability, units, bandwidth);
        let found = selection.matched.selector().map(|selector| selector.device.name);
        assert_eq!((found, selection.matched.name()), (Some(followed), how), "{name}");
        let device = Device { backend: Backend::Cuda, name, capability, units };
        assert_eq!(selection.warning(&device).is_none(), how == "exact", "{name}");
    }
}

#[test]
fn a_tile_that_does_not_run_here_leaves_its_class_only() {
    let mut selection = gpu_selection("NVIDIA B200", "sm_100a", 148, 8_000);
    let batch = |head_dim| BatchShape {
        head_dim,
        dtype: Dtype::F16.code(),
        ..BatchShape::from_values([4; BatchShape::COUNT])
    };
    selection.leave_out(128, Dtype::F16, &[PAIR[0]]);
    assert_eq!(selection.select(&batch(128)).tiles(), [PAIR[1]], "the ranking goes on");
    assert_eq!(selection.select(&batch(64)).tiles(), [PAIR[0]]);
    assert_eq!(selection.tiles_of(128, Dtype::F16), [PAIR[1]]);
    selection.leave_out(128, Dtype::F16, &[PAIR[1]]);
    assert_eq!(selection.select(&batch(128)).tiles().len(), 1, "there is always a choice");
    assert_eq!(selection.explain(&batch(64)).0.tiles(), [PAIR[0]]);
}

#[test]
fn rules_choose_for_a_class_that_the_selector_does_not_know() {
    let mut selection = gpu_selection("NVIDIA B200", "sm_100a", 148, 8_000);
    let before = selection.tiles_of(64, Dtype::F16);
    selection.choose_by_rules(64, Dtype::F16);
    assert!(selection.unknown.is_empty(), "it knows the class");
    assert_eq!(selection.tiles_of(64, Dtype::F16), before);

    static KNOWS_ONE: Selector = Selector {
        choices: Choices::Code {
            choose: |_| SETS[0],
            follow: |_, _| SETS[0],
            ranked: |batch| (&[0], if batch.head_dim == 64 { 1 } else { 0 }),
        },
        ..selector("small", 2)
    };
    let device = Device { backend: Backend::Cpu, name: "small", capability: "avx2", units: 2 };
    let mut selection = lookup_among(&[&KNOWS_ONE], &device, None, &[TILE]);
    for head_dim in [64, 96] {
        selection.choose_by_rules(head_dim, Dtype::F16);
    }
    assert_eq!(selection.unknown, [(96, Dtype::F16)]);
    // A tile that is left out later does not end that, nor does none.
    selection.leave_out(96, Dtype::F16, &[]);
    assert_eq!(selection.runnable, [((96, Dtype::F16), 1)]);
}

#[test]
fn prices_of_a_relative_are_scaled() {
    let [same, half] = [(132, 4_842), (66, 2_421)].map(|(units, bandwidth)| {
        gpu_selection("NVIDIA H200 NVL", "sm_90a", units, bandwidth).prices().unwrap()
    });
    let close = |a: u64, b: u64| (a as f64 / b as f64 - 1.0).abs() < 0.01;
    assert!(close(same.hbm_byte, H200.prices.hbm_byte) && same.flop == H200.prices.flop, "{same:?}");
    assert!(close(half.hbm_byte, 2 * same.hbm_byte) && close(half.cta, 2 * same.cta), "{half:?}");
}
