//! Tile selector of NVIDIA H200 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, second-level cache 60 MB, memory 150 GB, launch floor 3.01 us, latency of memory 682 cycles, latency of the second-level cache 286 cycles, reading 1 MB 4.1 us, 256 GB/s, reading 4 MB 4.9 us, 851 GB/s, reading 16 MB 7.9 us, 2131 GB/s, reading 64 MB 19.2 us, 3501 GB/s, reading 256 MB 62.7 us, 4280 GB/s, reading 1024 MB 234.6 us, 4576 GB/s, reading 4096 MB 926.8 us, 4634 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of a first read 4634.0 GB/s, price of a read again 9571.7 GB/s, price of a partial 4048.6 GB/s, price of an operation 581057.5 GFLOP/s, price of a CTA 20.8 ns, price of merging at all 4.0 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 2fe5eb5af14d9e66, space a7d745f403238396, selector 3dcb44aa99aa3707
//! - scenarios: packs-bf16 c78494111a0c1e7d, packs-few-heads d785e574b3f7f675, packs-gqa2 68ca2ba6fe8f0c62, packs-gqa4 e6bba16e058a1298, packs-gqa8 e798feb1d3f5cdde, packs-head-dims c16de4ba558a5472, packs-mha 473e559e8671e465, packs-page-sizes 200ea155f8ad11a8, packs-trees cd14143e0424683e, packs-trees-gqa4 4baf3d70758727f3, packs-trees-long-own 46b89ae31d5e3308, packs-trees-many-rows 8f8eb00fc6f112ca, packs-trees-small 0327d99c7f1a7483, tenants-fit 75c3c6af98512db2, trees-fit 7c21c0b42486d039, tenants-documents-fit f4d28a2949cdb259, tenants-dims-fit b6acdea3b38e4bca, conversation-fit 0986d69d5b8531d6, tenants-held-out 1a639ae280582249, tenants-documents-held-out df6725021c05e369, conversation-held-out a1e63e03216985e7, pat-fig9 0f784f9880efd171, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c
//! - measured: 2026-11-23T07:26:08Z by `tilewright tune --budget 420 --out /tmp/w/out`
//! - counts: 376 batches fitted, 202 only judged, 29 sets of tiles, 18315 measurements, 34925 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; no tree of depth 5 over this portfolio has less mean regret than 0.11 % (proven), this one is 1.33 points above that, 0.33 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 202 batches that were not fitted the selector takes 1.021 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.196 at worst).
//! - regret on batches not fitted, selector: mean 2.14 %, p95 8.86 %, worst 19.61 %
//! - regret on batches not fitted, best single tile: mean 18.69 %, p95 110.17 %, worst 157.84 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.28 %, p95 1.59 %, worst 7.86 %
//! - regret on batches not fitted, winner-label CART: mean 4.39 %, p95 21.76 %, worst 50.66 %
//! - regret on batches measured under the selector, selector 7c1228aebfec450c: mean 2.10 %, p95 8.58 %, worst 20.51 % of 202
//! - regret on batches measured under the selector, best single tile (m64n64w4s2): mean 5.64 %, p95 18.66 %, worst 40.84 % of 202
//! - regret on batches measured under the selector, PAT's rules: mean 97.58 %, p95 302.74 %, worst 428.63 % of 202
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 224.28 %, p95 929.00 %, worst 1556.53 % of 202

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
static SETS: [TileSet<'static>; 6] = [
    TileSet::new(&[Tile::of("m16n32w2s2")]),
    TileSet::new(&[Tile::of("m16n64w4s1")]),
    TileSet::new(&[Tile::of("m16n64w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s3")]),
    TileSet::new(&[Tile::of("m64n64w4s2")]),
    TileSet::new(&[Tile::of("m64n128w8s3")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m16n64w4s2");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 215798, l2_byte: 104475, partial_byte: 247001, flop: 1721, cta: 20799243154, merge: 4010666782657 };

/// The batches that were measured.
#[rustfmt::skip]
const DOMAIN: Domain = Domain {
    min: BatchShape { requests: 1, all_rows: 32, trees: 1, lone: 0, longest: 32, unique_tokens: 32, unique_kv: 256, private_percent: 39, shared_rows: 0, mean_rows: 1, private_kv: 256, kv_heads: 1, gqa_ratio: 1, head_dim: 64, page_size: 16, dtype: 0 },
    max: BatchShape { requests: 1024, all_rows: 65536, trees: 512, lone: 512, longest: 100000, unique_tokens: 429056, unique_kv: 13729792, private_percent: 100, shared_rows: 6144, mean_rows: 368, private_kv: 524288, kv_heads: 32, gqa_ratio: 16, head_dim: 256, page_size: 32, dtype: 1 },
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
        (64, 0) => 0b111111, // f16
        (64, 1) => 0b111111, // bf16
        (128, 0) => 0b111111, // f16
        (128, 1) => 0b111111, // bf16
        (256, 0) => 0b001111, // f16
        (256, 1) => 0b001111, // bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.all_rows <= 5888) {
        if ask!(path, batch.private_percent <= 80) {
            if ask!(path, batch.all_rows <= 1072) {
                if ask!(path, batch.kv_heads <= 1) {
                    // m64n32w4s3: 7 batches, mean regret 0.64 %
                    path.leaf(&[3], 7, 0.64)
                } else {
                    // m16n64w4s2: 22 batches, mean regret 1.31 %
                    path.leaf(&[2], 22, 1.31)
                }
            } else {
                // m64n64w4s2: 42 batches, mean regret 1.47 %
                path.leaf(&[4, 1], 42, 1.47)
            }
        } else if ask!(path, batch.private_percent <= 87) {
            if ask!(path, batch.unique_kv <= 884736) {
                // m16n64w4s2: 42 batches, mean regret 1.68 %
                path.leaf(&[2], 42, 1.68)
            } else {
                // m64n64w4s2: 17 batches, mean regret 1.18 %
                path.leaf(&[4, 2], 17, 1.18)
            }
        } else if ask!(path, batch.head_dim <= 128) {
            // m16n64w4s2: 173 batches, mean regret 1.55 %
            path.leaf(&[2], 173, 1.55)
        } else if ask!(path, batch.longest <= 5120) {
            // m16n32w2s2: 3 batches, mean regret 2.17 %
            path.leaf(&[0], 3, 2.17)
        } else {
            // m16n64w4s1: 6 batches, mean regret 0.59 %
            path.leaf(&[1], 6, 0.59)
        }
    } else if ask!(path, batch.all_rows <= 9728) {
        if ask!(path, batch.lone <= 6) {
            // m64n128w8s3: 16 batches, mean regret 0.93 %
            path.leaf(&[5, 1], 16, 0.93)
        } else if ask!(path, batch.unique_kv <= 1146880) {
            // m64n64w4s2: 5 batches, mean regret 0.51 %
            path.leaf(&[4, 1], 5, 0.51)
        } else {
            // m16n64w4s2: 7 batches, mean regret 1.23 %
            path.leaf(&[2], 7, 1.23)
        }
    } else {
        // m64n64w4s2: 36 batches, mean regret 1.46 %
        path.leaf(&[4, 1], 36, 1.46)
    }
}
