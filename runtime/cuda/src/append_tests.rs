//! What an append takes, as far as the host can see it.

use super::*;
use tilewright_heuristics::Dtype;

const GEOMETRY: Geometry =
    Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
const ROTARY: RawRotary = RawRotary {
    table: 0x9000,
    rows: 100,
    dim: 32,
    pairs: RotaryPairs::Halves,
    positions: RawPositions::Given(0xa000),
};
const ARGS: RawAppend = RawAppend {
    tokens: 10,
    keys: 0x1000,
    key_strides: RowStrides { request: 128, head: 64 },
    values: 0x2000,
    value_strides: RowStrides { request: 256, head: 72 },
    slots: 0x3008,
    key_pages: 0x4000,
    value_pages: 0x5000,
    kv_strides: KvStrides { page: 2048, token: 128, head: 64 },
    pages: 7,
    scales: None,
    rotary: None,
};

#[test]
fn addresses_stand_where_the_kernel_looks_for_them() {
    let (found, chunks) = arguments(&GEOMETRY, &RawAppend { rotary: Some(ROTARY), ..ARGS }).unwrap();
    assert_eq!(chunks, 10 * 2 * 64 / 8);
    let expected = AppendArguments {
        keys: 0x1000,
        values: 0x2000,
        key_pages: 0x4000,
        value_pages: 0x5000,
        slots: 0x3008,
        table: 0x9000,
        positions: 0xa000,
        key_token: 128,
        key_head: 64,
        value_token: 256,
        value_head: 72,
        page: 2048,
        token: 128,
        head: 64,
        table_rows: 100,
        tokens: 10,
        kv_heads: 2,
        page_size: 16,
        pages: 7,
        rotary_dim: 32,
        wide: 1,
        ..AppendArguments::default()
    };
    assert_eq!(found, expected);
    let rotary = RawRotary { positions: RawPositions::OfLengths(0xb004), ..ROTARY };
    let (found, _) = arguments(&GEOMETRY, &RawAppend { rotary: Some(rotary), ..ARGS }).unwrap();
    assert_eq!((found.positions, found.lengths), (0, 0xb004));
    let scales = Some(RawScales { keys: 0x7004, values: 0x8000, per_head: true });
    let fp8 = Geometry { dtype: Dtype::Fp8Bf16, ..GEOMETRY };
    let (found, _) = arguments(&fp8, &RawAppend { scales, ..ARGS }).unwrap();
    assert_eq!((found.key_scales, found.value_scales, found.scale_head), (0x7004, 0x8000, 1));
}

#[test]
fn tokens_are_read_16_bytes_at_a_time_where_all_of_them_can_be() {
    let wide = |args| arguments(&GEOMETRY, &args).unwrap().0.wide;
    let strides = |request, head| RowStrides { request, head };
    assert_eq!(wide(ARGS), 1);
    assert_eq!(wide(RawAppend { keys: 0x1008, ..ARGS }), 0);
    assert_eq!(wide(RawAppend { values: 0x2002, ..ARGS }), 0);
    assert_eq!(wide(RawAppend { key_strides: strides(132, 64), ..ARGS }), 0);
    assert_eq!(wide(RawAppend { value_strides: strides(128, 65), ..ARGS }), 0);
}

#[test]
fn what_the_kernel_cannot_serve_is_said() {
    let error = |geometry: &Geometry, args: RawAppend| arguments(geometry, &args).unwrap_err().to_string();
    let said = |args, words: &[&str]| {
        let error = error(&GEOMETRY, args);
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    said(RawAppend { keys: 0x1001, ..ARGS }, &["`keys`", "multiple of 2 bytes"]);
    said(RawAppend { slots: 0x3004, ..ARGS }, &["`slots`", "multiple of 8 bytes"]);
    said(RawAppend { value_pages: 0x5008, ..ARGS }, &["`value_pages`", "multiple of 16 bytes"]);
    let odd = KvStrides { token: 132, ..ARGS.kv_strides };
    said(RawAppend { kv_strides: odd, ..ARGS }, &["kv_strides.token", "multiple of 8 elements"]);
    said(RawAppend { tokens: 1 << 29, ..ARGS }, &["536870912 tokens", "several calls"]);
    said(RawAppend { tokens: usize::MAX, ..ARGS }, &["several calls"]);
    for (rotary, words) in [
        (RawRotary { dim: 72, ..ROTARY }, "72 elements of 64"),
        (RawRotary { dim: 0, ..ROTARY }, "0 elements of 64"),
        (RawRotary { table: 0x9008, ..ROTARY }, "`table`"),
        (RawRotary { positions: RawPositions::Given(4), ..ROTARY }, "`positions`"),
        (RawRotary { positions: RawPositions::OfLengths(2), ..ROTARY }, "`lengths`"),
    ] {
        said(RawAppend { rotary: Some(rotary), ..ARGS }, &[words]);
    }
    let fp8 = Geometry { dtype: Dtype::Fp8F16, ..GEOMETRY };
    let missing = error(&fp8, ARGS);
    assert!(missing.contains("scales") && missing.contains("an f32 of 1"), "{missing}");
    let scales = Some(RawScales { keys: 2, values: 0, per_head: false });
    assert!(error(&fp8, RawAppend { scales, ..ARGS }).contains("scales.keys"));
    let odd = KvStrides { page: 2056, ..ARGS.kv_strides };
    let scales = Some(RawScales { keys: 4, values: 0, per_head: false });
    let bytes = error(&fp8, RawAppend { scales, kv_strides: odd, ..ARGS });
    assert!(bytes.contains("multiple of 16 elements"), "{bytes}");
    let heads = error(&Geometry { head_dim: 80, ..GEOMETRY }, ARGS);
    assert!(heads.contains("head_dim 80"), "{heads}");
}

#[test]
fn pages_are_those_that_lie_in_a_slice() {
    let strides = KvStrides::nhd(&GEOMETRY);
    let pages = |len| pages_within(&GEOMETRY, &strides, len);
    assert_eq!([0, 2047, 2048, 4095, 4096].map(pages), [0, 0, 1, 1, 2]);
    // Of K and V in one tensor the last page of K ends before V's.
    let both = KvStrides { page: 4096, ..strides };
    assert_eq!(pages_within(&GEOMETRY, &both, 4096 + 2048), 2);
}
