//! Tile selector of AMD EPYC x 2 threads (cpu, x86_64-avx2). Written by `tilewright emit`; do not edit.
//!
//! - limits: threads 2, first-level cache 32 KB, second-level cache 512 KB, last-level cache 32768 KB, read bandwidth 32.1 GB/s, multiply-add peak 184 GFLOP/s, launch floor 17.0 us
//! - versions: tilewright 0.1.0, system Linux (Debian GNU/Linux 12), kernel 6.18.44-fc-v595
//! - kernel 4dc6bbb918189e86, space 1be1cd6237d9cdb1, selector 4ced293c68b280de
//! - scenarios: packs-dtypes c62e3a21e39a205c, packs-gqa4 e00f37b3fe28c772, packs-gqa8 925b60ead283b122, packs-head-dims c51d80bf7a52c230, packs-many-heads 19f6b600d1b2cd48, packs-mha e6880265f5add95f, packs-one-head 59fb2bbcb994af58, packs-page-sizes cf278639106a4e81, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-21T09:04:35Z by `tilewright tune --device cpu --discard`
//! - counts: 82 workloads, 96 tiles, 7872 measurements, 31685 samples
//! - fit: portfolio 8, depth 4, leaves 12, ties below 3.0 %; no tree of depth 4 over this portfolio has less mean regret (proven)
//! - prices: not measured, the defaults of the backend
//! - regret on pack shapes not fitted, selector: mean 9.47 %, p95 32.96 %, worst 60.47 %
//! - regret on pack shapes not fitted, best single tile: mean 13.84 %, p95 30.97 %, worst 68.05 %
//! - regret on pack shapes not fitted, PAT's rules: mean 27.52 %, p95 87.03 %, worst 255.97 %
//! - regret on pack shapes not fitted, portfolio's oracle: mean 1.63 %, p95 5.92 %, worst 14.38 %
//! - regret on whole batches, selector 5c8ceaf8fc59abe3: mean 2.35 %, p95 12.83 %, worst 19.78 % of 94
//! - regret on whole batches, best single tile (m64n128w1s1): mean 2.36 %, p95 9.18 %, worst 38.85 % of 94
//! - regret on whole batches, PAT's rules: mean 3.05 %, p95 8.55 %, worst 36.62 % of 94

use crate::{Backend, Device, Domain, PackShape, Prices, Selector, Tile, first_feasible};

/// The selector.
#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cpu, name: "AMD EPYC x 2 threads", capability: "x86_64-avx2", units: 2 },
    domain: DOMAIN,
    portfolio: &PORTFOLIO,
    safe_default: SAFE_DEFAULT,
    prices: PRICES,
    choose,
};

/// The tiles that the tree chooses from.
#[rustfmt::skip]
static PORTFOLIO: [Tile; 6] = [
    Tile { m: 4, n: 32, warps: 2, stages: 1 },
    Tile { m: 64, n: 16, warps: 2, stages: 2 },
    Tile { m: 64, n: 64, warps: 2, stages: 1 },
    Tile { m: 64, n: 64, warps: 2, stages: 2 },
    Tile { m: 64, n: 128, warps: 1, stages: 1 },
    Tile { m: 64, n: 128, warps: 1, stages: 2 },
];

/// Runs every supported shape; the choice outside of the domain.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 64, n: 64, warps: 2, stages: 1 };

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { first_byte: 33333333, again_byte: 16666666, partial_byte: 33333332, flop: 5000000, cta: 500000000000, merge: 10000000000000 };

/// The shapes that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: PackShape { rows: 1, kv_len: 32, own: 0, packs: 1, kv_heads: 1, items: 1, all_rows: 0, gqa_ratio: 1, head_dim: 64, page_size: 16, dtype: 0 },
    max: PackShape { rows: 8192, kv_len: 131072, own: 0, packs: 1024, kv_heads: 32, items: 8192, all_rows: 4294967295, gqa_ratio: 8, head_dim: 256, page_size: 128, dtype: 2 },
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
        (64, 2) => 0b111111, // f32
        (128, 0) => 0b111111, // f16
        (128, 1) => 0b111111, // bf16
        (128, 2) => 0b111111, // f32
        (256, 0) => 0b111111, // f16
        (256, 1) => 0b111111, // bf16
        (256, 2) => 0b111111, // f32
        _ => 0,
    }
}

/// The tree: indices into the portfolio, the preferred one first.
const fn ranked(shape: &PackShape) -> &'static [u8] {
    if shape.all_rows <= 32 {
        if shape.kv_heads <= 1 {
            // m4n32w2s1: 6 workloads, mean regret 4.22 %
            &[0]
        } else if shape.kv_heads <= 4 {
            // m64n64w2s1: 9 workloads, mean regret 5.25 %
            &[2]
        } else if shape.kv_len <= 64 {
            // m64n128w1s1: 4 workloads, mean regret 2.04 %
            &[4]
        } else {
            // m64n16w2s2: 6 workloads, mean regret 1.01 %
            &[1]
        }
    } else if shape.kv_len <= 64 {
        // m64n128w1s1: 21 workloads, mean regret 2.95 %
        &[4]
    } else if shape.kv_heads <= 1 {
        // m64n64w2s1: 7 workloads, mean regret 6.24 %
        &[2]
    } else if shape.rows <= 16 {
        // m64n64w2s2: 15 workloads, mean regret 0.30 %
        &[3]
    } else {
        // m64n128w1s2: 14 workloads, mean regret 0.30 %
        &[5]
    }
}
