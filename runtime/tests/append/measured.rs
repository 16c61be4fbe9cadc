//! How long an append takes.

use super::{ROWS, address};
use crate::lent::Lent;
use crate::{backend, into_cuda};
use half::f16;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use tilewright_cuda::profiling::{Timer, probe};
use tilewright_cuda::{CudaError, Graph, RawAppend, RawPositions, RawRotary, RawScales, RowStrides};
use tilewright_heuristics::Dtype;
use tilewright_plan::KvStrides;
use tilewright_runtime::{Attention, AttentionOptions, Heads, RotaryPairs};

/// 1 024 tokens of 8 heads of 128 elements, beside copies of as many bytes and reads of as many as are read and written. Each launch of a graph has
/// memory of its own, more than an L2 in all.
#[test]
fn an_append_takes_about_as_long_as_its_bytes() {
    const TOKENS: usize = 1024;
    const LAUNCHES: usize = 32;
    let device = Lent::alone();
    let stream = device.context().new_stream().unwrap();
    let figures = probe::measure(&device, backend(&device).compiler(), &stream).unwrap();
    let timer = Timer::new(device.context()).unwrap();
    let heads = Heads { query: 32, kv: 8, dim: 128 };
    let row = 8 * 128;
    let tokens = stream.alloc_zeros::<f16>(2 * LAUNCHES * TOKENS * row).unwrap();
    let mut pages = stream.alloc_zeros::<f16>(2 * LAUNCHES * TOKENS * row).unwrap();
    // Each launch writes to places of its own, in any order, as the newest tokens of requests lie.
    let mut slots: Vec<i64> = (0..(LAUNCHES * TOKENS) as i64).collect();
    slots.shuffle(&mut ChaCha8Rng::seed_from_u64(5));
    let slots = stream.clone_htod(&slots).unwrap();
    let table = stream.alloc_zeros::<f32>(ROWS * 128).unwrap();
    let lengths =
        stream.clone_htod(&(0..TOKENS as i32).map(|i| 1 + i * 37 % ROWS as i32).collect::<Vec<_>>()).unwrap();
    let scales = stream.clone_htod(&[0.5f32]).unwrap();
    let median = |graph: &Graph| {
        let mut times: Vec<f64> = (0..21)
            .map(|_| timer.time_us(&stream, || graph.launch(&stream)).unwrap() / LAUNCHES as f64)
            .collect();
        times.sort_by(f64::total_cmp);
        times[10]
    };

    let half = LAUNCHES * TOKENS * row;
    // SAFETY: the slices outlive the graph.
    let copies = unsafe {
        Graph::capture(&stream, || {
            for launch in 0..LAUNCHES {
                let range = 2 * launch * TOKENS * row..2 * (launch + 1) * TOKENS * row;
                let (from, mut to) = (tokens.slice(range.clone()), pages.slice_mut(range));
                stream.memcpy_dtod(&from, &mut to).map_err(CudaError::driver("cannot copy"))?;
            }
            Ok(())
        })
        .unwrap()
    };
    let copy_us = median(&copies);
    for (dtype, rotary) in [
        (Dtype::F16, None),
        (Dtype::F16, Some(RotaryPairs::Halves)),
        (Dtype::F16, Some(RotaryPairs::Interleaved)),
        (Dtype::Fp8F16, None),
        (Dtype::Fp8F16, Some(RotaryPairs::Halves)),
    ] {
        let options = AttentionOptions { dtype, fetch_nvrtc: true, ..AttentionOptions::default() };
        let attention = Attention::cuda(Arc::clone(device.context()), heads, options).unwrap();
        attention.prepare_append(rotary).unwrap();
        let bytes = dtype.kv_bytes() as u64;
        let args = |launch: usize| RawAppend {
            tokens: TOKENS,
            keys: address(&tokens, &stream) + 2 * (launch * TOKENS * row) as u64,
            key_strides: RowStrides { request: row, head: 128 },
            values: address(&tokens, &stream) + 2 * (half + launch * TOKENS * row) as u64,
            value_strides: RowStrides { request: row, head: 128 },
            slots: address(&slots, &stream) + 8 * (launch * TOKENS) as u64,
            key_pages: address(&pages, &stream),
            value_pages: address(&pages, &stream) + bytes * half as u64,
            kv_strides: KvStrides::nhd(&attention.geometry(16)),
            pages: LAUNCHES * TOKENS / 16,
            scales: Some(RawScales {
                keys: address(&scales, &stream),
                values: address(&scales, &stream),
                per_head: false,
            }),
            rotary: rotary.map(|pairs| RawRotary {
                table: address(&table, &stream),
                rows: ROWS,
                dim: 128,
                pairs,
                positions: RawPositions::OfLengths(address(&lengths, &stream)),
            }),
        };
        // SAFETY: the slices are as large as tokens, pages and strides say, and outlive the graph, whose replays are waited for.
        let appends = unsafe {
            Graph::capture(&stream, || {
                (0..LAUNCHES).try_for_each(|launch| {
                    attention.append_raw(16, &stream, &args(launch)).map_err(into_cuda)
                })
            })
            .unwrap()
        };
        let us = median(&appends);
        let moved = (2 * TOKENS * row) as u64 * (2 + bytes);
        let read_us = figures.read_us(moved);
        println!(
            "append of {TOKENS} tokens, {dtype}, {rotary:?}: {us:.2} us for {moved} bytes, {:.2} of bandwidth; a read of them {read_us:.2} us, a copy of f16 \
             {copy_us:.2} us",
            moved as f64 / (us * 1e-6) / figures.bandwidth(),
        );
        assert!(
            us < 2.0 * copy_us.max(read_us),
            "{dtype} {rotary:?}: {us} us beside {copy_us} and {read_us}"
        );
    }
}
