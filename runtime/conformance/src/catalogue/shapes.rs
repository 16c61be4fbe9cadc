//! Batches that several cases are made of.

use super::BatchBuilder;

/// A length and its neighbours.
pub(super) fn around(length: u32) -> [u32; 3] {
    [length.saturating_sub(1), length, length + 1]
}

/// Lengths around page and tile edges: multiples of 16 up to 128, powers of two up to 512.
pub(super) fn edges() -> Vec<u32> {
    let powers = (0..10).map(|exponent| 1 << exponent);
    let mut lengths: Vec<u32> = powers.chain([48, 80, 96, 112]).flat_map(around).collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// Many short requests keep the mean a little above 64 tokens, so that longer ones are cut there; these end around the cuts.
pub(super) fn cut(page_size: u32) -> BatchBuilder {
    let lengths = [1, 2, 3, 4].into_iter().flat_map(|chunks| around(64 * chunks));
    BatchBuilder::new(page_size).own((0..60).map(|_| 40)).own(lengths).own([511, 0, 600])
}

/// A root of two pages, two children a node, each with one more page; the leaves end at different places of theirs.
pub(super) fn deep_tree(levels: u32) -> BatchBuilder {
    let len = |leaf: u32| 16 * levels + 1 + leaf * 3 % 16;
    let mut tree = BatchBuilder::new(16).own([len(0)]);
    for leaf in 1..1u32 << (levels - 1) {
        // Its path diverges from its neighbour's at the highest bit in which their numbers differ.
        let neighbour = tree.last();
        tree = tree.behind(neighbour, (levels - leaf.trailing_zeros()) as usize, [len(leaf)]);
    }
    tree
}

/// Requests behind a prefix, and a long one that is cut: online softmax over several tiles, and merges.
pub(super) fn several_chunks() -> BatchBuilder {
    BatchBuilder::new(16).own([600]).behind(0, 20, [321, 330, 400, 64]).own([0, 1, 17, 40, 64, 64, 100])
}
