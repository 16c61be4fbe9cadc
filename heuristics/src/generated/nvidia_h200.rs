//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 60 MB, memory 150 GB, launch floor 2.85 us, latency of memory 666 cycles, latency of L2 288 cycles, reading 1 MB 3.9 us, 266 GB/s, reading 4 MB 4.9 us, 862 GB/s, reading 16 MB 8.0 us, 2089 GB/s, reading 64 MB 19.3 us, 3472 GB/s, reading 256 MB 63.4 us, 4232 GB/s, reading 1024 MB 239.1 us, 4491 GB/s, reading 4096 MB 946.3 us, 4539 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 4538.8 GB/s, price of an L2 byte 9485.1 GB/s, price of a partial's byte 4057.4 GB/s, price of a FLOP 581057.5 GFLOP/s, price of a CTA 20.8 ns, price of a merge 3.8 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 5e9a5c39f9b98df2, space a7d745f403238396, selector a2aa7c6f06a91f6a
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit daab5f6ec9872e21, tenants-512-fit f6226c84049a75a3, conversation-fit 79c4f1854c1776a7, fp8-fit 789c6ad218d19f3e, fp8-dims-fit 2fbefcdcf0e5190e, fp8-trees-fit 0b670e07b0ca4901, tenants-held-out bdfcf37304555131, tenants-dims-held-out 4a5751b9972571d0, tenants-512-held-out 93398dfac7fbe675, conversation-held-out edc9fdb475ea4ce8, fp8-held-out 1acb52ca7ca6747a, fp8-dims-held-out 368b85494cf8fbb8, fp8-trees-held-out 9b6ed5f1481738a3
//! - measured: 2026-11-27T02:26:13Z by `tilewright tune --device cuda:0 -vv`
//! - counts: 908 batches fitted, 426 only judged, 36 sets of tiles, 21879 measurements, 117793 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; the tree of the selector of NVIDIA H200, which stays for 11 of 12 parts: on the fitted batches it takes 1.0051 of the time of the best tree found; of that: in each of 12 parts, no tree of depth 5 over this portfolio and 10 thresholds a feature has less mean regret than 0.05 % (proven), this one is 1.50 points above that, 0.98 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 426 batches that were not fitted the selector takes 1.023 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.329 at worst).
//! - regret on batches not fitted, selector: mean 2.38 %, p95 11.52 %, worst 32.95 %
//! - regret on batches not fitted, best single tile: mean 21.12 %, p95 90.99 %, worst 172.04 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.85 %, p95 5.03 %, worst 17.66 %
//! - regret on batches not fitted, winner-label CART: mean 3.16 %, p95 15.26 %, worst 39.32 %
//! - regret on batches measured under the selector, selector: mean 2.34 %, p95 11.21 %, worst 32.70 % of 426
//! - regret on batches measured under the selector, PAT's rules: mean 65.16 %, p95 190.61 %, worst 292.39 % of 426
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 127.68 %, p95 637.40 %, worst 1510.99 % of 426

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
static SETS: [TileSet<'static>; 9] = [
    TileSet::new(&[Tile::of("m16n32w4s1")]),
    TileSet::new(&[Tile::of("m16n64w4s2")]),
    TileSet::new(&[Tile::of("m16n128w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s3")]),
    TileSet::new(&[Tile::of("m64n32w8s2")]),
    TileSet::new(&[Tile::of("m64n64w4s2")]),
    TileSet::new(&[Tile::of("m64n96w4s2")]),
    TileSet::new(&[Tile::of("m64n128w8s3")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m16n64w4s2");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 220321, l2_byte: 105428, partial_byte: 246465, flop: 1721, cta: 20753787380, merge: 3797333377103 };

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
        (64, 0) => 0b001001110, // f16
        (64, 1) => 0b001001110, // bf16
        (64, 3) => 0b001000110, // fp8-f16
        (64, 4) => 0b001000110, // fp8-bf16
        (96, 0) => 0b011001110, // f16
        (96, 1) => 0b011001110, // bf16
        (96, 3) => 0b011001110, // fp8-f16
        (96, 4) => 0b011001110, // fp8-bf16
        (128, 0) => 0b111011010, // f16
        (128, 1) => 0b111011010, // bf16
        (128, 3) => 0b011011110, // fp8-f16
        (128, 4) => 0b011011110, // fp8-bf16
        (192, 0) => 0b001011010, // f16
        (192, 1) => 0b001011010, // bf16
        (192, 3) => 0b001011110, // fp8-f16
        (192, 4) => 0b001011110, // fp8-bf16
        (256, 0) => 0b001011010, // f16
        (256, 1) => 0b001011010, // bf16
        (256, 3) => 0b000011010, // fp8-f16
        (256, 4) => 0b000011010, // fp8-bf16
        (512, 0) => 0b000100001, // f16
        (512, 1) => 0b000100001, // bf16
        (512, 3) => 0b000100001, // fp8-f16
        (512, 4) => 0b000100001, // fp8-bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.head_dim <= 64) {
        if ask!(path, batch.dtype <= 2) {
            // m16n128w4s2: 46 batches, mean regret 1.99 %
            path.leaf(&[2], 46, 1.99)
        } else {
            // m16n128w4s2: 16 batches, mean regret 0.17 %
            path.leaf(&[2], 16, 0.17)
        }
    } else if ask!(path, batch.head_dim <= 96) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.all_rows <= 480) {
                // m16n64w4s2: 8 batches, mean regret 0.17 %
                path.leaf(&[1], 8, 0.17)
            } else {
                // m64n96w4s2: 39 batches, mean regret 1.70 %
                path.leaf(&[7], 39, 1.70)
            }
        } else {
            // m16n128w4s2: 16 batches, mean regret 1.52 %
            path.leaf(&[2], 16, 1.52)
        }
    } else if ask!(path, batch.head_dim <= 128) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.longest <= 3200) {
                if ask!(path, batch.all_rows <= 6400) {
                    if ask!(path, batch.private_percent <= 77) {
                        if ask!(path, batch.all_rows <= 1152) {
                            // m16n64w4s2: 14 batches, mean regret 1.24 %
                            path.leaf(&[1], 14, 1.24)
                        } else {
                            // m64n96w4s2: 6 batches, mean regret 4.82 %
                            path.leaf(&[7], 6, 4.82)
                        }
                    } else {
                        // m16n64w4s2: 24 batches, mean regret 0.84 %
                        path.leaf(&[1], 24, 0.84)
                    }
                } else if ask!(path, batch.all_rows <= 16128) {
                    if ask!(path, batch.trees <= 1) {
                        // m64n128w8s3: 8 batches, mean regret 0.60 %
                        path.leaf(&[8], 8, 0.60)
                    } else {
                        // m64n96w4s2: 5 batches, mean regret 0.80 %
                        path.leaf(&[7], 5, 0.80)
                    }
                } else if ask!(path, batch.longest <= 2176) {
                    // m64n64w4s2: 22 batches, mean regret 0.45 %
                    path.leaf(&[6], 22, 0.45)
                } else {
                    // m64n128w8s3: 3 batches, mean regret 2.72 %
                    path.leaf(&[8], 3, 2.72)
                }
            } else if ask!(path, batch.unique_kv <= 335872) {
                if ask!(path, batch.all_rows <= 742) {
                    if ask!(path, batch.mean_rows <= 9) {
                        // m16n64w4s2: 26 batches, mean regret 1.13 %
                        path.leaf(&[1], 26, 1.13)
                    } else {
                        // m64n32w4s3: 45 batches, mean regret 1.13 %
                        path.leaf(&[4], 45, 1.13)
                    }
                } else if ask!(path, batch.mean_rows <= 23) {
                    // m16n64w4s2: 58 batches, mean regret 4.52 %
                    path.leaf(&[1], 58, 4.52)
                } else {
                    // m64n96w4s2: 69 batches, mean regret 3.27 %
                    path.leaf(&[7], 69, 3.27)
                }
            } else if ask!(path, batch.requests <= 352) {
                if ask!(path, batch.requests <= 40) {
                    // m16n64w4s2: 43 batches, mean regret 0.98 %
                    path.leaf(&[1], 43, 0.98)
                } else {
                    // m64n96w4s2: 116 batches, mean regret 1.63 %
                    path.leaf(&[7], 116, 1.63)
                }
            } else if ask!(path, batch.all_rows <= 30720) {
                // m64n128w8s3: 14 batches, mean regret 4.06 %
                path.leaf(&[8], 14, 4.06)
            } else {
                // m64n96w4s2: 11 batches, mean regret 1.74 %
                path.leaf(&[7], 11, 1.74)
            }
        } else if ask!(path, batch.requests <= 384) {
            if ask!(path, batch.mean_rows <= 48) {
                // m16n128w4s2: 105 batches, mean regret 1.13 %
                path.leaf(&[2], 105, 1.13)
            } else {
                // m64n64w4s2: 12 batches, mean regret 10.53 %
                path.leaf(&[6], 12, 10.53)
            }
        } else {
            // m64n64w4s2: 9 batches, mean regret 0.00 %
            path.leaf(&[6], 9, 0.00)
        }
    } else if ask!(path, batch.head_dim <= 192) {
        if ask!(path, batch.dtype <= 2) {
            // m64n32w4s2: 50 batches, mean regret 0.36 %
            path.leaf(&[3], 50, 0.36)
        } else {
            // m16n128w4s2: 16 batches, mean regret 9.49 %
            path.leaf(&[2], 16, 9.49)
        }
    } else if ask!(path, batch.head_dim <= 256) {
        if ask!(path, batch.dtype <= 2) {
            // m64n32w4s2: 47 batches, mean regret 1.64 %
            path.leaf(&[3], 47, 1.64)
        } else {
            // m64n32w4s2: 16 batches, mean regret 6.61 %
            path.leaf(&[3], 16, 6.61)
        }
    } else if ask!(path, batch.dtype <= 2) {
        // m64n32w8s2: 48 batches, mean regret 2.05 %
        path.leaf(&[5], 48, 2.05)
    } else {
        // m16n32w4s1: 16 batches, mean regret 0.00 %
        path.leaf(&[0], 16, 0.00)
    }
}
