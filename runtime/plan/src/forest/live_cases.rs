//! What `LiveForest` does, case by case; `live_tests` has the random ones.

use super::live_tests::{Facts, facts};
use crate::{ForestError, LiveForest, PrefixTree};
use std::collections::{BTreeMap, BTreeSet};

fn live(rows: &[&[i32]]) -> LiveForest {
    let mut forest = LiveForest::default();
    for (request, row) in (0..).zip(rows) {
        forest.add(request, row).unwrap();
    }
    forest.clear_touched();
    forest
}

/// The node whose run begins with a page, and where its columns begin.
fn node(forest: &LiveForest, first: i32) -> u32 {
    (0..forest.capacity() as u32).find(|&node| forest.pages(node).first() == Some(&first)).unwrap()
}

#[test]
fn a_page_for_a_leaf_of_its_own_touches_that_leaf_alone() {
    let mut forest = live(&[&[1, 2, 3], &[1, 2, 4, 5]]);
    forest.append(1, &[6]).unwrap();
    forest.append(1, &[7, 8]).unwrap();
    let leaf = node(&forest, 4);
    assert_eq!(forest.pages(leaf), [4, 5, 6, 7, 8]);
    assert_eq!(forest.columns(leaf), 2..7);
    let touched = forest.touched();
    assert_eq!((touched.grown, touched.changed.len(), touched.freed.len()), (&[leaf][..], 0, 0));
}

#[test]
fn copy_on_write_in_a_private_leaf_touches_that_leaf_only() {
    let mut forest = live(&[&[1, 2, 3], &[1, 2, 4, 5]]);
    forest.truncate(1, 3).unwrap();
    forest.append(1, &[9]).unwrap();
    let leaf = node(&forest, 4);
    assert_eq!(forest.pages(leaf), [4, 9]);
    let touched = forest.touched();
    assert_eq!((touched.grown, touched.changed.len(), touched.freed.len()), (&[leaf][..], 0, 0));
}

#[test]
fn arrivals_change_their_path_and_departures_join_nodes() {
    let mut forest = live(&[&[1, 2, 3], &[8]]);
    let (leaf, other) = (node(&forest, 1), node(&forest, 8));
    forest.add(7, &[1, 2, 4]).unwrap();
    let (root, new) = (node(&forest, 1), node(&forest, 4));
    let mut changed = forest.touched().changed.to_vec();
    changed.sort_unstable();
    assert_eq!(changed, BTreeSet::from([leaf, root, new]).into_iter().collect::<Vec<_>>());
    assert_ne!(leaf, root, "who ends in the lower chunk need not hear of it");
    assert_eq!(forest.children(root).collect::<Vec<_>>(), [leaf, new]);

    forest.clear_touched();
    forest.remove(7).unwrap();
    assert_eq!(forest.pages(leaf), [1, 2, 3]);
    assert_eq!(forest.roots().collect::<Vec<_>>(), [leaf, other]);
    let touched = forest.touched();
    assert_eq!((touched.grown.len(), touched.changed), (0, &[leaf][..]));
    assert_eq!(touched.freed.len(), 2);
}

#[test]
fn forks_with_the_same_page_stay_one_node() {
    let mut forest = live(&[&[1, 2], &[1, 2]]);
    [0, 1].iter().for_each(|&request| forest.append(request, &[3]).unwrap());
    let root = forest.roots().next().unwrap();
    assert_eq!((forest.pages(root), forest.ending(root)), (&[1, 2, 3][..], &[0, 1][..]));
    [(0, 5), (1, 4)].iter().for_each(|&(request, page)| forest.append(request, &[page]).unwrap());
    let leaves: Vec<&[i32]> = forest.children(root).map(|child| forest.pages(child)).collect();
    assert_eq!((forest.pages(root), leaves), (&[1, 2, 3][..], vec![&[4][..], &[5]]));
}

#[test]
fn what_cannot_be_followed_is_refused_and_changes_nothing() {
    let mut forest = live(&[&[1, 2], &[1, 3], &[]]);
    let before = facts(&forest);
    let limit = LiveForest::MAX_REQUESTS;
    let unknown = |request| Err(ForestError::UnknownRequest { request });
    let present = |request| Err(ForestError::RequestPresent { request });
    let negative = |request, column| Err(ForestError::NegativePage { request, column, page: -1 });
    assert_eq!(forest.add(2, &[4]), present(2));
    assert_eq!(forest.add(limit, &[4]), Err(ForestError::RequestNumber { request: limit, limit }));
    assert_eq!(forest.add(3, &[4, -1]), negative(3, 1));
    assert_eq!(forest.append(0, &[4, 5, -1]), negative(0, 4));
    assert_eq!(forest.append(3, &[]), unknown(3));
    assert_eq!(forest.remove(u32::MAX), unknown(u32::MAX));
    assert_eq!(forest.truncate(3, 0), unknown(3));
    assert_eq!(forest.truncate(1, 3), Err(ForestError::Truncate { request: 1, pages: 2, kept: 3 }));
    assert_eq!(forest.rename(3, 4), unknown(3));
    assert_eq!(forest.rename(0, 1), present(1));
    assert_eq!(forest.rename(0, u32::MAX), Err(ForestError::RequestNumber { request: u32::MAX, limit }));
    assert!(forest.touched().is_empty());
    assert_eq!(facts(&forest), before);
    assert_eq!((forest.request_pages(2), forest.request_pages(3)), (Some(0), None));
}

#[test]
fn a_tree_as_deep_as_the_batch_is_followed_without_recursion() {
    let row: Vec<i32> = (0..20_000).collect();
    let mut forest = LiveForest::default();
    for (request, end) in (0..).zip((1..=row.len()).rev().step_by(10)) {
        forest.add(request, &row[..end]).unwrap();
    }
    assert_eq!((0..forest.capacity() as u32).filter(|&node| forest.size(node) > 0).count(), 2000);
    forest.truncate(0, 5).unwrap();
    assert_eq!(forest.request_pages(0), Some(5));
    (1..2000).for_each(|request| forest.remove(request).unwrap());
    let root = forest.roots().next().unwrap();
    assert_eq!((forest.pages(root), forest.size(root)), (&row[..5], 1));
}

#[test]
fn repeated_steps_leave_the_trees_as_they_were() {
    let mut forest = live(&[&[1, 2, 3], &[1, 2, 4], &[1, 5], &[1, 5]]);
    let cycle = |forest: &mut LiveForest| {
        forest.add(9, &[1, 2, 3, 6]).unwrap();
        forest.append(2, &[7]).unwrap();
        forest.append(3, &[7]).unwrap();
        forest.remove(9).unwrap();
        forest.truncate(2, 2).unwrap();
        forest.truncate(3, 2).unwrap();
        forest.clear_touched();
    };
    (0..8).for_each(|_| cycle(&mut forest));
    let (capacity, before) = (forest.capacity(), facts(&forest));
    (0..100).for_each(|_| cycle(&mut forest));
    assert_eq!(forest.capacity(), capacity);
    let trees = |facts: BTreeMap<u32, Facts>| {
        let mut all: Vec<_> =
            facts.into_values().map(|f| (f.columns.start, f.pages, f.ending, f.size)).collect();
        all.sort();
        all
    };
    assert_eq!(trees(facts(&forest)), trees(before));
}
