//! The conformance cases on the CPU backend, and the reference that they are compared with.

use half::{bf16, f16};
use tilewright_conformance::{self as conformance, ConformanceCase, CpuCase};
use tilewright_cpu::{CpuBackend, Element};
use tilewright_heuristics::{Dtype, Tile};
use tilewright_kernel_templates::Class;

const TILES: [Tile; 4] =
    [Tile::of("m1n16w1s1"), Tile::of("m4n32w2s2"), Tile::of("m16n64w1s3"), Tile::of("m64n256w4s2")];

/// Every case of a class under every tile, those with windows, soft-caps and sinks among them; all that is wrong.
fn failures<E: Element>(head_dim: u32, seed: u64) -> Vec<String> {
    failures_of::<E>(&Class { head_dim, dtype: E::DTYPE }, seed)
}

/// The same of a class that is `E` or has it as the type of its queries.
fn failures_of<E: Element>(class: &Class, seed: u64) -> Vec<String> {
    let mut backend = CpuBackend::new(2);
    let mut failures = Vec::new();
    let mut run = |case: ConformanceCase, tiles: &[Tile]| {
        let case = CpuCase::<E>::new(case);
        for tile in tiles {
            let result = case.run(&mut backend, tile);
            if let Err(message) = result.and_then(|(output, lse)| case.case.check(&output, &lse)) {
                failures.push(format!("{class} {tile}: {message}"));
            }
        }
    };
    for case in conformance::cases(class, seed) {
        run(case, &TILES);
    }
    for tile in TILES {
        for case in conformance::tile_cases(class, &tile, seed) {
            run(case, &[tile]);
        }
    }
    failures
}

#[test]
fn f32_of_64_passes_every_case() {
    assert_eq!(failures::<f32>(64, 1), [""; 0]);
}

#[test]
fn f32_of_128_passes_every_case() {
    assert_eq!(failures::<f32>(128, 2), [""; 0]);
}

#[test]
fn f16_of_128_passes_every_case() {
    assert_eq!(failures::<f16>(128, 3), [""; 0]);
}

#[test]
fn bf16_of_96_passes_every_case() {
    assert_eq!(failures::<bf16>(96, 7), [""; 0]);
}

#[test]
fn bf16_of_128_passes_every_case() {
    assert_eq!(failures::<bf16>(128, 9), [""; 0]);
}

#[test]
fn f16_of_192_passes_every_case() {
    assert_eq!(failures::<f16>(192, 8), [""; 0]);
}

#[test]
fn bf16_of_256_passes_every_case() {
    assert_eq!(failures::<bf16>(256, 4), [""; 0]);
}

#[test]
fn fp8_beside_f32_passes_every_case() {
    assert_eq!(failures_of::<f32>(&Class { head_dim: 64, dtype: Dtype::Fp8F32 }, 5), [""; 0]);
}

#[test]
fn fp8_beside_bf16_passes_every_case() {
    assert_eq!(failures_of::<bf16>(&Class { head_dim: 128, dtype: Dtype::Fp8Bf16 }, 6), [""; 0]);
}

#[test]
fn e5m2_beside_f16_passes_every_case() {
    assert_eq!(failures_of::<f16>(&Class { head_dim: 64, dtype: Dtype::E5m2F16 }, 9), [""; 0]);
}

/// The queries of a case by their definition: request, and how many of its tokens the query sees.
fn queries(case: &ConformanceCase) -> Vec<(usize, usize)> {
    let mut queries = Vec::new();
    for (request, &seq_len) in case.seq_lens.iter().enumerate() {
        let count = case.query_lens.as_ref().map_or(1, |query_lens| query_lens[request] as usize);
        // The last one sees all tokens; of one query a request, that may be none.
        queries.extend((0..count).map(|query| (request, seq_len as usize + query + 1 - count)));
    }
    queries
}

/// Softmax as in a textbook, from the definition of the options: one row, nothing shared between rows.
fn textbook(
    case: &ConformanceCase,
    index: usize,
    (request, len): (usize, usize),
    head: usize,
) -> (Vec<f64>, f64) {
    let (keys, values, query) = (case.keys::<f32>(), case.values::<f32>(), case.query::<f32>());
    let geometry = &case.geometry;
    let (head_dim, page_size) = (geometry.head_dim as usize, geometry.page_size as usize);
    let strides = case.strides();
    let q = &query[(index * geometry.q_heads as usize + head) * head_dim..][..head_dim];
    let mut terms: Vec<(f64, Vec<f64>)> = Vec::new();
    for token in 0..len {
        // The query is token len - 1: it sees token t if their distance is less than the window.
        if case.mask.window.is_some_and(|window| len - 1 - token >= window as usize) {
            continue;
        }
        let page = case.page_table[request * case.max_pages + token / page_size] as usize;
        let kv_head = head / geometry.gqa_ratio() as usize;
        let at = page * strides.page + token % page_size * strides.token + kv_head * strides.head;
        let mut logit = 0.0;
        for i in 0..head_dim {
            logit += f64::from(q[i]) * f64::from(keys[at + i]);
        }
        logit *= f64::from(case.scale());
        if let Some(cap) = case.mask.softcap {
            logit = f64::from(cap) * (logit / f64::from(cap)).tanh();
        }
        terms.push((logit, values[at..at + head_dim].iter().map(|&v| f64::from(v)).collect()));
    }
    if let Some(sinks) = case.sinks() {
        terms.push((f64::from(sinks[head]), vec![0.0; head_dim]));
    }
    let max = terms.iter().map(|(logit, _)| *logit).fold(f64::MIN, f64::max);
    let sum: f64 = terms.iter().map(|(logit, _)| (logit - max).exp()).sum();
    let mut output = vec![0.0; head_dim];
    for (logit, v) in &terms {
        for (output, v) in output.iter_mut().zip(v) {
            *output += (logit - max).exp() * v / if sum > 0.0 { sum } else { 1.0 };
        }
    }
    (output, max + sum.ln())
}

#[test]
fn the_reference_is_softmax_by_its_definition() {
    let class = Class { head_dim: 64, dtype: Dtype::F32 };
    let names = [
        "lengths around every edge behind a prefix",
        "gaps between vectors",
        "a window smaller than a page",
        "a window that ends inside of a tile",
        "a window whose logits are mostly all -inf",
        "a soft-cap",
        "a soft-cap and a window",
        "a soft-cap of logits between -1e4 and 1e4",
        "sinks",
        "sinks and logits of -inf",
        "sinks and no tokens",
        "sinks, a soft-cap and a window",
        "1 to 16 queries a request",
        "requests without queries",
        "as many queries as tokens",
        "queries over pages of 48 tokens",
        "logits of -inf but for the last query's",
        "queries and a window smaller than a page",
        "queries, sinks and a window that leaves chunks empty",
    ];
    let cases: Vec<ConformanceCase> =
        conformance::cases(&class, 9).into_iter().filter(|case| names.contains(&case.name)).collect();
    assert_eq!(cases.len(), names.len());
    for case in cases {
        let q_heads = case.geometry.q_heads as usize;
        let (output, lse) = case.expected();
        let queries = queries(&case);
        assert_eq!(lse.len(), queries.len() * q_heads, "{}", case.name);
        for (index, query) in queries.into_iter().enumerate() {
            // The first and the last head: of different KV heads, and with the outermost sinks.
            for head in [0, q_heads - 1] {
                let (expected, expected_lse) = textbook(&case, index, query, head);
                let row = index * q_heads + head;
                let what = format!("{}: query {index}, head {head}", case.name);
                for (found, expected) in output[row * 64..][..64].iter().zip(&expected) {
                    assert!((found - expected).abs() < 1e-9, "{what}: {found} for {expected}");
                }
                let same = lse[row] == expected_lse || (lse[row] - expected_lse).abs() < 1e-9;
                assert!(same, "{what}: LSE {} for {expected_lse}", lse[row]);
            }
        }
    }
}
