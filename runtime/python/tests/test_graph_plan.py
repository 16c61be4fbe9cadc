"""A plan of fixed size serves batches of all sizes up to its own."""

import numpy as np
import pytest
from reference import attention, close, random_batch
from tilewright import Attention, Heads

HEADS, ROWS = Heads(8, 2, 64), 12


def made(batch, **options):
    attention = Attention(HEADS, 16, dtype="float32")
    return attention.graph_plan(*batch.csr, rows=ROWS, pages=200, **options)


def test_batches_are_computed_and_rows_behind_them_are_zero():
    plan = made(random_batch(0, HEADS))
    assert plan.batch == ROWS
    for seed in range(6):
        batch = random_batch(seed, HEADS, requests=3 + seed)
        tables, seq_lens = batch.block_tables
        fits = plan.update(*batch.csr) if seed % 2 else plan.update(block_tables=tables, seq_lens=seq_lens)
        assert fits
        query = np.ones((ROWS, HEADS.query, HEADS.dim), np.float32)
        query[: len(batch.rows)] = batch.q
        out, lse = plan.run(query, batch.cache("NHD"), np.full_like(query, np.nan), return_lse=True)
        expected, expected_lse = attention(batch.q, batch.keys, batch.values, batch.rows)
        close(out[: len(batch.rows)], expected)
        close(lse[: len(batch.rows)], expected_lse)
        assert not out[len(batch.rows) :].any() and np.isneginf(lse[len(batch.rows) :]).all()


def test_requests_grow_inside_their_pages():
    batch = random_batch(1, HEADS)
    plan = made(batch)
    query = np.ones((ROWS, HEADS.query, HEADS.dim), np.float32)
    query[: len(batch.rows)] = batch.q
    lens = [min(-(-tokens // 16) * 16, tokens + 3) for _, tokens in batch.rows]
    plan.set_lengths(lens)
    rows = [(pages, tokens) for (pages, _), tokens in zip(batch.rows, lens)]
    out = plan.run(query, batch.cache("NHD"))
    close(out[: len(rows)], attention(batch.q, batch.keys, batch.values, rows)[0])
    with pytest.raises(ValueError, match="pages"):
        plan.set_lengths([length + 100 for length in lens])
    with pytest.raises(ValueError, match="`seq_lens` has 13 numbers, the plan 12 rows"):
        plan.set_lengths([1] * 13)


def test_more_requests_than_rows_are_refused():
    plan = made(random_batch(2, HEADS))
    with pytest.raises(ValueError, match="the batch has 13 requests, the plan 12 rows"):
        plan.update(*random_batch(3, HEADS, requests=13).csr)
    with pytest.raises(ValueError, match="the batch has 9 requests, the plan 4 rows"):
        plan.attention.graph_plan(*random_batch(2, HEADS).csr, rows=4, pages=10)
    for wrong in ({"rows": 0, "pages": 1}, {"rows": 1, "pages": 0}):
        with pytest.raises(ValueError, match="a whole number from 1 on is needed"):
            plan.attention.graph_plan(*random_batch(2, HEADS).csr, **wrong)
    for wrong, why in (
        (np.zeros(11, np.int32), r"`device_lens` has the shape \[11\], \[12\] is needed"),
        (np.zeros(12, np.int64), "`device_lens` is int64, int32 is needed"),
        (np.zeros(24, np.int32)[::2], r"`device_lens` has the strides \[2\], \[1\] are needed"),
    ):
        with pytest.raises(ValueError, match=why):
            made(random_batch(2, HEADS), device_lens=wrong)
    with pytest.raises(ValueError, match="`q` has the shape"):
        plan.run(random_batch(2, HEADS).q, random_batch(2, HEADS).cache("NHD"))
    with pytest.raises(TypeError, match="a plan takes `indptr`"):
        plan.update([0, 1], [0])


@pytest.mark.parametrize("lens", [None, np.full(ROWS, 1, np.int32)], ids=["", "with lengths on the device"])
def test_a_plan_for_any_batch_begins_with_none(lens):
    attention_ = Attention(HEADS, 16, dtype="float32")
    plan = attention_.graph_plan(rows=ROWS, pages=100, device_lens=lens)
    batch = random_batch(4, HEADS)
    query = np.ones((ROWS, HEADS.query, HEADS.dim), np.float32)
    assert not plan.run(query, batch.cache("NHD")).any()
    assert plan.update(*batch.csr)
    query[: len(batch.rows)] = batch.q
    out = plan.run(query, batch.cache("NHD"))
    close(out[: len(batch.rows)], attention(batch.q, batch.keys, batch.values, batch.rows)[0])
