//! What a plan's parts cost on the processor.

use super::{exchange_bandwidth, fma_flops, read_bandwidth};
use crate::{CpuBackend, DecodeArgs, KvCache};
use std::time::Instant;
use tilewright_heuristics::{Dtype, Geometry, Prices, Tile};
use tilewright_plan::{KvStrides, Packing, PageTable, Plan, PlanOptions, Split};

/// Times the last-level cache that is read for the bandwidth of memory.
const MEMORY_CACHES: usize = 4;
/// Work items of a small and of a large plan: what they differ by takes the difference in time.
const FEW: u32 = 64;
const MANY: u32 = 4096;
/// Samples of each plan; the best counts, as of the other figures.
const SAMPLES: usize = 25;
const PAGE: u32 = 16;
const HEAD_DIM: u32 = 64;
/// Of a row's partial: its output, maximum and sum.
const PARTIAL_BYTES: f64 = 4.0 * (HEAD_DIM + 2) as f64;

/// Measures the prices of the backend's threads, beside a last-level cache of `cache` bytes. Takes some four times its memory, and
/// less than a second.
///
/// A byte is read again in a set of half of the last-level cache. A work item costs what a decode step takes longer for each further request of one
/// token. Merging at all costs what a step whose items leave partials takes longer than one of as many items that do not, as threads wait for each
/// other; a partial's byte what that grows by with the partials, and at least what it is written and read for in such a set.
pub fn prices(backend: &mut CpuBackend, llc_bytes: usize) -> Prices {
    let (threads, cached) = (backend.threads(), (llc_bytes / 2).max(1 << 16));
    let price = |rate: f64| Prices::of_seconds(1.0 / rate);
    let Merging { at_all, partial } = merging(backend);
    let partial_byte = Prices::of_seconds(partial / PARTIAL_BYTES);
    Prices {
        hbm_byte: price(read_bandwidth(threads, llc_bytes.saturating_mul(MEMORY_CACHES).max(1 << 20))),
        l2_byte: price(read_bandwidth(threads, cached)),
        partial_byte: price(exchange_bandwidth(threads, cached)).max(partial_byte),
        flop: price(fma_flops(threads)),
        cta: Prices::of_seconds(item_seconds(backend)),
        merge: Prices::of_seconds(at_all),
    }
}

/// Seconds that a work item with next to nothing to do adds to a step.
fn item_seconds(backend: &mut CpuBackend) -> f64 {
    let [few, many] = step_seconds(backend, [apart(FEW), apart(MANY)]);
    of_an_item(few, many)
}

/// Seconds that merging takes: in any case, and for each partial of a row.
struct Merging {
    at_all: f64,
    partial: f64,
}

/// What steps with merges take longer than those without, and with as many work items. Where a busy machine says that they take less, a step of
/// one item, in which no thread does more than wait for the others, bounds it from above.
fn merging(backend: &mut CpuBackend) -> Merging {
    let (few, many) = (backend.threads(), MANY / 2);
    let plans = [apart(1), apart(2 * few), merged(few), apart(2 * many), merged(many)];
    let [one, few_apart, few_merged, many_apart, many_merged] = step_seconds(backend, plans);
    let (few_take, many_take) = (few_merged - few_apart, many_merged - many_apart);
    let partial = ((many_take - few_take) / f64::from(2 * (many - few))).max(0.0);
    let at_all = few_take - partial * f64::from(2 * few);
    Merging { at_all: if at_all > 0.0 { at_all.min(one) } else { one }, partial }
}

/// What an item adds, by the times of both plans. Where a busy machine held up every sample of the small plan, the large one bounds it from
/// above: it is never nothing.
fn of_an_item(few: f64, many: f64) -> f64 {
    if few < many { (many - few) / f64::from(MANY - FEW) } else { many / f64::from(MANY) }
}

const GEOMETRY: Geometry =
    Geometry { q_heads: 1, kv_heads: 1, head_dim: HEAD_DIM, page_size: PAGE, dtype: Dtype::F32 };

/// A plan of requests of one token, all of the same page, each a work item.
fn apart(requests: u32) -> Plan {
    plan(&vec![0; requests as usize], &vec![1; requests as usize], Packing::PerRequest)
}

/// A plan of requests that share a page and have one token more: two work items each, whose partials are merged.
fn merged(requests: u32) -> Plan {
    let pages: Vec<i32> = (1..=requests as i32).flat_map(|own| [0, own]).collect();
    plan(&pages, &vec![PAGE + 1; requests as usize], Packing::PerNode)
}

fn plan(pages: &[i32], seq_lens: &[u32], packing: Packing) -> Plan {
    let columns = pages.len() / seq_lens.len();
    let table = PageTable::new(pages, columns, seq_lens, PAGE).expect("every request has its pages");
    let tile = Tile::of("m1n16w1s1");
    let options = PlanOptions { packing, split: Split::None, ..PlanOptions::default() };
    Plan::build(&GEOMETRY, &table, &options, tile).expect("a few tokens can be planned")
}

/// The times of steps over such plans, the best of several samples of each. They are taken in turn: a busy spell meets all plans alike.
fn step_seconds<const PLANS: usize>(backend: &mut CpuBackend, plans: [Plan; PLANS]) -> [f64; PLANS] {
    let most = plans.iter().map(Plan::batch).max().unwrap_or(0);
    let pages = plans.iter().flat_map(Plan::pages).max().map_or(0, |&page| page as usize + 1);
    let cache = vec![0.0f32; pages * (PAGE * HEAD_DIM) as usize];
    let query = vec![0.0f32; most * HEAD_DIM as usize];
    let mut output = query.clone();
    let mut best = [f64::INFINITY; PLANS];
    for _ in 0..SAMPLES {
        for (plan, best) in plans.iter().zip(&mut best) {
            let elements = plan.batch() * HEAD_DIM as usize;
            let cache = KvCache { keys: &cache, values: &cache, strides: KvStrides::nhd(&GEOMETRY) };
            let args = DecodeArgs::new(&query[..elements], cache, &mut output[..elements]);
            let args = DecodeArgs { scale: Some(1.0), ..args };
            let begin = Instant::now();
            backend.decode(plan, args).expect("single tokens can be decoded");
            *best = best.min(begin.elapsed().as_secs_f64());
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_never_free() {
        let close = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-9;
        assert!(close(of_an_item(1e-5, 1e-5 + 4032.0 * 2e-7), 2e-7));
        // A machine so busy that the small plan took longer.
        assert!(close(of_an_item(1e-2, 4096e-7), 1e-7));
    }

    #[test]
    fn every_request_of_the_probe_is_a_work_item_without_a_partial_or_two_with_one_each() {
        // Otherwise the price would be that of a row.
        let plan = apart(FEW);
        assert_eq!(plan.packs().len(), FEW as usize);
        assert!(plan.merges().is_empty());
        let plan = merged(5);
        assert_eq!((plan.work_items().len(), plan.merges().len(), plan.partials()), (10, 5, 10));
    }
}
