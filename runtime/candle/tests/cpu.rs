//! The op on the CPU: what it computes is attention in f64, whichever way the tensors lie, and what does not fit is refused in words.

mod common;

use candle_core::{DType, Device, IndexOp as _, Result, Tensor};
use common::{Batch, PAGE_SIZE, PAGES, TYPES, message, options, table};
use tilewright_candle::{AttentionOptions, Dtype, Heads, Mask, PageTable, PagedAttention, PagedDecode};

const HEADS: Heads = Heads { query: 8, kv: 2, dim: 64 };

fn attention(options: AttentionOptions) -> PagedAttention {
    PagedAttention::new(&Device::Cpu, HEADS, options).unwrap()
}

fn batch(dtype: DType) -> Batch {
    Batch::new(HEADS, dtype, &Device::Cpu).unwrap()
}

#[test]
fn every_type_and_ratio_of_heads_agrees_with_f64() {
    for (dtype, element, bound) in TYPES {
        for (query, kv, dim) in [(8, 8, 64), (8, 2, 64), (6, 1, 128), (10, 2, 80)] {
            let heads = Heads { query, kv, dim };
            let batch = Batch::new(heads, dtype, &Device::Cpu).unwrap();
            let attention = PagedAttention::new(&Device::Cpu, heads, options(element)).unwrap();
            let step = attention.plan(&table()).unwrap();
            let output = step.forward(&batch.query, &batch.keys, &batch.values).unwrap();
            assert_eq!((output.dims(), output.dtype()), (batch.query.dims(), dtype));
            let error = batch.error(&output, &options(element));
            assert!(error < bound, "{dtype:?}, {heads:?}: {error:.1e}");
        }
    }
}

#[test]
fn masks_and_scales_are_those_of_the_options() {
    let batch = batch(DType::F32);
    let with = AttentionOptions { scale: Some(0.3), mask: Mask::window(20), ..options(Dtype::F32) };
    let step = attention(with).plan(&table()).unwrap();
    let output = step.forward(&batch.query, &batch.keys, &batch.values).unwrap();
    assert!(batch.error(&output, &with) < 1e-5);
    assert!(batch.error(&output, &options(Dtype::F32)) > 0.1);
}

#[test]
fn views_are_read_as_they_lie() -> Result<()> {
    let batch = batch(DType::F32);
    let step = attention(options(Dtype::F32)).plan(&table())?;
    let expected = step.forward(&batch.query, &batch.keys, &batch.values)?.flatten_all()?.to_vec1::<f32>()?;
    let same = |query: &Tensor, keys: &Tensor, values: &Tensor| -> Result<()> {
        let output = step.forward(query, keys, values)?;
        assert!(output.is_contiguous());
        assert_eq!(output.flatten_all()?.to_vec1::<f32>()?, expected);
        Ok(())
    };
    let Batch { query, keys, values, .. } = &batch;

    // Q as a part of a fused projection, after another part of it.
    let fused = Tensor::cat(&[&query.narrow(1, 0, 4)?, query, &query.narrow(1, 2, 3)?], 1)?;
    let part = fused.narrow(1, 4, 8)?;
    assert!(!part.is_contiguous());
    same(&part, keys, values)?;
    // K and V in one tensor, [pages, 2, page_size, kv_heads, dim].
    let both = Tensor::stack(&[keys, values], 1)?;
    same(query, &both.i((.., 0))?, &both.i((.., 1))?)?;
    // Heads before tokens.
    let [keys_hnd, values_hnd] =
        [keys, values].map(|cache| cache.transpose(1, 2).unwrap().contiguous().unwrap());
    same(query, &keys_hnd.transpose(1, 2)?, &values_hnd.transpose(1, 2)?)?;
    // Some pages of a larger cache.
    let larger = Tensor::cat(&[&values.narrow(0, 0, 2)?, keys, values], 0)?;
    same(query, &larger.narrow(0, 2, PAGES)?, &larger.narrow(0, 2 + PAGES, PAGES)?)
}

#[test]
fn one_request_of_one_page_is_a_batch() -> Result<()> {
    let batch = batch(DType::F32);
    let step = attention(options(Dtype::F32)).plan(&PageTable::new(&[0], 1, &[5], PAGE_SIZE).unwrap())?;
    // Candle keeps any stride where a dimension is 1.
    let (query, keys, values) = (batch.query.i(3..4)?, batch.keys.i(2..3)?, batch.values.i(2..3)?);
    let output = step.forward(&query, &keys, &values)?;
    let copies = [&query, &keys, &values].map(|tensor| tensor.copy().unwrap());
    let again = step.forward(&copies[0], &copies[1], &copies[2])?;
    assert_eq!(output.flatten_all()?.to_vec1::<f32>()?, again.flatten_all()?.to_vec1::<f32>()?);
    Ok(())
}

#[test]
fn an_empty_batch_has_an_empty_output() -> Result<()> {
    let batch = batch(DType::F32);
    let step = attention(options(Dtype::F32)).plan(&PageTable::new(&[], 0, &[], PAGE_SIZE).unwrap())?;
    let output = step.forward(&batch.query.narrow(0, 0, 0)?, &batch.keys, &batch.values)?;
    assert_eq!(output.dims(), [0, 8, 64]);
    Ok(())
}

#[test]
fn a_step_is_an_op_that_others_hold() -> Result<()> {
    fn is_shared<T: Send + Sync + 'static>(_: &T) {}
    let batch = batch(DType::F32);
    let step = attention(options(Dtype::F32)).plan(&table())?;
    is_shared(&step);
    let output = batch.query.apply_op3(&batch.keys, &batch.values, step)?;
    assert!(batch.error(&output, &options(Dtype::F32)) < 1e-5);
    Ok(())
}

fn step(element: Dtype) -> PagedDecode {
    attention(options(element)).plan(&table()).unwrap()
}

#[test]
fn other_types_are_refused_by_name() {
    let (wide, narrow) = (batch(DType::F32), batch(DType::F16));
    let error = message(step(Dtype::F16).forward(&wide.query, &narrow.keys, &narrow.values));
    assert!(error.contains("`query` is f32, `keys` f16 and `values` f16"), "{error}");
    assert!(error.contains("says f16") && error.contains("`to_dtype`"), "{error}");
    let error = message(step(Dtype::Bf16).forward(&narrow.query, &narrow.keys, &narrow.values));
    assert!(error.contains("says bf16"), "{error}");
    let fp8 = PagedAttention::new(&Device::Cpu, HEADS, options(Dtype::Fp8F16));
    let error = message(fp8);
    assert!(error.contains("FP8") && error.contains("run_raw"), "{error}");
}

#[test]
fn other_shapes_are_refused_with_what_is_needed() -> Result<()> {
    let Batch { query, keys, values, .. } = batch(DType::F32);
    let step = step(Dtype::F32);
    let refused = |query: &Tensor, keys: &Tensor, values: &Tensor| message(step.forward(query, keys, values));
    let error = refused(&query.narrow(0, 0, 6)?, &keys, &values);
    assert!(error.contains("`query` has the shape [6, 8, 64], the plan needs [7, 8, 64]"), "{error}");
    let error = refused(&query.flatten(1, 2)?, &keys, &values);
    assert!(error.contains("`query` has the shape [7, 512]"), "{error}");
    let error = refused(&query, &keys.transpose(1, 2)?, &values);
    assert!(
        error.contains("`keys` has the shape [13, 2, 16, 64]") && error.contains("[13, 16, 2, 64]"),
        "{error}"
    );
    let error = refused(&query, &keys, &values.narrow(2, 0, 1)?);
    assert!(error.contains("`values` has the shape [13, 16, 1, 64]"), "{error}");
    let few = refused(&query, &keys.narrow(0, 0, 12)?, &values.narrow(0, 0, 12)?);
    assert!(few.contains("names page 12") && few.contains("`keys` has 12 pages"), "{few}");
    let few = refused(&query, &keys, &values.narrow(0, 0, 9)?);
    assert!(few.contains("`values` has 9 pages"), "{few}");
    let empty = refused(&query, &keys.narrow(0, 0, 0)?, &values.narrow(0, 0, 0)?);
    assert!(empty.contains("`keys` has 0 pages"), "{empty}");
    Ok(())
}

#[test]
fn strides_that_cannot_be_read_are_refused_with_the_remedy() -> Result<()> {
    let Batch { query, keys, values, .. } = batch(DType::F32);
    let step = step(Dtype::F32);
    let apart = |tensor: &Tensor| tensor.transpose(1, 2)?.contiguous()?.transpose(1, 2);
    let across = query.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
    let error = message(step.forward(&across, &keys, &values));
    assert!(
        error.contains("`query` has the strides [512, 1, 8]") && error.contains("`contiguous()`"),
        "{error}"
    );
    let error = message(step.forward(&query, &apart(&keys)?, &values));
    assert!(error.contains("`keys` has the strides") && error.contains("in the same way"), "{error}");
    Ok(())
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let heads = PagedAttention::new(&Device::Cpu, Heads { query: 7, kv: 2, dim: 64 }, options(Dtype::F32));
    assert!(message(heads).contains('7'));
    let mut step = step(Dtype::F32);
    let error = message(step.set_lengths(&[1, 2]));
    assert!(error.contains('2') && error.contains('7'), "{error}");
    assert_eq!(step.plan().batch(), 7);
}
