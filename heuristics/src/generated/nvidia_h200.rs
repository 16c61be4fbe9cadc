//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, second-level cache 60 MB, memory 150 GB, launch floor 3.01 us, latency of memory 666 cycles, latency of the second-level cache 288 cycles, reading 1 MB 3.9 us, 266 GB/s, reading 4 MB 4.9 us, 851 GB/s, reading 16 MB 7.9 us, 2114 GB/s, reading 64 MB 19.3 us, 3472 GB/s, reading 256 MB 63.8 us, 4209 GB/s, reading 1024 MB 239.4 us, 4485 GB/s, reading 4096 MB 947.9 us, 4531 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of a first read 4531.2 GB/s, price of a read again 9799.8 GB/s, price of a partial 4069.2 GB/s, price of an operation 581395.3 GFLOP/s, price of a CTA 3.1 ns
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 297af3ce8d47c278, space a7d745f403238396, selector ece1ee3a8dc27699
//! - scenarios: packs-bf16 c78494111a0c1e7d, packs-few-heads d785e574b3f7f675, packs-gqa2 724f48af8ccc2ea7, packs-gqa4 d2119df5bb2e65eb, packs-gqa8 0311abcf0a3f761a, packs-head-dims c16de4ba558a5472, packs-mha 473e559e8671e465, packs-page-sizes 200ea155f8ad11a8, packs-trees cd14143e0424683e, packs-trees-gqa4 de980eaa13379413, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-21T18:04:02Z by `tilewright tune --budget 280 --out /tmp/t/out -v`
//! - counts: 394 workloads, 206 tiles, 63527 measurements, 119149 samples
//! - fit: portfolio 8, depth 4, leaves 12, ties below 3.0 %; no tree of this depth over this portfolio has less mean regret (proven)
//! - regret on pack shapes not fitted, selector: mean 8.22 %, p95 32.96 %, worst 103.45 %
//! - regret on pack shapes not fitted, best single tile: mean 22.85 %, p95 73.04 %, worst 267.55 %
//! - regret on pack shapes not fitted, PAT's rules: mean 78.74 %, p95 165.48 %, worst 310.86 %
//! - regret on pack shapes not fitted, portfolio's oracle: mean 2.20 %, p95 8.71 %, worst 22.93 %
//! - regret on whole batches, selector: mean 11.07 %, p95 35.73 %, worst 100.26 % of 94
//! - regret on whole batches, best single tile (m32n64w4s2): mean 8.63 %, p95 31.71 %, worst 43.01 % of 94
//! - regret on whole batches, PAT's rules: mean 63.01 %, p95 142.66 %, worst 194.33 % of 94
//! - regret on whole batches, PAT: mean 290.48 %, p95 693.46 %, worst 1134.29 % of 94

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
    Tile { m: 64, n: 128, warps: 4, stages: 1 },
];

/// Runs every supported shape; the choice outside of the domain.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 32, n: 64, warps: 4, stages: 2 };

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { first_byte: 220693, again_byte: 102043, partial_byte: 245749, flop: 1720, cta: 3068181809 };

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
    if shape.rows <= 64 {
        if shape.rows <= 16 {
            if shape.items <= 512 {
                if shape.items <= 128 {
                    // m16n64w4s3: 99 workloads, mean regret 1.99 %
                    &[2]
                } else {
                    // m16n32w2s2: 35 workloads, mean regret 0.95 %
                    &[1]
                }
            } else {
                // m16n32w1s1: 59 workloads, mean regret 2.48 %
                &[0]
            }
        } else {
            // m32n64w4s2: 55 workloads, mean regret 12.98 %
            &[3]
        }
    } else if shape.kv_len <= 512 {
        if shape.packs <= 1 {
            if shape.rows <= 512 {
                // m16n64w4s3: 25 workloads, mean regret 2.98 %
                &[2]
            } else {
                // m32n64w4s2: 25 workloads, mean regret 4.85 %
                &[3]
            }
        } else if shape.own <= 0 {
            // m64n32w4s2: 25 workloads, mean regret 4.01 %
            &[4]
        } else {
            // m16n32w1s1: 22 workloads, mean regret 3.46 %
            &[0]
        }
    } else if shape.packs <= 1 {
        // m32n64w4s2: 39 workloads, mean regret 14.60 %
        &[3]
    } else {
        // m64n128w4s1: 10 workloads, mean regret 4.20 %
        &[5]
    }
}
