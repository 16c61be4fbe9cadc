//! Cases of attention with windows, soft-caps and sinks.

use super::shapes::{cut, deep_tree, several_chunks};
use super::{Author, BatchBuilder, ConformanceCase, Layout, Mask, PER_NODE, Values};

pub(super) fn cases(author: Author) -> Vec<ConformanceCase> {
    [windows, softcaps, sinks].into_iter().flat_map(|chunk| chunk(author)).collect()
}

fn windows(author: Author) -> Vec<ConformanceCase> {
    const WINDOWS: [(&str, u32); 6] = [
        ("a window of 1 token", 1),
        ("a window smaller than a page", 5),
        ("a window of a page", 16),
        ("a window that ends inside of a tile", 37),
        ("a window of several tiles", 256),
        ("a window larger than any request", 10_000),
    ];
    let lengths = [0, 1, 4, 5, 6, 15, 16, 17, 36, 37, 38, 53, 128, 300];
    let case = |(name, window)| {
        let own = BatchBuilder::new(16).own(lengths);
        let longest = own.last();
        // Some of these see nothing of what they share.
        let sketch = own.behind(longest, 6, [97, 98, 112, 150]);
        ConformanceCase { mask: Mask::window(window), ..author.case(name, (4, 2), sketch) }
    };
    let mut cases: Vec<ConformanceCase> = WINDOWS.into_iter().map(case).collect();
    cases.extend([
        ConformanceCase {
            mask: Mask::window(20),
            options: PER_NODE,
            ..author.case("a window that leaves chunks empty", (2, 2), cut(16))
        },
        ConformanceCase {
            mask: Mask::window(30),
            options: PER_NODE,
            ..author.case("a window that leaves levels of a tree empty", (4, 2), deep_tree(5))
        },
        ConformanceCase {
            mask: Mask::window(9),
            layout: Layout::Gapped,
            ..author.case("a window over pages of 1 token", (4, 2), cut(1))
        },
        ConformanceCase {
            mask: Mask::window(50),
            values: Values::OnlyFirst,
            ..author.case("a window whose logits are mostly all -inf", (4, 2), several_chunks())
        },
        ConformanceCase {
            mask: Mask::window(37),
            values: Values::Deep,
            ..author.case("a window over logits below -1e5", (4, 2), several_chunks())
        },
    ]);
    cases
}

fn softcaps(author: Author) -> Vec<ConformanceCase> {
    vec![
        ConformanceCase { mask: Mask::softcap(1.5), ..author.case("a soft-cap", (4, 2), several_chunks()) },
        ConformanceCase {
            mask: Mask::softcap(30.0),
            values: Values::Extreme,
            options: PER_NODE,
            ..author.case("a soft-cap of logits between -1e4 and 1e4", (4, 2), several_chunks())
        },
        ConformanceCase {
            mask: Mask { softcap: Some(20.0), ..Mask::window(100) },
            layout: Layout::Hnd,
            ..author.case("a soft-cap and a window", (4, 2), several_chunks())
        },
    ]
}

fn sinks(author: Author) -> Vec<ConformanceCase> {
    vec![
        ConformanceCase { sinks: true, ..author.case("sinks", (6, 2), several_chunks()) },
        ConformanceCase {
            sinks: true,
            options: PER_NODE,
            ..author.case("sinks and chunks", (4, 2), cut(16).own([0, 1]))
        },
        ConformanceCase {
            sinks: true,
            mask: Mask::window(20),
            options: PER_NODE,
            ..author.case("sinks and a window that leaves chunks empty", (4, 2), cut(16))
        },
        ConformanceCase {
            sinks: true,
            values: Values::NoneFinite,
            ..author.case("sinks and logits of -inf", (4, 2), several_chunks())
        },
        ConformanceCase {
            sinks: true,
            values: Values::Extreme,
            ..author.case("sinks and logits between -1e4 and 1e4", (4, 2), several_chunks())
        },
        ConformanceCase {
            sinks: true,
            mask: Mask { softcap: Some(2.0), ..Mask::window(40) },
            options: PER_NODE,
            ..author.case("sinks, a soft-cap and a window", (8, 2), deep_tree(5))
        },
        ConformanceCase {
            sinks: true,
            ..author.case("sinks and no tokens", (4, 1), BatchBuilder::new(16).own([0, 0]))
        },
    ]
}
