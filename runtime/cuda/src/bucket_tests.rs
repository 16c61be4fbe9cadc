//! Tests of buckets.

use super::*;
use proptest::prelude::*;
use tilewright_heuristics::{Dtype, PackShape};
use tilewright_plan::{PageTable, PlanOptions, Split};

const GEOMETRY: Geometry =
    Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
const SMALL: Tile = Tile::of("m16n32w1s2");
const LARGE: Tile = Tile::of("m64n32w4s1");

fn select(shape: &PackShape) -> Tile {
    if shape.rows > 8 { LARGE } else { SMALL }
}

/// A plan of requests with these pages each.
fn plan(rows: &[Vec<i32>], split: Split) -> Plan {
    plan_for(rows, split, 24)
}

fn plan_for(rows: &[Vec<i32>], split: Split, max_ctas: u32) -> Plan {
    let lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * 16).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let padded = |row: &Vec<i32>| {
        let mut row = row.clone();
        row.resize(columns, -1);
        row
    };
    let entries: Vec<i32> = rows.iter().flat_map(padded).collect();
    let table = PageTable::new(&entries, columns, &lens, 16).unwrap();
    Plan::build(
        &GEOMETRY,
        &table,
        &PlanOptions { split, ..PlanOptions::default() }.with_max_concurrent_ctas(max_ctas),
        select,
    )
    .unwrap()
}

proptest! {
    #[test]
    fn a_grown_bucket_fits_all_within_twice_the_size(
        batches in prop::collection::vec(prop::collection::vec(prop::collection::vec(0i32..3, 0..7), 1..12), 1..4),
        launch_mode in prop::sample::select(LaunchMode::ALL.to_vec()),
    ) {
        let plans: Vec<Plan> =
            batches.iter().map(|rows| plan(rows, Split::Fill)).collect();
        let launches = if launch_mode.launch == Launch::Single { 1 } else { 2 };
        let capacities = Capacities { items: vec![0; launches], ..Capacities::default() };
        let mut bucket = Bucket::new(&GEOMETRY, launch_mode, &[LARGE, SMALL], capacities).unwrap();
        for plan in &plans {
            bucket.grow_to(plan).unwrap();
        }
        for plan in &plans {
            prop_assert_eq!(bucket.check(plan), Ok(()));
        }
        for (i, capacity) in bucket.capacities().single().into_iter().enumerate() {
            let most = plans.iter().map(|plan| needs(plan)[i].1).max().unwrap_or(0);
            prop_assert!(capacity.is_power_of_two() && u64::from(capacity) < 2 * most.max(1));
        }
        let mut packed = crate::PackedPlan::in_bucket(&bucket);
        let place = packed.arguments(&GEOMETRY, 1 << 40, 1 << 41);
        for plan in &plans {
            packed.fill_bucket(plan, &bucket).unwrap();
            prop_assert!(packed.words().len() <= packed.span());
            prop_assert!(4 * packed.span() <= bucket.plan_bytes());
            prop_assert_eq!(packed.arguments(&GEOMETRY, 1 << 40, 1 << 41), place);
            // Of each launch the number of its items, and the order of its CTAs.
            let counted: u32 = packed.words()[1..].chunks_exact(2).take(launches).map(|launch| launch[0]).sum();
            prop_assert_eq!(counted as usize, plan.work_items().len());
        }
    }
}

#[test]
fn a_plan_that_does_not_fit_is_told_what_there_is_too_much_of() {
    let small = plan(&[vec![0, 1], vec![0, 2]], Split::None);
    let large = plan(&[vec![0, 1], vec![0, 2], vec![3], vec![4], vec![5]], Split::None);
    let bucket = Bucket::of(&small, LaunchMode::DEFAULT).unwrap();
    assert!(bucket.contains(&small) && !bucket.contains(&large));
    let error = bucket.check(&large).unwrap_err().to_string();
    assert!(error.contains("work items of tile") && error.contains("`Bucket::grow_to`"), "{error}");
    let capacities = Capacities { items: vec![64], ..bucket.capacities().clone() };
    let bucket = Bucket::new(&GEOMETRY, LaunchMode::DEFAULT, &[SMALL], capacities).unwrap();
    let error = bucket.check(&large).unwrap_err();
    assert_eq!(error, FitError::Capacity { what: "requests", needed: 5, capacity: 2 });
    let wide: Vec<Vec<i32>> = (0..8).map(|request| vec![0, 1, 2, 3 + request]).collect();
    let error = bucket.check(&plan(&wide, Split::None)).unwrap_err();
    assert!(matches!(error, FitError::Tile { tile: LARGE, .. }), "{error}");
    let other = Geometry { q_heads: 4, ..GEOMETRY };
    let other = Bucket::for_batch(&other, LaunchMode::DEFAULT, &[SMALL], 4, 64).unwrap();
    assert!(matches!(other.check(&small), Err(FitError::Geometry { .. })));
}

#[test]
fn capacities_that_make_no_sense_are_refused() {
    let of = |tiles: &[Tile], items: Vec<u32>| {
        let capacities = Capacities { items, ..Capacities::default() };
        Bucket::new(&GEOMETRY, LaunchMode::DEFAULT, tiles, capacities).unwrap_err()
    };
    assert_eq!(of(&[SMALL, LARGE], vec![1]), FitError::Launches { found: 1, launches: 2 });
    assert_eq!(of(&[], vec![]), FitError::Launches { found: 0, launches: 0 });
    assert_eq!(of(&[SMALL], vec![1 << 31]), FitError::TooLarge("work items"));
    let huge = Bucket::for_batch(&GEOMETRY, LaunchMode::DEFAULT, &[SMALL], u32::MAX, 1);
    assert_eq!(huge.unwrap_err(), FitError::TooLarge("requests"));
}

#[test]
fn default_capacities_serve_a_usual_batch() {
    let rows: Vec<Vec<i32>> = (0..30)
        .map(|request| (0..8).map(|column| if column < 5 { column } else { request * 8 + column }).collect())
        .collect();
    for launch_mode in LaunchMode::ALL {
        let bucket = Bucket::for_batch(&GEOMETRY, launch_mode, &[SMALL, LARGE], 30, 240).unwrap();
        assert_eq!(bucket.capacities().requests, 32);
        assert_eq!(bucket.capacities().page_entries, 256);
        bucket.check(&plan_for(&rows, Split::Fill, 264)).unwrap();
        bucket.check(&plan(&rows, Split::Mean)).unwrap();
    }
}
