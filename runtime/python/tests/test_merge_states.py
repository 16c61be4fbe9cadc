"""Attention over parts of the KV is merged into attention over all of it."""

import ml_dtypes
import numpy as np
import pytest
from reference import attention, close, random_batch
from tilewright import Attention, Heads, merge_states


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_parts_of_the_pages_make_the_whole(dtype):
    heads = Heads(8, 2, 64)
    batch = random_batch(0, heads, dtype=dtype)
    made = Attention(heads, 16, dtype=dtype)
    parts = [[], [], []]
    for pages, tokens in batch.rows:
        for part, (begin, end) in zip(parts, [(0, 1), (1, 3), (3, len(pages))]):
            held = max(0, min(tokens, end * 16) - begin * 16)
            part.append((pages[begin:end] if held else [], held))
    states = []
    for rows in parts:
        tables = [(pages + [-1] * 9)[:9] for pages, _ in rows]
        plan = made.plan(block_tables=tables, seq_lens=[tokens for _, tokens in rows])
        states.append(plan.run(batch.q, batch.cache("NHD"), return_lse=True))
    out, lse = merge_states(states)
    expected, expected_lse = attention(batch.q, batch.keys, batch.values, batch.rows)
    close(out, expected, made.dtype)
    close(lse, expected_lse, made.dtype)


def test_rows_without_tokens_in_any_part_are_zeros():
    nothing = (np.full((2, 3, 16), np.nan, np.float32), np.full((2, 3), -np.inf, np.float32))
    out, lse = merge_states([nothing, nothing])
    assert not out.any() and np.isneginf(lse).all()


def test_the_result_goes_where_it_is_told():
    states = [(np.full((2, 16), value, np.float32), np.zeros(2, np.float32)) for value in (1.0, 3.0)]
    out, lse = np.empty((2, 16), np.float32), np.empty(2, np.float32)
    merged = merge_states(states, out, lse)
    assert merged[0] is out and merged[1] is lse
    close(out, np.full((2, 16), 2.0))
    close(lse, np.full(2, np.log(2)))


def test_states_may_have_no_rows_and_have_to_be_aligned():
    nothing = (np.zeros((0, 16), np.float32), np.zeros(0, np.float32))
    out, lse = merge_states([nothing, nothing])
    assert out.shape == (0, 16) and lse.shape == (0,)
    odd = np.zeros(4 * 16 + 1, np.uint8)[1:].view(np.float32).reshape(1, 16)
    with pytest.raises(ValueError, match="`a state's output` lies at 0x[0-9a-f]+, which is no multiple of its 4 bytes"):
        merge_states([(odd, np.zeros(1, np.float32))])
