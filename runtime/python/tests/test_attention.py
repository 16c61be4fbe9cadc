"""Plans and runs on the CPU against attention in f64."""

import ml_dtypes
import numpy as np
import pytest
from reference import attention, close, random_batch
from tilewright import Attention, Heads

HEADS = [Heads(8, 2, 64), Heads(3, 3, 64), Heads(14, 2, 128), Heads(5, 1, 80)]


@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_random_batches_are_right_in_both_layouts(dtype, heads, page_size):
    for seed in range(3):
        batch = random_batch(seed, heads, page_size, dtype)
        expected, expected_lse = attention(batch.q, batch.keys, batch.values, batch.rows)
        for layout in ("NHD", "HND"):
            made = Attention(heads, page_size, dtype=dtype, kv_layout=layout)
            out, lse = made.plan(*batch.csr).run(batch.q, batch.cache(layout), return_lse=True)
            assert (out.dtype, lse.dtype) == (batch.q.dtype, np.float32)
            close(out, expected, made.dtype)
            close(lse, expected_lse, made.dtype)
            assert not out[4].any() and np.isneginf(lse[4]).all()  # it has no tokens


@pytest.mark.parametrize(
    "options",
    [{"window": 1}, {"window": 20}, {"softcap": 1.5}, {"window": 33, "softcap": 3.0, "scale": 0.3}, {"scale": 2.0}],
    ids=str,
)
@pytest.mark.parametrize("sinks", [False, True], ids=["plain", "sinks"])
def test_masks_scales_and_sinks_are_right(options, sinks):
    heads = Heads(8, 2, 64)
    batch = random_batch(7, heads)
    sinks = np.linspace(-3, 3, heads.query, dtype=np.float32) if sinks else None
    plan = Attention(heads, 16, dtype="float32", **options).plan(*batch.csr)
    out, lse = plan.run(batch.q, batch.cache("NHD"), sinks=sinks, return_lse=True)
    expected, expected_lse = attention(batch.q, batch.keys, batch.values, batch.rows, sinks=sinks, **options)
    close(out, expected)
    close(lse, expected_lse)


def test_block_tables_and_lists_give_the_same_bits():
    heads = Heads(8, 2, 64)
    batch = random_batch(1, heads)
    made = Attention(heads, 16, dtype="float32")
    tables, seq_lens = batch.block_tables
    plans = [
        made.plan(*batch.csr),
        made.plan(*(part.tolist() for part in batch.csr)),
        made.plan(block_tables=tables, seq_lens=seq_lens),
        made.plan(block_tables=tables.tolist(), seq_lens=seq_lens.tolist()),
    ]
    outs = [plan.run(batch.q, batch.cache("NHD")) for plan in plans]
    assert all(plan.batch == len(batch.rows) for plan in plans)
    assert all(out.tobytes() == outs[0].tobytes() for out in outs)


def test_arrays_of_a_plan_may_change_once_it_is_made():
    heads = Heads(8, 2, 64)
    batch = random_batch(2, heads)
    parts = batch.csr
    plan = Attention(heads, 16, dtype="float32").plan(*parts)
    for part in parts:
        part[:] = -7
    close(plan.run(batch.q, batch.cache("NHD")), attention(batch.q, batch.keys, batch.values, batch.rows)[0])


def test_page_tables_may_lie_anywhere():
    heads = Heads(8, 2, 64)
    batch = random_batch(2, heads)
    odd = []
    for part in batch.csr:
        memory = np.zeros(4 * len(part) + 1, np.uint8)
        odd.append(memory[1:].view(np.int32))
        odd[-1][:] = part
    made = Attention(heads, 16, dtype="float32")
    expected = made.plan(*batch.csr).run(batch.q, batch.cache("NHD"))
    assert made.plan(*odd).run(batch.q, batch.cache("NHD")).tobytes() == expected.tobytes()


def test_several_queries_a_request_see_the_tokens_up_to_their_own():
    heads = Heads(8, 2, 64)
    batch = random_batch(3, heads)
    tables, seq_lens = batch.block_tables
    query_lens = [min(3, int(tokens)) if request % 3 else 1 for request, tokens in enumerate(seq_lens)]
    query_lens = [count if tokens else 0 for count, tokens in zip(query_lens, seq_lens)]
    plan = Attention(heads, 16, dtype="float32").plan(block_tables=tables, seq_lens=seq_lens, query_lens=query_lens)
    rows = [
        (pages, tokens - count + query + 1)
        for (pages, tokens), count in zip(batch.rows, query_lens)
        for query in range(count)
    ]
    assert plan.batch == len(rows) == sum(query_lens)
    q = np.random.default_rng(3).uniform(-1, 1, (len(rows), 8, 64)).astype(np.float32)
    close(plan.run(q, batch.cache("NHD")), attention(q, batch.keys, batch.values, rows)[0])


def test_requests_grow_inside_their_pages():
    heads = Heads(4, 4, 64)
    batch = random_batch(4, heads)
    tables, seq_lens = batch.block_tables
    plan = Attention(heads, 16, dtype="float32").plan(block_tables=tables, seq_lens=seq_lens)
    grown = np.where(seq_lens, -(-seq_lens // 16) * 16, 0).astype(np.int32)
    plan.set_lengths(grown)
    rows = [(pages, int(tokens)) for (pages, _), tokens in zip(batch.rows, grown)]
    close(plan.run(batch.q, batch.cache("NHD")), attention(batch.q, batch.keys, batch.values, rows)[0])
    with pytest.raises(ValueError, match="make another plan"):
        plan.set_lengths(grown + 1)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_one_tensor_may_hold_k_and_v(layout):
    heads = Heads(8, 2, 64)
    batch = random_batch(5, heads)
    plan = Attention(heads, 16, dtype="float32", kv_layout=layout).plan(*batch.csr)
    both = np.stack(batch.cache(layout), axis=1)  # [pages, 2, ...]
    expected = plan.run(batch.q, batch.cache(layout))
    assert plan.run(batch.q, both).tobytes() == expected.tobytes()
    # Views of it have the same strides.
    assert plan.run(batch.q, (both[:, 0], both[:, 1])).tobytes() == expected.tobytes()


def test_strided_queries_outputs_and_caches_need_no_copy():
    heads = Heads(8, 2, 64)
    batch = random_batch(6, heads)
    nhd, hnd = (Attention(heads, 16, dtype="float32", kv_layout=layout) for layout in ("NHD", "HND"))
    expected = nhd.plan(*batch.csr).run(batch.q, batch.cache("NHD"))
    wide = np.zeros((len(batch.rows), 12, 2, 64), np.float32)
    wide[:, :8, 1] = batch.q
    q, out = wide[:, :8, 1], np.full((len(batch.rows), 9, 80), np.nan, np.float32)
    place = out[:, 1:, :64]
    returned = nhd.plan(*batch.csr).run(q, batch.cache("NHD"), place)
    assert returned is place and place.tobytes() == expected.tobytes()
    assert np.isnan(out[:, 0]).all() and np.isnan(out[:, :, 64:]).all()
    transposed = tuple(cache.transpose(0, 2, 1, 3) for cache in batch.cache("NHD"))
    assert hnd.plan(*batch.csr).run(batch.q, transposed).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kv_dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("bits", [False, True], ids=["float8", "uint8"])
@pytest.mark.parametrize("per_head", [False, True], ids=["one", "per-head"])
def test_fp8_caches_are_scaled(per_head, bits, kv_dtype):
    heads = Heads(8, 2, 64)
    batch = random_batch(8, heads, dtype=np.float16)
    keys, values = (cache.astype(kv_dtype) for cache in (batch.keys, batch.values))
    plan = Attention(heads, 16, dtype="float16", kv_dtype=kv_dtype).plan(*batch.csr)
    k_scale, v_scale = (
        (np.array([0.5, 0.25], np.float32), np.array([2, 3], np.float32)) if per_head else (np.float32(0.5), 2)
    )
    cache = (keys.view(np.uint8), values.view(np.uint8)) if bits else (keys, values)
    out = plan.run(batch.q, cache, k_scale=k_scale, v_scale=v_scale)
    wide = lambda cache, scale: cache.astype(np.float64) * np.reshape(scale, (-1, 1))
    expected, _ = attention(batch.q, wide(keys, k_scale), wide(values, v_scale), batch.rows)
    close(out, expected, "float16")


def test_outputs_are_written_where_they_are_given():
    heads = Heads(4, 2, 64)
    batch = random_batch(9, heads)
    plan = Attention(heads, 16, dtype="float32").plan(*batch.csr)
    out, lse = np.full_like(batch.q, np.nan), np.full(batch.q.shape[:2], np.nan, np.float32)
    assert plan.run(batch.q, batch.cache("NHD"), out, lse=lse) is out
    expected, expected_lse = attention(batch.q, batch.keys, batch.values, batch.rows)
    close(out, expected)
    close(lse, expected_lse)


def test_nothing_is_read_behind_a_request():
    heads = Heads(4, 2, 64)
    batch = random_batch(10, heads)
    for pages, tokens in batch.rows:
        last = (tokens - 1) % 16 + 1
        for cache in (batch.keys, batch.values):
            if tokens:
                cache[pages[-1], last:] = np.nan
    out = Attention(heads, 16, dtype="float32").plan(*batch.csr).run(batch.q, batch.cache("NHD"))
    close(out, attention(batch.q, batch.keys, batch.values, batch.rows)[0])


def test_a_batch_may_be_empty():
    made = Attention(Heads(4, 2, 64), 16, dtype="float32")
    nothing, cache = np.zeros((0, 4, 64), np.float32), np.zeros((2, 0, 16, 2, 64), np.float32)
    for plan in (made.plan([0], [], []), made.plan(block_tables=np.zeros((0, 3), np.int32), seq_lens=[])):
        assert plan.batch == 0
        assert plan.run(nothing, tuple(cache)).shape == (0, 4, 64)


def test_any_array_with_dlpack_or_the_array_interface_is_taken():
    class OfDlpack:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    class OfInterface:
        def __init__(self, array):
            self.array, self.__array_interface__ = array, array.__array_interface__

    heads = Heads(4, 2, 64)
    batch = random_batch(11, heads)
    plan = Attention(heads, 16, dtype="float32").plan(*batch.csr)
    expected = plan.run(batch.q, batch.cache("NHD"))
    for wrap in (OfDlpack, OfInterface):
        out = np.zeros_like(batch.q)
        plan.run(wrap(batch.q), tuple(map(wrap, batch.cache("NHD"))), OfInterface(out))
        assert out.tobytes() == expected.tobytes()


def test_attentions_say_what_they_are():
    made = Attention((8, 2, 64), 16, dtype=np.dtype("float16"), kv_dtype="float8_e4m3fn", kv_layout="HND")
    assert (made.heads, made.page_size, made.device) == (Heads(8, 2, 64), 16, "cpu")
    assert (made.dtype, made.kv_dtype, made.kv_layout) == ("float16", "float8_e4m3fn", "HND")
    made.prepare()
    assert "kv_layout='HND'" in repr(made) and "batch=1" in repr(made.plan([0, 1], [3], [16]))


def test_a_request_has_the_same_bits_alone_and_in_a_batch():
    heads = Heads(8, 2, 64)
    rng = np.random.default_rng(3)
    keys, values = (rng.standard_normal((400, 16, 2, 64), dtype=np.float32) for _ in range(2))
    # Six requests share 60 pages, which are more than one chunk, and have some of their own.
    rows = [[*range(60), *range(60 + 40 * i, 60 + 40 * i + 7 * i + 1)] for i in range(6)]
    lens = [16 * len(row) - i for i, row in enumerate(rows)]
    q = rng.standard_normal((6, 8, 64), dtype=np.float32)
    made = Attention(heads, 16, dtype="float32", invariant=True, threads=2)

    def run(chosen):
        indptr = np.cumsum([0, *(len(rows[i]) for i in chosen)], dtype=np.int32)
        indices = np.concatenate([rows[i] for i in chosen]).astype(np.int32)
        last = np.array([lens[i] - 16 * (len(rows[i]) - 1) for i in chosen], dtype=np.int32)
        return made.plan(indptr, indices, last).run(q[chosen], (keys, values), return_lse=True)

    together = run([*range(6)])
    for chosen in ([0], [3], [5, 2], [4, 1, 0]):
        for found, expected in zip(run(chosen), together):
            assert found.tobytes() == expected[chosen].tobytes()
    with pytest.raises(ValueError, match="multiple of 16"):
        Attention(heads, 8, invariant=True)
