"""One CUDA graph serves changing batches."""

import numpy as np
import pytest
import torch
from reference import attention, close, random_batch
from tilewright import Attention, Heads

HEADS, ROWS, LAYERS = Heads(32, 8, 128), 16, 3
DEVICE = torch.device("cuda", 0)


def captured(seed, pages, requests=9, **options):
    """A captured plan that begins with a batch; for any batch without a seed."""
    begin = () if seed is None else random_batch(seed, HEADS, requests=requests).csr
    made = Attention(HEADS, 16, dtype=torch.bfloat16, device=DEVICE)
    plan = made.graph_plan(*begin, rows=ROWS, pages=pages, **options)
    keys, values = (
        torch.from_numpy(cache).to(DEVICE, torch.bfloat16)
        for cache in random_batch(0, HEADS, requests=ROWS).cache("NHD")
    )
    query = torch.zeros(LAYERS, ROWS, HEADS.query, HEADS.dim, dtype=torch.bfloat16, device=DEVICE)
    out, graph, stream = torch.full_like(query, torch.nan), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    run = lambda: [plan.run(q, (keys, values), o) for q, o in zip(query, out)]
    with torch.cuda.stream(stream):
        run()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            run()
    return plan, graph, stream, query, out, keys, values


def check(batch, rows, query, out, keys, values):
    wide = [cache.double().cpu().numpy() for cache in (keys, values)]
    for q, o in zip(query.double().cpu().numpy(), out.double().cpu().numpy()):
        close(o[: len(rows)], attention(q[: len(rows)], *wide, rows)[0], "bfloat16")
        assert not o[len(rows) :].any(), "rows behind the batch are zero"


def test_a_graph_serves_changing_batches():
    plan, graph, stream, query, out, *cache = captured(1, pages=400)
    fitted = 0
    with torch.cuda.stream(stream):
        for seed in range(12):
            batch = random_batch(seed, HEADS, requests=1 + seed)
            # The graph has the launches of the tiles that its plan began with: a batch that wants others needs another plan.
            if not plan.update(*batch.csr):
                continue
            fitted += 1
            query.copy_(torch.randn_like(query))
            out.fill_(torch.nan)
            graph.replay()
            stream.synchronize()
            check(batch, batch.rows, query, out, *cache)
            lens = [min(-(-tokens // 16) * 16, tokens + 2) for _, tokens in batch.rows]
            plan.set_lengths(lens)
            out.fill_(torch.nan)
            graph.replay()
            stream.synchronize()
            check(batch, [(pages, n) for (pages, _), n in zip(batch.rows, lens)], query, out, *cache)
    assert fitted >= 4, f"only {fitted} of 12 batches fitted"


def test_updates_follow_each_other_without_waiting():
    plan, graph, stream, query, out, *cache = captured(1, pages=400)
    batches = [batch for batch in (random_batch(seed, HEADS) for seed in range(8)) if plan.update(*batch.csr)]
    assert len(batches) >= 2
    torch.cuda.synchronize()
    outputs = []
    with torch.cuda.stream(stream):
        query.copy_(torch.randn_like(query))
        torch.cuda._sleep(50_000_000)
        for batch in batches * 3:
            assert plan.update(*batch.csr)
            graph.replay()
            outputs.append(out.clone())
    stream.synchronize()
    for batch, own in zip(batches * 3, outputs):
        check(batch, batch.rows, query, own, *cache)


def test_a_batch_without_room_is_refused_and_leaves_the_plan():
    plan, graph, stream, query, out, *cache = captured(1, pages=1, requests=2)
    before = random_batch(1, HEADS, requests=2)
    query.copy_(torch.randn_like(query))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        large = random_batch(5, HEADS, requests=ROWS)
        long = [(list(np.resize([page for row in large.rows for page in row[0]], 600)), 9600)] * ROWS
        tables = np.array([pages for pages, _ in long], np.int32)
        assert not plan.update(block_tables=tables, seq_lens=np.array([9600] * ROWS, np.int32))
        graph.replay()
    stream.synchronize()
    check(before, before.rows, query, out, *cache)


def test_a_plan_for_any_batch_serves_all():
    plan, graph, stream, query, out, *cache = captured(None, pages=200)
    with torch.cuda.stream(stream):
        graph.replay()
        stream.synchronize()
        assert not out.any()
        for seed in range(16):
            batch = random_batch(seed, HEADS, requests=1 + seed)
            assert plan.update(*batch.csr)
            query.copy_(torch.randn_like(query))
            out.fill_(torch.nan)
            graph.replay()
            stream.synchronize()
            check(batch, batch.rows, query, out, *cache)


@pytest.mark.parametrize("device_lens", [False, True], ids=["lengths copied", "the engine's lengths"])
@pytest.mark.parametrize("ordered", [False, True], ids=["in place", "rows of a wider table"])
def test_a_graph_follows_its_batch(ordered, device_lens):
    """Requests grow, gain pages, come and go; tables are read where they lie."""
    on_device = torch.zeros(ROWS, dtype=torch.int32, device=DEVICE)
    options = {"device_lens": on_device} if device_lens else {}
    plan, graph, stream, query, out, *cache = captured(None, pages=200, **options)
    random, columns, count = np.random.default_rng(5), 10, len(cache[0])
    tables = random.integers(3, count, (ROWS + 4, columns + 6), dtype=np.int32)
    tables[:, :3] = range(3)
    lens = random.integers(40, 60, ROWS, dtype=np.int32)
    order = random.permutation(ROWS + 4)[:ROWS].astype(np.int32) if ordered else np.arange(ROWS, dtype=np.int32)
    kinds = set()
    with torch.cuda.stream(stream):
        for step in range(80):
            before = lens.copy()
            lens += (lens > 0) & (lens < 16 * columns)
            for row in random.choice(ROWS, int(step % 8 == 7) * 2, replace=False):
                tables[order[row], 3:] = random.integers(3, count, columns + 3)
                lens[row] = random.choice([0, 50, 100])
            kinds.add("lengths" if ((before + 15) // 16 == (lens + 15) // 16).all() else "pages")
            held = torch.from_numpy(lens), torch.from_numpy(tables)
            on_device.copy_(held[0])
            if ordered:
                table = (tables.ctypes.data, tables.shape[1]), columns, (lens.ctypes.data, ROWS), (order.ctypes.data, ROWS)
                assert plan._update(table, stream.cuda_stream)
            else:
                assert plan.update(block_tables=held[1][:ROWS, :columns], seq_lens=held[0])
            query.copy_(torch.randn_like(query))
            out.fill_(torch.nan)
            graph.replay()
            stream.synchronize()
            rows = [(tables[order[row], : -(-n // 16)].tolist(), int(n)) for row, n in enumerate(lens.tolist())]
            check(None, rows, query, out, *cache)
    assert kinds == {"lengths", "pages"}


def test_pages_beyond_a_captured_cache_are_refused():
    plan, graph, stream, query, out, *cache = captured(1, pages=400)
    before = random_batch(1, HEADS, requests=9)
    query.copy_(torch.randn_like(query))
    torch.cuda.synchronize()
    pages = len(cache[0])
    with torch.cuda.stream(stream):
        with pytest.raises(
            ValueError, match=f"the batch reads page {pages}, but `kv_cache` of a layer that was run has {pages}"
        ):
            plan.update([0, 1], [pages], [3])
        graph.replay()
    stream.synchronize()
    check(before, before.rows, query, out, *cache)
