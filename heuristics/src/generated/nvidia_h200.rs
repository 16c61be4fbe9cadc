//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 60 MB, memory 150 GB, launch floor 2.85 us, latency of memory 683 cycles, latency of L2 288 cycles, reading 1 MB 3.9 us, 271 GB/s, reading 4 MB 4.8 us, 874 GB/s, reading 16 MB 7.7 us, 2166 GB/s, reading 64 MB 19.0 us, 3525 GB/s, reading 256 MB 62.9 us, 4269 GB/s, reading 1024 MB 234.6 us, 4576 GB/s, reading 4096 MB 926.6 us, 4635 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 4635.1 GB/s, price of an L2 byte 9691.1 GB/s, price of a partial's byte 4040.8 GB/s, price of a FLOP 581057.5 GFLOP/s, price of a CTA 20.8 ns, price of a merge 3.8 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 6f2afeb51fb811eb, space a7d745f403238396, selector 2198eb40bca35e58
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit daab5f6ec9872e21, conversation-fit 79c4f1854c1776a7, fp8-fit 789c6ad218d19f3e, fp8-trees-fit 0b670e07b0ca4901, tenants-held-out bdfcf37304555131, tenants-dims-held-out 4a5751b9972571d0, conversation-held-out edc9fdb475ea4ce8, fp8-held-out 1acb52ca7ca6747a, fp8-trees-held-out 9b6ed5f1481738a3
//! - measured: 2026-11-26T17:37:49Z by `tilewright tune --device cuda:0 -vv`
//! - counts: 780 batches fitted, 372 only judged, 29 sets of tiles, 20992 measurements, 115250 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; the tree of the selector of NVIDIA H200, which stays for 5 of 6 parts: on the fitted batches it takes 1.0058 of the time of the best tree found; of that: in each of 6 parts, no tree of depth 5 over this portfolio and 12 thresholds a feature has less mean regret than 0.07 % (proven), this one is 1.42 points above that, 0.85 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 372 batches that were not fitted the selector takes 1.022 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.318 at worst).
//! - regret on batches not fitted, selector: mean 2.24 %, p95 10.07 %, worst 31.78 %
//! - regret on batches not fitted, best single tile: mean 11.92 %, p95 38.33 %, worst 123.85 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.87 %, p95 4.60 %, worst 14.83 %
//! - regret on batches not fitted, winner-label CART: mean 3.46 %, p95 15.28 %, worst 59.14 %
//! - regret on batches measured under the selector, selector: mean 2.25 %, p95 9.64 %, worst 32.19 % of 372
//! - regret on batches measured under the selector, best single tile (m64n64w4s2): mean 11.85 %, p95 37.03 %, worst 123.11 % of 372
//! - regret on batches measured under the selector, PAT's rules: mean 70.20 %, p95 198.65 %, worst 337.21 % of 372
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 150.45 %, p95 709.04 %, worst 1496.51 % of 372

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
static SETS: [TileSet<'static>; 7] = [
    TileSet::new(&[Tile::of("m16n64w4s2")]),
    TileSet::new(&[Tile::of("m16n128w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s3")]),
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
const PRICES: Prices = Prices { hbm_byte: 215746, l2_byte: 103187, partial_byte: 247478, flop: 1721, cta: 20829545312, merge: 3797333377103 };

/// The batches that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: BatchShape { requests: 1, all_rows: 28, trees: 1, lone: 0, longest: 32, unique_tokens: 32, unique_kv: 256, private_percent: 12, shared_rows: 0, mean_rows: 1, private_kv: 58, kv_heads: 1, gqa_ratio: 1, head_dim: 64, page_size: 16, dtype: 0 },
    max: BatchShape { requests: 2077, all_rows: 132928, trees: 512, lone: 512, longest: 100000, unique_tokens: 488512, unique_kv: 12849152, private_percent: 100, shared_rows: 6144, mean_rows: 368, private_kv: 524288, kv_heads: 32, gqa_ratio: 16, head_dim: 256, page_size: 32, dtype: 4 },
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
        (64, 0) => 0b1111111, // f16
        (64, 1) => 0b1111111, // bf16
        (64, 3) => 0b1111111, // fp8-f16
        (64, 4) => 0b1111111, // fp8-bf16
        (96, 0) => 0b1111111, // f16
        (96, 1) => 0b1111111, // bf16
        (128, 0) => 0b1111111, // f16
        (128, 1) => 0b1111111, // bf16
        (128, 3) => 0b1111111, // fp8-f16
        (128, 4) => 0b1111111, // fp8-bf16
        (192, 0) => 0b0111111, // f16
        (192, 1) => 0b0111111, // bf16
        (256, 0) => 0b0011101, // f16
        (256, 1) => 0b0011101, // bf16
        (256, 3) => 0b0011111, // fp8-f16
        (256, 4) => 0b0011111, // fp8-bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.head_dim <= 64) {
        // m16n128w4s2: 46 batches, mean regret 2.32 %
        path.leaf(&[1], 46, 2.32)
    } else if ask!(path, batch.head_dim <= 96) {
        if ask!(path, batch.all_rows <= 480) {
            // m16n64w4s2: 8 batches, mean regret 0.17 %
            path.leaf(&[0], 8, 0.17)
        } else {
            // m64n96w4s2: 39 batches, mean regret 2.68 %
            path.leaf(&[5], 39, 2.68)
        }
    } else if ask!(path, batch.head_dim <= 128) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.longest <= 3200) {
                if ask!(path, batch.all_rows <= 6400) {
                    if ask!(path, batch.private_percent <= 77) {
                        if ask!(path, batch.all_rows <= 1152) {
                            // m16n64w4s2: 14 batches, mean regret 1.32 %
                            path.leaf(&[0], 14, 1.32)
                        } else {
                            // m64n96w4s2: 6 batches, mean regret 5.17 %
                            path.leaf(&[5], 6, 5.17)
                        }
                    } else {
                        // m16n64w4s2: 24 batches, mean regret 1.00 %
                        path.leaf(&[0], 24, 1.00)
                    }
                } else if ask!(path, batch.all_rows <= 16128) {
                    if ask!(path, batch.trees <= 1) {
                        // m64n128w8s3: 8 batches, mean regret 0.72 %
                        path.leaf(&[6], 8, 0.72)
                    } else {
                        // m64n96w4s2: 5 batches, mean regret 0.88 %
                        path.leaf(&[5], 5, 0.88)
                    }
                } else if ask!(path, batch.longest <= 2176) {
                    // m64n64w4s2: 22 batches, mean regret 0.41 %
                    path.leaf(&[4], 22, 0.41)
                } else {
                    // m64n128w8s3: 3 batches, mean regret 2.55 %
                    path.leaf(&[6], 3, 2.55)
                }
            } else if ask!(path, batch.unique_kv <= 335872) {
                if ask!(path, batch.all_rows <= 742) {
                    if ask!(path, batch.mean_rows <= 9) {
                        // m16n64w4s2: 26 batches, mean regret 1.20 %
                        path.leaf(&[0], 26, 1.20)
                    } else {
                        // m64n32w4s3: 45 batches, mean regret 1.46 %
                        path.leaf(&[3], 45, 1.46)
                    }
                } else if ask!(path, batch.mean_rows <= 23) {
                    // m16n64w4s2: 58 batches, mean regret 5.04 %
                    path.leaf(&[0], 58, 5.04)
                } else {
                    // m64n96w4s2: 69 batches, mean regret 3.27 %
                    path.leaf(&[5], 69, 3.27)
                }
            } else if ask!(path, batch.requests <= 352) {
                if ask!(path, batch.requests <= 40) {
                    // m16n64w4s2: 43 batches, mean regret 0.89 %
                    path.leaf(&[0], 43, 0.89)
                } else {
                    // m64n96w4s2: 116 batches, mean regret 1.51 %
                    path.leaf(&[5], 116, 1.51)
                }
            } else if ask!(path, batch.all_rows <= 30720) {
                // m64n128w8s3: 14 batches, mean regret 4.31 %
                path.leaf(&[6], 14, 4.31)
            } else {
                // m64n96w4s2: 11 batches, mean regret 2.63 %
                path.leaf(&[5], 11, 2.63)
            }
        } else if ask!(path, batch.requests <= 384) {
            if ask!(path, batch.mean_rows <= 48) {
                // m16n128w4s2: 105 batches, mean regret 0.78 %
                path.leaf(&[1], 105, 0.78)
            } else {
                // m64n64w4s2: 12 batches, mean regret 8.55 %
                path.leaf(&[4], 12, 8.55)
            }
        } else {
            // m64n64w4s2: 9 batches, mean regret 0.00 %
            path.leaf(&[4], 9, 0.00)
        }
    } else if ask!(path, batch.head_dim <= 192) {
        // m64n32w4s2: 50 batches, mean regret 0.92 %
        path.leaf(&[2], 50, 0.92)
    } else {
        // m64n32w4s2: 47 batches, mean regret 2.38 %
        path.leaf(&[2], 47, 2.38)
    }
}
