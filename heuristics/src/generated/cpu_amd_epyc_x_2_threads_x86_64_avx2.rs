//! Tile selector of AMD EPYC x 2 threads (cpu, x86_64-avx2). Written by `tilewright emit`; do not edit.
//!
//! - limits: threads 2, first-level cache 32 KB, second-level cache 512 KB, last-level cache 32768 KB, read bandwidth 30.1 GB/s, multiply-add peak 201 GFLOP/s, launch floor 13.4 us
//! - versions: tilewright 0.1.0, system Linux (Debian GNU/Linux 12), kernel 6.18.44-fc-v595
//! - kernel bc856500ffd010f0, space 1be1cd6237d9cdb1, selector 26201f7d1f147c22
//! - scenarios: packs-gqa4 e00f37b3fe28c772, packs-one-head 59fb2bbcb994af58, packs-mha e6880265f5add95f, packs-many-heads 53d1fd02dd5a5055, packs-gqa8 925b60ead283b122, packs-head-dims c51d80bf7a52c230, packs-dtypes c62e3a21e39a205c, packs-page-sizes cf278639106a4e81, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-21T06:48:01Z by `tilewright tune --discard`
//! - counts: 81 workloads, 96 tiles, 7776 measurements, 30408 samples
//! - fit: portfolio 8, depth 4, leaves 12, ties below 3.0 %; no tree of this depth over this portfolio has less mean regret (proven)
//! - regret on pack shapes not fitted, selector: mean 19.45 %, p95 47.12 %, worst 135.01 %
//! - regret on pack shapes not fitted, best single tile: mean 30.10 %, p95 68.50 %, worst 135.01 %
//! - regret on pack shapes not fitted, PAT's rules: mean 32.65 %, p95 90.69 %, worst 135.52 %
//! - regret on pack shapes not fitted, portfolio's oracle: mean 6.01 %, p95 19.74 %, worst 27.93 %
//! - regret on whole batches, selector: mean 5.90 %, p95 15.39 %, worst 55.03 % of 94
//! - regret on whole batches, best single tile (m64n32w1s2): mean 3.83 %, p95 13.01 %, worst 34.22 % of 94
//! - regret on whole batches, PAT's rules: mean 5.04 %, p95 19.48 %, worst 75.74 % of 94

use crate::{Backend, Device, Domain, PackShape, Selector, Tile, first_feasible};

/// The selector.
#[rustfmt::skip]
pub static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cpu, name: "AMD EPYC x 2 threads", capability: "x86_64-avx2", units: 2 },
    domain: DOMAIN,
    portfolio: &PORTFOLIO,
    safe_default: SAFE_DEFAULT,
    choose,
};

/// The tiles that the tree chooses from.
#[rustfmt::skip]
static PORTFOLIO: [Tile; 7] = [
    Tile { m: 8, n: 32, warps: 2, stages: 2 },
    Tile { m: 16, n: 16, warps: 1, stages: 2 },
    Tile { m: 16, n: 16, warps: 2, stages: 2 },
    Tile { m: 64, n: 32, warps: 1, stages: 2 },
    Tile { m: 64, n: 64, warps: 1, stages: 1 },
    Tile { m: 64, n: 64, warps: 2, stages: 1 },
    Tile { m: 64, n: 64, warps: 2, stages: 2 },
];

/// Runs every supported shape; the choice outside of the domain.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 16, n: 128, warps: 2, stages: 2 };

/// The shapes that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: PackShape { rows: 1, kv_len: 32, packs: 1, kv_heads: 1, items: 1, gqa_ratio: 1, head_dim: 64, page_size: 16, dtype: 0 },
    max: PackShape { rows: 8192, kv_len: 131072, packs: 1024, kv_heads: 32, items: 1024, gqa_ratio: 8, head_dim: 256, page_size: 128, dtype: 2 },
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
        (64, 2) => 0b1111111, // f32
        (128, 0) => 0b1111111, // f16
        (128, 1) => 0b1111111, // bf16
        (128, 2) => 0b1111111, // f32
        (256, 0) => 0b1111111, // f16
        (256, 1) => 0b1111111, // bf16
        (256, 2) => 0b1111111, // f32
        _ => 0,
    }
}

/// The tree: indices into the portfolio, the preferred one first.
const fn ranked(shape: &PackShape) -> &'static [u8] {
    if shape.rows <= 4 {
        if shape.kv_heads <= 4 {
            if shape.packs <= 8 {
                // m8n32w2s2: 15 workloads, mean regret 8.02 %
                &[0]
            } else {
                // m16n16w1s2: 9 workloads, mean regret 5.43 %
                &[1]
            }
        } else if shape.kv_len <= 64 {
            if shape.rows <= 1 {
                // m64n32w1s2: 3 workloads, mean regret 4.61 %
                &[3]
            } else {
                // m16n16w1s2: 5 workloads, mean regret 1.34 %
                &[1]
            }
        } else {
            // m16n16w2s2: 10 workloads, mean regret 8.06 %
            &[2]
        }
    } else if shape.kv_len <= 512 {
        if shape.kv_len <= 128 {
            // m64n64w1s1: 15 workloads, mean regret 6.34 %
            &[4]
        } else if shape.items <= 2 {
            // m64n64w1s1: 4 workloads, mean regret 0.55 %
            &[4]
        } else {
            // m64n32w1s2: 10 workloads, mean regret 0.81 %
            &[3]
        }
    } else if shape.rows <= 16 {
        // m64n64w2s2: 5 workloads, mean regret 6.21 %
        &[6]
    } else {
        // m64n64w2s1: 5 workloads, mean regret 8.27 %
        &[5]
    }
}
