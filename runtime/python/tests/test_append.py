"""K and V of new tokens reach their pages."""

import ml_dtypes
import numpy as np
import pytest
from reference import angles, rotated
from tilewright import Attention, Heads

HEADS = Heads(8, 2, 64)


def tokens_of(count, dtype, seed=0):
    return np.random.default_rng(seed).uniform(-3, 3, (2, count, HEADS.kv, HEADS.dim)).astype(dtype)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_tokens_go_to_their_slots(dtype, layout):
    made = Attention(HEADS, 16, dtype=dtype, kv_layout=layout)
    shape = (5, 16, 2, 64) if layout == "NHD" else (5, 2, 16, 64)
    keys, values = np.zeros((2, *shape), dtype)
    both = np.zeros((5, 2, *shape[1:]), dtype)
    slots = np.array([79, 3, -1, 16, 40], np.int64)
    k, v = tokens_of(5, dtype)
    for cache in ((keys, values), both):
        made.append(k, v, cache, slots)
    for tokens, cache in ((k, keys), (v, values), (k, both[:, 0]), (v, both[:, 1])):
        nhd = cache if layout == "NHD" else cache.transpose(0, 2, 1, 3)
        flat = np.ascontiguousarray(nhd).reshape(80, 2, 64)
        written = slots >= 0
        assert (flat[slots[written]] == tokens[written]).all()
        assert not np.delete(flat, slots[written], axis=0).any()


def test_strided_tokens_and_lists_of_slots():
    made = Attention(HEADS, 16, dtype="float32")
    qkv = np.random.default_rng(1).uniform(-1, 1, (3, 12, 64)).astype(np.float32)
    cache = np.zeros((2, 2, 16, 2, 64), np.float32)
    made.append(qkv[:, 8:10], qkv[:, 10:], cache, [1, 17, 2])
    flat = cache.transpose(1, 0, 2, 3, 4).reshape(2, 32, 2, 64)
    assert (flat[0, [1, 17, 2]] == qkv[:, 8:10]).all() and (flat[1, [1, 17, 2]] == qkv[:, 10:]).all()


@pytest.mark.parametrize("kv_dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_fp8_caches_get_what_the_scales_make_of_it(kv_dtype):
    made = Attention(HEADS, 16, dtype="float16", kv_dtype=kv_dtype)
    k, v = tokens_of(4, np.float16)
    keys, values = np.zeros((2, 1, 16, 2, 64), kv_dtype)
    k_scale, v_scale = np.array([0.5, 0.25], np.float32), np.array([2, 3], np.float32)
    made.append(k, v, (keys, values), range(4), k_scale=k_scale, v_scale=v_scale)
    for tokens, cache, scale in ((k, keys, k_scale), (v, values, v_scale)):
        expected = (tokens.astype(np.float32) / scale[:, None]).astype(kv_dtype)
        assert (cache[0, :4] == expected).all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [16, 48, 64])
def test_keys_are_rotated(dim, interleaved):
    made = Attention(HEADS, 16, dtype="float32")
    k, v = tokens_of(4, np.float32)
    table, positions = angles(50, dim), np.array([0, 49, 7, 20], np.int64)
    slots = [31, 3, -1, 16]
    expected = rotated(k, table, positions, interleaved)
    for given in (
        {"positions": positions},
        {"positions": [0, 49, -1, 20]},
        {"seq_lens": (positions + 1).astype(np.int32)},
    ):
        cache = np.zeros((2, 2, 16, 2, 64), np.float32)
        made.append(k, v, cache, slots, cos_sin=table, interleaved=interleaved, **given)
        flat = cache.transpose(1, 0, 2, 3, 4).reshape(2, 32, 2, 64)
        for token in (0, 1, 3):
            np.testing.assert_allclose(flat[0, slots[token]], expected[token], atol=1e-6)
            assert (flat[1, slots[token]] == v[token]).all()
        assert np.count_nonzero(flat.any(axis=(2, 3))) == 6


def test_a_decode_loop_attends_what_it_appended():
    made = Attention(HEADS, 4, dtype="float32")
    cache = np.full((8, 2, 4, 2, 64), np.nan, np.float32)
    k, v = tokens_of(9, np.float32)
    q = np.zeros((1, 8, 64), np.float32)
    for token in range(9):
        made.append(k[token : token + 1], v[token : token + 1], cache, [(7 - token // 4) * 4 + token % 4])
        out = made.plan(block_tables=[[7, 6, 5]], seq_lens=[token + 1]).run(q, cache)
        np.testing.assert_allclose(out[0, ::4], v[: token + 1].mean(axis=0), atol=1e-6)


def test_what_does_not_fit_is_said():
    made = Attention(HEADS, 16, dtype="float32")
    k, v = tokens_of(2, np.float32)
    cache = np.zeros((3, 2, 16, 2, 64), np.float32)
    frozen = np.zeros_like(cache)
    frozen.flags.writeable = False
    for arguments, words in [
        ((k, v, cache, [0, 48]), "token 1 goes to slot 48, which lies behind the cache's"),
        ((k, v, cache, [0]), r"`k` has the shape \[2, 2, 64\], \[1, 2, 64\] is needed: \[slots, KV heads, dim\]"),
        ((k, v.astype(np.float16), cache, [0, 1]), "`v` is float16, float32 is needed"),
        ((k, v, frozen, [0, 1]), "is read-only"),
        ((k, v, cache, np.array([0, 1], np.int32)), "`slots` is int32, int64 is needed"),
    ]:
        with pytest.raises(ValueError, match=words):
            made.append(*arguments)
    table = angles(9, 64)
    for options, words in [
        ({"positions": [0, 1]}, "give `cos_sin` too"),
        ({"cos_sin": table}, "`cos_sin` needs one of `positions` and `seq_lens`"),
        ({"cos_sin": table, "positions": [0, 1], "seq_lens": [0, 1]}, "`cos_sin` needs one of"),
        ({"cos_sin": table, "positions": [0, 9]}, "token 1 has position 9, the rotary table has 9 positions"),
        ({"cos_sin": table, "seq_lens": [0, 9]}, "token 0 has position -1"),
        ({"cos_sin": table, "positions": [0]}, r"`positions` has the shape \[1\], \[2\] is needed: one a token"),
        ({"cos_sin": table.astype(np.float64), "positions": [0, 1]}, "`cos_sin` is float64, float32 is needed"),
        ({"cos_sin": table[:, ::2], "positions": [0, 1]}, "`cos_sin` has the strides"),
        ({"cos_sin": angles(9, 24), "positions": [0, 1]}, "24 elements of 64 cannot be rotated: a multiple of 16 can"),
    ]:
        with pytest.raises(ValueError, match=words):
            made.append(k, v, cache, [0, 1], **options)
    assert not cache.any()
    with pytest.raises(TypeError, match="`seq_lens` has entries that are no whole numbers of 32 bits"):
        made.append(k, v, cache, [0, 1], cos_sin=table, seq_lens=[0, 1 << 31])
    with pytest.raises(TypeError, match="`slots` has entries that are no whole numbers"):
        made.append(k, v, cache, [0.5, 1])
