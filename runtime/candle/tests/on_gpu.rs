//! The op on a GPU: `cargo test -p tilewright-candle --features gpu --test on_gpu`.

mod common;

use candle_core::{DType, Device, IndexOp as _, Result, Tensor};
use common::{Batch, TYPES, message, options, table};
use std::thread;
use tilewright_candle::{AttentionOptions, Dtype, Heads, PagedAttention};

const HEADS: Heads = Heads { query: 8, kv: 2, dim: 64 };

fn on_gpu(dtype: Dtype) -> AttentionOptions {
    AttentionOptions { fetch_nvrtc: true, ..options(dtype) }
}

fn device() -> Device {
    Device::new_cuda_with_stream(0).unwrap()
}

#[test]
fn every_type_and_ratio_of_heads_agrees_with_f64() {
    let device = device();
    for (dtype, element, bound) in TYPES.into_iter().filter(|(dtype, ..)| *dtype != DType::F32) {
        for (query, kv, dim) in [(8, 8, 64), (8, 2, 64), (6, 1, 128)] {
            let heads = Heads { query, kv, dim };
            let batch = Batch::new(heads, dtype, &device).unwrap();
            let attention = PagedAttention::new(&device, heads, on_gpu(element)).unwrap();
            let step = attention.plan(&table()).unwrap();
            let output = step.forward(&batch.query, &batch.keys, &batch.values).unwrap();
            assert!(output.device().is_cuda());
            let error = batch.error(&output, &on_gpu(element));
            assert!(error < bound, "{dtype:?}, {heads:?}: {error:.1e}");
        }
    }
}

#[test]
fn views_are_read_as_they_lie() -> Result<()> {
    let device = device();
    let batch = Batch::new(HEADS, DType::F16, &device)?;
    let step = PagedAttention::new(&device, HEADS, on_gpu(Dtype::F16))?.plan(&table())?;
    let expected = step.forward(&batch.query, &batch.keys, &batch.values)?;
    let fused = Tensor::cat(&[&batch.query, &batch.query], 1)?;
    let both = Tensor::stack(&[&batch.keys, &batch.values], 1)?;
    let output = step.forward(&fused.narrow(1, 8, 8)?, &both.i((.., 0))?, &both.i((.., 1))?)?;
    let difference = (output - expected)?.abs()?.max_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?;
    // Another producer of K and V may take another order.
    assert!(difference < 2e-3, "{difference:e}");
    Ok(())
}

#[test]
fn ops_before_and_after_it_are_in_order() -> Result<()> {
    let device = device();
    let batch = Batch::new(HEADS, DType::F16, &device)?;
    let attention = PagedAttention::new(&device, HEADS, on_gpu(Dtype::F16))?;
    for layer in 0..50 {
        let step = attention.plan(&table())?;
        // V is made just before the op, and gone just after it; nothing waits for the GPU in between.
        let scaled = (&batch.values * 2.0)?;
        let output = (step.forward(&batch.query, &batch.keys, &scaled)? * 0.5)?;
        drop((scaled, step));
        let error = batch.error(&output, &on_gpu(Dtype::F16));
        assert!(error < 2e-3, "{layer}: {error:.1e}");
    }
    Ok(())
}

#[test]
fn other_devices_and_types_are_refused_in_words() -> Result<()> {
    let device = device();
    let batch = Batch::new(HEADS, DType::F16, &device)?;
    let step = PagedAttention::new(&device, HEADS, on_gpu(Dtype::F16))?.plan(&table())?;
    let host = Batch::new(HEADS, DType::F16, &Device::Cpu)?;
    let error = message(step.forward(&host.query, &host.keys, &host.values));
    assert!(error.contains("planned for a GPU"), "{error}");
    let on_host = PagedAttention::new(&Device::Cpu, HEADS, options(Dtype::F16))?.plan(&table())?;
    let error = message(on_host.forward(&batch.query, &batch.keys, &batch.values));
    assert!(error.contains("planned for the CPU"), "{error}");
    let other = Batch::new(HEADS, DType::F16, &Device::new_cuda_with_stream(0)?)?;
    let error = message(step.forward(&other.query, &other.keys, &other.values));
    assert!(error.contains("one `Device`"), "{error}");
    let wide = Batch::new(HEADS, DType::F32, &device)?;
    let error = message(step.forward(&wide.query, &wide.keys, &wide.values));
    assert!(error.contains("`query` is f32"), "{error}");
    Ok(())
}

#[test]
fn a_stream_of_each_thread_serves_one_thread() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let attention = PagedAttention::new(&device, HEADS, on_gpu(Dtype::F16))?;
    attention.plan(&table())?;
    let error = thread::scope(|scope| {
        let other = scope.spawn(|| message(attention.plan(&table())));
        other.join().expect("no panic")
    });
    assert!(error.contains("new_cuda_with_stream"), "{error}");
    attention.plan(&table()).map(drop)
}
