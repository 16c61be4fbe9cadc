use super::QTiles;
use super::sketch_tree::SketchTree;
use crate::PrefixTree;
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

type Cut = Vec<(Vec<u32>, Vec<(u32, Range<u32>)>)>;

fn cut(tree: &SketchTree, top: u32, apart: &[u32], capacity: u32) -> Cut {
    let mut q_tiles = QTiles::default();
    let range = q_tiles.push_pack(tree, top, |node| !apart.contains(&node), capacity);
    assert_eq!(range, 0..q_tiles.q_tiles().len() as u32);
    let segments = |q_tile| {
        q_tiles.segments_of(q_tile).iter().map(|segment| (segment.node, segment.members.clone())).collect()
    };
    q_tiles.q_tiles().iter().map(|q_tile| (q_tiles.requests_of(q_tile).to_vec(), segments(q_tile))).collect()
}

/// A root of four pages with one request, and children of `pages` with `requests`.
fn broom(children: &[(u32, u32)]) -> SketchTree {
    let mut tree = SketchTree::default();
    let root = tree.add(None, 4, 1);
    children.iter().for_each(|&(pages, requests)| {
        tree.add(Some(root), pages, requests);
    });
    tree
}

#[test]
fn a_q_tile_masks_rows_that_a_child_does_not_have() {
    let tree = broom(&[(1, 2), (1, 1)]);
    assert_eq!(cut(&tree, 0, &[], 4), [(vec![0, 1, 2, 3], vec![(0, 0..4), (1, 1..3), (2, 3..4)])]);
    assert_eq!(cut(&tree, 1, &[], 4), [(vec![1, 2], vec![(1, 0..2)])]);
}

#[test]
fn requests_below_a_separate_child_stay_in_the_pack() {
    let mut tree = broom(&[(1, 2), (1, 1)]);
    tree.add(Some(1), 3, 1);
    assert_eq!(cut(&tree, 0, &[1], 8), [(vec![0, 1, 2, 4, 3], vec![(0, 0..5), (2, 4..5)])]);
}

#[test]
fn a_node_larger_than_a_q_tile_goes_on_in_the_next_ones() {
    let tree = broom(&[(9, 5)]);
    let expected = [
        (vec![0, 1], vec![(0, 0..2), (1, 1..2)]),
        (vec![2, 3], vec![(0, 0..2), (1, 0..2)]),
        (vec![4, 5], vec![(0, 0..2), (1, 0..2)]),
    ];
    assert_eq!(cut(&tree, 0, &[], 2), expected);
}

#[test]
fn a_node_starts_a_q_tile_if_that_costs_no_q_tile() {
    // Q tiles of three: 1 + 3 would lie across two, and two are needed anyhow.
    let sizes = |tree: &SketchTree| -> Vec<usize> {
        cut(tree, 0, &[], 3).iter().map(|(requests, _)| requests.len()).collect()
    };
    assert_eq!(sizes(&broom(&[(1, 3)])), [1, 3]);
    // With two more requests behind, a third Q tile would read the root's four pages again: worth it only for more than four.
    assert_eq!(sizes(&broom(&[(4, 3), (1, 2)])), [3, 3]);
    assert_eq!(sizes(&broom(&[(5, 3), (1, 2)])), [1, 3, 2]);
}

#[test]
fn a_chain_of_thousands_of_nodes_is_no_problem() {
    let rows: Vec<Vec<i32>> = (1..=3000).map(|len| (0..len).collect()).collect();
    let mut entries = Vec::new();
    for row in &rows {
        entries.extend_from_slice(row);
        entries.extend(std::iter::repeat_n(-1, 3000 - row.len()));
    }
    let seq_lens: Vec<u32> = (1..=3000).collect();
    let forest = crate::Forest::build(&crate::PageTable::new(&entries, 3000, &seq_lens, 1).unwrap());
    let mut q_tiles = QTiles::default();
    q_tiles.push_pack(&forest, 0, |_| true, 1000);
    assert_eq!(q_tiles.q_tiles().len(), 3);
    assert_eq!(q_tiles.segments().len(), 1000 + 2000 + 3000);
}

fn below(tree: &SketchTree, node: u32, into: &mut Vec<u32>) {
    into.extend(tree.ending(node));
    tree.children(node).for_each(|child| below(tree, child, into));
}

fn pack_nodes(tree: &SketchTree, node: u32, joined: &impl Fn(u32) -> bool, into: &mut Vec<u32>) {
    into.push(node);
    tree.children(node)
        .filter(|&child| joined(child))
        .for_each(|child| pack_nodes(tree, child, joined, into));
}

proptest! {
    #[test]
    fn a_q_tile_reads_what_its_requests_have_of_the_pack(seed: u64, capacity in 0u32..20) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let tree = SketchTree::random(&mut rng, 12, 8, 12);
        let apart: Vec<bool> = (0..tree.capacity()).map(|_| rng.random_bool(0.3)).collect();
        let joined = |node: u32| !apart[node as usize];
        let mut q_tiles = QTiles::default();
        for top in 0..tree.capacity() as u32 {
            let range = q_tiles.push_pack(&tree, top, joined, capacity);
            let range = range.start as usize..range.end as usize;
            let (mut requests, mut nodes) = (Vec::new(), Vec::new());
            below(&tree, top, &mut requests);
            pack_nodes(&tree, top, &joined, &mut nodes);
            let cut = &q_tiles.q_tiles()[range];
            let cut_requests: Vec<u32> = cut.iter().flat_map(|q_tile| q_tiles.requests_of(q_tile)).copied().collect();
            prop_assert_eq!(&cut_requests, &requests, "depth first, each once");
            for q_tile in cut {
                let members = q_tiles.requests_of(q_tile);
                prop_assert!(!members.is_empty() && members.len() <= capacity.max(1) as usize);
                let expected: Vec<(u32, Vec<u32>)> = nodes.iter().map(|&node| {
                    let mut sharing = Vec::new();
                    below(&tree, node, &mut sharing);
                    (node, members.iter().copied().filter(|request| sharing.contains(request)).collect::<Vec<_>>())
                }).filter(|(_, sharing)| !sharing.is_empty()).collect();
                let walked: Vec<(u32, Vec<u32>)> = q_tiles.segments_of(q_tile).iter().map(|segment| {
                    (segment.node, members[segment.members.start as usize..segment.members.end as usize].to_vec())
                }).collect();
                prop_assert_eq!(walked, expected, "in pre-order, masked");
            }
        }
    }
}
