//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, second-level cache 60 MB, memory 150 GB, launch floor 2.88 us, latency of memory 666 cycles, latency of the second-level cache 288 cycles, reading 1 MB 4.0 us, 262 GB/s, reading 4 MB 4.8 us, 874 GB/s, reading 16 MB 7.9 us, 2131 GB/s, reading 64 MB 19.3 us, 3472 GB/s, reading 256 MB 63.7 us, 4213 GB/s, reading 1024 MB 239.3 us, 4488 GB/s, reading 4096 MB 946.5 us, 4538 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of a first read 4537.6 GB/s, price of a read again 9704.6 GB/s, price of a partial 3977.5 GB/s, price of an operation 584453.5 GFLOP/s, price of a CTA 20.7 ns, price of merging at all 3.8 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 054989ce0a4af375, space a7d745f403238396, selector 0d4103502b2ec7f6
//! - scenarios: packs-bf16 c78494111a0c1e7d, packs-few-heads d785e574b3f7f675, packs-gqa2 68ca2ba6fe8f0c62, packs-gqa4 e6bba16e058a1298, packs-gqa8 e798feb1d3f5cdde, packs-head-dims c16de4ba558a5472, packs-mha 473e559e8671e465, packs-page-sizes 200ea155f8ad11a8, packs-trees cd14143e0424683e, packs-trees-gqa4 4baf3d70758727f3, packs-trees-long-own 46b89ae31d5e3308, packs-trees-many-rows 8f8eb00fc6f112ca, packs-trees-small 0327d99c7f1a7483, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-22T21:49:29Z by `tilewright tune --device cuda:0 --budget 300 --out /tmp/tune`
//! - counts: 482 workloads, 209 tiles, 76959 measurements, 128691 samples
//! - fit: portfolio 8, depth 5, leaves 16, ties below 1.0 %; no tree of depth 4 over this portfolio has less mean regret (proven)
//! - regret on pack shapes not fitted, selector: mean 3.40 %, p95 11.22 %, worst 78.12 %
//! - regret on pack shapes not fitted, best single tile: mean 21.27 %, p95 95.06 %, worst 341.45 %
//! - regret on pack shapes not fitted, PAT's rules: mean 45.80 %, p95 97.94 %, worst 238.09 %
//! - regret on pack shapes not fitted, portfolio's oracle: mean 1.79 %, p95 6.34 %, worst 32.50 %
//! - regret on whole batches, selector: mean 2.74 %, p95 13.10 %, worst 41.83 % of 94
//! - regret on whole batches, best single tile (m64n128w4s1): mean 5.80 %, p95 27.56 %, worst 38.99 % of 94
//! - regret on whole batches, PAT's rules: mean 34.64 %, p95 87.07 %, worst 114.11 % of 94
//! - regret on whole batches, PAT: mean 325.06 %, p95 791.78 %, worst 1133.21 % of 94

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
    Tile { m: 16, n: 128, warps: 8, stages: 3 },
    Tile { m: 64, n: 32, warps: 4, stages: 2 },
    Tile { m: 64, n: 64, warps: 8, stages: 2 },
    Tile { m: 64, n: 128, warps: 4, stages: 1 },
    Tile { m: 64, n: 128, warps: 8, stages: 3 },
];

/// Runs every supported shape; the choice outside of the domain.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 64, n: 32, warps: 4, stages: 3 };

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { first_byte: 220380, again_byte: 103044, partial_byte: 251412, flop: 1711, cta: 20719697093, merge: 3840000058213 };

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
        (256, 0) => 0b00110111, // f16
        (256, 1) => 0b00110111, // bf16
        _ => 0,
    }
}

/// The tree: indices into the portfolio, the preferred one first.
const fn ranked(shape: &PackShape) -> &'static [u8] {
    if shape.all_rows <= 4096 {
        if shape.own <= 128 {
            if shape.kv_len <= 896 {
                if shape.items <= 128 {
                    // m16n64w4s2: 76 workloads, mean regret 2.04 %
                    &[2]
                } else {
                    // m16n32w1s1: 10 workloads, mean regret 1.04 %
                    &[0]
                }
            } else if shape.rows <= 16 {
                // m16n64w4s2: 52 workloads, mean regret 1.22 %
                &[2]
            } else {
                // m64n32w4s2: 28 workloads, mean regret 2.54 %
                &[4]
            }
        } else if shape.all_rows <= 512 {
            if shape.all_rows <= 128 {
                // m16n64w4s2: 11 workloads, mean regret 1.15 %
                &[2]
            } else {
                // m16n32w2s2: 22 workloads, mean regret 2.27 %
                &[1]
            }
        } else if shape.rows <= 128 {
            // m16n64w4s2: 28 workloads, mean regret 2.73 %
            &[2]
        } else {
            // m16n128w8s3: 15 workloads, mean regret 3.47 %
            &[3]
        }
    } else if shape.rows <= 64 {
        if shape.rows <= 16 {
            if shape.kv_len <= 256 {
                // m16n32w1s1: 37 workloads, mean regret 0.91 %
                &[0]
            } else {
                // m16n32w2s2: 39 workloads, mean regret 0.83 %
                &[1]
            }
        } else if shape.items <= 128 {
            // m64n64w8s2: 7 workloads, mean regret 3.60 %
            &[5]
        } else {
            // m64n32w4s2: 22 workloads, mean regret 2.91 %
            &[4]
        }
    } else if shape.kv_len <= 128 {
        if shape.all_rows <= 8192 {
            // m16n32w2s2: 5 workloads, mean regret 1.84 %
            &[1]
        } else {
            // m64n32w4s2: 26 workloads, mean regret 3.92 %
            &[4]
        }
    } else if shape.all_rows <= 8192 {
        // m64n128w8s3: 26 workloads, mean regret 3.18 %
        &[7, 4]
    } else {
        // m64n128w4s1: 78 workloads, mean regret 1.44 %
        &[6]
    }
}
