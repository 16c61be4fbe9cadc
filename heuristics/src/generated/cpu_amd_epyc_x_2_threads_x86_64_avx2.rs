//! Tile selector of AMD EPYC x 2 threads (cpu, x86_64-avx2). Written by `tilewright emit`; do not edit.
//!
//! - limits: threads 2, first-level cache 32 KB, second-level cache 512 KB, last-level cache 32768 KB, read bandwidth 24.6 GB/s, multiply-add peak 199 GFLOP/s, launch floor 79.9 us, price of a first read 25.2 GB/s, price of a read again 24.6 GB/s, price of a partial 21.4 GB/s, price of an operation 140.6 GFLOP/s, price of a CTA 137.0 ns, price of merging at all 16.3 us
//! - versions: tilewright 0.1.0, system Linux (Debian GNU/Linux 12), kernel 6.18.44-fc-v595
//! - kernel 0382440b7bf9b166, space 1be1cd6237d9cdb1, selector 843b1360ab064e7a
//! - scenarios: packs-dtypes 4ad6fc5acbe62cd8, packs-gqa4 a4bc25cd40ad3545, packs-gqa8 3e391e6266e47dfd, packs-head-dims 6d79df83dcd87401, packs-many-heads b2b7b25f5969fbb8, packs-mha fb3f229f4393857b, packs-one-head 7f00364da776da9c, packs-page-sizes 23ef0e4f3c81d676, pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit e1e56c8604701d97, tenants-held-out f19b4122b0b1beca
//! - measured: 2026-11-23T08:18:29Z by `tilewright tune --device cpu --budget 240 --out tune`
//! - counts: 54 batches fitted, 100 only judged, 28 sets of tiles, 5312 measurements, 11143 samples
//! - fit: portfolio 8, depth 1, leaves 16 of at least 3 rows at 0.20 each, ties below 10.0 %; no tree of depth 1 over this portfolio has less mean regret (proven)
//! - On 100 batches that were not fitted the selector takes 1.172 of the time of the best single tile of each batch, known in hindsight (geometric mean; 3.101 at worst).
//! - regret on batches not fitted, selector: mean 23.51 %, p95 62.55 %, worst 210.13 %
//! - regret on batches not fitted, best single tile: mean 25.79 %, p95 54.67 %, worst 245.57 %
//! - regret on batches not fitted, portfolio's oracle: mean 6.81 %, p95 21.34 %, worst 27.15 %
//! - regret on batches not fitted, winner-label CART: mean 21.53 %, p95 52.77 %, worst 245.57 %
//! - regret on batches measured under the selector, selector 11c65823f01aa83d: mean 40.99 %, p95 105.98 %, worst 316.58 % of 100
//! - regret on batches measured under the selector, best single tile (m64n128w1s1): mean 32.15 %, p95 90.01 %, worst 277.21 % of 100
//! - regret on batches measured under the selector, PAT's rules: mean 32.29 %, p95 97.39 %, worst 288.85 % of 100
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 60.40 %, p95 121.82 %, worst 673.50 % of 100

// Regrets are measured: one may be near pi by chance.
#![allow(clippy::approx_constant)]

#[rustfmt::skip]
use crate::{Backend, BatchShape, Choices, Device, Domain, Follow, Prices, Selector, Tile, TileSet, Unfollowed, ask, first_feasible};

/// The selector.
#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cpu, name: "AMD EPYC x 2 threads", capability: "x86_64-avx2", units: 2 },
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
static SETS: [TileSet<'static>; 2] = [
    TileSet::new(&[Tile::of("m64n32w2s2")]),
    TileSet::new(&[Tile::of("m64n64w2s1")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m64n32w2s2");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 39756469, l2_byte: 40704309, partial_byte: 46750485, flop: 7114576, cta: 137011656746, merge: 16331000000000 };

/// The batches that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: BatchShape { requests: 1, all_rows: 2, trees: 1, lone: 0, longest: 32, unique_tokens: 32, unique_kv: 256, private_percent: 26, shared_rows: 0, mean_rows: 1, private_kv: 32, kv_heads: 1, gqa_ratio: 1, head_dim: 128, page_size: 16, dtype: 0 },
    max: BatchShape { requests: 62, all_rows: 704, trees: 14, lone: 12, longest: 25024, unique_tokens: 26752, unique_kv: 32768, private_percent: 100, shared_rows: 89, mean_rows: 44, private_kv: 32768, kv_heads: 32, gqa_ratio: 8, head_dim: 128, page_size: 32, dtype: 0 },
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
        (64, 0) => 0b11, // f16
        (64, 1) => 0b11, // bf16
        (64, 2) => 0b11, // f32
        (128, 0) => 0b11, // f16
        (128, 1) => 0b11, // bf16
        (128, 2) => 0b11, // f32
        (256, 0) => 0b11, // f16
        (256, 1) => 0b11, // bf16
        (256, 2) => 0b11, // f32
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.kv_heads <= 2) {
        // m64n64w2s1: 29 batches, mean regret 17.77 %
        path.leaf(&[1], 29, 17.77)
    } else {
        // m64n32w2s2: 25 batches, mean regret 10.59 %
        path.leaf(&[0], 25, 10.59)
    }
}
