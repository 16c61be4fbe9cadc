//! What a choice costs: every emitted selector over batches in random order, where no branch can be foreseen; and a set over the packs of
//! one batch, as a plan asks for them.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tilewright_heuristics::{BatchShape, BatchSums, Dtype, Geometry, PackShape, generated::SELECTORS};

const SHAPES: usize = 4096;

/// A linear congruence: the order must not be one that a branch predictor learns.
struct Random(u64);

impl Random {
    fn next<T: Copy>(&mut self, choices: &[T]) -> T {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        choices[(self.0 >> 33) as usize % choices.len()]
    }
}

fn batches() -> Vec<BatchShape> {
    let mut random = Random(1);
    let mut batch = || {
        let geometry = Geometry {
            q_heads: random.next(&[8, 32, 64]),
            kv_heads: random.next(&[1, 4, 8]),
            head_dim: random.next(&[64, 128, 256]),
            page_size: random.next(&[16, 32]),
            dtype: random.next(&[Dtype::F16, Dtype::Bf16]),
        };
        let mut sums = BatchSums { longest: 8192, ..BatchSums::default() };
        for _ in 0..random.next(&[1, 4, 8]) {
            let requests = random.next(&[1, 2, 16, 48]);
            sums.add_tree(requests);
            sums.add_node(random.next(&[256, 2048, 8192]), requests);
            (0..requests).for_each(|_| sums.add_node(random.next(&[32, 512, 2048]), 1));
        }
        BatchShape::of(&geometry, &sums)
    };
    (0..SHAPES).map(|_| batch()).collect()
}

fn packs() -> Vec<PackShape> {
    let mut random = Random(2);
    let mut pack =
        || PackShape { rows: random.next(&[4, 8, 60, 64]), ..PackShape::from_values([1; PackShape::COUNT]) };
    (0..SHAPES).map(|_| pack()).collect()
}

fn choices(criterion: &mut Criterion) {
    let (batches, packs) = (batches(), packs());
    for selector in SELECTORS {
        let name = selector.device.name;
        let mut next = batches.iter().cycle();
        criterion.bench_function(&format!("{name}, a batch"), |bencher| {
            bencher.iter(|| next.next().map(|batch| selector.select(black_box(batch))));
        });
        let Some(set) = selector.sets.iter().max_by_key(|set| set.tiles().len()) else { continue };
        let mut next = packs.iter().cycle();
        criterion.bench_function(&format!("{name}, a pack of a batch with {set}"), |bencher| {
            bencher.iter(|| next.next().map(|pack| set.tile(black_box(pack))));
        });
    }
}

criterion_group!(benches, choices);
criterion_main!(benches);
