//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, second-level cache 60 MB, memory 150 GB, launch floor 2.98 us, latency of memory 662 cycles, latency of the second-level cache 288 cycles, reading 1 MB 3.9 us, 269 GB/s, reading 4 MB 4.8 us, 874 GB/s, reading 16 MB 8.0 us, 2097 GB/s, reading 64 MB 19.3 us, 3484 GB/s, reading 256 MB 63.8 us, 4207 GB/s, reading 1024 MB 239.3 us, 4487 GB/s, reading 4096 MB 948.9 us, 4526 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of a first read 4526.1 GB/s, price of a read again 9450.9 GB/s, price of a partial 4077.1 GB/s, price of an operation 581057.5 GFLOP/s, price of a CTA 20.8 ns
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 8cea18596bd5d21e, space a7d745f403238396, selector efd92eca9230d3b3
//! - scenarios: packs-bf16 c78494111a0c1e7d, packs-few-heads d785e574b3f7f675, packs-gqa2 68ca2ba6fe8f0c62, packs-gqa4 e6bba16e058a1298, packs-gqa8 e798feb1d3f5cdde, packs-head-dims c16de4ba558a5472, packs-mha 473e559e8671e465, packs-page-sizes 200ea155f8ad11a8, packs-trees cd14143e0424683e, packs-trees-gqa4 4baf3d70758727f3, packs-trees-long-own 46b89ae31d5e3308, packs-trees-many-rows 8f8eb00fc6f112ca, packs-trees-small 0327d99c7f1a7483, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-22T12:15:06Z by `tilewright tune --device cuda:0 --budget 330 --max-depth 5 --max-leaves 16 --out /tmp/tune`
//! - counts: 482 workloads, 209 tiles, 76980 measurements, 231475 samples
//! - fit: portfolio 8, depth 5, leaves 16, ties below 1.0 %; no tree of depth 4 over this portfolio has less mean regret (proven)
//! - regret on pack shapes not fitted, selector: mean 2.78 %, p95 9.48 %, worst 55.94 %
//! - regret on pack shapes not fitted, best single tile: mean 17.73 %, p95 66.32 %, worst 523.53 %
//! - regret on pack shapes not fitted, PAT's rules: mean 52.65 %, p95 116.71 %, worst 254.29 %
//! - regret on pack shapes not fitted, portfolio's oracle: mean 1.20 %, p95 4.28 %, worst 55.89 %
//! - regret on whole batches, selector 8f92f752aeaac5fc: mean 5.38 %, p95 25.90 %, worst 57.16 % of 94
//! - regret on whole batches, best single tile (m64n64w4s2): mean 5.93 %, p95 28.52 %, worst 44.09 % of 94
//! - regret on whole batches, PAT's rules: mean 45.58 %, p95 121.16 %, worst 190.15 % of 94
//! - regret on whole batches, PAT: mean 308.81 %, p95 765.62 %, worst 1038.60 % of 94

use crate::{Backend, Device, Domain, PackShape, Prices, Selector, Tile, first_feasible};

/// The selector.
#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cuda, name: "NVIDIA H200", capability: "sm_90a", units: 132 },
    domain: DOMAIN,
    portfolio: &PORTFOLIO,
    safe_default: SAFE_DEFAULT,
    prices: PRICES,
    choose,
};

/// The tiles that the tree chooses from.
#[rustfmt::skip]
static PORTFOLIO: [Tile; 8] = [
    Tile { m: 16, n: 32, warps: 1, stages: 1 },
    Tile { m: 16, n: 32, warps: 2, stages: 2 },
    Tile { m: 16, n: 64, warps: 4, stages: 2 },
    Tile { m: 32, n: 32, warps: 2, stages: 2 },
    Tile { m: 32, n: 64, warps: 4, stages: 2 },
    Tile { m: 64, n: 32, warps: 4, stages: 2 },
    Tile { m: 64, n: 64, warps: 4, stages: 2 },
    Tile { m: 64, n: 128, warps: 4, stages: 1 },
];

/// Runs every supported shape; the choice outside of the domain.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 64, n: 64, warps: 4, stages: 2 };

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { first_byte: 220939, again_byte: 105810, partial_byte: 245273, flop: 1721, cta: 20757575949, merge: 4000000000000 };

/// The shapes that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: PackShape { rows: 1, kv_len: 32, own: 0, packs: 1, kv_heads: 1, items: 1, all_rows: 0, gqa_ratio: 1, head_dim: 64, page_size: 1, dtype: 0 },
    max: PackShape { rows: 8192, kv_len: 131072, own: 16384, packs: 4096, kv_heads: 32, items: 131072, all_rows: 4294967295, gqa_ratio: 8, head_dim: 256, page_size: 256, dtype: 1 },
};

fn choose(shape: &PackShape) -> Tile {
    if !DOMAIN.contains(shape) {
        return SAFE_DEFAULT;
    }
    match first_feasible(ranked(shape), feasible(shape)) {
        Some(choice) => PORTFOLIO[choice as usize],
        None => SAFE_DEFAULT,
    }
}

/// The tiles of the portfolio that can run the shape's kernels, one bit each.
#[rustfmt::skip]
const fn feasible(shape: &PackShape) -> u32 {
    match (shape.head_dim, shape.dtype) {
        (64, 0) => 0b11111111, // f16
        (64, 1) => 0b11111111, // bf16
        (128, 0) => 0b11111111, // f16
        (128, 1) => 0b11111111, // bf16
        (256, 0) => 0b01111111, // f16
        (256, 1) => 0b01111111, // bf16
        _ => 0,
    }
}

/// The tree: indices into the portfolio, the preferred one first.
const fn ranked(shape: &PackShape) -> &'static [u8] {
    if shape.all_rows <= 4096 {
        if shape.rows <= 32 {
            if shape.all_rows <= 128 {
                // m16n64w4s2: 50 workloads, mean regret 1.87 %
                &[2]
            } else {
                // m16n32w2s2: 99 workloads, mean regret 1.57 %
                &[1]
            }
        } else if shape.kv_len <= 896 {
            if shape.own <= 128 {
                // m16n64w4s2: 31 workloads, mean regret 2.13 %
                &[2]
            } else {
                // m16n32w2s2: 15 workloads, mean regret 2.22 %
                &[1]
            }
        } else if shape.own <= 256 {
            // m64n64w4s2: 36 workloads, mean regret 1.96 %
            &[6]
        } else {
            // m16n64w4s2: 11 workloads, mean regret 1.57 %
            &[2]
        }
    } else if shape.all_rows <= 12288 {
        if shape.rows <= 64 {
            if shape.rows <= 16 {
                // m16n32w2s2: 40 workloads, mean regret 0.88 %
                &[1]
            } else {
                // m64n64w4s2: 10 workloads, mean regret 1.95 %
                &[6]
            }
        } else if shape.kv_len <= 576 {
            // m32n64w4s2: 18 workloads, mean regret 1.99 %
            &[4]
        } else {
            // m64n128w4s1: 14 workloads, mean regret 4.32 %
            &[7, 5]
        }
    } else if shape.rows <= 32 {
        // m16n32w1s1: 37 workloads, mean regret 2.05 %
        &[0]
    } else if shape.kv_len <= 64 {
        // m32n32w2s2: 26 workloads, mean regret 1.04 %
        &[3]
    } else {
        // m64n128w4s1: 95 workloads, mean regret 1.32 %
        &[7, 5]
    }
}
