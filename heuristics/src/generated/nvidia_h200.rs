//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, second-level cache 60 MB, memory 150 GB, launch floor 2.98 us, latency of memory 688 cycles, latency of the second-level cache 288 cycles, reading 1 MB 4.1 us, 256 GB/s, reading 4 MB 4.9 us, 862 GB/s, reading 16 MB 7.9 us, 2131 GB/s, reading 64 MB 19.1 us, 3507 GB/s, reading 256 MB 62.9 us, 4269 GB/s, reading 1024 MB 234.7 us, 4576 GB/s, reading 4096 MB 926.9 us, 4634 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of a first read 4633.6 GB/s, price of a read again 9722.6 GB/s, price of a partial 4038.8 GB/s, price of an operation 579710.1 GFLOP/s, price of a CTA 20.7 ns, price of merging at all 4.0 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 23a1e36f0962c8a6, space a7d745f403238396, selector b1cd4cfe445afb8c
//! - scenarios: packs-bf16 c78494111a0c1e7d, packs-few-heads d785e574b3f7f675, packs-gqa2 68ca2ba6fe8f0c62, packs-gqa4 e6bba16e058a1298, packs-gqa8 e798feb1d3f5cdde, packs-head-dims c16de4ba558a5472, packs-mha 473e559e8671e465, packs-page-sizes 200ea155f8ad11a8, packs-trees cd14143e0424683e, packs-trees-gqa4 4baf3d70758727f3, packs-trees-long-own 46b89ae31d5e3308, packs-trees-many-rows 8f8eb00fc6f112ca, packs-trees-small 0327d99c7f1a7483, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit 68847de884f535bc, conversation-fit 79c4f1854c1776a7, tenants-held-out bdfcf37304555131, tenants-dims-held-out 44301cb530defb38, conversation-held-out edc9fdb475ea4ce8
//! - measured: 2026-11-23T18:18:59Z by `tilewright tune --device cuda:0 --budget 490 --force --out /tmp/w/t`
//! - counts: 450 batches fitted, 232 only judged, 28 sets of tiles, 21345 measurements, 50274 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; no tree of depth 5 over this portfolio has less mean regret than 0.25 % (proven), this one is 1.81 points above that, 0.34 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 232 batches that were not fitted the selector takes 1.037 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.382 at worst).
//! - regret on batches not fitted, selector: mean 4.26 %, p95 13.88 %, worst 38.61 %
//! - regret on batches not fitted, best single tile: mean 13.64 %, p95 45.11 %, worst 75.31 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.70 %, p95 3.23 %, worst 16.06 %
//! - regret on batches not fitted, winner-label CART: mean 7.88 %, p95 36.75 %, worst 66.80 %
//! - regret on batches measured under the selector, selector: mean 4.22 %, p95 13.45 %, worst 40.71 % of 232
//! - regret on batches measured under the selector, best single tile (m64n32w4s3): mean 13.73 %, p95 44.03 %, worst 81.52 % of 232
//! - regret on batches measured under the selector, PAT's rules: mean 135.35 %, p95 402.36 %, worst 525.38 % of 232
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 227.52 %, p95 835.73 %, worst 1566.82 % of 232

#[rustfmt::skip]
use crate::{Backend, BatchShape, Device, Domain, Follow, Prices, Selector, Tile, TileSet, Unfollowed, ask, first_feasible};

/// The selector.
#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cuda, name: "NVIDIA H200", capability: "sm_90a", units: 132 },
    domain: DOMAIN,
    sets: &SETS,
    safe_default: SAFE_DEFAULT,
    prices: PRICES,
    choose: |batch| choose(batch, &mut Unfollowed),
    follow: choose,
};

/// The sets that the tree chooses from.
#[rustfmt::skip]
static SETS: [TileSet<'static>; 7] = [
    TileSet::new(&[Tile { m: 16, n: 32, warps: 2, stages: 2 }]),
    TileSet::new(&[Tile { m: 16, n: 64, warps: 4, stages: 2 }]),
    TileSet::new(&[Tile { m: 16, n: 64, warps: 4, stages: 2 }, Tile { m: 64, n: 64, warps: 4, stages: 3 }]),
    TileSet::new(&[Tile { m: 16, n: 128, warps: 8, stages: 3 }, Tile { m: 64, n: 128, warps: 8, stages: 2 }]),
    TileSet::new(&[Tile { m: 64, n: 32, warps: 4, stages: 2 }]),
    TileSet::new(&[Tile { m: 64, n: 32, warps: 4, stages: 3 }]),
    TileSet::new(&[Tile { m: 64, n: 128, warps: 4, stages: 1 }]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile { m: 64, n: 32, warps: 4, stages: 3 };
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { first_byte: 215813, again_byte: 102853, partial_byte: 247597, flop: 1725, cta: 20746212447, merge: 3968000101546 };

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
        (64, 0) => 0b1111111, // f16
        (64, 1) => 0b1111111, // bf16
        (128, 0) => 0b1111111, // f16
        (128, 1) => 0b1111111, // bf16
        (256, 0) => 0b0110011, // f16
        (256, 1) => 0b0110011, // bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.mean_rows <= 23) {
        if ask!(path, batch.requests <= 148) {
            if ask!(path, batch.mean_rows <= 13) {
                if ask!(path, batch.shared_rows <= 10) {
                    // m16n64w4s2+m64n64w4s3: 38 batches, mean regret 1.48 %
                    path.leaf(&[2, 1], 38, 1.48)
                } else {
                    // m16n64w4s2: 134 batches, mean regret 2.08 %
                    path.leaf(&[1], 134, 2.08)
                }
            } else if ask!(path, batch.shared_rows <= 39) {
                // m64n32w4s3: 17 batches, mean regret 1.74 %
                path.leaf(&[5], 17, 1.74)
            } else {
                // m16n64w4s2: 66 batches, mean regret 2.48 %
                path.leaf(&[1], 66, 2.48)
            }
        } else if ask!(path, batch.unique_kv <= 1871872) {
            if ask!(path, batch.shared_rows <= 35) {
                // m64n128w4s1: 7 batches, mean regret 1.36 %
                path.leaf(&[6, 0], 7, 1.36)
            } else {
                // m16n128w8s3+m64n128w8s2: 9 batches, mean regret 0.95 %
                path.leaf(&[3, 0], 9, 0.95)
            }
        } else if ask!(path, batch.unique_kv <= 2162688) {
            // m16n128w8s3+m64n128w8s2: 4 batches, mean regret 1.49 %
            path.leaf(&[3, 0], 4, 1.49)
        } else {
            // m16n64w4s2+m64n64w4s3: 11 batches, mean regret 0.02 %
            path.leaf(&[2, 3, 0], 11, 0.02)
        }
    } else if ask!(path, batch.all_rows <= 800) {
        if ask!(path, batch.all_rows <= 608) {
            // m64n32w4s2: 11 batches, mean regret 3.09 %
            path.leaf(&[4], 11, 3.09)
        } else {
            // m16n64w4s2: 10 batches, mean regret 2.54 %
            path.leaf(&[1], 10, 2.54)
        }
    } else if ask!(path, batch.private_kv <= 3392) {
        if ask!(path, batch.requests <= 26) {
            // m16n64w4s2: 6 batches, mean regret 3.15 %
            path.leaf(&[1], 6, 3.15)
        } else if ask!(path, batch.unique_tokens <= 9216) {
            // m16n128w8s3+m64n128w8s2: 9 batches, mean regret 2.34 %
            path.leaf(&[3, 4], 9, 2.34)
        } else {
            // m16n64w4s2+m64n64w4s3: 99 batches, mean regret 2.25 %
            path.leaf(&[2, 4], 99, 2.25)
        }
    } else if ask!(path, batch.trees <= 15) {
        // m16n64w4s2+m64n64w4s3: 16 batches, mean regret 1.86 %
        path.leaf(&[2, 4], 16, 1.86)
    } else {
        // m16n128w8s3+m64n128w8s2: 13 batches, mean regret 1.76 %
        path.leaf(&[3, 4], 13, 1.76)
    }
}
