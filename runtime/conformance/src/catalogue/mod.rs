//! The list of conformance cases.

mod options;
mod plain;
mod queries;
mod shapes;
#[cfg(test)]
mod tests;

use super::batch_builder::BatchBuilder;
use super::random::{Random, seed_of_name};
use super::{ConformanceCase, Layout, Values};
use shapes::around;
use std::sync::OnceLock;
use tilewright_heuristics::{Geometry, Mask, Tile};
use tilewright_kernel_templates::Class;
use tilewright_plan::{DeviceProfile, Packing, PlanOptions, Split};

/// The conformance cases of a class, for all of its tiles. The seed draws their numbers, the order of their pages and the random
/// trees among them. FP8 has no infinities: for it, cases whose keys have some are left out.
pub fn cases(class: &Class, seed: u64) -> Vec<ConformanceCase> {
    let author = Author { class: *class, seed };
    let mut cases = plain::cases(author);
    cases.extend(options::cases(author));
    cases.extend(queries::cases(author));
    cases.retain(|case| case.values.are_finite() || !class.dtype.has_fp8_kv());
    cases
}

/// Further cases for one tile: lengths around multiples of its n, packs of around m rows, and queries whose rows are around m.
pub fn tile_cases(class: &Class, tile: &Tile, seed: u64) -> Vec<ConformanceCase> {
    let author = Author { class: *class, seed };
    let (m, n) = (u32::from(tile.m), u32::from(tile.n));
    let around_n = (1..=3).flat_map(|multiple| around(multiple * n));
    let mut packs = BatchBuilder::new(16);
    for requests in around(m).into_iter().filter(|&requests| requests > 0) {
        // One full page and a few tokens, the same for all requests of the pack.
        let first = packs.own([20]);
        let of = first.last();
        packs = first.behind(of, 2, (1..requests).map(|_| 20));
    }
    vec![
        author.case("lengths around multiples of n", (2, 1), BatchBuilder::new(16).own(around_n.clone())),
        ConformanceCase {
            mask: Mask::window(n + n / 2),
            ..author.case("windows that end inside of n", (2, 1), BatchBuilder::new(16).own(around_n))
        },
        author.case("packs of around m rows", (1, 1), packs),
        queries::around_rows(author, m),
    ]
}

/// Further cases for batch-invariant plans, whose first chunks have 512 tokens: several chunks, each a CTA's, and all of them one CTA's.
pub fn invariant_cases(class: &Class, seed: u64) -> Vec<ConformanceCase> {
    let author = Author { class: *class, seed };
    let batch = || {
        let prefix = BatchBuilder::new(16).own([1100]);
        prefix.behind(0, 64, [1030, 1537, 2100, 1100, 513]).own([511, 512, 513, 0])
    };
    let planned = |ctas| {
        PlanOptions { split: Split::Invariant, ..PlanOptions::default() }.with_max_concurrent_ctas(ctas)
    };
    vec![
        ConformanceCase {
            options: planned(MANY_CTAS),
            ..author.case("chunks at fixed positions", (4, 2), batch())
        },
        ConformanceCase { options: planned(1), ..author.case("chunks of one CTA", (4, 2), batch()) },
    ]
}

/// So many CTAs that KV ranges are cut at every place where they can be.
const MANY_CTAS: u32 = 1 << 12;

/// Makes the cases of one class.
#[derive(Clone, Copy)]
struct Author {
    class: Class,
    seed: u64,
}

impl Author {
    /// A plain case over these (query heads, KV heads).
    fn case(
        &self,
        name: &'static str,
        (q_heads, kv_heads): (u32, u32),
        sketch: BatchBuilder,
    ) -> ConformanceCase {
        let seed = seed_of_name(self.seed, name);
        let drawn = sketch.draw(&mut Random::new(seed));
        ConformanceCase {
            name,
            geometry: Geometry {
                q_heads,
                kv_heads,
                head_dim: self.class.head_dim,
                page_size: sketch.page_size(),
                dtype: self.class.dtype,
            },
            page_table: drawn.page_table,
            max_pages: drawn.max_pages,
            seq_lens: drawn.seq_lens,
            query_lens: None,
            pages: drawn.pages,
            mask: Mask::NONE,
            sinks: false,
            values: Values::default(),
            layout: Layout::default(),
            options: PlanOptions::default(),
            seed,
            expected: OnceLock::new(),
            known_queries: OnceLock::new(),
        }
    }
}

/// Every node a pack, so that each level of a tree leaves a partial; long packs cut.
const PER_NODE: PlanOptions =
    PlanOptions { packing: Packing::PerNode, split: Split::Mean, device: DeviceProfile::H200 };
