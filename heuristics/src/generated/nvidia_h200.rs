//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, second-level cache 60 MB, memory 150 GB, launch floor 3.01 us, latency of memory 667 cycles, latency of the second-level cache 288 cycles, reading 1 MB 4.1 us, 256 GB/s, reading 4 MB 4.8 us, 868 GB/s, reading 16 MB 8.0 us, 2097 GB/s, reading 64 MB 19.5 us, 3449 GB/s, reading 256 MB 63.7 us, 4213 GB/s, reading 1024 MB 239.1 us, 4491 GB/s, reading 4096 MB 947.0 us, 4535 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of a first read 4535.3 GB/s, price of a read again 9528.3 GB/s, price of a partial 4047.6 GB/s, price of an operation 579710.1 GFLOP/s, price of a CTA 20.7 ns, price of merging at all 4.0 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 2fe5eb5af14d9e66, space a7d745f403238396, selector 8306bebfcaa4ec2c
//! - scenarios: packs-bf16 c78494111a0c1e7d, packs-few-heads d785e574b3f7f675, packs-gqa2 68ca2ba6fe8f0c62, packs-gqa4 e6bba16e058a1298, packs-gqa8 e798feb1d3f5cdde, packs-head-dims c16de4ba558a5472, packs-mha 473e559e8671e465, packs-page-sizes 200ea155f8ad11a8, packs-trees cd14143e0424683e, packs-trees-gqa4 4baf3d70758727f3, packs-trees-long-own 46b89ae31d5e3308, packs-trees-many-rows 8f8eb00fc6f112ca, packs-trees-small 0327d99c7f1a7483, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-23T00:40:59Z by `tilewright tune --budget 340 --out /root/out/tune`
//! - counts: 482 workloads, 209 tiles, 76959 measurements, 252569 samples
//! - fit: portfolio 10, depth 5, leaves 16, ties below 1.0 %; grown from the tree of depth 4 with the least mean regret over this portfolio (proven)
//! - regret on pack shapes not fitted, selector: mean 2.61 %, p95 10.08 %, worst 43.21 %
//! - regret on pack shapes not fitted, best single tile: mean 19.19 %, p95 81.28 %, worst 340.01 %
//! - regret on pack shapes not fitted, PAT's rules: mean 41.95 %, p95 95.63 %, worst 237.64 %
//! - regret on pack shapes not fitted, portfolio's oracle: mean 1.00 %, p95 3.43 %, worst 21.96 %
//! - regret on whole batches, selector def95cd54b745c76: mean 2.14 %, p95 6.72 %, worst 79.16 % of 94
//! - regret on whole batches, best single tile (m64n64w4s2): mean 4.14 %, p95 23.12 %, worst 34.48 % of 94
//! - regret on whole batches, PAT's rules: mean 34.90 %, p95 95.70 %, worst 125.85 % of 94
//! - regret on whole batches, PAT: mean 385.06 %, p95 1088.00 %, worst 1467.40 % of 94

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
static PORTFOLIO: [Tile; 9] = [
    Tile { m: 16, n: 32, warps: 1, stages: 1 },
    Tile { m: 16, n: 32, warps: 2, stages: 2 },
    Tile { m: 16, n: 64, warps: 4, stages: 2 },
    Tile { m: 16, n: 128, warps: 8, stages: 3 },
    Tile { m: 64, n: 32, warps: 4, stages: 2 },
    Tile { m: 64, n: 64, warps: 4, stages: 2 },
    Tile { m: 64, n: 64, warps: 8, stages: 3 },
    Tile { m: 64, n: 128, warps: 8, stages: 3 },
    Tile { m: 128, n: 64, warps: 8, stages: 2 },
];

/// Runs every supported shape; the choice outside of the domain.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 64, n: 32, warps: 4, stages: 3 };

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { first_byte: 220492, again_byte: 104951, partial_byte: 247061, flop: 1725, cta: 20715909847, merge: 4010666782657 };

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
        (64, 0) => 0b111111111, // f16
        (64, 1) => 0b111111111, // bf16
        (128, 0) => 0b111111111, // f16
        (128, 1) => 0b111111111, // bf16
        (256, 0) => 0b100010111, // f16
        (256, 1) => 0b100010111, // bf16
        _ => 0,
    }
}

/// The tree: indices into the portfolio, the preferred one first.
const fn ranked(shape: &PackShape) -> &'static [u8] {
    if shape.all_rows <= 8192 {
        if shape.rows <= 32 {
            if shape.items <= 128 {
                if shape.packs <= 1 {
                    // m16n64w4s2: 76 workloads, mean regret 1.18 %
                    &[2]
                } else if shape.kv_len <= 256 {
                    // m16n64w4s2: 15 workloads, mean regret 0.74 %
                    &[2]
                } else {
                    // m16n128w8s3: 30 workloads, mean regret 1.35 %
                    &[3]
                }
            } else if shape.kv_len <= 128 {
                // m16n32w1s1: 10 workloads, mean regret 1.32 %
                &[0]
            } else {
                // m16n32w2s2: 61 workloads, mean regret 0.90 %
                &[1]
            }
        } else if shape.kv_len <= 896 {
            if shape.all_rows <= 4096 {
                // m16n64w4s2: 46 workloads, mean regret 1.74 %
                &[2]
            } else if shape.kv_len <= 64 {
                // m16n32w2s2: 5 workloads, mean regret 0.61 %
                &[1]
            } else {
                // m64n64w8s3: 15 workloads, mean regret 0.41 %
                &[6]
            }
        } else if shape.rows <= 512 {
            // m64n64w8s3: 54 workloads, mean regret 2.40 %
            &[6, 4]
        } else {
            // m64n128w8s3: 11 workloads, mean regret 3.03 %
            &[7, 4]
        }
    } else if shape.own == 0 {
        if shape.rows <= 64 {
            if shape.rows <= 16 {
                // m16n32w1s1: 36 workloads, mean regret 0.97 %
                &[0]
            } else {
                // m64n32w4s2: 13 workloads, mean regret 2.96 %
                &[4]
            }
        } else if shape.kv_len <= 32 {
            // m64n32w4s2: 11 workloads, mean regret 0.62 %
            &[4]
        } else {
            // m128n64w8s2: 22 workloads, mean regret 1.19 %
            &[8]
        }
    } else {
        // m64n64w4s2: 77 workloads, mean regret 0.95 %
        &[5]
    }
}
