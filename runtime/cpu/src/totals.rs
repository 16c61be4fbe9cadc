//! What is summed of a row's chunks, where a request's bits depend on its own tokens alone.
//!
//! A chunk begins at a position that nothing but the position decides, and from nothing. Chunks are added up in their order: by the item that
//! computed them, or from partials. Both do it by [`add_chunk`], so where one ends and the other begins changes no bit.

use std::ops::Range;

/// Adds a chunk's output, maximum and sum to those of the chunks before. One without tokens changes nothing.
pub(super) fn add_chunk(
    total: &mut [f32],
    total_softmax: &mut [f32; 2],
    chunk: &[f32],
    [max, sum]: [f32; 2],
    scale: f32,
) {
    if max == f32::NEG_INFINITY {
        return;
    }
    let [total_max, total_sum] = *total_softmax;
    let new_max = total_max.max(max);
    let (before, weight) = ((total_max - new_max).exp2(), (max - new_max).exp2());
    *total_softmax = [new_max, total_sum * before + sum * weight];
    for (total, element) in total.iter_mut().zip(chunk) {
        *total = *total * before + element * scale * weight;
    }
}

/// The totals of an item's rows: output `[rows, head_dim]`, and maximum (base 2) and sum.
#[derive(Debug, Default)]
pub(super) struct Totals {
    output: Vec<f32>,
    softmax: Vec<[f32; 2]>,
}

impl Totals {
    /// Begins with nothing.
    pub(super) fn start(&mut self, rows: usize, head_dim: usize) {
        self.output.clear();
        self.output.resize(rows * head_dim, 0.0);
        self.softmax.clear();
        self.softmax.resize(rows, [f32::NEG_INFINITY, 0.0]);
    }

    /// Adds what was accumulated of these rows, with its scale, and has them begin a chunk: from nothing. The accumulators are theirs.
    pub(super) fn add(
        &mut self,
        rows: Range<usize>,
        head_dim: usize,
        scale: f32,
        accumulators: &mut [f32],
        softmax: &mut [[f32; 2]],
    ) {
        let totals = self.output[rows.start * head_dim..].chunks_exact_mut(head_dim);
        let totals = totals.zip(&mut self.softmax[rows.clone()]);
        let chunks = accumulators.chunks_exact_mut(head_dim).zip(softmax);
        for ((total, total_softmax), (chunk, chunk_softmax)) in totals.zip(chunks).take(rows.len()) {
            add_chunk(total, total_softmax, chunk, *chunk_softmax, scale);
            chunk.fill(0.0);
            *chunk_softmax = [f32::NEG_INFINITY, 0.0];
        }
    }

    /// Makes the totals of all rows what was accumulated.
    pub(super) fn finish(
        &self,
        rows: usize,
        head_dim: usize,
        accumulators: &mut [f32],
        softmax: &mut [[f32; 2]],
    ) {
        accumulators[..rows * head_dim].copy_from_slice(&self.output);
        softmax[..rows].copy_from_slice(&self.softmax);
    }
}
