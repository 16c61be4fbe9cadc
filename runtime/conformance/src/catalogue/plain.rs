//! Cases of attention without options: lengths, pages, heads, trees, logits and layouts.

use super::shapes::{around, cut, deep_tree, edges, several_chunks};
use super::{Author, BatchBuilder, ConformanceCase, Layout, PER_NODE, Packing, PlanOptions, Random, Values};

pub(super) fn cases(author: Author) -> Vec<ConformanceCase> {
    [lengths, pages, heads, trees, logits, layouts].into_iter().flat_map(|chunk| chunk(author)).collect()
}

fn lengths(author: Author) -> Vec<ConformanceCase> {
    let few = BatchBuilder::new(1).own((0..4096).map(|request| request * 7 % 4));
    let page = BatchBuilder::new(16).own([16]).behind(0, 1, (1..4096).map(|request| request * 5 % 9));
    vec![
        author.case("lengths around every edge", (2, 1), BatchBuilder::new(16).own(edges())),
        author.case("lengths around every edge behind a prefix", (3, 1), {
            let prefix = BatchBuilder::new(16).own([33]);
            prefix.behind(0, 2, [47, 48, 49, 0, 1, 31, 32, 63, 64, 65, 130])
        }),
        author.case("no request has tokens", (4, 2), BatchBuilder::new(16).own([0, 0, 0])),
        author.case("one head, one request, one token", (1, 1), BatchBuilder::new(32).own([1])),
        author.case("one head, one request", (1, 1), BatchBuilder::new(32).own([523])),
        ConformanceCase { options: PER_NODE, ..author.case("chunks of long requests", (2, 2), cut(16)) },
        ConformanceCase {
            options: PER_NODE,
            ..author.case("chunks of a long prefix", (2, 1), {
                let prefix = cut(16);
                let longest = prefix.last();
                prefix.behind(longest, 30, [481, 496, 500, 480, 479])
            })
        },
        author.case("4096 requests of few tokens", (1, 1), few),
        author.case("4096 requests over one page", (2, 1), page),
    ]
}

fn pages(author: Author) -> Vec<ConformanceCase> {
    const SIZES: [(&str, u32); 7] = [
        ("pages of 1 token", 1),
        ("pages of 16 tokens", 16),
        ("pages of 32 tokens", 32),
        ("pages of 48 tokens", 48),
        ("pages of 64 tokens", 64),
        ("pages of 128 tokens", 128),
        ("pages of 256 tokens", 256),
    ];
    let size = |(name, size): (&'static str, u32)| {
        let prefix = BatchBuilder::new(size).own([0, 1]).own(around(size)).own(around(2 * size));
        let longest = prefix.last();
        author.case(name, (4, 2), prefix.behind(longest, 2, [2 * size - 1, 2 * size, 2 * size + 5, size + 1]))
    };
    let mut cases: Vec<ConformanceCase> = SIZES.into_iter().map(size).collect();
    cases.extend([
        ConformanceCase { options: PER_NODE, ..author.case("many pages of 1 token", (2, 1), cut(1)) },
        author.case("tenants on pages of 48 tokens", (8, 2), {
            let first = BatchBuilder::new(48).own([300]).behind(0, 5, [241, 330, 288, 500, 259]);
            let second = first.own([700]);
            let prompt = second.last();
            second.behind(prompt, 14, [690, 700, 713, 672, 1010, 801, 677, 733, 760]).own([17, 95, 432])
        }),
        author.case("pages shared at different places", (4, 2), {
            let rows = BatchBuilder::new(16).row(&[0, 1, 2, 3], 64).row(&[9, 0, 1, 2], 60).row(&[1, 0], 32);
            rows.row(&[3, 2, 1, 0], 64).row(&[0, 1, 4], 40).row(&[4, 1, 0], 37)
        }),
        author.case("pages repeated within a request", (4, 2), {
            let rows =
                BatchBuilder::new(16).row(&[0, 0, 0, 1, 0], 77).row(&[1, 1], 32).row(&[0, 0, 0, 2], 50);
            rows.row(&[2; 40], 640).row(&[3, 3], 20)
        }),
        author.case("requests that end inside of shared pages", (4, 2), {
            let prefix = BatchBuilder::new(16).own([64]);
            prefix.behind(0, 4, [50, 49, 33, 32, 17, 1, 64, 63])
        }),
    ]);
    cases
}

fn heads(author: Author) -> Vec<ConformanceCase> {
    const HEADS: [(&str, (u32, u32)); 7] = [
        ("1 query head a KV head", (3, 3)),
        ("3 query heads a KV head", (6, 2)),
        ("5 query heads a KV head", (10, 2)),
        ("7 query heads a KV head", (7, 1)),
        ("8 query heads a KV head", (16, 2)),
        ("16 query heads a KV head", (16, 1)),
        ("8 KV heads", (8, 8)),
    ];
    let case = |(name, heads)| {
        let prefix = BatchBuilder::new(16).own([33]);
        author.case(name, heads, prefix.behind(0, 2, [47, 64, 100, 0, 33]))
    };
    HEADS.into_iter().map(case).collect()
}

fn trees(author: Author) -> Vec<ConformanceCase> {
    let identical = |page_size| BatchBuilder::new(page_size).own([40]).behind(0, 40, [40, 40, 41].repeat(4));
    let random = {
        let mut random = Random::new(author.seed);
        let mut forest = BatchBuilder::new(16).own([100]);
        for _ in 0..24 {
            let of = random.below(forest.last() + 1);
            let (shared, len) = (random.below(9), random.below(200) as u32);
            forest = forest.behind(of, shared, [len]);
        }
        forest
    };
    vec![
        author.case("identical requests", (4, 1), identical(16)),
        author.case("identical requests over pages of 1 token", (8, 1), identical(1)),
        author.case("a tree of five levels", (4, 2), deep_tree(5)),
        ConformanceCase {
            options: PER_NODE,
            ..author.case("a tree of five levels, each a pack", (4, 2), deep_tree(5))
        },
        ConformanceCase {
            options: PlanOptions { packing: Packing::PerRequest, ..PER_NODE },
            ..author.case("a tree of five levels, each request a pack", (2, 1), deep_tree(5))
        },
        author.case("random trees", (4, 2), random.clone()),
        ConformanceCase {
            options: PER_NODE,
            ..author.case("random trees, each node a pack", (4, 2), random)
        },
    ]
}

fn logits(author: Author) -> Vec<ConformanceCase> {
    const VALUES: [(&str, Values); 7] = [
        ("logits between -1e4 and 1e4", Values::Extreme),
        ("logits below -1e5", Values::Deep),
        ("equal logits", Values::Equal),
        ("logits of -inf but for the first token's", Values::OnlyFirst),
        ("logits of -inf but for a middle token's", Values::OnlyMiddle),
        ("logits of -inf but for the last token's", Values::OnlyLast),
        ("logits of -inf", Values::NoneFinite),
    ];
    let case = |(name, values)| ConformanceCase {
        values,
        options: PER_NODE,
        ..author.case(name, (4, 2), several_chunks())
    };
    VALUES.into_iter().map(case).collect()
}

fn layouts(author: Author) -> Vec<ConformanceCase> {
    let sketch = |page_size: u32| {
        let prefix = BatchBuilder::new(page_size).own([2 * page_size + 5]);
        prefix.behind(0, 2, [2 * page_size, 3 * page_size + 1, 150]).own([1, 70])
    };
    vec![
        ConformanceCase { layout: Layout::Hnd, ..author.case("heads before tokens", (6, 2), sketch(16)) },
        ConformanceCase {
            layout: Layout::Hnd,
            ..author.case("heads before tokens, pages of 48", (3, 3), sketch(48))
        },
        ConformanceCase { layout: Layout::Gapped, ..author.case("gaps between vectors", (6, 2), sketch(16)) },
        ConformanceCase {
            layout: Layout::Gapped,
            ..author.case("gaps between vectors, pages of 1", (4, 2), sketch(1))
        },
        ConformanceCase {
            layout: Layout::Gapped,
            ..author.case("gaps between vectors, pages of 64", (2, 1), sketch(64))
        },
    ]
}
