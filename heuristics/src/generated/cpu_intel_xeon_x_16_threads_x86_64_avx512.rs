//! Tile selector of Intel Xeon x 16 threads (cpu, x86_64-avx512). Written by `tilewright emit`; do not edit.
//!
//! - limits: threads 16, L1 cache 48 KB, L2 2048 KB, last-level cache 307200 KB, read bandwidth 136.2 GB/s, multiply-add peak 1409 GFLOP/s, launch floor 7.5 us, price of an HBM byte 140.6 GB/s, price of an L2 byte 252.1 GB/s, price of a partial's byte 90.8 GB/s, price of a FLOP 1410.2 GFLOP/s, price of a CTA 159.7 ns, price of a merge 4.2 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu
//! - kernel f0245d87b126f8dd, space 1be1cd6237d9cdb1, selector 26bc4ba8345d8530
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit 8e2c6357444f40d2, trees-fit 7c21c0b42486d039, conversation-fit d95caeac3a7b033d, tenants-held-out 0bf8238de5eaa412, conversation-held-out 3a83f731cb275f9c
//! - measured: 2026-11-27T16:23:13Z by `tilewright tune --device cpu -v --budget 120`
//! - counts: 253 batches fitted, 143 only judged, 21 sets of tiles, 10032 measurements, 83180 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; no tree of depth 5 over this portfolio and 16 thresholds a feature has less mean regret than 0.26 % (proven), this one is 2.20 points above that, 0.61 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 143 batches that were not fitted the selector takes 1.061 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.419 at worst).
//! - regret on batches not fitted, selector: mean 6.31 %, p95 21.47 %, worst 41.90 %
//! - regret on batches not fitted, best single tile: mean 11.00 %, p95 30.46 %, worst 117.20 %
//! - regret on batches not fitted, portfolio's oracle: mean 1.31 %, p95 6.67 %, worst 10.11 %
//! - regret on batches not fitted, winner-label CART: mean 8.95 %, p95 24.49 %, worst 48.59 %
//! - regret on batches measured under the selector, selector: mean 9.93 %, p95 25.69 %, worst 45.65 % of 143
//! - regret on batches measured under the selector, best single tile (m16n128w1s1): mean 9.88 %, p95 21.35 %, worst 32.52 % of 143
//! - regret on batches measured under the selector, PAT's rules: mean 13.15 %, p95 30.10 %, worst 37.44 % of 143
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 45.30 %, p95 87.86 %, worst 100.44 % of 143

// Regrets are measured: one may be near pi by chance.
#![allow(clippy::approx_constant)]

#[rustfmt::skip]
use crate::{Backend, BatchShape, Choices, Device, Domain, Follow, Prices, Selector, Tile, TileSet, Unfollowed, ask, first_feasible};

/// The selector.
#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cpu, name: "Intel Xeon x 16 threads", capability: "x86_64-avx512", units: 16 },
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
    TileSet::new(&[Tile::of("m8n64w1s1")]),
    TileSet::new(&[Tile::of("m8n64w2s1")]),
    TileSet::new(&[Tile::of("m8n128w1s1")]),
    TileSet::new(&[Tile::of("m16n64w1s1")]),
    TileSet::new(&[Tile::of("m16n128w1s1")]),
    TileSet::new(&[Tile::of("m16n128w2s1")]),
    TileSet::new(&[Tile::of("m64n64w2s1")]),
    TileSet::new(&[Tile::of("m64n128w2s1")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m8n128w1s1");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 7111482, l2_byte: 3967278, partial_byte: 11014849, flop: 709117, cta: 159683035714, merge: 4153999999999 };

/// The batches that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: BatchShape { requests: 1, all_rows: 2, trees: 1, lone: 0, longest: 32, unique_tokens: 32, unique_kv: 240, private_percent: 15, shared_rows: 0, mean_rows: 1, private_kv: 32, kv_heads: 1, gqa_ratio: 1, head_dim: 128, page_size: 16, dtype: 0 },
    max: BatchShape { requests: 512, all_rows: 4096, trees: 32, lone: 32, longest: 25024, unique_tokens: 32768, unique_kv: 32768, private_percent: 100, shared_rows: 2048, mean_rows: 234, private_kv: 32768, kv_heads: 32, gqa_ratio: 8, head_dim: 128, page_size: 32, dtype: 0 },
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
        (64, 2) => 0b11111111, // f32
        (128, 0) => 0b11111111, // f16
        (128, 1) => 0b11111111, // bf16
        (128, 2) => 0b11111111, // f32
        (256, 0) => 0b11111111, // f16
        (256, 1) => 0b11111111, // bf16
        (256, 2) => 0b11111111, // f32
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.unique_tokens <= 1568) {
        if ask!(path, batch.mean_rows <= 3) {
            if ask!(path, batch.all_rows <= 28) {
                if ask!(path, batch.longest <= 480) {
                    // m8n64w1s1: 8 batches, mean regret 4.10 %
                    path.leaf(&[0], 8, 4.10)
                } else {
                    // m8n64w2s1: 11 batches, mean regret 1.97 %
                    path.leaf(&[1], 11, 1.97)
                }
            } else if ask!(path, batch.gqa_ratio <= 1) {
                // m16n128w2s1: 7 batches, mean regret 0.85 %
                path.leaf(&[5], 7, 0.85)
            } else {
                // m8n64w1s1: 12 batches, mean regret 1.45 %
                path.leaf(&[0], 12, 1.45)
            }
        } else if ask!(path, batch.shared_rows <= 16) {
            if ask!(path, batch.private_kv <= 169) {
                // m16n64w1s1: 7 batches, mean regret 0.57 %
                path.leaf(&[3], 7, 0.57)
            } else {
                // m8n128w1s1: 49 batches, mean regret 2.97 %
                path.leaf(&[2], 49, 2.97)
            }
        } else {
            // m8n64w1s1: 39 batches, mean regret 3.54 %
            path.leaf(&[0], 39, 3.54)
        }
    } else if ask!(path, batch.shared_rows <= 20) {
        if ask!(path, batch.private_percent <= 67) {
            if ask!(path, batch.private_kv <= 512) {
                // m16n128w2s1: 9 batches, mean regret 2.16 %
                path.leaf(&[5], 9, 2.16)
            } else {
                // m16n128w1s1: 5 batches, mean regret 3.75 %
                path.leaf(&[4], 5, 3.75)
            }
        } else if ask!(path, batch.trees <= 1) {
            // m8n128w1s1: 13 batches, mean regret 3.14 %
            path.leaf(&[2], 13, 3.14)
        } else {
            // m64n64w2s1: 24 batches, mean regret 1.56 %
            path.leaf(&[6], 24, 1.56)
        }
    } else if ask!(path, batch.mean_rows <= 26) {
        if ask!(path, batch.unique_kv <= 17408) {
            if ask!(path, batch.private_percent <= 70) {
                // m16n64w1s1: 8 batches, mean regret 2.77 %
                path.leaf(&[3], 8, 2.77)
            } else {
                // m16n128w2s1: 11 batches, mean regret 2.29 %
                path.leaf(&[5], 11, 2.29)
            }
        } else {
            // m16n128w1s1: 21 batches, mean regret 2.40 %
            path.leaf(&[4], 21, 2.40)
        }
    } else if ask!(path, batch.private_percent <= 92) {
        // m64n128w2s1: 24 batches, mean regret 1.52 %
        path.leaf(&[7], 24, 1.52)
    } else {
        // m16n128w2s1: 5 batches, mean regret 1.03 %
        path.leaf(&[5], 5, 1.03)
    }
}
