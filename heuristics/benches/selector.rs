//! What a choice costs: every emitted selector over shapes in random order, inside and outside of its domain, where no branch can be
//! foreseen; and over the packs of one batch, as a plan asks for them.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tilewright_heuristics::{PackShape, generated::SELECTORS};

const SHAPES: usize = 4096;

/// A linear congruence: the order must not be one that a branch predictor learns.
struct Random(u64);

impl Random {
    fn next(&mut self, choices: &[u32]) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        choices[(self.0 >> 33) as usize % choices.len()]
    }
}

fn any_shapes() -> Vec<PackShape> {
    let mut random = Random(1);
    let mut next = |choices: &[u32]| random.next(choices);
    (0..SHAPES)
        .map(|_| {
            let (packs, kv_heads) = (next(&[1, 4, 16, 64, 4096]), next(&[1, 8, 32]));
            PackShape {
                rows: next(&[1, 4, 8, 32, 128, 1024]),
                kv_len: next(&[32, 128, 512, 2048, 8192, 32768]),
                own: 0,
                packs,
                kv_heads,
                items: 0,
                all_rows: 0,
                gqa_ratio: next(&[1, 4, 8]),
                head_dim: next(&[64, 128, 256]),
                page_size: next(&[16, 32, 64]),
                dtype: next(&[0, 1, 2]),
            }
            .counted()
        })
        .collect()
}

/// Blocks of 16 requests in trees of several levels: 32 query heads over 8 KV heads, f16, as many packs as 1024 requests make.
fn shapes_of_a_batch() -> Vec<PackShape> {
    let mut random = Random(2);
    let mut shape = || {
        PackShape {
            rows: random.next(&[60, 64, 64, 64, 64, 64]),
            kv_len: random.next(&[416, 448, 448, 480]),
            own: random.next(&[512, 512, 544, 576]),
            packs: 64,
            kv_heads: 8,
            items: 0,
            all_rows: 0,
            gqa_ratio: 4,
            head_dim: 128,
            page_size: 32,
            dtype: 0,
        }
        .counted()
    };
    (0..64).map(|_| shape()).collect()
}

fn choices(criterion: &mut Criterion) {
    for (what, shapes) in [("any shapes", any_shapes()), ("a batch's packs", shapes_of_a_batch())] {
        for selector in SELECTORS {
            let mut next = shapes.iter().cycle();
            criterion.bench_function(&format!("{}, {what}", selector.device.name), |bencher| {
                bencher.iter(|| next.next().map(|shape| selector.select(black_box(shape))));
            });
        }
    }
}

criterion_group!(benches, choices);
criterion_main!(benches);
