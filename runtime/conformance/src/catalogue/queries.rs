//! Cases of several query tokens a request, as speculative decoding has them.

use super::shapes::{around, cut, deep_tree, several_chunks};
use super::{Author, BatchBuilder, ConformanceCase, Layout, Mask, PER_NODE, Packing, PlanOptions, Values};

pub(super) fn cases(author: Author) -> Vec<ConformanceCase> {
    [counts, places, options].into_iter().flat_map(|chunk| chunk(author)).collect()
}

/// Requests that share a page and a bit, one query alone up to twice m of them: ratio x queries around m.
pub(super) fn around_rows(author: Author, m: u32) -> ConformanceCase {
    let query_lens: Vec<u32> =
        around(m / 2).into_iter().chain(around(m)).filter(|&count| count > 0).collect();
    let lens: Vec<u32> = query_lens.iter().map(|count| (count + 3).max(20)).collect();
    let first = BatchBuilder::new(16).own(lens[..1].iter().copied());
    let sketch = first.behind(0, 1, lens[1..].iter().copied());
    ConformanceCase {
        query_lens: Some(query_lens),
        ..author.case("queries whose rows are around m", (2, 1), sketch)
    }
}

/// So many queries of each request as it has tokens for.
fn with_queries(case: ConformanceCase, wanted: impl Fn(u32) -> u32) -> ConformanceCase {
    let count = |(request, &len): (u32, &u32)| wanted(request).min(len);
    ConformanceCase { query_lens: Some((0..).zip(&case.seq_lens).map(count).collect()), ..case }
}

/// From 1 to 16, another one for each of 16 requests in a row.
fn mixed(request: u32) -> u32 {
    request * 5 % 16 + 1
}

fn counts(author: Author) -> Vec<ConformanceCase> {
    let prefix = || {
        BatchBuilder::new(16).own([100]).behind(0, 5, [81, 82, 96, 97, 100, 112, 130, 85]).own([1, 2, 7, 40])
    };
    vec![
        with_queries(author.case("4 queries a request", (4, 2), prefix()), |_| 4),
        with_queries(author.case("1 to 16 queries a request", (4, 2), prefix()), mixed),
        with_queries(author.case("requests without queries", (2, 1), prefix()), |request| request % 3 * 2),
        with_queries(author.case("no request has queries", (2, 1), prefix()), |_| 0),
        with_queries(
            author.case(
                "as many queries as tokens",
                (2, 1),
                BatchBuilder::new(16).own([1, 2, 15, 16, 17, 33, 0]),
            ),
            |_| u32::MAX,
        ),
        with_queries(author.case("1 query head a KV head and 16 queries", (2, 2), prefix()), |_| 16),
        with_queries(author.case("8 query heads a KV head and 5 queries", (8, 1), prefix()), |_| 5),
        with_queries(author.case("5 query heads a KV head and 7 queries", (10, 2), prefix()), |_| 7),
    ]
}

/// Where queries stand: over the edges of pages, behind prefixes, in packs of all kinds.
fn places(author: Author) -> Vec<ConformanceCase> {
    let edges = |page_size: u32| {
        let lens = (1..=3).flat_map(|pages| around(pages * page_size)).chain([2 * page_size + 2]);
        let own = BatchBuilder::new(page_size).own(lens.clone());
        let longest = own.last();
        own.behind(longest, 2, lens)
    };
    let identical = BatchBuilder::new(16).own([50]).behind(0, 4, [50, 50, 50, 49, 64]);
    // Queries that see nothing of their own page stand behind a longer neighbour's, in Q tiles of their own and not.
    let siblings = BatchBuilder::new(16).own([130]).behind(0, 4, [66, 120, 65, 67, 80, 65]);
    vec![
        with_queries(author.case("queries over the edge of a page", (4, 2), edges(16)), |_| 4),
        with_queries(author.case("queries over pages of 1 token", (4, 2), edges(1)), |_| 3),
        with_queries(author.case("queries over pages of 48 tokens", (3, 1), edges(48)), mixed),
        with_queries(author.case("identical requests of several queries", (4, 1), identical), |request| {
            request + 1
        }),
        with_queries(
            author.case("queries before a page that they do not see", (4, 1), siblings.clone()),
            |_| 6,
        ),
        with_queries(author.case("30 queries before pages that they do not see", (4, 1), siblings), |_| 30),
        with_queries(author.case("queries and chunks of long requests", (2, 1), cut(16)), |request| {
            request % 5
        }),
        ConformanceCase {
            options: PER_NODE,
            ..with_queries(author.case("queries and chunks of one page", (2, 1), cut(16)), mixed)
        },
        ConformanceCase {
            options: PER_NODE,
            ..with_queries(
                author.case("queries in a tree of five levels, each a pack", (4, 2), deep_tree(5)),
                mixed,
            )
        },
        ConformanceCase {
            options: PlanOptions { packing: Packing::PerRequest, ..PER_NODE },
            ..with_queries(author.case("queries, each request a pack", (4, 2), deep_tree(4)), mixed)
        },
        ConformanceCase {
            options: PlanOptions { packing: Packing::Pat, ..PER_NODE },
            ..with_queries(author.case("queries in PAT's packs", (4, 2), deep_tree(4)), mixed)
        },
        ConformanceCase {
            layout: Layout::Gapped,
            ..with_queries(author.case("queries with gaps between vectors", (6, 2), edges(16)), |_| 2)
        },
        ConformanceCase {
            layout: Layout::Hnd,
            values: Values::OnlyLast,
            options: PER_NODE,
            ..with_queries(
                author.case("logits of -inf but for the last query's", (4, 2), several_chunks()),
                |_| 4,
            )
        },
    ]
}

fn options(author: Author) -> Vec<ConformanceCase> {
    let case =
        |name, wanted: fn(u32) -> u32| with_queries(author.case(name, (4, 2), several_chunks()), wanted);
    vec![
        ConformanceCase { mask: Mask::window(1), ..case("queries that see their own tokens alone", |_| 4) },
        ConformanceCase { mask: Mask::window(5), ..case("queries and a window smaller than a page", mixed) },
        ConformanceCase { mask: Mask::window(100), ..case("queries and a window of several tiles", mixed) },
        ConformanceCase {
            mask: Mask::window(20),
            sinks: true,
            options: PER_NODE,
            ..case("queries, sinks and a window that leaves chunks empty", mixed)
        },
        ConformanceCase {
            mask: Mask::softcap(2.0),
            sinks: true,
            ..case("queries, a soft-cap and sinks", |_| 4)
        },
    ]
}
