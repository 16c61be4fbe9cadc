//! What the cases promise by their names.

use super::*;
use std::collections::BTreeSet;
use tilewright_heuristics::Dtype;
use tilewright_plan::{Forest, Plan};

const CLASS: Class = Class { head_dim: 64, dtype: Dtype::F32 };
const TILE: Tile = Tile::of("m16n48w1s1");

fn all(seed: u64) -> Vec<ConformanceCase> {
    let of_tile = tile_cases(&CLASS, &TILE, seed).into_iter().chain(invariant_cases(&CLASS, seed));
    cases(&CLASS, seed).into_iter().chain(of_tile).collect()
}

fn case(name: &str) -> ConformanceCase {
    all(1).into_iter().find(|case| case.name == name).unwrap()
}

#[test]
fn cases_are_well_formed_and_have_names_of_their_own() {
    let mut names = BTreeSet::new();
    for case in all(1) {
        assert!(names.insert(case.name), "{} stands for two cases", case.name);
        assert_eq!(case.geometry.validate(), Ok(()), "{}", case.name);
        let table = case.table();
        for request in 0..table.batch() {
            let used = table.pages(request);
            assert!(used.iter().all(|&page| (page as usize) < case.pages), "{}", case.name);
        }
        let elements = case.pages * case.strides().page;
        assert!(elements < 4 << 20, "{} has {elements} elements", case.name);
    }
}

#[test]
fn a_seed_draws_everything_again_and_always_the_same() {
    let (one, again, other) = (all(1), all(1), all(2));
    for ((one, again), other) in one.iter().zip(&again).zip(&other) {
        assert_eq!(one.page_table, again.page_table, "{}", one.name);
        assert_eq!(one.query::<f32>(), again.query::<f32>(), "{}", one.name);
        // Extreme queries have but two signs, and -inf and NaN are not drawn.
        let differs = one.values::<f32>().iter().zip(other.values::<f32>()).any(|(a, b)| *a != b);
        assert!(differs, "{}", one.name);
    }
}

#[test]
fn chunks_and_levels_come_about() {
    let chunks = |name: &str| {
        let plan = case(name).plan(TILE).unwrap();
        plan.merges().iter().map(|merge| merge.partial_end - merge.partial_begin).max().unwrap_or(0)
    };
    assert!(chunks("chunks of long requests") >= 8);
    assert!(chunks("chunks of a long prefix") >= 8);
    assert!(chunks("many pages of 1 token") >= 8);
    assert!(chunks("a window that leaves chunks empty") >= 8);
    assert!(chunks("logits of -inf") >= 4);
    assert!(chunks("a tree of five levels, each a pack") >= 5);
    let tree = case("a tree of five levels");
    let forest = Forest::build(&tree.table());
    assert!(forest.requests(&forest.nodes()[0]).len() == 16 && forest.nodes().len() == 31);
}

#[test]
fn invariant_plans_are_cut_at_every_chunk_or_not_at_all() {
    let plan = |name: &str| case(name).plan(Tile::of("m16n64w1s1")).unwrap();
    let (cut, whole) = (plan("chunks at fixed positions"), plan("chunks of one CTA"));
    assert!(cut.is_invariant() && whole.is_invariant());
    let partials = |plan: &Plan| {
        plan.merges().iter().map(|merge| merge.partial_end - merge.partial_begin).max().unwrap_or(0)
    };
    // 2100 tokens are in five chunks of 512.
    assert_eq!((partials(&cut), partials(&whole)), (5, 0));
    assert!(whole.work_items().iter().any(|item| item.kv_range.len() > 4 * 512));
}

#[test]
fn queries_stand_where_names_say() {
    let mut kinds = [0; 3];
    for case in all(1).into_iter().filter(|case| case.query_lens.is_some()) {
        let (table, ratio) = (case.table(), case.geometry.gqa_ratio() as usize);
        let plan = case.plan(TILE).unwrap();
        let requests =
            |q_tile| plan.requests_of(q_tile).iter().map(|&query| table.request_of(query as usize));
        // A request in several Q tiles, queries without a token in their last page, and some without one in their last chunk.
        kinds[0] += usize::from(
            (1..plan.q_tiles().len() as u32)
                .any(|q_tile| requests(q_tile - 1).next_back() == requests(q_tile).next()),
        );
        let unseen =
            |query: usize| table.seq_len(query).div_ceil(table.page_size()) < table.pages(query).len() as u32;
        kinds[1] += usize::from((0..table.batch()).any(unseen));
        let unseen_chunk = plan.work_items().iter().any(|item| {
            let segment = &plan.segments()[item.segments.start as usize..item.segments.end as usize];
            let first = item.rows.start as usize / ratio;
            let query = plan.requests_of(item.q_tile)[first] as usize;
            let begins = |segment: &tilewright_plan::KvSegment| {
                segment.position + (item.kv_range.start.max(segment.kv_range.start) - segment.kv_range.start)
            };
            segment.iter().all(|segment| table.seq_len(query) <= begins(segment))
        });
        kinds[2] += usize::from(unseen_chunk);
    }
    assert!(kinds.iter().all(|&cases| cases >= 2), "{kinds:?}");
    let around_m = case("queries whose rows are around m");
    assert_eq!(around_m.query_lens, Some(vec![7, 8, 9, 15, 16, 17]));
    assert_eq!(case("no request has queries").queries(), 0);
    let all_of_them = case("as many queries as tokens");
    assert_eq!(all_of_them.table().seq_lens().take(7).collect::<Vec<_>>(), [1, 1, 2, 1, 2, 3, 4]);
}

#[test]
fn numbers_are_the_same_in_every_layout() {
    let gapped = case("gaps between vectors");
    let dense = ConformanceCase { layout: Layout::Nhd, ..gapped.clone() };
    assert_ne!(gapped.keys::<f32>().len(), dense.keys::<f32>().len());
    assert_eq!(gapped.expected(), dense.expected());
}

#[test]
fn logits_are_what_the_names_say() {
    let extreme = case("logits between -1e4 and 1e4");
    let lse = extreme.expected().1;
    let finite: Vec<f64> = lse.iter().copied().filter(|lse| lse.is_finite()).collect();
    assert!(finite.iter().any(|&lse| lse > 9000.0) && finite.iter().all(|&lse| lse < 1e4 + 10.0));
    let deep = case("logits below -1e5");
    let lse = deep.expected().1;
    assert!(lse.iter().all(|&lse| lse < -1e5) && lse.iter().any(|lse| lse.is_finite()));
    let (output, lse) = case("logits of -inf").reference_parts();
    assert!(output.iter().all(|&x| x == 0.0) && lse.iter().all(|&lse| lse == f64::NEG_INFINITY));
    let only = case("logits of -inf but for a middle token's");
    assert!(only.expected().0.iter().any(|&x| x != 0.0));
    let (output, lse) = case("sinks and no tokens").reference_parts();
    assert!(output.iter().all(|&x| x == 0.0) && lse[0] == 80.0 && lse[3] == -1e4);
}

impl ConformanceCase {
    fn reference_parts(&self) -> (Vec<f64>, Vec<f64>) {
        let (output, lse) = self.expected();
        (output.to_vec(), lse.to_vec())
    }
}
