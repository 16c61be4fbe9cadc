"""What is wrong is said in words, before anything is computed."""

import re

import ml_dtypes
import numpy as np
import pytest
from tilewright import Attention, CudaError, Heads, merge_states

HEADS = Heads(8, 2, 64)


def made(**options):
    return Attention(HEADS, 16, **{"dtype": "float32", **options})


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (((8, 3, 64), 16), {}, r"q_heads \(8\) must be a multiple of kv_heads \(3\)"),
        (((8, 0, 64), 16), {}, "`kv` is 0: a whole number from 1 on is needed"),
        (((8, 2, 72), 16), {}, "`dim` is 72: on the CPU it must be a multiple of 16"),
        (((8, 2, 64), 0), {}, "`page_size` is 0"),
        (((8, 2, 64), 1.5), {}, "`page_size` is 1.5"),
        (((8, 2, 64), 16), {"dtype": "float64"}, "`dtype` is float64: it can be float16, bfloat16 or float32"),
        (((8, 2, 64), 16), {"kv_dtype": np.float16, "dtype": "float32"}, "`kv_dtype` is float16: it can be float32"),
        (((8, 2, 64), 16), {"kv_layout": "NDH"}, "`kv_layout` is 'NDH': it can be 'NHD'"),
        (((8, 2, 64), 16), {"device": "tpu"}, "`device` is tpu: it can be cpu, cuda, or cuda:1"),
        (((8, 2, 64), 16), {"device": "cuda:x"}, "`device` is cuda:x"),
        (((8, 2, 64), 16), {"device": "cuda", "dtype": "float32"}, "float32, which only the CPU computes"),
        (((8, 2, 64), 16), {"window": 0}, "`window` is 0: a query sees at least its own token"),
        (((8, 2, 64), 16), {"window": -4}, "`window` is -4"),
        (((8, 2, 64), 16), {"softcap": -1.0}, "`softcap` is -1: the bound of the logits is a positive number"),
        (((8, 2, 64), 16), {"selector": "/no/such.json"}, "/no/such.json: cannot read"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        Attention(*arguments, **options)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (([0, 2], [0, 1], [16, 3]), {}, "`indptr` has 2 entries, one a request and one more are 3"),
        (([0, 3], [0, 1], [16]), {}, r"request 0: its row is 0\.\.3 of `indices`, which has 2 entries"),
        (([0, 2], [0, 1], [17]), {}, "request 0: its last page holds 17 tokens, a page has 1 to 16"),
        (([0, 2], [0, -1], [3]), {}, "request 0, column 1: page -1 within its length is negative"),
        (([0, 2], [0, 1], [3]), {"query_lens": [20]}, "request 0: 20 query tokens, but only 19 tokens"),
        (([0, 2], [0, 1], [3]), {"query_lens": [1, 1]}, "`query_lens` has 2 entries, the batch 1 requests"),
        (([0, 2], [0, 1], [3]), {"query_lens": [-1]}, "`query_lens` has the number -1: none may be negative"),
        (([0, 2], [0, 1 << 40], [3]), {}, "`indices` has numbers beyond 32 bits"),
        ((np.array([0, 2]), [0, 1], [3]), {}, "`indptr` is int64, int32 is needed"),
        ((zeros(1, 2, dtype=np.int32), [0, 1], [3]), {}, r"`indptr` has the shape \[1, 2\], 1 axes are needed"),
        ((zeros(4, dtype=np.int32)[::2], [0, 1], [3]), {}, r"`indptr` has the strides \[2\], \[1\] are needed"),
        ((), {"block_tables": [[0, 1]], "seq_lens": [33]}, "33 tokens need 3 pages, its row of the page table has 2"),
        ((), {"block_tables": [[0, 1]], "seq_lens": [-1]}, "request 0: `seq_lens` is -1"),
        ((), {"block_tables": [[0], [1, 2]], "seq_lens": [3, 4]}, "`block_tables` has rows of several lengths"),
        ((), {"block_tables": [[0, 1]], "seq_lens": [3, 4]}, "`block_tables` has 1 rows, `seq_lens` 2 numbers"),
        ((), {"block_tables": zeros(4, dtype=np.int32), "seq_lens": [3]}, "2 axes are needed"),
    ],
    ids=str,
)
def test_page_tables_that_make_no_sense(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        made().plan(*arguments, **options)


def test_a_plan_is_of_rows_or_of_block_tables():
    for arguments, options in [((), {}), (([0],), {}), (([0, 1], [0], [1]), {"seq_lens": [1]})]:
        with pytest.raises(TypeError, match="takes `indptr`, `indices` and `last_page_len`, or `block_tables`"):
            made().plan(*arguments, **options)
    with pytest.raises(TypeError, match="`indices` has entries that are no whole numbers"):
        made().plan([0, 1], [0.5], [1])
    with pytest.raises(TypeError, match="`indptr` is a str: give a torch tensor, a NumPy array"):
        made().plan("0 1", [0], [1])


Q, CACHE = zeros(2, 8, 64), zeros(2, 3, 16, 2, 64)
BOTH = zeros(3, 2, 16, 2, 64)
READ_ONLY = zeros(2, 8, 64)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("q", "cache", "options", "words"),
    [
        (zeros(2, 8, 64, dtype=np.float64), CACHE, {}, "`q` is float64, float32 is needed"),
        (zeros(2, 8, 64, dtype=">f4"), CACHE, {}, "`q` is big-endian"),
        (zeros(3, 8, 64), CACHE, {}, r"`q` has the shape \[3, 8, 64\], \[2, 8, 64\] is needed: \[queries of the plan, query"),
        (zeros(2, 8, 128)[:, :, ::2], CACHE, {}, r"`q` has the strides \[1024, 128, 2\]: the elements of a head must be neighbours"),
        (Q[:, ::-1], CACHE, {}, r"`q` has the strides \[512, -64, 1\]: none may be negative"),
        (Q, tuple(zeros(2, 3, 2, 16, 64)), {}, r"has the shape \[3, 2, 16, 64\], \[any, 16, 2, 64\] is needed: \[pages, page_size, KV heads, dim\] of `kv_layout` NHD"),
        (Q, (CACHE[0], CACHE[1].astype(np.float16)), {}, r"`kv_cache\[1\]` is float16, float32 is needed"),
        (Q, (CACHE[0], CACHE[1][:2]), {}, r"`kv_cache\[1\]` has the shape \[2, 16, 2, 64\], \[3, 16, 2, 64\] is needed: that of K"),
        (Q, (CACHE[0], zeros(3, 2, 16, 64).transpose(0, 2, 1, 3)), {}, "both must be laid out alike"),
        (Q, (CACHE[0],), {}, "`kv_cache` has 1 tensors: it is K and V, or one tensor with both"),
        (Q, CACHE[0], {}, r"`kv_cache` has the shape \[3, 16, 2, 64\], \[any, 2, 16, 2, 64\] is needed"),
        (Q, tuple(CACHE[:, :2]), {}, "the plan reads page 2, but `kv_cache` has 2 pages"),
        (Q, BOTH[:0], {}, "the plan reads page 2, but `kv_cache` has 0 pages"),
        (Q, BOTH, {"out": zeros(2, 8, 32)}, r"`out` has the shape \[2, 8, 32\]"),
        (Q, BOTH, {"out": READ_ONLY}, "`out` is read-only"),
        (Q, BOTH, {"out": np.lib.stride_tricks.as_strided(zeros(8, 64), (2, 8, 64), (0, 256, 4))}, r"`out` has the strides \[0, 64, 1\]: its rows overlap"),
        (Q, BOTH, {"out": np.lib.stride_tricks.as_strided(zeros(9, 64), (2, 8, 64), (256, 256, 4))}, "its rows overlap"),
        (Q, BOTH, {"out": Q}, "`out` overlaps `q`: write to other memory"),
        (Q, BOTH, {"lse": zeros(2, 8, dtype=np.float16)}, "`lse` is float16, float32 is needed"),
        (Q, BOTH, {"lse": zeros(8, 2).T}, r"`lse` has the strides \[1, 2\], \[8, 1\] are needed"),
        (Q, BOTH, {"sinks": zeros(2)}, r"`sinks` has the shape \[2\], \[8\] is needed: \[query heads\]"),
        (Q, BOTH, {"k_scale": 1.0, "v_scale": 1.0}, "K and V are float32, which has no scales"),
        (Q, BOTH, {"k_scale": 1.0}, "one of `k_scale` and `v_scale` is missing"),
        (np.frombuffer(bytes(4097), np.uint8)[1:].view(np.float32).reshape(2, 8, 64), BOTH, {}, "`q` lies at 0x[0-9a-f]+, which is no multiple of its 4 bytes"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(q, cache, options, words):
    plan = made().plan([0, 2, 3], [0, 1, 2], [4, 5])
    with pytest.raises(ValueError, match=words):
        plan.run(q, cache, **options)


class Bytes:
    """As images have it."""

    __array_interface__ = {"shape": (2, 8, 64), "typestr": "<f4", "data": bytes(4096), "version": 3}


def test_what_is_no_tensor_is_a_type_error():
    plan = made().plan([0, 2, 3], [0, 1, 2], [4, 5])
    with pytest.raises(TypeError, match="`q` is a list: give a torch tensor, a NumPy array"):
        plan.run(Q.tolist(), BOTH)
    with pytest.raises(TypeError, match="`kv_cache` is a NoneType"):
        plan.run(Q, None)
    with pytest.raises(TypeError, match="`q` is a Bytes, which gives no address: make a NumPy array of it"):
        plan.run(Bytes(), BOTH)


def test_fp8_needs_its_scales():
    plan = made(kv_dtype="float8_e4m3fn").plan([0, 1], [0], [4])
    q, cache = zeros(1, 8, 64), zeros(1, 2, 16, 2, 64, dtype=np.uint8)
    with pytest.raises(ValueError, match="float8_e4m3fn, which has scales: give `k_scale` and `v_scale`"):
        plan.run(q, cache)
    with pytest.raises(ValueError, match="`k_scale` has 1 numbers, `v_scale` 2"):
        plan.run(q, cache, k_scale=1.0, v_scale=zeros(2))
    with pytest.raises(ValueError, match=r"`k_scale` has the shape \[3\], \[2\] is needed"):
        plan.run(q, cache, k_scale=zeros(3), v_scale=zeros(3))
    with pytest.raises(ValueError, match="is float32, float8_e4m3fn is needed"):
        plan.run(q, cache.astype(np.float32), k_scale=1.0, v_scale=1.0)
    with pytest.raises(ValueError, match="is float8_e5m2, float8_e4m3fn is needed"):
        plan.run(q, cache.view(ml_dtypes.float8_e5m2), k_scale=1.0, v_scale=1.0)
    with pytest.raises(ValueError, match="float8_e4m3: it can be float16, as the query, float8_e4m3fn or float8_e5m2"):
        made(dtype="float16", kv_dtype="float8_e4m3")


def test_states_that_cannot_be_merged():
    state = (zeros(3, 8, 64), zeros(3, 8))
    for states, words in [
        ([], "no state was given"),
        ([state, (zeros(3, 8, 32), zeros(3, 8))], r"`states\[1\]\[0\]` has the shape \[3, 8, 32\], \[3, 8, 64\]"),
        ([(zeros(3, 8, 64), zeros(3, 4))], r"`states\[0\]\[1\]` has the shape \[3, 4\], \[3, 8\] is needed"),
        ([(zeros(3, 8, 64, dtype=np.int32), zeros(3, 8))], r"is int32: it can be float16"),
        ([(zeros(3, 16, 64)[:, ::2], zeros(3, 8))], "so that it has no gaps"),
    ]:
        with pytest.raises(ValueError, match=words):
            merge_states(states)
    with pytest.raises(ValueError, match=re.escape("`out` overlaps `states[0][0]`")):
        merge_states([state], state[0])
    with pytest.raises(ValueError, match=re.escape("`lse` overlaps `states[0][1]`")):
        merge_states([state], lse=state[1])


def test_a_gpu_that_is_not_there_is_said():
    with pytest.raises(CudaError, match="no NVIDIA driver|there is no CUDA device 99"):
        made(dtype="float16", device="cuda:99")
    assert issubclass(CudaError, RuntimeError)
