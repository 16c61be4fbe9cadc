//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, second-level cache 60 MB, memory 150 GB, launch floor 3.01 us, latency of memory 687 cycles, latency of the second-level cache 286 cycles, reading 1 MB 4.1 us, 256 GB/s, reading 4 MB 4.8 us, 874 GB/s, reading 16 MB 8.0 us, 2106 GB/s, reading 64 MB 19.2 us, 3489 GB/s, reading 256 MB 62.7 us, 4282 GB/s, reading 1024 MB 234.0 us, 4590 GB/s, reading 4096 MB 925.2 us, 4642 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of a first read 4642.0 GB/s, price of a read again 9718.1 GB/s, price of a partial 4048.6 GB/s, price of an operation 581395.3 GFLOP/s, price of a CTA 20.8 ns
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 7a858db8859b5ddd, space a7d745f403238396, selector d33a3587f0f98845
//! - scenarios: packs-bf16 c78494111a0c1e7d, packs-few-heads d785e574b3f7f675, packs-gqa2 68ca2ba6fe8f0c62, packs-gqa4 e6bba16e058a1298, packs-gqa8 e798feb1d3f5cdde, packs-head-dims c16de4ba558a5472, packs-mha 473e559e8671e465, packs-page-sizes 200ea155f8ad11a8, packs-trees cd14143e0424683e, packs-trees-gqa4 de980eaa13379413, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-22T06:33:47Z by `tilewright tune --device cuda:0 --budget 400 --max-depth 5 --max-leaves 16 --out /tmp/tune`
//! - counts: 404 workloads, 203 tiles, 64722 measurements, 202814 samples
//! - fit: portfolio 8, depth 5, leaves 16, ties below 3.0 %; no tree of this depth over this portfolio has less mean regret (proven)
//! - regret on pack shapes not fitted, selector: mean 3.43 %, p95 14.07 %, worst 52.79 %
//! - regret on pack shapes not fitted, best single tile: mean 24.73 %, p95 140.20 %, worst 399.58 %
//! - regret on pack shapes not fitted, PAT's rules: mean 64.82 %, p95 129.83 %, worst 251.70 %
//! - regret on pack shapes not fitted, portfolio's oracle: mean 1.33 %, p95 4.88 %, worst 46.66 %
//! - regret on whole batches, selector: mean 5.83 %, p95 28.82 %, worst 34.63 % of 94
//! - regret on whole batches, best single tile (m64n64w4s3): mean 5.54 %, p95 34.20 %, worst 43.86 % of 94
//! - regret on whole batches, PAT's rules: mean 60.37 %, p95 133.59 %, worst 180.72 % of 94
//! - regret on whole batches, PAT: mean 348.31 %, p95 822.84 %, worst 1166.72 % of 94

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
static PORTFOLIO: [Tile; 7] = [
    Tile { m: 16, n: 32, warps: 1, stages: 1 },
    Tile { m: 16, n: 32, warps: 2, stages: 2 },
    Tile { m: 16, n: 64, warps: 4, stages: 2 },
    Tile { m: 32, n: 64, warps: 4, stages: 2 },
    Tile { m: 64, n: 32, warps: 4, stages: 2 },
    Tile { m: 64, n: 64, warps: 4, stages: 2 },
    Tile { m: 64, n: 64, warps: 4, stages: 3 },
];

/// Runs every supported shape; the choice outside of the domain.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 64, n: 32, warps: 4, stages: 3 };

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { first_byte: 215426, again_byte: 102901, partial_byte: 247001, flop: 1720, cta: 20829546194 };

/// The shapes that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: PackShape { rows: 1, kv_len: 32, own: 0, packs: 1, kv_heads: 1, items: 1, gqa_ratio: 1, head_dim: 64, page_size: 1, dtype: 0 },
    max: PackShape { rows: 8192, kv_len: 131072, own: 256, packs: 4096, kv_heads: 32, items: 131072, gqa_ratio: 8, head_dim: 256, page_size: 256, dtype: 1 },
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
        (64, 0) => 0b1111111, // f16
        (64, 1) => 0b1111111, // bf16
        (128, 0) => 0b1111111, // f16
        (128, 1) => 0b1111111, // bf16
        (256, 0) => 0b0011111, // f16
        (256, 1) => 0b0011111, // bf16
        _ => 0,
    }
}

/// The tree: indices into the portfolio, the preferred one first.
const fn ranked(shape: &PackShape) -> &'static [u8] {
    if shape.packs <= 1 {
        if shape.kv_len <= 512 {
            if shape.rows <= 512 {
                // m16n64w4s2: 66 workloads, mean regret 1.67 %
                &[2]
            } else if shape.rows <= 1024 {
                // m32n64w4s2: 19 workloads, mean regret 2.55 %
                &[3]
            } else {
                // m64n64w4s3: 6 workloads, mean regret 0.17 %
                &[6]
            }
        } else if shape.rows <= 16 {
            // m16n64w4s2: 23 workloads, mean regret 0.87 %
            &[2]
        } else if shape.rows <= 256 {
            // m64n64w4s2: 20 workloads, mean regret 0.06 %
            &[5, 4]
        } else {
            // m64n64w4s3: 24 workloads, mean regret 0.28 %
            &[6, 4]
        }
    } else if shape.items <= 256 {
        if shape.kv_len <= 64 {
            if shape.rows <= 256 {
                // m64n32w4s2: 16 workloads, mean regret 3.03 %
                &[4]
            } else {
                // m16n32w1s1: 6 workloads, mean regret 0.00 %
                &[0]
            }
        } else if shape.rows <= 16 {
            // m16n64w4s2: 37 workloads, mean regret 0.63 %
            &[2]
        } else {
            // m64n64w4s3: 51 workloads, mean regret 2.09 %
            &[6, 4]
        }
    } else if shape.rows <= 32 {
        if shape.items <= 512 {
            // m16n32w2s2: 38 workloads, mean regret 0.89 %
            &[1]
        } else {
            // m16n32w1s1: 66 workloads, mean regret 0.79 %
            &[0]
        }
    } else if shape.kv_len <= 64 {
        // m16n32w1s1: 13 workloads, mean regret 1.90 %
        &[0]
    } else {
        // m64n64w4s3: 19 workloads, mean regret 0.48 %
        &[6]
    }
}
