//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, second-level cache 60 MB, memory 150 GB, launch floor 2.98 us, latency of memory 678 cycles, latency of the second-level cache 280 cycles, reading 1 MB 4.0 us, 260 GB/s, reading 4 MB 4.8 us, 880 GB/s, reading 16 MB 7.9 us, 2123 GB/s, reading 64 MB 19.0 us, 3531 GB/s, reading 256 MB 62.3 us, 4306 GB/s, reading 1024 MB 234.6 us, 4577 GB/s, reading 4096 MB 926.2 us, 4637 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of a first read 4637.2 GB/s, price of a read again 9429.7 GB/s, price of a partial 4072.1 GB/s, price of an operation 585137.5 GFLOP/s, price of a CTA 20.8 ns
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 09c700f847a7a787, space a7d745f403238396, selector 1f405d5168134dc4
//! - scenarios: packs-bf16 c78494111a0c1e7d, packs-few-heads d785e574b3f7f675, packs-gqa2 68ca2ba6fe8f0c62, packs-gqa4 e6bba16e058a1298, packs-gqa8 e798feb1d3f5cdde, packs-head-dims c16de4ba558a5472, packs-mha 473e559e8671e465, packs-page-sizes 200ea155f8ad11a8, packs-trees cd14143e0424683e, packs-trees-gqa4 de980eaa13379413, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-22T02:05:40Z by `tilewright tune --budget 350`
//! - counts: 404 workloads, 205 tiles, 65140 measurements, 201112 samples
//! - fit: portfolio 8, depth 4, leaves 12, ties below 3.0 %; no tree of this depth over this portfolio has less mean regret (proven)
//! - regret on pack shapes not fitted, selector: mean 5.28 %, p95 21.51 %, worst 51.54 %
//! - regret on pack shapes not fitted, best single tile: mean 25.06 %, p95 144.59 %, worst 386.82 %
//! - regret on pack shapes not fitted, PAT's rules: mean 66.72 %, p95 136.84 %, worst 243.21 %
//! - regret on pack shapes not fitted, portfolio's oracle: mean 1.34 %, p95 5.01 %, worst 47.01 %
//! - regret on whole batches, selector 4911ecf6d8c3cc25: mean 6.48 %, p95 29.53 %, worst 36.07 % of 94
//! - regret on whole batches, best single tile (m64n64w4s2): mean 3.58 %, p95 21.04 %, worst 36.89 % of 94
//! - regret on whole batches, PAT's rules: mean 58.20 %, p95 117.29 %, worst 182.68 % of 94
//! - regret on whole batches, PAT: mean 332.15 %, p95 785.72 %, worst 1139.22 % of 94

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
static PORTFOLIO: [Tile; 5] = [
    Tile { m: 16, n: 32, warps: 1, stages: 1 },
    Tile { m: 16, n: 32, warps: 2, stages: 2 },
    Tile { m: 16, n: 64, warps: 4, stages: 2 },
    Tile { m: 64, n: 32, warps: 4, stages: 2 },
    Tile { m: 64, n: 64, warps: 4, stages: 2 },
];

/// Runs every supported shape; the choice outside of the domain.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 64, n: 32, warps: 4, stages: 3 };

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { first_byte: 215649, again_byte: 106048, partial_byte: 245571, flop: 1709, cta: 20806818087 };

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
        (64, 0) => 0b11111, // f16
        (64, 1) => 0b11111, // bf16
        (128, 0) => 0b11111, // f16
        (128, 1) => 0b11111, // bf16
        (256, 0) => 0b01111, // f16
        (256, 1) => 0b01111, // bf16
        _ => 0,
    }
}

/// The tree: indices into the portfolio, the preferred one first.
const fn ranked(shape: &PackShape) -> &'static [u8] {
    if shape.rows <= 16 {
        if shape.items <= 512 {
            if shape.items <= 256 {
                // m16n64w4s2: 100 workloads, mean regret 1.36 %
                &[2]
            } else {
                // m16n32w2s2: 38 workloads, mean regret 1.05 %
                &[1]
            }
        } else if shape.kv_len <= 512 {
            // m16n32w1s1: 40 workloads, mean regret 0.90 %
            &[0]
        } else {
            // m16n64w4s2: 25 workloads, mean regret 0.76 %
            &[2]
        }
    } else if shape.own <= 128 {
        if shape.kv_len <= 64 {
            if shape.packs <= 1 {
                // m16n32w2s2: 17 workloads, mean regret 5.02 %
                &[1]
            } else {
                // m16n32w1s1: 27 workloads, mean regret 3.02 %
                &[0]
            }
        } else if shape.head_dim <= 128 {
            // m64n64w4s2: 111 workloads, mean regret 1.56 %
            &[4]
        } else {
            // m64n32w4s2: 3 workloads, mean regret 0.69 %
            &[3]
        }
    } else if shape.items <= 8 {
        if shape.kv_len <= 512 {
            // m16n32w2s2: 16 workloads, mean regret 3.59 %
            &[1]
        } else {
            // m64n64w4s2: 8 workloads, mean regret 2.60 %
            &[4]
        }
    } else {
        // m64n64w4s2: 19 workloads, mean regret 3.89 %
        &[4]
    }
}
