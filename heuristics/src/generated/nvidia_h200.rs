//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 60 MB, memory 150 GB, launch floor 2.78 us, latency of memory 657 cycles, latency of L2 280 cycles, reading 1 MB 3.8 us, 275 GB/s, reading 4 MB 4.7 us, 886 GB/s, reading 16 MB 7.8 us, 2149 GB/s, reading 64 MB 19.3 us, 3484 GB/s, reading 256 MB 63.8 us, 4205 GB/s, reading 1024 MB 239.3 us, 4486 GB/s, reading 4096 MB 947.3 us, 4534 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 4533.9 GB/s, price of an L2 byte 9554.3 GB/s, price of a partial's byte 4034.0 GB/s, price of a FLOP 585137.5 GFLOP/s, price of a CTA 20.7 ns, price of a merge 3.7 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 61579240f0f65c4f, space a7d745f403238396, selector 0974406e7fea7901
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit 78ab65ed2a1b14d2, conversation-fit 79c4f1854c1776a7, fp8-fit df7f0f77a166267b, fp8-trees-fit 423550ea06c4d9e9, tenants-held-out bdfcf37304555131, tenants-dims-held-out 44301cb530defb38, conversation-held-out edc9fdb475ea4ce8, fp8-held-out f765c080f546223b, fp8-trees-held-out 9b6ed5f1481738a3
//! - measured: 2026-11-25T18:00:11Z by `tilewright tune -v`
//! - counts: 554 batches fitted, 282 only judged, 23 sets of tiles, 15697 measurements, 70006 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; the tree of the selector of NVIDIA H200, which stays for 2 of 4 parts: on the fitted batches it takes 1.0000 of the time of the best tree found; of that: in each of 4 parts, no tree of depth 5 over this portfolio and 10 thresholds a feature has less mean regret than 0.12 % (proven), this one is 1.33 points above that, 0.62 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 282 batches that were not fitted the selector takes 1.021 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.261 at worst).
//! - regret on batches not fitted, selector: mean 2.21 %, p95 11.18 %, worst 26.14 %
//! - regret on batches not fitted, best single tile: mean 10.81 %, p95 42.67 %, worst 72.57 %
//! - regret on batches not fitted, portfolio's oracle: mean 1.01 %, p95 4.94 %, worst 12.01 %
//! - regret on batches not fitted, winner-label CART: mean 4.58 %, p95 18.41 %, worst 52.14 %
//! - regret on batches measured under the selector, selector: mean 2.32 %, p95 9.61 %, worst 22.82 % of 282
//! - regret on batches measured under the selector, best single tile (m64n64w4s2): mean 11.19 %, p95 42.37 %, worst 72.94 % of 282
//! - regret on batches measured under the selector, PAT's rules: mean 81.87 %, p95 275.26 %, worst 382.03 % of 282
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 164.95 %, p95 611.14 %, worst 1612.00 % of 282

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
const PRICES: Prices = Prices { hbm_byte: 220559, l2_byte: 104665, partial_byte: 247895, flop: 1709, cta: 20738635750, merge: 3712000014881 };

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
        (64, 0) => 0b1111011, // f16
        (64, 1) => 0b1111011, // bf16
        (64, 3) => 0b1111011, // fp8-f16
        (64, 4) => 0b1111011, // fp8-bf16
        (128, 0) => 0b1111011, // f16
        (128, 1) => 0b1111011, // bf16
        (128, 3) => 0b1111011, // fp8-f16
        (128, 4) => 0b1111011, // fp8-bf16
        (256, 0) => 0b0011101, // f16
        (256, 1) => 0b0011101, // bf16
        (256, 3) => 0b0011011, // fp8-f16
        (256, 4) => 0b0011011, // fp8-bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.head_dim <= 64) {
        // m16n128w4s2: 23 batches, mean regret 2.22 %
        path.leaf(&[1], 23, 2.22)
    } else if ask!(path, batch.head_dim <= 128) {
        if ask!(path, batch.dtype <= 2) {
            if ask!(path, batch.longest <= 3200) {
                if ask!(path, batch.all_rows <= 6400) {
                    if ask!(path, batch.private_percent <= 77) {
                        if ask!(path, batch.all_rows <= 1152) {
                            // m16n64w4s2: 13 batches, mean regret 1.03 %
                            path.leaf(&[0], 13, 1.03)
                        } else {
                            // m64n96w4s2: 6 batches, mean regret 4.09 %
                            path.leaf(&[5], 6, 4.09)
                        }
                    } else {
                        // m16n64w4s2: 25 batches, mean regret 1.76 %
                        path.leaf(&[0], 25, 1.76)
                    }
                } else if ask!(path, batch.all_rows <= 16128) {
                    if ask!(path, batch.trees <= 1) {
                        // m64n128w8s3: 8 batches, mean regret 0.45 %
                        path.leaf(&[6], 8, 0.45)
                    } else {
                        // m64n96w4s2: 5 batches, mean regret 1.34 %
                        path.leaf(&[5], 5, 1.34)
                    }
                } else if ask!(path, batch.longest <= 2176) {
                    // m64n64w4s2: 22 batches, mean regret 0.64 %
                    path.leaf(&[4], 22, 0.64)
                } else {
                    // m64n128w8s3: 3 batches, mean regret 5.58 %
                    path.leaf(&[6], 3, 5.58)
                }
            } else if ask!(path, batch.unique_kv <= 335872) {
                if ask!(path, batch.all_rows <= 742) {
                    if ask!(path, batch.mean_rows <= 9) {
                        // m16n64w4s2: 25 batches, mean regret 0.44 %
                        path.leaf(&[0], 25, 0.44)
                    } else {
                        // m64n32w4s3: 38 batches, mean regret 0.70 %
                        path.leaf(&[3], 38, 0.70)
                    }
                } else if ask!(path, batch.mean_rows <= 23) {
                    // m16n64w4s2: 51 batches, mean regret 1.89 %
                    path.leaf(&[0], 51, 1.89)
                } else {
                    // m64n96w4s2: 68 batches, mean regret 1.91 %
                    path.leaf(&[5], 68, 1.91)
                }
            } else if ask!(path, batch.requests <= 352) {
                if ask!(path, batch.requests <= 40) {
                    // m16n64w4s2: 43 batches, mean regret 0.52 %
                    path.leaf(&[0], 43, 0.52)
                } else {
                    // m64n96w4s2: 108 batches, mean regret 2.25 %
                    path.leaf(&[5], 108, 2.25)
                }
            } else if ask!(path, batch.all_rows <= 30720) {
                // m64n128w8s3: 14 batches, mean regret 1.22 %
                path.leaf(&[6], 14, 1.22)
            } else {
                // m64n96w4s2: 11 batches, mean regret 0.29 %
                path.leaf(&[5], 11, 0.29)
            }
        } else if ask!(path, batch.requests <= 384) {
            if ask!(path, batch.mean_rows <= 48) {
                // m16n128w4s2: 55 batches, mean regret 0.49 %
                path.leaf(&[1], 55, 0.49)
            } else {
                // m64n64w4s2: 7 batches, mean regret 1.15 %
                path.leaf(&[4], 7, 1.15)
            }
        } else {
            // m64n64w4s2: 6 batches, mean regret 0.54 %
            path.leaf(&[4], 6, 0.54)
        }
    } else {
        // m64n32w4s2: 23 batches, mean regret 1.89 %
        path.leaf(&[2], 23, 1.89)
    }
}
