//! Tile selector of NVIDIA H100 80GB HBM3 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 50 MB, memory 85 GB, launch floor 3.17 us, latency of memory 685 cycles, latency of L2 283 cycles, reading 1 MB 4.2 us, 250 GB/s, reading 4 MB 5.3 us, 794 GB/s, reading 16 MB 9.3 us, 1808 GB/s, reading 64 MB 25.6 us, 2625 GB/s, reading 256 MB 89.8 us, 2988 GB/s, reading 1024 MB 347.5 us, 3090 GB/s, reading 4096 MB 1387.7 us, 3095 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 3095.0 GB/s, price of an L2 byte 7711.2 GB/s, price of a partial's byte 3438.0 GB/s, price of a FLOP 580383.1 GFLOP/s, price of a CTA 25.1 ns, price of a merge 4.2 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 5e9a5c39f9b98df2, space a7d745f403238396, selector 0276ea55bb0f6280
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit daab5f6ec9872e21, tenants-512-fit f6226c84049a75a3, conversation-fit 79c4f1854c1776a7, fp8-fit 789c6ad218d19f3e, fp8-dims-fit 2fbefcdcf0e5190e, fp8-trees-fit 0b670e07b0ca4901, tenants-held-out bdfcf37304555131, tenants-dims-held-out 4a5751b9972571d0, tenants-512-held-out 93398dfac7fbe675, conversation-held-out edc9fdb475ea4ce8, fp8-held-out 1acb52ca7ca6747a, fp8-dims-held-out 368b85494cf8fbb8, fp8-trees-held-out 9b6ed5f1481738a3
//! - measured: 2026-11-27T02:28:34Z by `tilewright tune --device cuda:0 -vv`
//! - counts: 908 batches fitted, 426 only judged, 31 sets of tiles, 24148 measurements, 133759 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; the tree of the selector of NVIDIA H100 80GB HBM3, which stays for 10 of 12 parts: on the fitted batches it takes 1.0080 of the time of the best tree found; of that: in each of 12 parts, no tree of depth 5 over this portfolio and 10 thresholds a feature has less mean regret than 0.05 % (proven), this one is 1.03 points above that, 0.79 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 426 batches that were not fitted the selector takes 1.026 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.599 at worst).
//! - regret on batches not fitted, selector: mean 2.71 %, p95 11.66 %, worst 59.85 %
//! - regret on batches not fitted, best single tile: mean 10.41 %, p95 37.43 %, worst 113.12 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.26 %, p95 1.63 %, worst 9.49 %
//! - regret on batches not fitted, winner-label CART: mean 4.93 %, p95 20.87 %, worst 124.94 %
//! - regret on batches measured under the selector, selector: mean 2.70 %, p95 10.95 %, worst 58.41 % of 426
//! - regret on batches measured under the selector, PAT's rules: mean 59.95 %, p95 186.47 %, worst 352.82 % of 426
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 110.82 %, p95 505.53 %, worst 1509.18 % of 426

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
static SETS: [TileSet<'static>; 14] = [
    TileSet::new(&[Tile::of("m16n16w4s1")]),
    TileSet::new(&[Tile::of("m16n32w2s2")]),
    TileSet::new(&[Tile::of("m16n32w4s1")]),
    TileSet::new(&[Tile::of("m16n64w4s2")]),
    TileSet::new(&[Tile::of("m16n128w4s1")]),
    TileSet::new(&[Tile::of("m16n128w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s3")]),
    TileSet::new(&[Tile::of("m64n32w8s2")]),
    TileSet::new(&[Tile::of("m64n64w4s2")]),
    TileSet::new(&[Tile::of("m64n96w4s2")]),
    TileSet::new(&[Tile::of("m64n128w8s3")]),
    TileSet::new(&[Tile::of("m128n64w8s2")]),
    TileSet::new(&[Tile::of("m128n64w8s3")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m64n32w4s2");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 323101, l2_byte: 129681, partial_byte: 290870, flop: 1723, cta: 25071968786, merge: 4223999877770 };

/// The batches that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: BatchShape { requests: 1, all_rows: 28, trees: 1, lone: 0, longest: 32, unique_tokens: 32, unique_kv: 256, private_percent: 12, shared_rows: 0, mean_rows: 1, private_kv: 58, kv_heads: 1, gqa_ratio: 1, head_dim: 64, page_size: 16, dtype: 0 },
    max: BatchShape { requests: 2077, all_rows: 132928, trees: 512, lone: 512, longest: 100000, unique_tokens: 488512, unique_kv: 12849152, private_percent: 100, shared_rows: 6144, mean_rows: 368, private_kv: 524288, kv_heads: 32, gqa_ratio: 16, head_dim: 512, page_size: 32, dtype: 4 },
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
        (64, 0) => 0b00010001111010, // f16
        (64, 1) => 0b00010001111010, // bf16
        (64, 3) => 0b00010001111010, // fp8-f16
        (64, 4) => 0b00010001111010, // fp8-bf16
        (96, 0) => 0b10111011111010, // f16
        (96, 1) => 0b10111011111010, // bf16
        (96, 3) => 0b00000011111010, // fp8-f16
        (96, 4) => 0b00000011111010, // fp8-bf16
        (128, 0) => 0b11111011001010, // f16
        (128, 1) => 0b11111011001010, // bf16
        (128, 3) => 0b11011011101010, // fp8-f16
        (128, 4) => 0b11011011101010, // fp8-bf16
        (192, 0) => 0b11000011001010, // f16
        (192, 1) => 0b11000011001010, // bf16
        (192, 3) => 0b11000011101010, // fp8-f16
        (192, 4) => 0b11000011101010, // fp8-bf16
        (256, 0) => 0b01000011001010, // f16
        (256, 1) => 0b01000011001010, // bf16
        (256, 3) => 0b01000011001010, // fp8-f16
        (256, 4) => 0b01000011001010, // fp8-bf16
        (512, 0) => 0b00000100000101, // f16
        (512, 1) => 0b00000100000101, // bf16
        (512, 3) => 0b00000100000101, // fp8-f16
        (512, 4) => 0b00000100000101, // fp8-bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.head_dim <= 64) {
        if ask!(path, batch.dtype <= 2) {
            // m16n128w4s2: 46 batches, mean regret 1.83 %
            path.leaf(&[5], 46, 1.83)
        } else {
            // m16n128w4s2: 16 batches, mean regret 0.21 %
            path.leaf(&[5], 16, 0.21)
        }
    } else if ask!(path, batch.head_dim <= 96) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.all_rows <= 2772) {
                if ask!(path, batch.unique_tokens <= 45056) {
                    if ask!(path, batch.longest <= 5792) {
                        if ask!(path, batch.shared_rows <= 128) {
                            // m16n64w4s2: 8 batches, mean regret 6.14 %
                            path.leaf(&[3], 8, 6.14)
                        } else {
                            // m128n64w8s3: 1 batch, mean regret 12.34 %
                            path.leaf(&[13, 1], 1, 12.34)
                        }
                    } else if ask!(path, batch.all_rows <= 320) {
                        // m16n32w2s2: 3 batches, mean regret 2.45 %
                        path.leaf(&[1], 3, 2.45)
                    } else {
                        // m64n32w4s3: 15 batches, mean regret 0.56 %
                        path.leaf(&[7], 15, 0.56)
                    }
                } else if ask!(path, batch.mean_rows <= 29) {
                    if ask!(path, batch.trees <= 14) {
                        // m64n32w4s2: 4 batches, mean regret 0.88 %
                        path.leaf(&[6], 4, 0.88)
                    } else {
                        // m16n64w4s2: 6 batches, mean regret 7.10 %
                        path.leaf(&[3], 6, 7.10)
                    }
                } else if ask!(path, batch.all_rows <= 1240) {
                    // m64n32w4s2: 2 batches, mean regret 7.97 %
                    path.leaf(&[6], 2, 7.97)
                } else {
                    // m64n96w4s2: 1 batch, mean regret 6.34 %
                    path.leaf(&[10, 6], 1, 6.34)
                }
            } else if ask!(path, batch.longest <= 3328) {
                if ask!(path, batch.all_rows <= 8192) {
                    if ask!(path, batch.all_rows <= 4096) {
                        // m16n64w4s2: 0 batches, mean regret 0.00 %
                        path.leaf(&[3], 0, 0.00)
                    } else {
                        // m64n128w8s3: 0 batches, mean regret 0.00 %
                        path.leaf(&[11, 6], 0, 0.00)
                    }
                } else {
                    // m64n64w4s2: 0 batches, mean regret 0.00 %
                    path.leaf(&[9], 0, 0.00)
                }
            } else if ask!(path, batch.unique_tokens <= 61440) {
                if ask!(path, batch.private_percent <= 80) {
                    // m64n96w4s2: 3 batches, mean regret 3.26 %
                    path.leaf(&[10, 3], 3, 3.26)
                } else {
                    // m16n32w2s2: 0 batches, mean regret 0.00 %
                    path.leaf(&[1], 0, 0.00)
                }
            } else if ask!(path, batch.mean_rows <= 25) {
                // m128n64w8s3: 3 batches, mean regret 17.80 %
                path.leaf(&[13, 6], 3, 17.80)
            } else {
                // m64n96w4s2: 1 batch, mean regret 0.00 %
                path.leaf(&[10, 6], 1, 0.00)
            }
        } else {
            // m16n128w4s1: 16 batches, mean regret 0.39 %
            path.leaf(&[4], 16, 0.39)
        }
    } else if ask!(path, batch.head_dim <= 128) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.all_rows <= 2772) {
                if ask!(path, batch.unique_tokens <= 45056) {
                    if ask!(path, batch.longest <= 5792) {
                        if ask!(path, batch.shared_rows <= 128) {
                            // m16n64w4s2: 65 batches, mean regret 2.65 %
                            path.leaf(&[3], 65, 2.65)
                        } else {
                            // m128n64w8s3: 4 batches, mean regret 5.13 %
                            path.leaf(&[13, 1], 4, 5.13)
                        }
                    } else if ask!(path, batch.all_rows <= 320) {
                        // m16n32w2s2: 11 batches, mean regret 2.19 %
                        path.leaf(&[1], 11, 2.19)
                    } else {
                        // m64n32w4s3: 60 batches, mean regret 1.06 %
                        path.leaf(&[7], 60, 1.06)
                    }
                } else if ask!(path, batch.mean_rows <= 29) {
                    if ask!(path, batch.trees <= 14) {
                        // m64n32w4s2: 70 batches, mean regret 0.47 %
                        path.leaf(&[6], 70, 0.47)
                    } else {
                        // m16n64w4s2: 64 batches, mean regret 3.75 %
                        path.leaf(&[3], 64, 3.75)
                    }
                } else if ask!(path, batch.all_rows <= 1240) {
                    // m64n32w4s2: 7 batches, mean regret 0.74 %
                    path.leaf(&[6], 7, 0.74)
                } else {
                    // m64n96w4s2: 10 batches, mean regret 2.54 %
                    path.leaf(&[10, 6], 10, 2.54)
                }
            } else if ask!(path, batch.longest <= 3328) {
                if ask!(path, batch.all_rows <= 8192) {
                    if ask!(path, batch.all_rows <= 4096) {
                        // m16n64w4s2: 9 batches, mean regret 1.07 %
                        path.leaf(&[3], 9, 1.07)
                    } else {
                        // m64n128w8s3: 11 batches, mean regret 2.83 %
                        path.leaf(&[11, 6], 11, 2.83)
                    }
                } else {
                    // m64n64w4s2: 28 batches, mean regret 1.03 %
                    path.leaf(&[9], 28, 1.03)
                }
            } else if ask!(path, batch.unique_tokens <= 61440) {
                if ask!(path, batch.private_percent <= 80) {
                    // m64n96w4s2: 33 batches, mean regret 3.02 %
                    path.leaf(&[10, 3], 33, 3.02)
                } else {
                    // m16n32w2s2: 10 batches, mean regret 4.70 %
                    path.leaf(&[1], 10, 4.70)
                }
            } else if ask!(path, batch.mean_rows <= 25) {
                // m128n64w8s3: 39 batches, mean regret 0.69 %
                path.leaf(&[13, 6], 39, 0.69)
            } else {
                // m64n96w4s2: 43 batches, mean regret 1.72 %
                path.leaf(&[10, 6], 43, 1.72)
            }
        } else if ask!(path, batch.requests <= 81) {
            if ask!(path, batch.mean_rows <= 36) {
                // m16n128w4s2: 69 batches, mean regret 1.31 %
                path.leaf(&[5], 69, 1.31)
            } else {
                // m128n64w8s2: 9 batches, mean regret 5.19 %
                path.leaf(&[12], 9, 5.19)
            }
        } else if ask!(path, batch.trees <= 1) {
            // m64n64w4s2: 12 batches, mean regret 9.14 %
            path.leaf(&[9], 12, 9.14)
        } else {
            // m16n128w4s2: 36 batches, mean regret 1.61 %
            path.leaf(&[5], 36, 1.61)
        }
    } else if ask!(path, batch.head_dim <= 192) {
        if ask!(path, batch.dtype <= 2) {
            // m64n32w4s2: 50 batches, mean regret 0.33 %
            path.leaf(&[6], 50, 0.33)
        } else {
            // m64n32w4s2: 16 batches, mean regret 2.45 %
            path.leaf(&[6], 16, 2.45)
        }
    } else if ask!(path, batch.head_dim <= 256) {
        if ask!(path, batch.dtype <= 2) {
            // m64n32w4s2: 47 batches, mean regret 0.85 %
            path.leaf(&[6], 47, 0.85)
        } else {
            // m64n32w4s2: 16 batches, mean regret 2.13 %
            path.leaf(&[6], 16, 2.13)
        }
    } else if ask!(path, batch.dtype <= 2) {
        if ask!(path, batch.all_rows <= 576) {
            // m16n16w4s1: 17 batches, mean regret 0.73 %
            path.leaf(&[0], 17, 0.73)
        } else {
            // m64n32w8s2: 31 batches, mean regret 0.29 %
            path.leaf(&[8], 31, 0.29)
        }
    } else {
        // m16n32w4s1: 16 batches, mean regret 0.00 %
        path.leaf(&[2], 16, 0.00)
    }
}
