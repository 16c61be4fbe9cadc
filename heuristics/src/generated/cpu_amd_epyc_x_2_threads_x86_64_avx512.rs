//! Tile selector of AMD EPYC x 2 threads (cpu, x86_64-avx512). Written by `tilewright emit`; do not edit.
//!
//! - limits: threads 2, L1 cache 32 KB, L2 1024 KB, last-level cache 32768 KB, read bandwidth 38.9 GB/s, multiply-add peak 232 GFLOP/s, launch floor 11.8 us, price of an HBM byte 40.3 GB/s, price of an L2 byte 62.5 GB/s, price of a partial's byte 29.3 GB/s, price of a FLOP 234.3 GFLOP/s, price of a CTA 201.9 ns, price of a merge 11.9 us
//! - versions: tilewright 0.1.0, system Linux (Debian GNU/Linux 12), kernel 6.18.44-fc-v595
//! - kernel 4c18f1971514f10b, space 1be1cd6237d9cdb1, selector 8710e9ed3e1ac867
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit 8e2c6357444f40d2, trees-fit 7c21c0b42486d039, conversation-fit d95caeac3a7b033d, tenants-held-out 0bf8238de5eaa412, conversation-held-out 3a83f731cb275f9c
//! - measured: 2026-11-25T21:40:00Z by `tilewright tune --device cpu -v`
//! - counts: 253 batches fitted, 143 only judged, 17 sets of tiles, 8162 measurements, 66900 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; no tree of depth 5 over this portfolio and 24 thresholds a feature has less mean regret than 0.19 % (proven), this one is 1.51 points above that, 0.62 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 143 batches that were not fitted the selector takes 1.047 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.399 at worst).
//! - regret on batches not fitted, selector: mean 5.82 %, p95 22.42 %, worst 39.93 %
//! - regret on batches not fitted, best single tile: mean 7.15 %, p95 19.11 %, worst 30.09 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.90 %, p95 3.99 %, worst 18.69 %
//! - regret on batches not fitted, winner-label CART: mean 6.13 %, p95 19.63 %, worst 26.95 %
//! - regret on batches measured under the selector, selector: mean 12.80 %, p95 33.59 %, worst 62.51 % of 143
//! - regret on batches measured under the selector, best single tile (m16n128w2s1): mean 14.82 %, p95 35.27 %, worst 52.98 % of 143
//! - regret on batches measured under the selector, PAT's rules: mean 14.52 %, p95 37.49 %, worst 86.85 % of 143
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 33.01 %, p95 72.30 %, worst 119.85 % of 143

// Regrets are measured: one may be near pi by chance.
#![allow(clippy::approx_constant)]

#[rustfmt::skip]
use crate::{Backend, BatchShape, Choices, Device, Domain, Follow, Prices, Selector, Tile, TileSet, Unfollowed, ask, first_feasible};

/// The selector.
#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cpu, name: "AMD EPYC x 2 threads", capability: "x86_64-avx512", units: 2 },
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
    TileSet::new(&[Tile::of("m8n64w2s1")]),
    TileSet::new(&[Tile::of("m8n128w1s1")]),
    TileSet::new(&[Tile::of("m8n128w1s1"), Tile::of("m64n64w1s1")]),
    TileSet::new(&[Tile::of("m16n128w1s1")]),
    TileSet::new(&[Tile::of("m16n128w2s1")]),
    TileSet::new(&[Tile::of("m64n64w2s1")]),
    TileSet::new(&[Tile::of("m64n128w2s1")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m64n64w2s1");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 24789772, l2_byte: 15998423, partial_byte: 34126758, flop: 4268576, cta: 201905009920, merge: 11898000000000 };

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
        (64, 0) => 0b1111111, // f16
        (64, 1) => 0b1111111, // bf16
        (64, 2) => 0b1111111, // f32
        (128, 0) => 0b1111111, // f16
        (128, 1) => 0b1111111, // bf16
        (128, 2) => 0b1111111, // f32
        (256, 0) => 0b1111111, // f16
        (256, 1) => 0b1111111, // bf16
        (256, 2) => 0b1111111, // f32
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.all_rows <= 52) {
        if ask!(path, batch.all_rows <= 24) {
            if ask!(path, batch.unique_kv <= 2432) {
                if ask!(path, batch.lone <= 0) {
                    // m16n128w2s1: 7 batches, mean regret 2.13 %
                    path.leaf(&[4], 7, 2.13)
                } else {
                    // m64n64w2s1: 15 batches, mean regret 3.11 %
                    path.leaf(&[5], 15, 3.11)
                }
            } else if ask!(path, batch.unique_kv <= 23552) {
                // m8n64w2s1: 19 batches, mean regret 1.94 %
                path.leaf(&[0], 19, 1.94)
            } else {
                // m8n128w1s1: 8 batches, mean regret 2.17 %
                path.leaf(&[1], 8, 2.17)
            }
        } else if ask!(path, batch.longest <= 256) {
            // m64n128w2s1: 5 batches, mean regret 5.81 %
            path.leaf(&[6], 5, 5.81)
        } else if ask!(path, batch.mean_rows <= 14) {
            // m64n64w2s1: 30 batches, mean regret 0.89 %
            path.leaf(&[5], 30, 0.89)
        } else {
            // m16n128w2s1: 4 batches, mean regret 3.24 %
            path.leaf(&[4], 4, 3.24)
        }
    } else if ask!(path, batch.all_rows <= 128) {
        if ask!(path, batch.kv_heads <= 1) {
            // m16n128w1s1: 22 batches, mean regret 2.17 %
            path.leaf(&[3], 22, 2.17)
        } else if ask!(path, batch.mean_rows <= 12) {
            if ask!(path, batch.trees <= 5) {
                // m64n128w2s1: 44 batches, mean regret 1.25 %
                path.leaf(&[6], 44, 1.25)
            } else {
                // m8n128w1s1: 6 batches, mean regret 0.90 %
                path.leaf(&[1], 6, 0.90)
            }
        } else {
            // m8n128w1s1+m64n64w1s1: 7 batches, mean regret 3.33 %
            path.leaf(&[2], 7, 3.33)
        }
    } else if ask!(path, batch.requests <= 16) {
        if ask!(path, batch.shared_rows <= 12) {
            // m64n128w2s1: 8 batches, mean regret 1.45 %
            path.leaf(&[6], 8, 1.45)
        } else {
            // m8n128w1s1: 22 batches, mean regret 1.11 %
            path.leaf(&[1], 22, 1.11)
        }
    } else if ask!(path, batch.requests <= 64) {
        // m64n128w2s1: 18 batches, mean regret 1.41 %
        path.leaf(&[6], 18, 1.41)
    } else {
        // m8n128w1s1+m64n64w1s1: 38 batches, mean regret 1.32 %
        path.leaf(&[2], 38, 1.32)
    }
}
