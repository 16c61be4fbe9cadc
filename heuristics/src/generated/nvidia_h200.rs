//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 60 MB, memory 150 GB, launch floor 2.85 us, latency of memory 664 cycles, latency of L2 288 cycles, reading 1 MB 4.0 us, 264 GB/s, reading 4 MB 5.0 us, 840 GB/s, reading 16 MB 8.0 us, 2106 GB/s, reading 64 MB 19.4 us, 3455 GB/s, reading 256 MB 63.9 us, 4199 GB/s, reading 1024 MB 239.0 us, 4493 GB/s, reading 4096 MB 947.3 us, 4534 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 4533.9 GB/s, price of an L2 byte 9463.7 GB/s, price of a partial's byte 3892.6 GB/s, price of a FLOP 579374.3 GFLOP/s, price of a CTA 20.8 ns, price of a merge 3.8 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel d7733a1d83f6d730, space a7d745f403238396, selector 932ec913024a40eb
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, trees-many-fit 4e26fa87b3e8d9db, tenants-dims-fit 1bcc8e9b099f60c4, tenants-512-fit f6226c84049a75a3, conversation-fit 79c4f1854c1776a7, fp8-fit 789c6ad218d19f3e, fp8-dims-fit 30c3f928ead44f99, fp8-trees-fit 469cfe1ddc0e85ae, fp8-trees-many-fit f3ebde36726bb851, tenants-held-out bdfcf37304555131, tenants-dims-held-out 4a5751b9972571d0, tenants-512-held-out 93398dfac7fbe675, conversation-held-out edc9fdb475ea4ce8, fp8-held-out 1acb52ca7ca6747a, fp8-dims-held-out 368b85494cf8fbb8, fp8-trees-held-out 9b6ed5f1481738a3
//! - measured: 2026-11-28T04:38:56Z by `tilewright tune --force --device cuda:0 -v`
//! - counts: 1250 batches fitted, 426 only judged, 35 sets of tiles, 27886 measurements, 153684 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 6 rows at 0.20 each, ties below 1.0 %; in each of 12 parts, no tree of depth 5 over this portfolio and 10 thresholds a feature has less mean regret than 0.07 % (proven), this one is 1.42 points above that, 0.92 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 426 batches that were not fitted the selector takes 1.022 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.311 at worst).
//! - regret on batches not fitted, selector: mean 2.28 %, p95 11.79 %, worst 31.15 %
//! - regret on batches not fitted, best single tile: mean 20.24 %, p95 89.01 %, worst 174.66 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.12 %, p95 0.49 %, worst 6.28 %
//! - regret on batches not fitted, winner-label CART: mean 3.37 %, p95 15.80 %, worst 35.36 %
//! - regret on batches measured under the selector, selector: mean 2.12 %, p95 10.83 %, worst 30.28 % of 426
//! - regret on batches measured under the selector, PAT's rules: mean 65.90 %, p95 167.03 %, worst 292.03 % of 426
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 123.68 %, p95 545.69 %, worst 1427.40 % of 426

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
static SETS: [TileSet<'static>; 17] = [
    TileSet::new(&[Tile::of("m16n32w4s1")]),
    TileSet::new(&[Tile::of("m16n64w2s1")]),
    TileSet::new(&[Tile::of("m16n64w2s2")]),
    TileSet::new(&[Tile::of("m16n64w4s1")]),
    TileSet::new(&[Tile::of("m16n64w4s2")]),
    TileSet::new(&[Tile::of("m16n128w4s1")]),
    TileSet::new(&[Tile::of("m16n128w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s3")]),
    TileSet::new(&[Tile::of("m64n32w8s2")]),
    TileSet::new(&[Tile::of("m64n64w4s2")]),
    TileSet::new(&[Tile::of("m64n96w4s1")]),
    TileSet::new(&[Tile::of("m64n96w4s2")]),
    TileSet::new(&[Tile::of("m64n96w8s3")]),
    TileSet::new(&[Tile::of("m64n128w8s2")]),
    TileSet::new(&[Tile::of("m128n64w8s2")]),
    TileSet::new(&[Tile::of("m128n96w8s3")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m16n64w4s2");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 220559, l2_byte: 105667, partial_byte: 256896, flop: 1726, cta: 20810606656, merge: 3797333377103 };

/// The batches that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: BatchShape { requests: 1, all_rows: 28, trees: 1, lone: 0, longest: 32, unique_tokens: 32, unique_kv: 256, private_percent: 12, shared_rows: 0, mean_rows: 1, private_kv: 58, kv_heads: 1, gqa_ratio: 1, head_dim: 64, page_size: 16, dtype: 0 },
    max: BatchShape { requests: 2077, all_rows: 132928, trees: 640, lone: 640, longest: 100000, unique_tokens: 1392640, unique_kv: 12849152, private_percent: 100, shared_rows: 6728, mean_rows: 370, private_kv: 524288, kv_heads: 32, gqa_ratio: 16, head_dim: 512, page_size: 32, dtype: 4 },
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
        (64, 0) => 0b00000010011110100, // f16
        (64, 1) => 0b00000010011110100, // bf16
        (64, 3) => 0b00000010001110100, // fp8-f16
        (64, 4) => 0b00000010001110100, // fp8-bf16
        (96, 0) => 0b00101010110011000, // f16
        (96, 1) => 0b00101010110011000, // bf16
        (96, 3) => 0b00101010110011000, // fp8-f16
        (96, 4) => 0b00101010110011000, // fp8-bf16
        (128, 0) => 0b10111010110110010, // f16
        (128, 1) => 0b10111010110110010, // bf16
        (128, 3) => 0b11111010111110110, // fp8-f16
        (128, 4) => 0b11111010111110110, // fp8-bf16
        (192, 0) => 0b00001110111011000, // f16
        (192, 1) => 0b00001110111011000, // bf16
        (192, 3) => 0b00001110111011000, // fp8-f16
        (192, 4) => 0b00001110111011000, // fp8-bf16
        (256, 0) => 0b00000110110010000, // f16
        (256, 1) => 0b00000110110010000, // bf16
        (256, 3) => 0b00000100110010000, // fp8-f16
        (256, 4) => 0b00000100110010000, // fp8-bf16
        (512, 0) => 0b00000001000000001, // f16
        (512, 1) => 0b00000001000000001, // bf16
        (512, 3) => 0b00000001000000001, // fp8-f16
        (512, 4) => 0b00000001000000001, // fp8-bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.head_dim <= 64) {
        if ask!(path, batch.dtype <= 2) {
            // m16n128w4s2: 60 batches, mean regret 1.98 %
            path.leaf(&[6], 60, 1.98)
        } else {
            // m16n128w4s2: 24 batches, mean regret 0.20 %
            path.leaf(&[6], 24, 0.20)
        }
    } else if ask!(path, batch.head_dim <= 96) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.unique_kv <= 114688) {
                // m16n64w4s2: 23 batches, mean regret 2.80 %
                path.leaf(&[4], 23, 2.80)
            } else if ask!(path, batch.mean_rows <= 13) {
                // m16n64w4s1: 20 batches, mean regret 0.55 %
                path.leaf(&[3], 20, 0.55)
            } else {
                // m64n96w4s2: 17 batches, mean regret 0.46 %
                path.leaf(&[12], 17, 0.46)
            }
        } else {
            // m16n64w4s2: 24 batches, mean regret 0.35 %
            path.leaf(&[4], 24, 0.35)
        }
    } else if ask!(path, batch.head_dim <= 128) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.all_rows <= 4000) {
                if ask!(path, batch.mean_rows <= 24) {
                    if ask!(path, batch.unique_kv <= 245760) {
                        if ask!(path, batch.lone <= 1) {
                            // m16n64w4s2: 32 batches, mean regret 0.72 %
                            path.leaf(&[4], 32, 0.72)
                        } else if ask!(path, batch.unique_kv <= 47616) {
                            // m16n64w4s2: 13 batches, mean regret 1.24 %
                            path.leaf(&[4], 13, 1.24)
                        } else {
                            // m64n32w4s3: 85 batches, mean regret 0.98 %
                            path.leaf(&[8], 85, 0.98)
                        }
                    } else if ask!(path, batch.mean_rows <= 8) {
                        // m16n64w4s2: 93 batches, mean regret 0.65 %
                        path.leaf(&[4], 93, 0.65)
                    } else {
                        // m64n64w4s2: 51 batches, mean regret 1.01 %
                        path.leaf(&[10], 51, 1.01)
                    }
                } else if ask!(path, batch.trees <= 8) {
                    if ask!(path, batch.unique_kv <= 90624) {
                        // m64n96w8s3: 22 batches, mean regret 2.63 %
                        path.leaf(&[13], 22, 2.63)
                    } else {
                        // m128n96w8s3: 16 batches, mean regret 1.05 %
                        path.leaf(&[16], 16, 1.05)
                    }
                } else if ask!(path, batch.all_rows <= 1048) {
                    // m64n32w4s3: 17 batches, mean regret 1.93 %
                    path.leaf(&[8], 17, 1.93)
                } else {
                    // m64n96w8s3: 38 batches, mean regret 1.11 %
                    path.leaf(&[13], 38, 1.11)
                }
            } else if ask!(path, batch.longest <= 1536) {
                if ask!(path, batch.shared_rows <= 43) {
                    if ask!(path, batch.shared_rows <= 20) {
                        // m16n64w2s1: 13 batches, mean regret 0.13 %
                        path.leaf(&[1], 13, 0.13)
                    } else {
                        // m64n64w4s2: 8 batches, mean regret 2.71 %
                        path.leaf(&[10], 8, 2.71)
                    }
                } else if ask!(path, batch.all_rows <= 8256) {
                    // m64n128w8s2: 20 batches, mean regret 4.70 %
                    path.leaf(&[14], 20, 4.70)
                } else {
                    // m64n64w4s2: 37 batches, mean regret 0.76 %
                    path.leaf(&[10], 37, 0.76)
                }
            } else if ask!(path, batch.unique_tokens <= 86656) {
                // m64n64w4s2: 54 batches, mean regret 1.84 %
                path.leaf(&[10], 54, 1.84)
            } else if ask!(path, batch.gqa_ratio <= 2) {
                // m128n96w8s3: 21 batches, mean regret 0.58 %
                path.leaf(&[16], 21, 0.58)
            } else {
                // m64n96w4s2: 42 batches, mean regret 1.24 %
                path.leaf(&[12], 42, 1.24)
            }
        } else if ask!(path, batch.longest <= 960) {
            if ask!(path, batch.all_rows <= 4096) {
                // m16n128w4s2: 26 batches, mean regret 0.23 %
                path.leaf(&[6], 26, 0.23)
            } else if ask!(path, batch.mean_rows <= 13) {
                // m16n64w2s2: 30 batches, mean regret 1.30 %
                path.leaf(&[2], 30, 1.30)
            } else if ask!(path, batch.all_rows <= 7552) {
                // m16n64w2s2: 6 batches, mean regret 0.95 %
                path.leaf(&[2], 6, 0.95)
            } else {
                // m64n64w4s2: 18 batches, mean regret 1.20 %
                path.leaf(&[10], 18, 1.20)
            }
        } else if ask!(path, batch.shared_rows <= 0) {
            if ask!(path, batch.unique_kv <= 5242880) {
                // m16n64w2s2: 21 batches, mean regret 3.00 %
                path.leaf(&[2], 21, 3.00)
            } else {
                // m16n128w4s2: 7 batches, mean regret 0.08 %
                path.leaf(&[6], 7, 0.08)
            }
        } else if ask!(path, batch.unique_kv <= 134144) {
            if ask!(path, batch.shared_rows <= 128) {
                // m16n128w4s1: 30 batches, mean regret 0.26 %
                path.leaf(&[5], 30, 0.26)
            } else {
                // m128n64w8s2: 27 batches, mean regret 2.20 %
                path.leaf(&[15], 27, 2.20)
            }
        } else if ask!(path, batch.mean_rows <= 32) {
            // m16n128w4s2: 78 batches, mean regret 1.19 %
            path.leaf(&[6], 78, 1.19)
        } else {
            // m64n64w4s2: 37 batches, mean regret 2.65 %
            path.leaf(&[10], 37, 2.65)
        }
    } else if ask!(path, batch.head_dim <= 192) {
        if ask!(path, batch.dtype <= 2) {
            // m64n32w4s2: 60 batches, mean regret 0.69 %
            path.leaf(&[7], 60, 0.69)
        } else {
            // m64n32w4s2: 24 batches, mean regret 10.01 %
            path.leaf(&[7], 24, 10.01)
        }
    } else if ask!(path, batch.head_dim <= 256) {
        if ask!(path, batch.dtype <= 2) {
            // m64n96w4s1: 60 batches, mean regret 0.78 %
            path.leaf(&[11], 60, 0.78)
        } else {
            // m64n32w4s2: 24 batches, mean regret 7.43 %
            path.leaf(&[7], 24, 7.43)
        }
    } else if ask!(path, batch.dtype <= 2) {
        if ask!(path, batch.mean_rows <= 20) {
            // m16n32w4s1: 15 batches, mean regret 1.84 %
            path.leaf(&[0], 15, 1.84)
        } else {
            // m64n32w8s2: 33 batches, mean regret 0.53 %
            path.leaf(&[9], 33, 0.53)
        }
    } else {
        // m16n32w4s1: 24 batches, mean regret 0.01 %
        path.leaf(&[0], 24, 0.01)
    }
}
