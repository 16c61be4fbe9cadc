//! Tile selector of NVIDIA H100 80GB HBM3 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 50 MB, memory 85 GB, launch floor 3.33 us, latency of memory 685 cycles, latency of L2 283 cycles, reading 1 MB 4.1 us, 254 GB/s, reading 4 MB 5.3 us, 794 GB/s, reading 16 MB 9.4 us, 1789 GB/s, reading 64 MB 25.5 us, 2628 GB/s, reading 256 MB 90.0 us, 2984 GB/s, reading 1024 MB 347.7 us, 3088 GB/s, reading 4096 MB 1390.0 us, 3090 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 3089.9 GB/s, price of an L2 byte 7892.3 GB/s, price of a partial's byte 3477.1 GB/s, price of a FLOP 579374.3 GFLOP/s, price of a CTA 25.1 ns, price of a merge 4.4 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 6f2afeb51fb811eb, space a7d745f403238396, selector 04b0a47f48bb89a6
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit daab5f6ec9872e21, conversation-fit 79c4f1854c1776a7, fp8-fit 789c6ad218d19f3e, fp8-trees-fit 0b670e07b0ca4901, tenants-held-out bdfcf37304555131, tenants-dims-held-out 4a5751b9972571d0, conversation-held-out edc9fdb475ea4ce8, fp8-held-out 1acb52ca7ca6747a, fp8-trees-held-out 9b6ed5f1481738a3
//! - measured: 2026-11-26T06:15:03Z by `tilewright tune --device cuda:0 -v`
//! - counts: 780 batches fitted, 372 only judged, 26 sets of tiles, 25109 measurements, 131124 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; the tree of the selector of NVIDIA H100 80GB HBM3, which stays for 6 of 6 parts: on the fitted batches it takes 1.0099 of the time of the best tree found; of that: in each of 6 parts, no tree of depth 5 over this portfolio and 10 thresholds a feature has less mean regret than 0.07 % (proven), this one is 1.14 points above that, 0.83 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 372 batches that were not fitted the selector takes 1.027 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.465 at worst).
//! - regret on batches not fitted, selector: mean 2.81 %, p95 11.60 %, worst 46.52 %
//! - regret on batches not fitted, best single tile: mean 9.15 %, p95 32.89 %, worst 67.36 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.44 %, p95 3.08 %, worst 11.00 %
//! - regret on batches not fitted, winner-label CART: mean 3.01 %, p95 13.87 %, worst 44.10 %
//! - regret on batches measured under the selector, selector: mean 2.84 %, p95 11.11 %, worst 46.97 % of 372
//! - regret on batches measured under the selector, best single tile (m64n64w4s2): mean 9.12 %, p95 27.19 %, worst 72.70 % of 372
//! - regret on batches measured under the selector, PAT's rules: mean 62.94 %, p95 187.45 %, worst 320.72 % of 372
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 115.47 %, p95 468.74 %, worst 1469.18 % of 372

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
const PRICES: Prices = Prices { hbm_byte: 323630, l2_byte: 126705, partial_byte: 287592, flop: 1726, cta: 25075757796, merge: 4437333283325 };

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
        // m16n128w4s2: 46 batches, mean regret 2.75 %
        path.leaf(&[2], 46, 2.75)
    } else if ask!(path, batch.head_dim <= 96) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.all_rows <= 2772) {
                if ask!(path, batch.unique_tokens <= 45056) {
                    if ask!(path, batch.longest <= 5792) {
                        if ask!(path, batch.shared_rows <= 128) {
                            // m16n64w4s2: 8 batches, mean regret 8.37 %
                            path.leaf(&[1], 8, 8.37)
                        } else {
                            // m128n64w8s3: 1 batch, mean regret 14.03 %
                            path.leaf(&[9, 0], 1, 14.03)
                        }
                    } else if ask!(path, batch.all_rows <= 320) {
                        // m16n32w2s2: 3 batches, mean regret 4.10 %
                        path.leaf(&[0], 3, 4.10)
                    } else {
                        // m64n32w4s3: 15 batches, mean regret 0.43 %
                        path.leaf(&[4], 15, 0.43)
                    }
                } else if ask!(path, batch.mean_rows <= 29) {
                    if ask!(path, batch.trees <= 14) {
                        // m64n32w4s2: 4 batches, mean regret 0.67 %
                        path.leaf(&[3], 4, 0.67)
                    } else {
                        // m16n64w4s2: 6 batches, mean regret 8.01 %
                        path.leaf(&[1], 6, 8.01)
                    }
                } else if ask!(path, batch.all_rows <= 1240) {
                    // m64n32w4s2: 2 batches, mean regret 6.22 %
                    path.leaf(&[3], 2, 6.22)
                } else {
                    // m64n96w4s2: 1 batch, mean regret 8.06 %
                    path.leaf(&[6, 3], 1, 8.06)
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
                    // m64n96w4s2: 3 batches, mean regret 4.69 %
                    path.leaf(&[6, 1], 3, 4.69)
                } else {
                    // m16n32w2s2: 0 batches, mean regret 0.00 %
                    path.leaf(&[0], 0, 0.00)
                }
            } else if ask!(path, batch.mean_rows <= 25) {
                // m128n64w8s3: 3 batches, mean regret 16.14 %
                path.leaf(&[9, 3], 3, 16.14)
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
                            // m16n64w4s2: 65 batches, mean regret 2.85 %
                            path.leaf(&[1], 65, 2.85)
                        } else {
                            // m128n64w8s3: 4 batches, mean regret 4.37 %
                            path.leaf(&[9, 0], 4, 4.37)
                        }
                    } else if ask!(path, batch.all_rows <= 320) {
                        // m16n32w2s2: 11 batches, mean regret 2.35 %
                        path.leaf(&[0], 11, 2.35)
                    } else {
                        // m64n32w4s3: 60 batches, mean regret 1.27 %
                        path.leaf(&[4], 60, 1.27)
                    }
                } else if ask!(path, batch.mean_rows <= 29) {
                    if ask!(path, batch.trees <= 14) {
                        // m64n32w4s2: 70 batches, mean regret 0.46 %
                        path.leaf(&[3], 70, 0.46)
                    } else {
                        // m16n64w4s2: 64 batches, mean regret 3.76 %
                        path.leaf(&[1], 64, 3.76)
                    }
                } else if ask!(path, batch.all_rows <= 1240) {
                    // m64n32w4s2: 7 batches, mean regret 0.28 %
                    path.leaf(&[3], 7, 0.28)
                } else {
                    // m64n96w4s2: 10 batches, mean regret 2.68 %
                    path.leaf(&[6, 3], 10, 2.68)
                }
            } else if ask!(path, batch.longest <= 3328) {
                if ask!(path, batch.all_rows <= 8192) {
                    if ask!(path, batch.all_rows <= 4096) {
                        // m16n64w4s2: 9 batches, mean regret 1.35 %
                        path.leaf(&[1], 9, 1.35)
                    } else {
                        // m64n128w8s3: 11 batches, mean regret 2.78 %
                        path.leaf(&[7, 3], 11, 2.78)
                    }
                } else {
                    // m64n64w4s2: 28 batches, mean regret 0.84 %
                    path.leaf(&[5], 28, 0.84)
                }
            } else if ask!(path, batch.unique_tokens <= 61440) {
                if ask!(path, batch.private_percent <= 80) {
                    // m64n96w4s2: 33 batches, mean regret 3.29 %
                    path.leaf(&[6, 1], 33, 3.29)
                } else {
                    // m16n32w2s2: 10 batches, mean regret 4.83 %
                    path.leaf(&[0], 10, 4.83)
                }
            } else if ask!(path, batch.mean_rows <= 25) {
                // m128n64w8s3: 39 batches, mean regret 0.78 %
                path.leaf(&[9, 3], 39, 0.78)
            } else {
                // m64n96w4s2: 43 batches, mean regret 2.35 %
                path.leaf(&[6, 3], 43, 2.35)
            }
        } else if ask!(path, batch.requests <= 81) {
            if ask!(path, batch.mean_rows <= 36) {
                // m16n128w4s2: 69 batches, mean regret 0.96 %
                path.leaf(&[2], 69, 0.96)
            } else {
                // m128n64w8s2: 9 batches, mean regret 2.12 %
                path.leaf(&[8], 9, 2.12)
            }
        } else if ask!(path, batch.trees <= 1) {
            // m64n64w4s2: 12 batches, mean regret 9.51 %
            path.leaf(&[5], 12, 9.51)
        } else {
            // m16n128w4s2: 36 batches, mean regret 1.63 %
            path.leaf(&[2], 36, 1.63)
        }
    } else if ask!(path, batch.head_dim <= 192) {
        // m64n32w4s2: 50 batches, mean regret 0.67 %
        path.leaf(&[3], 50, 0.67)
    } else {
        // m64n32w4s2: 47 batches, mean regret 1.50 %
        path.leaf(&[3], 47, 1.50)
    }
}
