//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 60 MB, memory 150 GB, launch floor 2.85 us, latency of memory 665 cycles, latency of L2 288 cycles, reading 1 MB 4.0 us, 262 GB/s, reading 4 MB 5.0 us, 846 GB/s, reading 16 MB 7.9 us, 2123 GB/s, reading 64 MB 19.4 us, 3466 GB/s, reading 256 MB 63.8 us, 4207 GB/s, reading 1024 MB 239.3 us, 4487 GB/s, reading 4096 MB 947.3 us, 4534 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 4533.8 GB/s, price of an L2 byte 9459.5 GB/s, price of a partial's byte 3892.6 GB/s, price of a FLOP 586166.5 GFLOP/s, price of a CTA 20.8 ns, price of a merge 3.8 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel d1970686ec76529a, space a7d745f403238396, selector b22edff2a235b8e9
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit 68847de884f535bc, conversation-fit 79c4f1854c1776a7, tenants-held-out bdfcf37304555131, tenants-dims-held-out 44301cb530defb38, conversation-held-out edc9fdb475ea4ce8
//! - measured: 2026-11-24T14:38:17Z by `tilewright tune`
//! - counts: 450 batches fitted, 232 only judged, 30 sets of tiles, 22867 measurements, 45141 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; no tree of depth 5 over this portfolio and 20 thresholds a feature has less mean regret than 0.34 % (proven), this one is 1.40 points above that, 0.32 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 232 batches that were not fitted the selector takes 1.035 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.512 at worst).
//! - regret on batches not fitted, selector: mean 3.75 %, p95 16.19 %, worst 51.19 %
//! - regret on batches not fitted, best single tile: mean 14.49 %, p95 58.57 %, worst 85.40 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.80 %, p95 4.25 %, worst 17.13 %
//! - regret on batches not fitted, winner-label CART: mean 6.52 %, p95 37.20 %, worst 59.16 %
//! - regret on batches measured under the selector, selector 355658bd50b97220: mean 3.95 %, p95 17.62 %, worst 44.39 % of 232
//! - regret on batches measured under the selector, best single tile (m64n32w4s3): mean 14.64 %, p95 59.31 %, worst 85.37 % of 232
//! - regret on batches measured under the selector, PAT's rules: mean 76.74 %, p95 257.60 %, worst 506.42 % of 232
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 159.99 %, p95 700.71 %, worst 1430.71 % of 232

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
static SETS: [TileSet<'static>; 8] = [
    TileSet::new(&[Tile::of("m16n32w2s2")]),
    TileSet::new(&[Tile::of("m16n64w4s2")]),
    TileSet::new(&[Tile::of("m16n128w4s3")]),
    TileSet::new(&[Tile::of("m32n32w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s3")]),
    TileSet::new(&[Tile::of("m64n64w4s2")]),
    TileSet::new(&[Tile::of("m64n96w4s2")]),
    TileSet::new(&[Tile::of("m64n128w8s3")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m64n32w4s3");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 220566, l2_byte: 105714, partial_byte: 256896, flop: 1706, cta: 20765151765, merge: 3797333377103 };

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
        (64, 0) => 0b11111111, // f16
        (64, 1) => 0b11111111, // bf16
        (128, 0) => 0b11111111, // f16
        (128, 1) => 0b11111111, // bf16
        (256, 0) => 0b00011011, // f16
        (256, 1) => 0b00011011, // bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.longest <= 6208) {
        if ask!(path, batch.all_rows <= 4608) {
            if ask!(path, batch.gqa_ratio <= 6) {
                // m16n64w4s2: 83 batches, mean regret 2.31 %
                path.leaf(&[1], 83, 2.31)
            } else if ask!(path, batch.shared_rows <= 64) {
                // m16n64w4s2: 16 batches, mean regret 2.27 %
                path.leaf(&[1], 16, 2.27)
            } else {
                // m64n96w4s2: 21 batches, mean regret 3.36 %
                path.leaf(&[6, 3], 21, 3.36)
            }
        } else if ask!(path, batch.all_rows <= 12288) {
            if ask!(path, batch.shared_rows <= 138) {
                // m64n96w4s2: 20 batches, mean regret 1.72 %
                path.leaf(&[6, 3], 20, 1.72)
            } else {
                // m64n128w8s3: 8 batches, mean regret 0.61 %
                path.leaf(&[7, 3], 8, 0.61)
            }
        } else if ask!(path, batch.longest <= 2304) {
            // m64n64w4s2: 22 batches, mean regret 0.29 %
            path.leaf(&[5, 3], 22, 0.29)
        } else {
            // m64n128w8s3: 8 batches, mean regret 1.98 %
            path.leaf(&[7, 3], 8, 1.98)
        }
    } else if ask!(path, batch.all_rows <= 816) {
        if ask!(path, batch.longest <= 8096) {
            if ask!(path, batch.head_dim <= 64) {
                // m16n128w4s3: 4 batches, mean regret 0.96 %
                path.leaf(&[2, 0], 4, 0.96)
            } else {
                // m64n32w4s3: 30 batches, mean regret 1.63 %
                path.leaf(&[4], 30, 1.63)
            }
        } else if ask!(path, batch.private_percent <= 64) {
            // m64n32w4s3: 8 batches, mean regret 1.34 %
            path.leaf(&[4], 8, 1.34)
        } else if ask!(path, batch.requests <= 38) {
            // m16n32w2s2: 11 batches, mean regret 0.72 %
            path.leaf(&[0], 11, 0.72)
        } else {
            // m16n64w4s2: 7 batches, mean regret 0.10 %
            path.leaf(&[1], 7, 0.10)
        }
    } else if ask!(path, batch.requests <= 67) {
        if ask!(path, batch.mean_rows <= 21) {
            // m16n64w4s2: 75 batches, mean regret 1.09 %
            path.leaf(&[1], 75, 1.09)
        } else if ask!(path, batch.requests <= 37) {
            // m64n32w4s3: 6 batches, mean regret 2.30 %
            path.leaf(&[4], 6, 2.30)
        } else {
            // m64n96w4s2: 21 batches, mean regret 1.92 %
            path.leaf(&[6, 3], 21, 1.92)
        }
    } else {
        // m64n96w4s2: 110 batches, mean regret 1.93 %
        path.leaf(&[6, 3], 110, 1.93)
    }
}
