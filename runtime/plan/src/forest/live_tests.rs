//! `LiveForest` against `Forest::build`, after every one of many random changes.

use crate::{Forest, ForestError, LiveForest, PageTable, PrefixTree};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Range;

/// The rows that the forest should know; numbers have holes.
type Rows = BTreeMap<u32, Vec<i32>>;

/// A node and all below it, without numbers.
#[derive(Debug, PartialEq)]
struct Tree {
    columns: Range<u32>,
    pages: Vec<i32>,
    ending: Vec<u32>,
    size: u32,
    children: Vec<Tree>,
}

fn tree<T: PrefixTree>(
    trees: &T,
    pages: &impl Fn(u32) -> Vec<i32>,
    parent: Option<u32>,
    nodes: impl Iterator<Item = u32>,
) -> Vec<Tree> {
    nodes
        .map(|node| {
            assert_eq!(trees.parent(node), parent);
            Tree {
                columns: trees.columns(node),
                pages: pages(node),
                ending: trees.ending(node).to_vec(),
                size: trees.size(node),
                children: tree(trees, pages, Some(node), trees.children(node)),
            }
        })
        .collect()
}

/// Calls with the page table of the rows; holes are requests without tokens.
fn with_table<R>(rows: &Rows, use_table: impl FnOnce(&PageTable<'_>) -> R) -> R {
    let batch = rows.keys().next_back().map_or(0, |last| *last as usize + 1);
    let max_pages = rows.values().map(Vec::len).max().unwrap_or(0);
    let (mut entries, mut seq_lens) = (vec![-1; batch * max_pages], vec![0; batch]);
    for (&request, row) in rows {
        entries[request as usize * max_pages..][..row.len()].copy_from_slice(row);
        seq_lens[request as usize] = row.len() as u32 * 16;
    }
    use_table(&PageTable::new(&entries, max_pages, &seq_lens, 16).unwrap())
}

fn assert_same_as_built(live: &LiveForest, rows: &Rows) {
    let built = with_table(rows, |table| {
        let forest = Forest::build(table);
        let pages = |node: u32| {
            let node = &forest.nodes()[node as usize];
            let columns = node.columns.start as usize..node.columns.end as usize;
            table.pages(forest.requests(node)[0] as usize)[columns].to_vec()
        };
        tree(&forest, &pages, None, forest.roots())
    });
    assert_eq!(tree(live, &|node| live.pages(node).to_vec(), None, live.roots()), built);
    for request in 0..REQUESTS + 2 {
        assert_eq!(live.request_pages(request), rows.get(&request).map(|row| row.len() as u32));
    }
}

/// All that is known of a node by its number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Facts {
    pub(super) parent: Option<u32>,
    pub(super) columns: Range<u32>,
    pub(super) children: Vec<u32>,
    pub(super) ending: Vec<u32>,
    pub(super) size: u32,
    pub(super) pages: Vec<i32>,
}

pub(super) fn facts(live: &LiveForest) -> BTreeMap<u32, Facts> {
    fn kv_range(live: &LiveForest, node: u32, found: &mut BTreeMap<u32, Facts>) {
        let facts = Facts {
            parent: live.parent(node),
            columns: live.columns(node),
            children: live.children(node).collect(),
            ending: live.ending(node).to_vec(),
            size: live.size(node),
            pages: live.pages(node).to_vec(),
        };
        assert!(found.insert(node, facts).is_none(), "a node hangs in one place");
        live.children(node).for_each(|child| kv_range(live, child, found));
    }
    let mut found = BTreeMap::new();
    live.roots().for_each(|root| kv_range(live, root, &mut found));
    let unused = (0..live.capacity() as u32).filter(|node| !found.contains_key(node));
    unused.chain([live.capacity() as u32, u32::MAX]).for_each(|node| {
        assert_eq!((live.size(node), live.columns(node), live.parent(node)), (0, 0..0, None));
        assert!(live.pages(node).is_empty() && live.ending(node).is_empty());
        assert_eq!(live.children(node).next(), None);
    });
    found
}

/// Everything that differs is listed, once, and in the list that says what happened.
fn assert_touched(before: &BTreeMap<u32, Facts>, live: &LiveForest) {
    let (now, touched) = (facts(live), live.touched());
    let set = |nodes: &[u32]| nodes.iter().copied().collect::<BTreeSet<u32>>();
    let (grown, changed, freed) = (set(touched.grown), set(touched.changed), set(touched.freed));
    let listed: BTreeSet<u32> = grown.iter().chain(&changed).chain(&freed).copied().collect();
    assert_eq!(
        listed.len(),
        touched.grown.len() + touched.changed.len() + touched.freed.len(),
        "a node is listed once"
    );
    assert_eq!(touched.is_empty(), listed.is_empty());
    for node in before.keys().chain(now.keys()) {
        assert!(before.get(node) == now.get(node) || listed.contains(node), "{node} is missing: {touched:?}");
        assert_eq!(freed.contains(node), !now.contains_key(node), "{node} in {touched:?}");
    }
    assert!(changed.iter().all(|node| now.contains_key(node)), "what changed is in use");
    assert!(freed.iter().all(|node| !now.contains_key(node)), "what is free is not");
    for node in grown {
        let mut was = before[&node].clone();
        let is = &now[&node];
        assert_eq!((is.size, is.ending.len(), is.children.len()), (1, 1, 0));
        (was.columns.end, was.pages) = (is.columns.end, is.pages.clone());
        assert_eq!(&was, is, "all but the last pages stayed");
    }
}

/// Numbers that random requests have.
const REQUESTS: u32 = 9;

/// One step of an engine. Numbers are taken as they come: a request may not be there, or be there already.
#[derive(Clone, Debug)]
enum Step {
    Add(u32, Vec<i32>),
    /// Another request with the first pages of one, and some of its own.
    Fork(u32, u32, u32, Vec<i32>),
    Remove(u32),
    Append(u32, Vec<i32>),
    /// Two requests gain the same page.
    AppendToBoth(u32, u32, i32),
    Truncate(u32, u32),
    /// The last page is replaced.
    CopyOnWrite(u32, i32),
    Rename(u32, u32),
    ClearTouched,
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let request = || 0..REQUESTS;
    // More different pages now and then, so that nodes get many children and long segments of their own.
    let page = || prop_oneof![8 => 0i32..3, 1 => 3i32..40];
    let pages = move |most: usize| prop::collection::vec(page(), 0..=most);
    prop_oneof![
        4 => (request(), pages(8)).prop_map(|(request, pages)| Step::Add(request, pages)),
        6 => (request(), request(), 0u32..12, pages(3))
            .prop_map(|(from, to, kept, pages)| Step::Fork(from, to, kept, pages)),
        3 => request().prop_map(Step::Remove),
        8 => (request(), pages(3)).prop_map(|(request, pages)| Step::Append(request, pages)),
        3 => (request(), request(), page()).prop_map(|(a, b, page)| Step::AppendToBoth(a, b, page)),
        4 => (request(), 0u32..12).prop_map(|(request, kept)| Step::Truncate(request, kept)),
        3 => (request(), page()).prop_map(|(request, page)| Step::CopyOnWrite(request, page)),
        2 => (request(), request()).prop_map(|(from, to)| Step::Rename(from, to)),
        4 => Just(Step::ClearTouched),
        1 => prop::sample::select(vec![Step::ClearTouched, Step::ClearTouched, Step::Clear]),
    ]
}

/// The forest and the rows that it should have.
#[derive(Default)]
struct Pair {
    live: LiveForest,
    rows: Rows,
}

impl Pair {
    fn add(&mut self, request: u32, pages: Vec<i32>) {
        let result = self.live.add(request, &pages);
        match self.rows.entry(request) {
            Entry::Occupied(_) => assert_eq!(result, Err(ForestError::RequestPresent { request })),
            Entry::Vacant(row) => {
                assert_eq!(result, Ok(()));
                row.insert(pages);
            }
        }
    }

    fn append(&mut self, request: u32, pages: &[i32]) {
        let result = self.live.append(request, pages);
        let expected = self.rows.get_mut(&request).map(|row| row.extend_from_slice(pages));
        assert_eq!(result, expected.ok_or(ForestError::UnknownRequest { request }));
    }

    fn truncate(&mut self, request: u32, kept: u32) {
        let result = self.live.truncate(request, kept);
        let expected = match self.rows.get_mut(&request) {
            None => Err(ForestError::UnknownRequest { request }),
            Some(row) if row.len() < kept as usize => {
                Err(ForestError::Truncate { request, pages: row.len() as u32, kept })
            }
            Some(row) => {
                row.truncate(kept as usize);
                Ok(())
            }
        };
        assert_eq!(result, expected);
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Add(request, pages) => self.add(request, pages),
            Step::Fork(from, to, kept, pages) => {
                let mut row = self.rows.get(&from).cloned().unwrap_or_default();
                row.truncate(kept as usize);
                row.extend(pages);
                self.add(to, row);
            }
            Step::Remove(request) => {
                let expected =
                    self.rows.remove(&request).map(drop).ok_or(ForestError::UnknownRequest { request });
                assert_eq!(self.live.remove(request), expected);
            }
            Step::Append(request, pages) => self.append(request, &pages),
            Step::AppendToBoth(a, b, page) => {
                self.append(a, &[page]);
                self.append(b, &[page]);
            }
            Step::Truncate(request, kept) => self.truncate(request, kept),
            Step::CopyOnWrite(request, page) => {
                if let Some(last) = self.rows.get(&request).and_then(|row| row.len().checked_sub(1)) {
                    self.truncate(request, last as u32);
                    self.append(request, &[page]);
                }
            }
            Step::Rename(from, to) => {
                let result = self.live.rename(from, to);
                if !self.rows.contains_key(&from) {
                    assert_eq!(result, Err(ForestError::UnknownRequest { request: from }));
                } else if from != to && self.rows.contains_key(&to) {
                    assert_eq!(result, Err(ForestError::RequestPresent { request: to }));
                } else {
                    assert_eq!(result, Ok(()));
                    let row = self.rows.remove(&from).unwrap();
                    self.rows.insert(to, row);
                }
            }
            Step::ClearTouched => self.live.clear_touched(),
            Step::Clear => {
                self.live.clear();
                self.rows.clear();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn after_every_change_the_trees_are_those_built_at_once(
        start in prop::collection::btree_map(0..REQUESTS, prop::collection::vec(0i32..3, 0..8), 0..6),
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let live = with_table(&start, LiveForest::from_table);
        let mut pair = Pair { live, rows: start };
        // Holes of the table are requests without tokens there.
        for request in 0..REQUESTS {
            if pair.live.request_pages(request).is_some() && !pair.rows.contains_key(&request) {
                pair.live.remove(request).unwrap();
            }
        }
        let mut before = BTreeMap::new();
        assert_same_as_built(&pair.live, &pair.rows);
        assert_touched(&before, &pair.live);
        for step in steps {
            let clears = matches!(step, Step::ClearTouched);
            pair.apply(step);
            if clears {
                prop_assert!(pair.live.touched().is_empty());
                before = facts(&pair.live);
            }
            assert_same_as_built(&pair.live, &pair.rows);
            assert_touched(&before, &pair.live);
        }
        // Nothing is lost: the numbers that were ever needed are as many as were in use at once, and all come back.
        let rows = std::mem::take(&mut pair.rows);
        rows.keys().for_each(|&request| pair.live.remove(request).unwrap());
        assert_same_as_built(&pair.live, &pair.rows);
        assert_touched(&before, &pair.live);
        prop_assert!(pair.live.capacity() <= 2 * REQUESTS as usize + 1);
    }
}
