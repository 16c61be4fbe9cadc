//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, second-level cache 60 MB, memory 150 GB, launch floor 2.94 us, latency of memory 662 cycles, latency of the second-level cache 286 cycles, reading 1 MB 4.1 us, 258 GB/s, reading 4 MB 4.9 us, 857 GB/s, reading 16 MB 7.9 us, 2131 GB/s, reading 64 MB 19.4 us, 3466 GB/s, reading 256 MB 63.9 us, 4199 GB/s, reading 1024 MB 239.6 us, 4480 GB/s, reading 4096 MB 946.1 us, 4540 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of a first read 4539.8 GB/s, price of a read again 9558.6 GB/s, price of a partial 4064.3 GB/s, price of an operation 579710.1 GFLOP/s, price of a CTA 3.1 ns
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 297af3ce8d47c278, space a7d745f403238396, selector f474e5e67b27f3fb
//! - scenarios: packs-bf16 0548eb9ac252a6de, packs-few-heads 6f438ba0b420769e, packs-gqa2 498e14e9df1349c9, packs-gqa4 d55b65f0dabadda8, packs-gqa8 b13ffe9f16303f8e, packs-head-dims 0d22f533056c5f06, packs-mha 7e46fe086c2b4a7c, packs-page-sizes f83d2a3d0a119e47, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-21T13:15:58Z by `tilewright tune`
//! - counts: 244 workloads, 206 tiles, 39227 measurements, 113665 samples
//! - fit: portfolio 8, depth 4, leaves 12, ties below 3.0 %; no tree of this depth over this portfolio has less mean regret (proven)
//! - regret on pack shapes not fitted, selector: mean 6.79 %, p95 29.56 %, worst 47.24 %
//! - regret on pack shapes not fitted, best single tile: mean 29.65 %, p95 95.08 %, worst 270.15 %
//! - regret on pack shapes not fitted, PAT's rules: mean 66.40 %, p95 135.38 %, worst 290.58 %
//! - regret on pack shapes not fitted, portfolio's oracle: mean 2.00 %, p95 7.08 %, worst 22.91 %
//! - regret on whole batches, selector: mean 13.13 %, p95 50.41 %, worst 96.45 % of 94
//! - regret on whole batches, best single tile (m32n64w4s2): mean 7.86 %, p95 28.90 %, worst 35.19 % of 94
//! - regret on whole batches, PAT's rules: mean 62.63 %, p95 142.12 %, worst 189.32 % of 94

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
static PORTFOLIO: [Tile; 6] = [
    Tile { m: 16, n: 32, warps: 1, stages: 1 },
    Tile { m: 16, n: 32, warps: 2, stages: 2 },
    Tile { m: 16, n: 64, warps: 4, stages: 3 },
    Tile { m: 32, n: 64, warps: 4, stages: 2 },
    Tile { m: 64, n: 32, warps: 4, stages: 2 },
    Tile { m: 64, n: 64, warps: 4, stages: 3 },
];

/// Runs every supported shape; the choice outside of the domain.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 32, n: 64, warps: 4, stages: 2 };

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { first_byte: 220276, again_byte: 104618, partial_byte: 246047, flop: 1725, cta: 3079545532 };

/// The shapes that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: PackShape { rows: 1, kv_len: 32, own: 0, packs: 1, kv_heads: 1, items: 1, gqa_ratio: 1, head_dim: 64, page_size: 1, dtype: 0 },
    max: PackShape { rows: 8192, kv_len: 131072, own: 0, packs: 4096, kv_heads: 32, items: 131072, gqa_ratio: 8, head_dim: 256, page_size: 256, dtype: 1 },
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
        (64, 0) => 0b111111, // f16
        (64, 1) => 0b111111, // bf16
        (128, 0) => 0b111111, // f16
        (128, 1) => 0b111111, // bf16
        (256, 0) => 0b011111, // f16
        (256, 1) => 0b011111, // bf16
        _ => 0,
    }
}

/// The tree: indices into the portfolio, the preferred one first.
const fn ranked(shape: &PackShape) -> &'static [u8] {
    if shape.packs <= 1 {
        if shape.kv_len <= 512 {
            if shape.rows <= 512 {
                // m16n64w4s3: 30 workloads, mean regret 1.15 %
                &[2]
            } else {
                // m32n64w4s2: 5 workloads, mean regret 10.15 %
                &[3]
            }
        } else if shape.rows <= 64 {
            // m16n64w4s3: 18 workloads, mean regret 1.32 %
            &[2]
        } else {
            // m64n32w4s2: 21 workloads, mean regret 16.39 %
            &[4]
        }
    } else if shape.rows <= 16 {
        if shape.items <= 512 {
            if shape.items <= 128 {
                // m16n64w4s3: 26 workloads, mean regret 0.67 %
                &[2]
            } else {
                // m16n32w2s2: 23 workloads, mean regret 1.64 %
                &[1]
            }
        } else if shape.kv_len <= 512 {
            // m16n32w1s1: 40 workloads, mean regret 1.30 %
            &[0]
        } else {
            // m16n64w4s3: 19 workloads, mean regret 1.33 %
            &[2]
        }
    } else if shape.kv_len <= 256 {
        // m64n32w4s2: 35 workloads, mean regret 5.08 %
        &[4]
    } else if shape.items <= 32 {
        // m32n64w4s2: 7 workloads, mean regret 1.61 %
        &[3]
    } else {
        // m64n64w4s3: 20 workloads, mean regret 5.65 %
        &[5]
    }
}
