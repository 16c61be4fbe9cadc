//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 60 MB, memory 150 GB, launch floor 2.94 us, latency of memory 667 cycles, latency of L2 288 cycles, reading 1 MB 4.0 us, 262 GB/s, reading 4 MB 4.8 us, 868 GB/s, reading 16 MB 7.9 us, 2123 GB/s, reading 64 MB 19.2 us, 3495 GB/s, reading 256 MB 63.9 us, 4203 GB/s, reading 1024 MB 239.4 us, 4485 GB/s, reading 4096 MB 946.6 us, 4537 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 4537.3 GB/s, price of an L2 byte 9528.3 GB/s, price of a partial's byte 4088.0 GB/s, price of a FLOP 584453.5 GFLOP/s, price of a CTA 20.8 ns, price of a merge 3.9 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 0a32d1a2b56d229c, space a7d745f403238396, selector 4870970cc369824f
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit 68847de884f535bc, conversation-fit 79c4f1854c1776a7, tenants-held-out bdfcf37304555131, tenants-dims-held-out 44301cb530defb38, conversation-held-out edc9fdb475ea4ce8
//! - measured: 2026-11-25T04:13:36Z by `tilewright tune`
//! - counts: 450 batches fitted, 232 only judged, 30 sets of tiles, 22194 measurements, 90189 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; no tree of depth 5 over this portfolio and 20 thresholds a feature has less mean regret than 0.45 % (proven), this one is 1.42 points above that, 0.51 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 232 batches that were not fitted the selector takes 1.035 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.425 at worst).
//! - regret on batches not fitted, selector: mean 3.72 %, p95 17.06 %, worst 42.47 %
//! - regret on batches not fitted, best single tile: mean 9.81 %, p95 41.24 %, worst 67.27 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.72 %, p95 3.69 %, worst 14.03 %
//! - regret on batches not fitted, winner-label CART: mean 4.51 %, p95 20.20 %, worst 49.19 %
//! - regret on batches measured under the selector, selector: mean 3.32 %, p95 15.71 %, worst 39.89 % of 232
//! - regret on batches measured under the selector, best single tile (m64n64w4s2): mean 9.25 %, p95 38.93 %, worst 66.19 % of 232
//! - regret on batches measured under the selector, PAT's rules: mean 76.34 %, p95 257.39 %, worst 447.97 % of 232
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 182.36 %, p95 765.38 %, worst 2102.54 % of 232

// Regrets are measured: one may be near pi by chance.
#![allow(clippy::approx_constant)]

#[rustfmt::skip]
use crate::{Backend, BatchShape, Choices, Device, Domain, Follow, Prices, Selector, Tile, TileSet, Unfollowed, ask, first_feasible};

/// The selector.
#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cuda, name: "NVIDIA H200", capability: "sm_90a", units: 132 },
    domain: DOMAIN,
    sets: &SETS,
    safe_default: SAFE_DEFAULT,
    safe_set: SAFE_SET,
    prices: PRICES,
    choices: Choices::Code {
        choose: |batch| choose(batch, &mut Unfollowed),
        follow: choose,
        ranked: |batch| (ranked(batch, &mut Unfollowed), feasible(batch)),
    },
};

/// The sets that the tree chooses from.
#[rustfmt::skip]
static SETS: [TileSet<'static>; 5] = [
    TileSet::new(&[Tile::of("m16n64w4s2")]),
    TileSet::new(&[Tile::of("m32n32w4s2")]),
    TileSet::new(&[Tile::of("m64n64w4s2")]),
    TileSet::new(&[Tile::of("m64n96w4s2")]),
    TileSet::new(&[Tile::of("m64n128w8s3")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m64n64w4s2");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 220395, l2_byte: 104951, partial_byte: 244617, flop: 1711, cta: 20803029959, merge: 3925333420435 };

/// The batches that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: BatchShape { requests: 1, all_rows: 32, trees: 1, lone: 0, longest: 32, unique_tokens: 32, unique_kv: 256, private_percent: 17, shared_rows: 0, mean_rows: 1, private_kv: 58, kv_heads: 1, gqa_ratio: 1, head_dim: 64, page_size: 16, dtype: 0 },
    max: BatchShape { requests: 2077, all_rows: 132928, trees: 512, lone: 512, longest: 100000, unique_tokens: 488512, unique_kv: 12849152, private_percent: 100, shared_rows: 6144, mean_rows: 368, private_kv: 524288, kv_heads: 32, gqa_ratio: 16, head_dim: 256, page_size: 32, dtype: 1 },
};

#[inline]
fn choose(batch: &BatchShape, path: &mut impl Follow) -> TileSet<'static> {
    match first_feasible(ranked(batch, path), feasible(batch)) {
        Some(choice) => SETS[choice as usize],
        None => SAFE_SET,
    }
}

/// The sets whose tiles can all run the batch's kernels, one bit each.
#[rustfmt::skip]
const fn feasible(batch: &BatchShape) -> u64 {
    match (batch.head_dim, batch.dtype) {
        (64, 0) => 0b11111, // f16
        (64, 1) => 0b11111, // bf16
        (128, 0) => 0b11111, // f16
        (128, 1) => 0b11111, // bf16
        (256, 0) => 0b00111, // f16
        (256, 1) => 0b00111, // bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.longest <= 6144) {
        if ask!(path, batch.all_rows <= 4736) {
            if ask!(path, batch.all_rows <= 1744) {
                if ask!(path, batch.head_dim <= 128) {
                    // m16n64w4s2: 69 batches, mean regret 1.96 %
                    path.leaf(&[0], 69, 1.96)
                } else {
                    // m32n32w4s2: 4 batches, mean regret 2.38 %
                    path.leaf(&[1], 4, 2.38)
                }
            } else if ask!(path, batch.private_percent <= 76) {
                // m64n96w4s2: 14 batches, mean regret 2.27 %
                path.leaf(&[3, 1], 14, 2.27)
            } else {
                // m16n64w4s2: 29 batches, mean regret 2.75 %
                path.leaf(&[0], 29, 2.75)
            }
        } else if ask!(path, batch.all_rows <= 12288) {
            if ask!(path, batch.shared_rows <= 138) {
                // m64n96w4s2: 18 batches, mean regret 2.11 %
                path.leaf(&[3, 1], 18, 2.11)
            } else {
                // m64n128w8s3: 8 batches, mean regret 0.08 %
                path.leaf(&[4, 1], 8, 0.08)
            }
        } else if ask!(path, batch.longest <= 2304) {
            // m64n64w4s2: 22 batches, mean regret 0.55 %
            path.leaf(&[2], 22, 0.55)
        } else {
            // m64n128w8s3: 7 batches, mean regret 0.68 %
            path.leaf(&[4, 1], 7, 0.68)
        }
    } else if ask!(path, batch.unique_kv <= 479232) {
        if ask!(path, batch.mean_rows <= 21) {
            // m16n64w4s2: 88 batches, mean regret 2.61 %
            path.leaf(&[0], 88, 2.61)
        } else {
            // m64n96w4s2: 72 batches, mean regret 2.28 %
            path.leaf(&[3, 1], 72, 2.28)
        }
    } else if ask!(path, batch.all_rows <= 1744) {
        // m16n64w4s2: 41 batches, mean regret 1.04 %
        path.leaf(&[0], 41, 1.04)
    } else {
        // m64n96w4s2: 78 batches, mean regret 1.24 %
        path.leaf(&[3, 1], 78, 1.24)
    }
}
