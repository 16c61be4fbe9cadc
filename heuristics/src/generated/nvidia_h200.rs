//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, second-level cache 60 MB, memory 150 GB, launch floor 3.01 us, latency of memory 685 cycles, latency of the second-level cache 288 cycles, reading 1 MB 4.1 us, 258 GB/s, reading 4 MB 4.9 us, 851 GB/s, reading 16 MB 7.9 us, 2123 GB/s, reading 64 MB 19.1 us, 3513 GB/s, reading 256 MB 62.5 us, 4293 GB/s, reading 1024 MB 233.9 us, 4590 GB/s, reading 4096 MB 927.0 us, 4633 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 09d626806ffcb660, space a7d745f403238396, selector 9b66f3c700866cc0
//! - scenarios: packs-bf16 0548eb9ac252a6de, packs-few-heads 6f438ba0b420769e, packs-gqa2 498e14e9df1349c9, packs-gqa4 d55b65f0dabadda8, packs-gqa8 b13ffe9f16303f8e, packs-head-dims 0d22f533056c5f06, packs-mha 7e46fe086c2b4a7c, packs-page-sizes f83d2a3d0a119e47, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-21T08:59:19Z by `tilewright tune`
//! - counts: 244 workloads, 207 tiles, 38698 measurements, 119920 samples
//! - fit: portfolio 8, depth 4, leaves 12, ties below 3.0 %; no tree of this depth over this portfolio has less mean regret (proven)
//! - prices: not measured, the defaults of the backend
//! - regret on pack shapes not fitted, selector: mean 9.13 %, p95 34.14 %, worst 110.55 %
//! - regret on pack shapes not fitted, best single tile: mean 24.74 %, p95 64.12 %, worst 148.15 %
//! - regret on pack shapes not fitted, PAT's rules: mean 49.29 %, p95 106.61 %, worst 215.23 %
//! - regret on pack shapes not fitted, portfolio's oracle: mean 3.03 %, p95 11.02 %, worst 36.13 %
//! - regret on whole batches, selector: mean 8.26 %, p95 36.74 %, worst 74.13 % of 94
//! - regret on whole batches, best single tile (m32n64w2s1): mean 23.43 %, p95 61.19 %, worst 77.72 % of 94
//! - regret on whole batches, PAT's rules: mean 72.73 %, p95 226.57 %, worst 319.24 % of 94

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
    Tile { m: 16, n: 32, warps: 2, stages: 3 },
    Tile { m: 16, n: 64, warps: 4, stages: 3 },
    Tile { m: 32, n: 64, warps: 2, stages: 1 },
    Tile { m: 32, n: 64, warps: 4, stages: 1 },
    Tile { m: 64, n: 16, warps: 4, stages: 2 },
    Tile { m: 64, n: 64, warps: 4, stages: 2 },
];

/// Runs every supported shape; the choice outside of the domain.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 32, n: 64, warps: 2, stages: 1 };

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { first_byte: 222222, again_byte: 125000, partial_byte: 410714, flop: 3333, cta: 3787878787 };

/// The shapes that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: PackShape { rows: 1, kv_len: 32, packs: 1, kv_heads: 1, items: 1, gqa_ratio: 1, head_dim: 64, page_size: 1, dtype: 0 },
    max: PackShape { rows: 8192, kv_len: 131072, packs: 4096, kv_heads: 32, items: 131072, gqa_ratio: 8, head_dim: 256, page_size: 256, dtype: 1 },
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
        (256, 0) => 0b1111111, // f16
        (256, 1) => 0b1111111, // bf16
        _ => 0,
    }
}

/// The tree: indices into the portfolio, the preferred one first.
const fn ranked(shape: &PackShape) -> &'static [u8] {
    if shape.kv_len <= 128 {
        if shape.items <= 128 {
            if shape.packs <= 1 {
                // m32n64w4s1: 19 workloads, mean regret 6.75 %
                &[4]
            } else if shape.rows <= 64 {
                // m32n64w4s1: 10 workloads, mean regret 4.00 %
                &[4]
            } else {
                // m64n16w4s2: 6 workloads, mean regret 3.81 %
                &[5]
            }
        } else if shape.rows <= 16 {
            if shape.packs <= 64 {
                // m16n32w2s3: 6 workloads, mean regret 1.46 %
                &[1]
            } else {
                // m16n32w1s1: 25 workloads, mean regret 1.33 %
                &[0]
            }
        } else {
            // m64n16w4s2: 15 workloads, mean regret 3.47 %
            &[5]
        }
    } else if shape.items <= 8 {
        if shape.rows <= 16 {
            // m16n64w4s3: 20 workloads, mean regret 0.60 %
            &[2]
        } else {
            // m64n64w4s2: 32 workloads, mean regret 11.40 %
            &[6]
        }
    } else if shape.rows <= 32 {
        if shape.items <= 32 {
            // m16n64w4s3: 6 workloads, mean regret 0.80 %
            &[2]
        } else {
            // m16n32w2s3: 68 workloads, mean regret 1.13 %
            &[1]
        }
    } else if shape.items <= 256 {
        // m32n64w2s1: 29 workloads, mean regret 8.90 %
        &[3]
    } else {
        // m64n64w4s2: 8 workloads, mean regret 1.18 %
        &[6]
    }
}
