//! Tile selector of NVIDIA H100 80GB HBM3 (cuda, sm_90a). Written by `tilewright emit`; do not edit.
//!
//! - limits: multiprocessors 132, shared memory of a CTA 227 KB, L2 50 MB, memory 85 GB, launch floor 3.26 us, latency of memory 687 cycles, latency of L2 282 cycles, reading 1 MB 4.3 us, 243 GB/s, reading 4 MB 5.4 us, 776 GB/s, reading 16 MB 9.4 us, 1789 GB/s, reading 64 MB 25.7 us, 2608 GB/s, reading 256 MB 90.2 us, 2977 GB/s, reading 1024 MB 347.2 us, 3093 GB/s, reading 4096 MB 1389.0 us, 3092 GB/s, 16-bit matrix peak 989 TFLOP/s by the data sheet, price of an HBM byte 3092.2 GB/s, price of an L2 byte 7745.4 GB/s, price of a partial's byte 3488.0 GB/s, price of a FLOP 581057.5 GFLOP/s, price of a CTA 25.1 ns, price of a merge 4.4 us
//! - versions: tilewright 0.1.0, system Linux (Ubuntu 24.04), kernel 6.18.44-fc-v657-gpu, driver 580.159.04 (CUDA 13.0), nvrtc 13.0
//! - kernel 0a32d1a2b56d229c, space a7d745f403238396, selector d4f75068e26b8351
//! - scenarios: pat-fig9 1ba6876e7c4febed, mix-roots 75b6c576d07c3924, mix-deep 97f29801e829959f, mix-lengths 8076eb100f635204, batch-of-one aef7197c3a141d74, conversation d7bf907c0ff5444c, tenants-fit f38c2614f647edad, tenants-many-fit f63167dd1c96439a, trees-fit 7c21c0b42486d039, tenants-dims-fit 68847de884f535bc, conversation-fit 79c4f1854c1776a7, tenants-held-out bdfcf37304555131, tenants-dims-held-out 44301cb530defb38, conversation-held-out edc9fdb475ea4ce8
//! - measured: 2026-11-25T09:05:05Z by `tilewright tune -v`
//! - counts: 450 batches fitted, 232 only judged, 27 sets of tiles, 20826 measurements, 89591 samples
//! - fit: portfolio 8, depth 5, leaves 16 of at least 3 rows at 0.20 each, ties below 1.0 %; the tree of the selector of NVIDIA H100 80GB HBM3, which stays for 3 of 3 parts: on the fitted batches it takes 1.0023 of the time of the best tree found; of that: in each of 3 parts, no tree of depth 5 over this portfolio and 10 thresholds a feature has less mean regret than 0.21 % (proven), this one is 1.12 points above that, 0.41 points of it for questions left out that are not worth their leaves; the search ended after the work that its seconds are for
//! - On 232 batches that were not fitted the selector takes 1.031 of the time of the best single tile of each batch, known in hindsight (geometric mean; 1.471 at worst).
//! - regret on batches not fitted, selector: mean 3.35 %, p95 12.77 %, worst 47.12 %
//! - regret on batches not fitted, best single tile: mean 8.14 %, p95 34.43 %, worst 54.44 %
//! - regret on batches not fitted, portfolio's oracle: mean 0.81 %, p95 4.60 %, worst 17.95 %
//! - regret on batches not fitted, winner-label CART: mean 5.96 %, p95 33.39 %, worst 50.32 %
//! - regret on batches measured under the selector, selector 1e4400f441fbe5ca: mean 3.36 %, p95 12.50 %, worst 45.66 % of 232
//! - regret on batches measured under the selector, best single tile (m64n32w4s2): mean 6.92 %, p95 29.00 %, worst 59.19 % of 232
//! - regret on batches measured under the selector, PAT's rules: mean 54.21 %, p95 203.27 %, worst 285.92 % of 232
//! - regret on batches measured under the selector, PAT's planner on our kernels: mean 120.63 %, p95 523.31 %, worst 1401.25 % of 232

// Regrets are measured: one may be near pi by chance.
#![allow(clippy::approx_constant)]

#[rustfmt::skip]
use crate::{Backend, BatchShape, Choices, Device, Domain, Follow, Prices, Selector, Tile, TileSet, Unfollowed, ask, first_feasible};

/// The selector.
#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cuda, name: "NVIDIA H100 80GB HBM3", capability: "sm_90a", units: 132 },
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
    TileSet::new(&[Tile::of("m64n32w4s2")]),
    TileSet::new(&[Tile::of("m64n32w4s3")]),
    TileSet::new(&[Tile::of("m64n64w4s2")]),
    TileSet::new(&[Tile::of("m64n96w4s2")]),
    TileSet::new(&[Tile::of("m64n128w8s3")]),
    TileSet::new(&[Tile::of("m128n64w8s3")]),
];

/// Runs every supported class of kernels; the choice for those that were not measured.
#[rustfmt::skip]
const SAFE_DEFAULT: Tile = Tile::of("m64n32w4s3");
static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);

/// What a plan's parts cost, in attoseconds.
#[rustfmt::skip]
const PRICES: Prices = Prices { hbm_byte: 323399, l2_byte: 129109, partial_byte: 286698, flop: 1721, cta: 25068181760, merge: 4351999921103 };

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
        (256, 0) => 0b00011111, // f16
        (256, 1) => 0b00011111, // bf16
        _ => 0,
    }
}

/// The tree: indices into the sets, the preferred one first.
#[inline]
fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
    if ask!(path, batch.head_dim <= 64) {
        if ask!(path, batch.all_rows <= 2772) {
            if ask!(path, batch.unique_tokens <= 45056) {
                if ask!(path, batch.longest <= 5792) {
                    if ask!(path, batch.shared_rows <= 128) {
                        // m16n64w4s2: 4 batches, mean regret 0.66 %
                        path.leaf(&[1], 4, 0.66)
                    } else {
                        // m128n64w8s3: 0 batches, mean regret 0.00 %
                        path.leaf(&[7, 0], 0, 0.00)
                    }
                } else if ask!(path, batch.all_rows <= 320) {
                    // m16n32w2s2: 0 batches, mean regret 0.00 %
                    path.leaf(&[0], 0, 0.00)
                } else {
                    // m64n32w4s3: 2 batches, mean regret 6.15 %
                    path.leaf(&[3], 2, 6.15)
                }
            } else if ask!(path, batch.mean_rows <= 29) {
                if ask!(path, batch.trees <= 14) {
                    // m64n32w4s2: 0 batches, mean regret 0.00 %
                    path.leaf(&[2], 0, 0.00)
                } else {
                    // m16n64w4s2: 6 batches, mean regret 2.52 %
                    path.leaf(&[1], 6, 2.52)
                }
            } else if ask!(path, batch.all_rows <= 1240) {
                // m64n32w4s2: 0 batches, mean regret 0.00 %
                path.leaf(&[2], 0, 0.00)
            } else {
                // m64n96w4s2: 0 batches, mean regret 0.00 %
                path.leaf(&[5, 2], 0, 0.00)
            }
        } else if ask!(path, batch.longest <= 3328) {
            if ask!(path, batch.all_rows <= 8192) {
                if ask!(path, batch.all_rows <= 4096) {
                    // m16n64w4s2: 0 batches, mean regret 0.00 %
                    path.leaf(&[1], 0, 0.00)
                } else {
                    // m64n128w8s3: 0 batches, mean regret 0.00 %
                    path.leaf(&[6, 2], 0, 0.00)
                }
            } else {
                // m64n64w4s2: 0 batches, mean regret 0.00 %
                path.leaf(&[4], 0, 0.00)
            }
        } else if ask!(path, batch.unique_tokens <= 61440) {
            if ask!(path, batch.private_percent <= 80) {
                // m64n96w4s2: 0 batches, mean regret 0.00 %
                path.leaf(&[5, 1], 0, 0.00)
            } else {
                // m16n32w2s2: 0 batches, mean regret 0.00 %
                path.leaf(&[0], 0, 0.00)
            }
        } else if ask!(path, batch.mean_rows <= 25) {
            // m128n64w8s3: 0 batches, mean regret 0.00 %
            path.leaf(&[7, 2], 0, 0.00)
        } else {
            // m64n96w4s2: 0 batches, mean regret 0.00 %
            path.leaf(&[5, 2], 0, 0.00)
        }
    } else if ask!(path, batch.head_dim <= 128) {
        if ask!(path, batch.all_rows <= 2772) {
            if ask!(path, batch.unique_tokens <= 45056) {
                if ask!(path, batch.longest <= 5792) {
                    if ask!(path, batch.shared_rows <= 128) {
                        // m16n64w4s2: 63 batches, mean regret 2.07 %
                        path.leaf(&[1], 63, 2.07)
                    } else {
                        // m128n64w8s3: 4 batches, mean regret 1.05 %
                        path.leaf(&[7, 0], 4, 1.05)
                    }
                } else if ask!(path, batch.all_rows <= 320) {
                    // m16n32w2s2: 12 batches, mean regret 1.38 %
                    path.leaf(&[0], 12, 1.38)
                } else {
                    // m64n32w4s3: 45 batches, mean regret 1.51 %
                    path.leaf(&[3], 45, 1.51)
                }
            } else if ask!(path, batch.mean_rows <= 29) {
                if ask!(path, batch.trees <= 14) {
                    // m64n32w4s2: 66 batches, mean regret 0.26 %
                    path.leaf(&[2], 66, 0.26)
                } else {
                    // m16n64w4s2: 52 batches, mean regret 1.48 %
                    path.leaf(&[1], 52, 1.48)
                }
            } else if ask!(path, batch.all_rows <= 1240) {
                // m64n32w4s2: 7 batches, mean regret 2.74 %
                path.leaf(&[2], 7, 2.74)
            } else {
                // m64n96w4s2: 9 batches, mean regret 2.08 %
                path.leaf(&[5, 2], 9, 2.08)
            }
        } else if ask!(path, batch.longest <= 3328) {
            if ask!(path, batch.all_rows <= 8192) {
                if ask!(path, batch.all_rows <= 4096) {
                    // m16n64w4s2: 9 batches, mean regret 3.20 %
                    path.leaf(&[1], 9, 3.20)
                } else {
                    // m64n128w8s3: 11 batches, mean regret 2.10 %
                    path.leaf(&[6, 2], 11, 2.10)
                }
            } else {
                // m64n64w4s2: 28 batches, mean regret 1.22 %
                path.leaf(&[4], 28, 1.22)
            }
        } else if ask!(path, batch.unique_tokens <= 61440) {
            if ask!(path, batch.private_percent <= 80) {
                // m64n96w4s2: 31 batches, mean regret 1.50 %
                path.leaf(&[5, 1], 31, 1.50)
            } else {
                // m16n32w2s2: 10 batches, mean regret 1.05 %
                path.leaf(&[0], 10, 1.05)
            }
        } else if ask!(path, batch.mean_rows <= 25) {
            // m128n64w8s3: 37 batches, mean regret 1.16 %
            path.leaf(&[7, 2], 37, 1.16)
        } else {
            // m64n96w4s2: 42 batches, mean regret 2.58 %
            path.leaf(&[5, 2], 42, 2.58)
        }
    } else if ask!(path, batch.all_rows <= 2772) {
        if ask!(path, batch.unique_tokens <= 45056) {
            if ask!(path, batch.longest <= 5792) {
                if ask!(path, batch.shared_rows <= 128) {
                    // m16n64w4s2: 0 batches, mean regret 0.00 %
                    path.leaf(&[1], 0, 0.00)
                } else {
                    // m128n64w8s3: 0 batches, mean regret 0.00 %
                    path.leaf(&[7, 0], 0, 0.00)
                }
            } else if ask!(path, batch.all_rows <= 320) {
                // m16n32w2s2: 1 batch, mean regret 0.00 %
                path.leaf(&[0], 1, 0.00)
            } else {
                // m64n32w4s3: 0 batches, mean regret 0.00 %
                path.leaf(&[3], 0, 0.00)
            }
        } else if ask!(path, batch.mean_rows <= 29) {
            if ask!(path, batch.trees <= 14) {
                // m64n32w4s2: 2 batches, mean regret 0.00 %
                path.leaf(&[2], 2, 0.00)
            } else {
                // m16n64w4s2: 2 batches, mean regret 6.38 %
                path.leaf(&[1], 2, 6.38)
            }
        } else if ask!(path, batch.all_rows <= 1240) {
            // m64n32w4s2: 2 batches, mean regret 2.17 %
            path.leaf(&[2], 2, 2.17)
        } else {
            // m64n96w4s2: 1 batch, mean regret 0.00 %
            path.leaf(&[5, 2], 1, 0.00)
        }
    } else if ask!(path, batch.longest <= 3328) {
        if ask!(path, batch.all_rows <= 8192) {
            if ask!(path, batch.all_rows <= 4096) {
                // m16n64w4s2: 0 batches, mean regret 0.00 %
                path.leaf(&[1], 0, 0.00)
            } else {
                // m64n128w8s3: 0 batches, mean regret 0.00 %
                path.leaf(&[6, 2], 0, 0.00)
            }
        } else {
            // m64n64w4s2: 0 batches, mean regret 0.00 %
            path.leaf(&[4], 0, 0.00)
        }
    } else if ask!(path, batch.unique_tokens <= 61440) {
        if ask!(path, batch.private_percent <= 80) {
            // m64n96w4s2: 2 batches, mean regret 3.76 %
            path.leaf(&[5, 1], 2, 3.76)
        } else {
            // m16n32w2s2: 0 batches, mean regret 0.00 %
            path.leaf(&[0], 0, 0.00)
        }
    } else if ask!(path, batch.mean_rows <= 25) {
        // m128n64w8s3: 2 batches, mean regret 0.00 %
        path.leaf(&[7, 2], 2, 0.00)
    } else {
        // m64n96w4s2: 0 batches, mean regret 0.00 %
        path.leaf(&[5, 2], 0, 0.00)
    }
}
