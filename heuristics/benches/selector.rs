//! What a choice costs: every emitted selector over shapes in random order, inside and outside of its domain.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tilewright_heuristics::{PackShape, generated::SELECTORS};

const SHAPES: usize = 4096;

fn shapes() -> Vec<PackShape> {
    // A linear congruence: the order must not be one that a branch predictor learns.
    let mut state = 1u64;
    let mut next = |choices: &[u32]| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        choices[(state >> 33) as usize % choices.len()]
    };
    (0..SHAPES)
        .map(|_| {
            let (packs, kv_heads) = (next(&[1, 4, 16, 64, 4096]), next(&[1, 8, 32]));
            PackShape {
                rows: next(&[1, 4, 8, 32, 128, 1024]),
                kv_len: next(&[32, 128, 512, 2048, 8192, 32768]),
                own: 0,
                packs,
                kv_heads,
                items: packs * kv_heads,
                gqa_ratio: next(&[1, 4, 8]),
                head_dim: next(&[64, 128, 256]),
                page_size: next(&[16, 32, 64]),
                dtype: next(&[0, 1, 2]),
            }
        })
        .collect()
}

fn choices(criterion: &mut Criterion) {
    let shapes = shapes();
    for selector in SELECTORS {
        let mut next = 0;
        criterion.bench_function(selector.device.name, |bencher| {
            bencher.iter(|| {
                next = (next + 1) % SHAPES;
                selector.select(black_box(&shapes[next]))
            });
        });
    }
}

criterion_group!(benches, choices);
criterion_main!(benches);
