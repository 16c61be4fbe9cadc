//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 60 MB, memory 150 GB, launch floor 2.94 us, latency of memory 665 cycles, latency of L2 288 cycles, reading 1 MB 4.0 us, 260 GB/s, reading 4 MB 4.9 us, 857 GB/s, reading 16 MB 7.9 us, 2114 GB/s, reading 64 MB 19.3 us, 3472 GB/s, reading 256 MB 63.6 us, 4224 GB/s, reading 1024 MB 239.6 us, 4482 GB/s, reading 4096 MB 946.2 us, 4539 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 4539.0 GB/s, price of an L2 byte 9506.6 GB/s, price of a partial's byte 4026.2 GB/s, price of a FLOP 581395.3 GFLOP/s, price of a CTA 20.7 ns, price of a merge 3.9 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v973-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel e573da3bbcc478e4, space a7d745f403238396, selector 6650169cd8bb7fd2
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, trees-many-fit 4e26fa87b3e8d9db, tenants-dims-fit 1bcc8e9b099f60c4, tenants-512-fit f6226c84049a75a3, conversation-fit 79c4f1854c1776a7, fp8-fit 789c6ad218d19f3e, fp8-dims-fit 30c3f928ead44f99, fp8-trees-fit 6077184ad2d9e196, fp8-trees-many-fit f3ebde36726bb851, tenants-held-out bdfcf37304555131, tenants-dims-held-out 4a5751b9972571d0, tenants-512-held-out 93398dfac7fbe675, conversation-held-out edc9fdb475ea4ce8, fp8-held-out 1acb52ca7ca6747a, fp8-dims-held-out 368b85494cf8fbb8, fp8-trees-held-out 5244652484af74ec
//! - measured: 2026-12-01T16:38:45Z by `tilewright tune --device cuda:0`
//! - counts: 1322 batches fitted, 446 only judged, 36 sets of tiles, 32173 measurements, 182355 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 6 rows at 0.20 each, ties below 1.0 %; the tree of the selector of NVIDIA H200, which stays for 12 of 12 parts: on the fitted batches it takes 1.0079 of the time of the best tree found; of that: in each of 12 parts, no tree of depth 5 over this portfolio and 10 thresholds a feature has less mean regret than 0.08 % (proven), this one is 1.03 points above that, 0.62 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 446 batches that were not fitted the selector takes 1.024 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.227 at worst).
//! - regret on batches not fitted, selector: mean 2.49 %, p95 10.75 %, worst 22.75 %
//! - regret on batches not fitted, best single tile: mean 10.62 %, p95 41.50 %, worst 94.97 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.29 %, p95 2.01 %, worst 5.63 %
//! - regret on batches not fitted, winner-label CART: mean 4.61 %, p95 19.29 %, worst 67.58 %
//! - regret on batches measured under the selector, selector: mean 2.53 %, p95 9.64 %, worst 22.24 % of 446
//! - regret on batches measured under the selector, PAT's rules: mean 67.54 %, p95 189.37 %, worst 312.78 % of 446
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 144.08 %, p95 693.80 %, worst 1436.83 % of 446

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
    TileSet::new(&[Tile::of("m16n64w2s2")]),
    TileSet::new(&[Tile::of("m16n64w4s2")]),
    TileSet::new(&[Tile::of("m16n64w4s2"), Tile::of("m64n64w4s2")]),
    TileSet::new(&[Tile::of("m16n128w4s1")]),
    TileSet::new(&[Tile::of("m16n128w4s2")]),
    TileSet::new(&[Tile::of("m32n64w4s2")]),
    TileSet::new(&[Tile::of("m32n64w4s3")]),
    TileSet::new(&[Tile::of("m64n32w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s3")]),
    TileSet::new(&[Tile::of("m64n32w8s2")]),
    TileSet::new(&[Tile::of("m64n64w4s2")]),
    TileSet::new(&[Tile::of("m64n96w4s1")]),
    TileSet::new(&[Tile::of("m64n96w4s2")]),
    TileSet::new(&[Tile::of("m64n128w8s2")]),
    TileSet::new(&[Tile::of("m128n64w8s2")]),
    TileSet::new(&[Tile::of("m128n96w8s3")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m64n64w4s2");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 220313, l2_byte: 105190, partial_byte: 248372, flop: 1720, cta: 20734848724, merge: 3925333420435 };

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
        (64, 0) => 0b00000100011101110, // f16
        (64, 1) => 0b00000100011101110, // bf16
        (64, 3) => 0b00000100011101110, // fp8-f16
        (64, 4) => 0b00000100011101110, // fp8-bf16
        (96, 0) => 0b00010101001001100, // f16
        (96, 1) => 0b00010101001001100, // bf16
        (96, 3) => 0b00010101001001100, // fp8-f16
        (96, 4) => 0b00010101001001100, // fp8-bf16
        (128, 0) => 0b10110101101011100, // f16
        (128, 1) => 0b10110101101011100, // bf16
        (128, 3) => 0b11110101111101110, // fp8-f16
        (128, 4) => 0b11110101111101110, // fp8-bf16
        (192, 0) => 0b00011101101001100, // f16
        (192, 1) => 0b00011101101001100, // bf16
        (192, 3) => 0b00011101111011100, // fp8-f16
        (192, 4) => 0b00011101111011100, // fp8-bf16
        (256, 0) => 0b01001101101001100, // f16
        (256, 1) => 0b01001101101001100, // bf16
        (256, 3) => 0b01001101111011100, // fp8-f16
        (256, 4) => 0b01001101111011100, // fp8-bf16
        (512, 0) => 0b00000010000000001, // f16
        (512, 1) => 0b00000010000000001, // bf16
        (512, 3) => 0b00000010000000001, // fp8-f16
        (512, 4) => 0b00000010000000001, // fp8-bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.head_dim <= 64) {
        if ask!(path, batch.dtype <= 2) {
            // m16n128w4s2: 60 batches, mean regret 1.27 %
            path.leaf(&[5], 60, 1.27)
        } else {
            // m16n128w4s2: 24 batches, mean regret 0.13 %
            path.leaf(&[5], 24, 0.13)
        }
    } else if ask!(path, batch.head_dim <= 96) {
        if ask!(path, batch.dtype <= 2) {
            // m64n96w4s2: 60 batches, mean regret 2.57 %
            path.leaf(&[13], 60, 2.57)
        } else {
            // m16n64w4s2: 24 batches, mean regret 0.06 %
            path.leaf(&[2], 24, 0.06)
        }
    } else if ask!(path, batch.head_dim <= 128) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.all_rows <= 2816) {
                if ask!(path, batch.unique_kv <= 88064) {
                    if ask!(path, batch.private_percent <= 61) {
                        if ask!(path, batch.gqa_ratio <= 4) {
                            // m16n64w4s2: 10 batches, mean regret 2.47 %
                            path.leaf(&[2], 10, 2.47)
                        } else {
                            // m64n32w4s3: 25 batches, mean regret 1.56 %
                            path.leaf(&[9], 25, 1.56)
                        }
                    } else {
                        // m16n64w4s2: 52 batches, mean regret 2.23 %
                        path.leaf(&[2], 52, 2.23)
                    }
                } else if ask!(path, batch.gqa_ratio <= 5) {
                    if ask!(path, batch.mean_rows <= 8) {
                        // m16n128w4s1: 93 batches, mean regret 0.73 %
                        path.leaf(&[4], 93, 0.73)
                    } else if ask!(path, batch.trees <= 6) {
                        // m128n96w8s3: 18 batches, mean regret 1.66 %
                        path.leaf(&[16], 18, 1.66)
                    } else {
                        // m64n96w4s2: 33 batches, mean regret 1.65 %
                        path.leaf(&[13], 33, 1.65)
                    }
                } else if ask!(path, batch.mean_rows <= 17) {
                    // m16n128w4s1: 49 batches, mean regret 1.20 %
                    path.leaf(&[4], 49, 1.20)
                } else if ask!(path, batch.requests <= 128) {
                    // m64n96w4s2: 38 batches, mean regret 3.51 %
                    path.leaf(&[13], 38, 3.51)
                } else {
                    // m64n128w8s2: 7 batches, mean regret 1.01 %
                    path.leaf(&[14], 7, 1.01)
                }
            } else if ask!(path, batch.longest <= 1536) {
                if ask!(path, batch.all_rows <= 4992) {
                    // m16n128w4s1: 17 batches, mean regret 5.45 %
                    path.leaf(&[4], 17, 5.45)
                } else {
                    // m16n64w4s2+m64n64w4s2: 65 batches, mean regret 1.59 %
                    path.leaf(&[3, 16], 65, 1.59)
                }
            } else if ask!(path, batch.trees <= 4) {
                // m128n96w8s3: 39 batches, mean regret 2.49 %
                path.leaf(&[16], 39, 2.49)
            } else {
                // m64n96w4s2: 116 batches, mean regret 1.89 %
                path.leaf(&[13], 116, 1.89)
            }
        } else if ask!(path, batch.mean_rows <= 71) {
            if ask!(path, batch.all_rows <= 4096) {
                if ask!(path, batch.longest <= 3584) {
                    if ask!(path, batch.unique_kv <= 825344) {
                        // m16n128w4s2: 63 batches, mean regret 0.88 %
                        path.leaf(&[5], 63, 0.88)
                    } else {
                        // m16n64w2s2: 8 batches, mean regret 0.28 %
                        path.leaf(&[1], 8, 0.28)
                    }
                } else if ask!(path, batch.mean_rows <= 36) {
                    // m16n128w4s2: 90 batches, mean regret 1.27 %
                    path.leaf(&[5], 90, 1.27)
                } else {
                    // m32n64w4s2: 10 batches, mean regret 4.14 %
                    path.leaf(&[6], 10, 4.14)
                }
            } else if ask!(path, batch.mean_rows <= 19) {
                if ask!(path, batch.longest <= 3584) {
                    if ask!(path, batch.unique_tokens <= 262144) {
                        // m16n64w2s2: 26 batches, mean regret 4.14 %
                        path.leaf(&[1], 26, 4.14)
                    } else {
                        // m32n64w4s3: 27 batches, mean regret 0.56 %
                        path.leaf(&[7], 27, 0.56)
                    }
                } else {
                    // m16n128w4s2: 15 batches, mean regret 1.61 %
                    path.leaf(&[5], 15, 1.61)
                }
            } else if ask!(path, batch.all_rows <= 12800) {
                // m32n64w4s3: 27 batches, mean regret 4.02 %
                path.leaf(&[7], 27, 4.02)
            } else {
                // m64n64w4s2: 26 batches, mean regret 1.44 %
                path.leaf(&[11], 26, 1.44)
            }
        } else if ask!(path, batch.all_rows <= 6720) {
            // m128n64w8s2: 29 batches, mean regret 5.79 %
            path.leaf(&[15], 29, 5.79)
        } else {
            // m64n64w4s2: 31 batches, mean regret 3.72 %
            path.leaf(&[11], 31, 3.72)
        }
    } else if ask!(path, batch.head_dim <= 192) {
        if ask!(path, batch.dtype <= 2) {
            // m64n32w4s2: 60 batches, mean regret 0.47 %
            path.leaf(&[8], 60, 0.47)
        } else {
            // m32n64w4s2: 24 batches, mean regret 0.89 %
            path.leaf(&[6], 24, 0.89)
        }
    } else if ask!(path, batch.head_dim <= 256) {
        if ask!(path, batch.dtype <= 2) {
            // m64n96w4s1: 60 batches, mean regret 1.73 %
            path.leaf(&[12], 60, 1.73)
        } else {
            // m32n64w4s2: 24 batches, mean regret 6.61 %
            path.leaf(&[6], 24, 6.61)
        }
    } else if ask!(path, batch.dtype <= 2) {
        if ask!(path, batch.mean_rows <= 20) {
            // m16n32w4s1: 15 batches, mean regret 0.65 %
            path.leaf(&[0], 15, 0.65)
        } else {
            // m64n32w8s2: 33 batches, mean regret 0.63 %
            path.leaf(&[10], 33, 0.63)
        }
    } else {
        // m16n32w4s1: 24 batches, mean regret 0.00 %
        path.leaf(&[0], 24, 0.00)
    }
}
