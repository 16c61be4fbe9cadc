//! Tile selector of NVIDIA H100 80GB HBM3 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 50 MB, memory 85 GB, launch floor 4.80 us, latency of memory 700 cycles, latency of L2 292 cycles, reading 1 MB 5.8 us, 181 GB/s, reading 4 MB 7.0 us, 601 GB/s, reading 16 MB 11.0 us, 1524 GB/s, reading 64 MB 27.2 us, 2464 GB/s, reading 256 MB 91.7 us, 2928 GB/s, reading 1024 MB 349.8 us, 3070 GB/s, reading 4096 MB 1390.0 us, 3090 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 3090.0 GB/s, price of an L2 byte 7895.9 GB/s, price of a partial's byte 3490.9 GB/s, price of a FLOP 586510.3 GFLOP/s, price of a CTA 25.0 ns, price of a merge 6.4 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 61579240f0f65c4f, space a7d745f403238396, selector f8cc0a6fc7ccbb61
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit 78ab65ed2a1b14d2, conversation-fit 79c4f1854c1776a7, fp8-fit df7f0f77a166267b, fp8-trees-fit 423550ea06c4d9e9, tenants-held-out bdfcf37304555131, tenants-dims-held-out 44301cb530defb38, conversation-held-out edc9fdb475ea4ce8, fp8-held-out f765c080f546223b, fp8-trees-held-out 9b6ed5f1481738a3
//! - measured: 2026-11-25T17:51:57Z by `tilewright tune --device cuda:0 -v`
//! - counts: 554 batches fitted, 282 only judged, 28 sets of tiles, 27169 measurements, 62622 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; the tree of the selector of NVIDIA H100 80GB HBM3, which stays for 1 of 4 parts: on the fitted batches it takes 1.0031 of the time of the best tree found; of that: in each of 4 parts, no tree of depth 5 over this portfolio and 10 thresholds a feature has less mean regret than 0.13 % (proven), this one is 1.24 points above that, 0.75 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 282 batches that were not fitted the selector takes 1.027 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.411 at worst).
//! - regret on batches not fitted, selector: mean 2.83 %, p95 10.35 %, worst 41.14 %
//! - regret on batches not fitted, best single tile: mean 11.14 %, p95 42.40 %, worst 74.86 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.50 %, p95 2.48 %, worst 5.36 %
//! - regret on batches not fitted, winner-label CART: mean 3.90 %, p95 13.39 %, worst 80.87 %
//! - regret on batches measured under the selector, selector f22a256a117336e0: mean 2.88 %, p95 10.52 %, worst 42.45 % of 282
//! - regret on batches measured under the selector, best single tile (m64n64w4s2): mean 8.66 %, p95 27.30 %, worst 52.51 % of 282
//! - regret on batches measured under the selector, PAT's rules: mean 68.77 %, p95 232.92 %, worst 378.69 % of 282
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 130.44 %, p95 541.38 %, worst 1398.54 % of 282

// Regrets are measured: one may be near pi by chance.
#![allow(clippy::approx_constant)]

#[rustfmt::skip]
use crate::{Backend, BatchShape, Choices, Device, Domain, Follow, Prices, Selector, Tile, TileSet, Unfollowed, ask, first_feasible};

/// The selector.
#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cuda, name: "NVIDIA H100 80GB HBM3", capability: "sm_90a", units: 132 },
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
static SETS: [TileSet<'static>; 10] = [
    TileSet::new(&[Tile::of("m16n32w2s2")]),
    TileSet::new(&[Tile::of("m16n64w4s2")]),
    TileSet::new(&[Tile::of("m16n128w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s3")]),
    TileSet::new(&[Tile::of("m64n64w4s2")]),
    TileSet::new(&[Tile::of("m64n96w4s2")]),
    TileSet::new(&[Tile::of("m64n128w8s3")]),
    TileSet::new(&[Tile::of("m128n64w8s2")]),
    TileSet::new(&[Tile::of("m128n64w8s3")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m64n32w4s3");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 323623, l2_byte: 126648, partial_byte: 286459, flop: 1705, cta: 25018938520, merge: 6400000303983 };

/// The batches that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: BatchShape { requests: 1, all_rows: 32, trees: 1, lone: 0, longest: 32, unique_tokens: 32, unique_kv: 256, private_percent: 17, shared_rows: 0, mean_rows: 1, private_kv: 58, kv_heads: 1, gqa_ratio: 1, head_dim: 64, page_size: 16, dtype: 0 },
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
        (64, 0) => 0b1111111111, // f16
        (64, 1) => 0b1111111111, // bf16
        (64, 3) => 0b1111111111, // fp8-f16
        (64, 4) => 0b1111111111, // fp8-bf16
        (128, 0) => 0b1111111111, // f16
        (128, 1) => 0b1111111111, // bf16
        (128, 3) => 0b1111111111, // fp8-f16
        (128, 4) => 0b1111111111, // fp8-bf16
        (256, 0) => 0b0100111011, // f16
        (256, 1) => 0b0100111011, // bf16
        (256, 3) => 0b1100111111, // fp8-f16
        (256, 4) => 0b1100111111, // fp8-bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.head_dim <= 64) {
        // m16n128w4s2: 23 batches, mean regret 2.94 %
        path.leaf(&[2], 23, 2.94)
    } else if ask!(path, batch.head_dim <= 128) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.all_rows <= 2772) {
                if ask!(path, batch.unique_tokens <= 45056) {
                    if ask!(path, batch.longest <= 5792) {
                        if ask!(path, batch.shared_rows <= 128) {
                            // m16n64w4s2: 65 batches, mean regret 1.57 %
                            path.leaf(&[1], 65, 1.57)
                        } else {
                            // m128n64w8s3: 4 batches, mean regret 0.89 %
                            path.leaf(&[9, 0], 4, 0.89)
                        }
                    } else if ask!(path, batch.all_rows <= 320) {
                        // m16n32w2s2: 11 batches, mean regret 1.28 %
                        path.leaf(&[0], 11, 1.28)
                    } else {
                        // m64n32w4s3: 49 batches, mean regret 1.43 %
                        path.leaf(&[4], 49, 1.43)
                    }
                } else if ask!(path, batch.mean_rows <= 29) {
                    if ask!(path, batch.trees <= 14) {
                        // m64n32w4s2: 68 batches, mean regret 0.37 %
                        path.leaf(&[3], 68, 0.37)
                    } else {
                        // m16n64w4s2: 56 batches, mean regret 1.41 %
                        path.leaf(&[1], 56, 1.41)
                    }
                } else if ask!(path, batch.all_rows <= 1240) {
                    // m64n32w4s2: 7 batches, mean regret 4.30 %
                    path.leaf(&[3], 7, 4.30)
                } else {
                    // m64n96w4s2: 10 batches, mean regret 2.33 %
                    path.leaf(&[6, 3], 10, 2.33)
                }
            } else if ask!(path, batch.longest <= 3328) {
                if ask!(path, batch.all_rows <= 8192) {
                    if ask!(path, batch.all_rows <= 4096) {
                        // m16n64w4s2: 9 batches, mean regret 1.41 %
                        path.leaf(&[1], 9, 1.41)
                    } else {
                        // m64n128w8s3: 11 batches, mean regret 2.46 %
                        path.leaf(&[7, 3], 11, 2.46)
                    }
                } else {
                    // m64n64w4s2: 28 batches, mean regret 1.14 %
                    path.leaf(&[5], 28, 1.14)
                }
            } else if ask!(path, batch.unique_tokens <= 61440) {
                if ask!(path, batch.private_percent <= 80) {
                    // m64n96w4s2: 31 batches, mean regret 1.41 %
                    path.leaf(&[6, 1], 31, 1.41)
                } else {
                    // m16n32w2s2: 10 batches, mean regret 1.04 %
                    path.leaf(&[0], 10, 1.04)
                }
            } else if ask!(path, batch.mean_rows <= 25) {
                // m128n64w8s3: 38 batches, mean regret 1.18 %
                path.leaf(&[9, 3], 38, 1.18)
            } else {
                // m64n96w4s2: 43 batches, mean regret 2.31 %
                path.leaf(&[6, 3], 43, 2.31)
            }
        } else if ask!(path, batch.requests <= 81) {
            if ask!(path, batch.mean_rows <= 36) {
                // m16n128w4s2: 30 batches, mean regret 1.41 %
                path.leaf(&[2], 30, 1.41)
            } else {
                // m128n64w8s2: 6 batches, mean regret 2.63 %
                path.leaf(&[8], 6, 2.63)
            }
        } else if ask!(path, batch.trees <= 1) {
            // m64n64w4s2: 8 batches, mean regret 6.11 %
            path.leaf(&[5], 8, 6.11)
        } else {
            // m16n128w4s2: 24 batches, mean regret 2.39 %
            path.leaf(&[2], 24, 2.39)
        }
    } else {
        // m64n32w4s2: 23 batches, mean regret 1.63 %
        path.leaf(&[3], 23, 1.63)
    }
}
