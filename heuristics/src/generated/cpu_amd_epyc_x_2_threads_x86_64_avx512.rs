//! Tile selector of AMD EPYC x 2 threads (cpu, x86_64-avx512). Written by `tilewright emit`; do not edit.
//!
//! - limits: threads 2, L1 cache 48 KB, L2 1024 KB, last-level cache 32768 KB, read bandwidth 32.5 GB/s, multiply-add peak 521 GFLOP/s, launch floor 10.1 us, price of an HBM byte 36.5 GB/s, price of an L2 byte 68.2 GB/s, price of a partial's byte 4.0 GB/s, price of a FLOP 525.1 GFLOP/s, price of a CTA 165.9 ns, price of a merge 0.1 us
//! - versions: tilewright 0.1.0, system Linux (Debian GNU/Linux 12), kernel 6.18.44-fc-v509
//! - kernel 45971497d0e81247, space 1be1cd6237d9cdb1, selector 9ba41f1586d10a5e
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit 8e2c6357444f40d2, trees-fit 7c21c0b42486d039, conversation-fit d95caeac3a7b033d, tenants-held-out 0bf8238de5eaa412, conversation-held-out 3a83f731cb275f9c
//! - measured: 2026-11-28T21:04:13Z by `tilewright tune --device cpu --budget 240`
//! - counts: 253 batches fitted, 143 only judged, 19 sets of tiles, 9097 measurements, 64505 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 6 rows at 0.20 each, ties below 1.0 %; no tree of depth 5 over this portfolio and 16 thresholds a feature has less mean regret than 0.16 % (proven), this one is 1.88 points above that, 0.91 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 143 batches that were not fitted the selector takes 1.085 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.884 at worst).
//! - regret on batches not fitted, selector: mean 9.38 %, p95 38.78 %, worst 88.37 %
//! - regret on batches not fitted, best single tile: mean 12.41 %, p95 36.79 %, worst 74.15 %
//! - regret on batches not fitted, portfolio's oracle: mean 1.62 %, p95 7.43 %, worst 22.83 %
//! - regret on batches not fitted, winner-label CART: mean 11.43 %, p95 41.26 %, worst 88.37 %
//! - regret on batches measured under the selector, selector: mean 8.59 %, p95 45.73 %, worst 92.63 % of 143
//! - regret on batches measured under the selector, best single tile (m64n64w1s1): mean 9.23 %, p95 48.59 %, worst 77.19 % of 143
//! - regret on batches measured under the selector, PAT's rules: mean 11.18 %, p95 52.21 %, worst 131.22 % of 143
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 46.45 %, p95 112.40 %, worst 155.35 % of 143

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
    TileSet::new(&[Tile::of("m4n16w1s1")]),
    TileSet::new(&[Tile::of("m8n16w1s1")]),
    TileSet::new(&[Tile::of("m8n32w1s1")]),
    TileSet::new(&[Tile::of("m16n64w1s1")]),
    TileSet::new(&[Tile::of("m64n16w1s2")]),
    TileSet::new(&[Tile::of("m64n64w1s1")]),
    TileSet::new(&[Tile::of("m64n128w1s1")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m16n64w1s1");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 27377530, l2_byte: 14672696, partial_byte: 251345011, flop: 1904296, cta: 165931547619, merge: 105579667644 };

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
    if ask!(path, batch.mean_rows <= 7) {
        if ask!(path, batch.kv_heads <= 2) {
            if ask!(path, batch.mean_rows <= 4) {
                if ask!(path, batch.unique_tokens <= 18432) {
                    // m4n16w1s1: 14 batches, mean regret 4.31 %
                    path.leaf(&[0], 14, 4.31)
                } else {
                    // m64n16w1s2: 16 batches, mean regret 2.89 %
                    path.leaf(&[4], 16, 2.89)
                }
            } else if ask!(path, batch.longest <= 544) {
                // m16n64w1s1: 9 batches, mean regret 0.98 %
                path.leaf(&[3], 9, 0.98)
            } else {
                // m64n64w1s1: 10 batches, mean regret 0.72 %
                path.leaf(&[5], 10, 0.72)
            }
        } else if ask!(path, batch.shared_rows <= 4) {
            if ask!(path, batch.requests <= 1) {
                // m8n32w1s1: 6 batches, mean regret 2.92 %
                path.leaf(&[2], 6, 2.92)
            } else {
                // m4n16w1s1: 38 batches, mean regret 2.22 %
                path.leaf(&[0], 38, 2.22)
            }
        } else if ask!(path, batch.requests <= 3) {
            // m8n32w1s1: 6 batches, mean regret 1.75 %
            path.leaf(&[2], 6, 1.75)
        } else {
            // m8n16w1s1: 25 batches, mean regret 0.32 %
            path.leaf(&[1], 25, 0.32)
        }
    } else if ask!(path, batch.longest <= 544) {
        if ask!(path, batch.shared_rows <= 28) {
            if ask!(path, batch.kv_heads <= 1) {
                // m64n64w1s1: 9 batches, mean regret 0.65 %
                path.leaf(&[5], 9, 0.65)
            } else {
                // m8n32w1s1: 23 batches, mean regret 3.73 %
                path.leaf(&[2], 23, 3.73)
            }
        } else if ask!(path, batch.trees <= 4) {
            // m16n64w1s1: 22 batches, mean regret 1.70 %
            path.leaf(&[3], 22, 1.70)
        } else {
            // m64n64w1s1: 6 batches, mean regret 1.04 %
            path.leaf(&[5], 6, 1.04)
        }
    } else if ask!(path, batch.unique_kv <= 6144) {
        // m64n64w1s1: 19 batches, mean regret 2.72 %
        path.leaf(&[5], 19, 2.72)
    } else if ask!(path, batch.kv_heads <= 2) {
        // m64n128w1s1: 32 batches, mean regret 1.63 %
        path.leaf(&[6], 32, 1.63)
    } else {
        // m16n64w1s1: 18 batches, mean regret 1.89 %
        path.leaf(&[3], 18, 1.89)
    }
}
