//! Tile selector of NVIDIA H100 80GB HBM3 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 50 MB, memory 85 GB, launch floor 4.90 us, latency of memory 683 cycles, latency of L2 281 cycles, reading 1 MB 6.0 us, 174 GB/s, reading 4 MB 7.1 us, 593 GB/s, reading 16 MB 11.3 us, 1489 GB/s, reading 64 MB 27.3 us, 2459 GB/s, reading 256 MB 91.8 us, 2923 GB/s, reading 1024 MB 349.3 us, 3074 GB/s, reading 4096 MB 1390.8 us, 3088 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 3088.2 GB/s, price of an L2 byte 7707.8 GB/s, price of a partial's byte 3392.1 GB/s, price of a FLOP 583430.6 GFLOP/s, price of a CTA 25.1 ns, price of a merge 6.5 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel b1775c797acef46b, space a7d745f403238396, selector 04b0a47f48bb89a6
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit daab5f6ec9872e21, conversation-fit 79c4f1854c1776a7, fp8-fit 789c6ad218d19f3e, fp8-trees-fit 0b670e07b0ca4901, tenants-held-out bdfcf37304555131, tenants-dims-held-out 4a5751b9972571d0, conversation-held-out edc9fdb475ea4ce8, fp8-held-out 1acb52ca7ca6747a, fp8-trees-held-out 9b6ed5f1481738a3
//! - measured: 2026-11-26T01:32:55Z by `tilewright tune --device cuda:0 -v`
//! - counts: 780 batches fitted, 372 only judged, 31 sets of tiles, 25969 measurements, 133033 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; the tree of the selector of NVIDIA H100 80GB HBM3, which stays for 6 of 6 parts: on the fitted batches it takes 1.0030 of the time of the best tree found; of that: in each of 6 parts, no tree of depth 5 over this portfolio and 10 thresholds a feature has less mean regret than 0.09 % (proven), this one is 1.49 points above that, 0.96 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 372 batches that were not fitted the selector takes 1.027 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.444 at worst).
//! - regret on batches not fitted, selector: mean 2.77 %, p95 10.21 %, worst 44.36 %
//! - regret on batches not fitted, best single tile: mean 10.88 %, p95 39.77 %, worst 76.71 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.32 %, p95 2.39 %, worst 5.28 %
//! - regret on batches not fitted, winner-label CART: mean 3.78 %, p95 14.13 %, worst 64.85 %
//! - regret on batches measured under the selector, selector: mean 2.64 %, p95 9.09 %, worst 40.56 % of 372
//! - regret on batches measured under the selector, best single tile (m64n64w4s2): mean 9.71 %, p95 28.39 %, worst 53.24 % of 372
//! - regret on batches measured under the selector, PAT's rules: mean 63.28 %, p95 185.36 %, worst 307.55 % of 372
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 107.54 %, p95 451.85 %, worst 1357.50 % of 372

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
const PRICES: Prices = Prices { hbm_byte: 323809, l2_byte: 129739, partial_byte: 294804, flop: 1714, cta: 25090909206, merge: 6528000036875 };

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
        (64, 0) => 0b1111111111, // f16
        (64, 1) => 0b1111111111, // bf16
        (64, 3) => 0b1111111111, // fp8-f16
        (64, 4) => 0b1111111111, // fp8-bf16
        (96, 0) => 0b1111111111, // f16
        (96, 1) => 0b1111111111, // bf16
        (128, 0) => 0b1111111111, // f16
        (128, 1) => 0b1111111111, // bf16
        (128, 3) => 0b1111111111, // fp8-f16
        (128, 4) => 0b1111111111, // fp8-bf16
        (192, 0) => 0b1101111111, // f16
        (192, 1) => 0b1101111111, // bf16
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
        // m16n128w4s2: 46 batches, mean regret 2.48 %
        path.leaf(&[2], 46, 2.48)
    } else if ask!(path, batch.head_dim <= 96) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.all_rows <= 2772) {
                if ask!(path, batch.unique_tokens <= 45056) {
                    if ask!(path, batch.longest <= 5792) {
                        if ask!(path, batch.shared_rows <= 128) {
                            // m16n64w4s2: 8 batches, mean regret 3.21 %
                            path.leaf(&[1], 8, 3.21)
                        } else {
                            // m128n64w8s3: 1 batch, mean regret 6.08 %
                            path.leaf(&[9, 0], 1, 6.08)
                        }
                    } else if ask!(path, batch.all_rows <= 320) {
                        // m16n32w2s2: 3 batches, mean regret 4.71 %
                        path.leaf(&[0], 3, 4.71)
                    } else {
                        // m64n32w4s3: 15 batches, mean regret 1.23 %
                        path.leaf(&[4], 15, 1.23)
                    }
                } else if ask!(path, batch.mean_rows <= 29) {
                    if ask!(path, batch.trees <= 14) {
                        // m64n32w4s2: 4 batches, mean regret 6.80 %
                        path.leaf(&[3], 4, 6.80)
                    } else {
                        // m16n64w4s2: 6 batches, mean regret 2.41 %
                        path.leaf(&[1], 6, 2.41)
                    }
                } else if ask!(path, batch.all_rows <= 1240) {
                    // m64n32w4s2: 2 batches, mean regret 5.80 %
                    path.leaf(&[3], 2, 5.80)
                } else {
                    // m64n96w4s2: 1 batch, mean regret 0.42 %
                    path.leaf(&[6, 3], 1, 0.42)
                }
            } else if ask!(path, batch.longest <= 3328) {
                if ask!(path, batch.all_rows <= 8192) {
                    if ask!(path, batch.all_rows <= 4096) {
                        // m16n64w4s2: 0 batches, mean regret 0.00 %
                        path.leaf(&[1], 0, 0.00)
                    } else {
                        // m64n128w8s3: 0 batches, mean regret 0.00 %
                        path.leaf(&[7, 3], 0, 0.00)
                    }
                } else {
                    // m64n64w4s2: 0 batches, mean regret 0.00 %
                    path.leaf(&[5], 0, 0.00)
                }
            } else if ask!(path, batch.unique_tokens <= 61440) {
                if ask!(path, batch.private_percent <= 80) {
                    // m64n96w4s2: 3 batches, mean regret 2.21 %
                    path.leaf(&[6, 1], 3, 2.21)
                } else {
                    // m16n32w2s2: 0 batches, mean regret 0.00 %
                    path.leaf(&[0], 0, 0.00)
                }
            } else if ask!(path, batch.mean_rows <= 25) {
                // m128n64w8s3: 3 batches, mean regret 15.96 %
                path.leaf(&[9, 3], 3, 15.96)
            } else {
                // m64n96w4s2: 1 batch, mean regret 0.00 %
                path.leaf(&[6, 3], 1, 0.00)
            }
        } else if ask!(path, batch.requests <= 81) {
            if ask!(path, batch.mean_rows <= 36) {
                // m16n128w4s2: 0 batches, mean regret 0.00 %
                path.leaf(&[2], 0, 0.00)
            } else {
                // m128n64w8s2: 0 batches, mean regret 0.00 %
                path.leaf(&[8], 0, 0.00)
            }
        } else if ask!(path, batch.trees <= 1) {
            // m64n64w4s2: 0 batches, mean regret 0.00 %
            path.leaf(&[5], 0, 0.00)
        } else {
            // m16n128w4s2: 0 batches, mean regret 0.00 %
            path.leaf(&[2], 0, 0.00)
        }
    } else if ask!(path, batch.head_dim <= 128) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.all_rows <= 2772) {
                if ask!(path, batch.unique_tokens <= 45056) {
                    if ask!(path, batch.longest <= 5792) {
                        if ask!(path, batch.shared_rows <= 128) {
                            // m16n64w4s2: 65 batches, mean regret 1.98 %
                            path.leaf(&[1], 65, 1.98)
                        } else {
                            // m128n64w8s3: 4 batches, mean regret 0.90 %
                            path.leaf(&[9, 0], 4, 0.90)
                        }
                    } else if ask!(path, batch.all_rows <= 320) {
                        // m16n32w2s2: 11 batches, mean regret 2.01 %
                        path.leaf(&[0], 11, 2.01)
                    } else {
                        // m64n32w4s3: 60 batches, mean regret 1.17 %
                        path.leaf(&[4], 60, 1.17)
                    }
                } else if ask!(path, batch.mean_rows <= 29) {
                    if ask!(path, batch.trees <= 14) {
                        // m64n32w4s2: 70 batches, mean regret 0.32 %
                        path.leaf(&[3], 70, 0.32)
                    } else {
                        // m16n64w4s2: 64 batches, mean regret 1.96 %
                        path.leaf(&[1], 64, 1.96)
                    }
                } else if ask!(path, batch.all_rows <= 1240) {
                    // m64n32w4s2: 7 batches, mean regret 3.66 %
                    path.leaf(&[3], 7, 3.66)
                } else {
                    // m64n96w4s2: 10 batches, mean regret 2.32 %
                    path.leaf(&[6, 3], 10, 2.32)
                }
            } else if ask!(path, batch.longest <= 3328) {
                if ask!(path, batch.all_rows <= 8192) {
                    if ask!(path, batch.all_rows <= 4096) {
                        // m16n64w4s2: 9 batches, mean regret 1.23 %
                        path.leaf(&[1], 9, 1.23)
                    } else {
                        // m64n128w8s3: 11 batches, mean regret 2.25 %
                        path.leaf(&[7, 3], 11, 2.25)
                    }
                } else {
                    // m64n64w4s2: 28 batches, mean regret 1.10 %
                    path.leaf(&[5], 28, 1.10)
                }
            } else if ask!(path, batch.unique_tokens <= 61440) {
                if ask!(path, batch.private_percent <= 80) {
                    // m64n96w4s2: 33 batches, mean regret 1.46 %
                    path.leaf(&[6, 1], 33, 1.46)
                } else {
                    // m16n32w2s2: 10 batches, mean regret 0.69 %
                    path.leaf(&[0], 10, 0.69)
                }
            } else if ask!(path, batch.mean_rows <= 25) {
                // m128n64w8s3: 39 batches, mean regret 1.29 %
                path.leaf(&[9, 3], 39, 1.29)
            } else {
                // m64n96w4s2: 43 batches, mean regret 2.74 %
                path.leaf(&[6, 3], 43, 2.74)
            }
        } else if ask!(path, batch.requests <= 81) {
            if ask!(path, batch.mean_rows <= 36) {
                // m16n128w4s2: 69 batches, mean regret 0.38 %
                path.leaf(&[2], 69, 0.38)
            } else {
                // m128n64w8s2: 9 batches, mean regret 2.80 %
                path.leaf(&[8], 9, 2.80)
            }
        } else if ask!(path, batch.trees <= 1) {
            // m64n64w4s2: 12 batches, mean regret 8.61 %
            path.leaf(&[5], 12, 8.61)
        } else {
            // m16n128w4s2: 36 batches, mean regret 2.75 %
            path.leaf(&[2], 36, 2.75)
        }
    } else if ask!(path, batch.head_dim <= 192) {
        // m64n32w4s2: 50 batches, mean regret 2.34 %
        path.leaf(&[3], 50, 2.34)
    } else {
        // m64n32w4s2: 47 batches, mean regret 2.24 %
        path.leaf(&[3], 47, 2.24)
    }
}
