"""What a decode step costs on the host before it is queued: 256 requests with one system prompt."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from tilewright import Attention, Heads

REQUESTS, PAGE, PREFIX, OWN = 256, 256, 8192, 600
TABLE_COLUMNS = 512  # requests of up to 131072 tokens


def _median_us(call: Callable[[int], object], times: int = 60) -> float:
    """Of calls with the numbers 0, 1, ..."""
    took = []
    for number in range(times):
        before = time.perf_counter()
        call(number)
        took.append(time.perf_counter() - before)
    return 1e6 * sorted(took)[times // 2]


def measure(results, device: torch.device) -> None:
    """By a plan from nothing, by one for graphs, and by one that follows the batch."""
    attention = Attention(Heads(32, 8, 128), PAGE, dtype="bfloat16", device=device)
    began = time.perf_counter()
    attention.prepare()
    prepared = time.perf_counter() - began
    shared = list(range(PREFIX // PAGE))
    own = -(-OWN // PAGE) + 1
    pages = [shared + [1000 + own * i + j for j in range(own - 1)] for i in range(REQUESTS)]
    spare = [1000 + own * i + own - 1 for i in range(REQUESTS)]
    tokens = [PREFIX + OWN + i % 50 for i in range(REQUESTS)]

    def tables(lens: list[int], lists: list[list[int]]) -> dict[str, list[int]]:
        indptr, indices, last = [0], [], []
        for length, row in zip(lens, lists):
            indices += row
            indptr.append(len(indices))
            last.append(length - (len(row) - 1) * PAGE)
        return {"indptr": indptr, "indices": indices, "last_page_len": last}

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    first = tables(tokens, pages)
    arrays = {name: np.array(part, np.int32) for name, part in first.items()}
    block_tables = torch.zeros(REQUESTS, TABLE_COLUMNS, dtype=torch.int32)
    block_tables[:, : len(pages[0])] = torch.tensor(pages, dtype=torch.int32)
    seq_lens = torch.tensor(tokens, dtype=torch.int32)
    graph_plan = attention.graph_plan(**first, rows=REQUESTS, pages=2 * len(first["indices"]))
    live = attention.live_plan()
    for i in range(REQUESTS):
        live.add(i, pages[i], tokens[i])
    live.update()
    cuda = device.type == "cuda"

    def grow(number: int) -> None:
        live.grow_all([length + number + 1 for length in tokens])
        live.update()
        if cuda:
            live.upload()

    def cross(number: int) -> None:
        """One request needs another page, as in most steps of a batch of this size."""
        live.append(number, [spare[number]], (own - 1) * PAGE + PREFIX + 1)
        live.update()
        if cuda:
            live.upload()

    results.add(
        "host",
        {
            "requests": REQUESTS,
            "page_entries": len(first["indices"]),
            "prepare_s": prepared,
            # What Transformers has is lists of Python's; vLLM has block tables in tensors.
            "lists_us": _median_us(lambda number: tables(tokens, pages)),
            "plan_of_lists_us": _median_us(lambda number: attention.plan(**first)),
            "plan_of_arrays_us": _median_us(lambda number: attention.plan(**arrays)),
            # The batch is the same each time: what they take is the comparison (`metadata_cost.py` has batches that change).
            "graph_plan_of_lists_us": _median_us(lambda number: graph_plan.update(**first)),
            "graph_plan_of_arrays_us": _median_us(lambda number: graph_plan.update(**arrays)),
            "graph_plan_of_block_tables_us": _median_us(
                lambda number: graph_plan.update(block_tables=block_tables, seq_lens=seq_lens)
            ),
            "graph_plan_lengths_us": _median_us(lambda number: graph_plan.set_lengths([n + number for n in tokens])),
            "live_plan_grow_us": _median_us(grow, 40),
            "live_plan_page_us": _median_us(cross, 40),
        },
    )
    finish()
