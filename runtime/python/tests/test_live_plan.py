"""A plan that follows a batch computes what a plan from nothing computes."""

import numpy as np
import pytest
from reference import attention, close
from tilewright import Attention, Heads

HEADS, PAGE_SIZE, PAGES = Heads(8, 2, 64), 16, 400


class Steps:
    """Random changes of a batch, told to a live plan."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.made = Attention(HEADS, PAGE_SIZE, dtype="float32")
        self.live = self.made.live_plan()
        self.free = self.rng.permutation(PAGES).tolist()
        self.rows = {}
        cache = self.rng.uniform(-1, 1, (2, PAGES, PAGE_SIZE, HEADS.kv, HEADS.dim)).astype(np.float32)
        self.cache = tuple(cache)

    def take(self, count):
        return [self.free.pop() for _ in range(count)]

    def step(self):
        for _ in range(self.rng.integers(1, 4)):
            change = self.rng.choice(["add", "fork", "grow", "append", "truncate", "remove", "rename"])
            getattr(self, change)(*([int(self.rng.choice(list(self.rows)))] if self.rows and change != "add" else []))

    def add(self, prefix=()):
        request = next(number for number in range(99) if number not in self.rows)
        pages = [*prefix, *self.take(self.rng.integers(1, 4))]
        tokens = len(pages) * PAGE_SIZE - int(self.rng.integers(PAGE_SIZE))
        self.live.add(request, pages, tokens)
        self.rows[request] = (pages, tokens)

    def fork(self, request=None):
        self.add(self.rows[request][0] if request is not None else ())

    def grow(self, request=None):
        if request is not None:
            pages, tokens = self.rows[request]
            tokens = min(tokens + 1, len(pages) * PAGE_SIZE)
            self.live.grow(request, tokens)
            self.rows[request] = (pages, tokens)

    def append(self, request=None):
        if request is not None:
            pages, _ = self.rows[request]
            new = self.take(1)
            tokens = len(pages) * PAGE_SIZE + 3
            self.live.append(request, np.array(new, np.int32), tokens)
            self.rows[request] = (pages + new, tokens)

    def truncate(self, request=None):
        if request is not None:
            pages, _ = self.rows[request]
            kept = int(self.rng.integers(1, len(pages) + 1))
            self.live.truncate(request, kept, kept * PAGE_SIZE)
            self.rows[request] = (pages[:kept], kept * PAGE_SIZE)

    def remove(self, request=None):
        if request is not None:
            self.live.remove(request)
            del self.rows[request]

    def rename(self, request=None):
        if request is not None:
            free = next(number for number in range(99) if number not in self.rows)
            self.live.rename(request, free)
            self.rows[free] = self.rows.pop(request)

    def check(self):
        rows = [self.rows.get(request, ([], 0)) for request in range(max(self.rows, default=-1) + 1)]
        assert self.live.update() == self.live.batch == len(rows)
        q = self.rng.uniform(-1, 1, (len(rows), HEADS.query, HEADS.dim)).astype(np.float32)
        tables = np.full((len(rows), max((len(pages) for pages, _ in rows), default=0)), -1, np.int32)
        for table, (pages, _) in zip(tables, rows):
            table[: len(pages)] = pages
        fresh = self.made.plan(block_tables=tables, seq_lens=[tokens for _, tokens in rows])
        out, lse = self.live.run(q, self.cache, return_lse=True)
        expected, expected_lse = attention(q, *self.cache, rows)
        close(out, expected)
        close(lse, expected_lse)
        close(fresh.run(q, self.cache), expected)


@pytest.mark.parametrize("seed", range(4))
def test_random_steps_are_followed(seed):
    steps = Steps(seed)
    for _ in range(30):
        steps.step()
        steps.check()


def test_all_requests_grow_at_once():
    live = Attention(HEADS, PAGE_SIZE, dtype="float32").live_plan()
    live.add(0, [3, 4], 20)
    live.add(2, [5], 7)
    assert live.update() == 3
    live.grow_all([21, 0, 8])
    live.update()
    cache = np.random.default_rng(0).uniform(-1, 1, (2, 6, PAGE_SIZE, 2, 64)).astype(np.float32)
    q = np.ones((3, 8, 64), np.float32)
    close(live.run(q, tuple(cache)), attention(q, *cache, [([3, 4], 21), ([], 0), ([5], 8)])[0])


def test_changes_are_planned_before_they_are_run():
    live = Attention(HEADS, PAGE_SIZE, dtype="float32").live_plan()
    q, cache = np.zeros((1, 8, 64), np.float32), np.zeros((6, 2, 16, 2, 64), np.float32)
    with pytest.raises(ValueError, match=r"\[0, 8, 64\] is needed"):
        live.run(q, cache)
    live.add(0, [5], 7)
    with pytest.raises(RuntimeError, match=r"changed since it was planned: call `update\(\)`"):
        live.run(q[:0], cache)
    live.update()
    live.run(q, cache)
    assert "batch=1" in repr(live)


def test_changes_that_make_no_sense_change_nothing():
    live = Attention(HEADS, PAGE_SIZE, dtype="float32").live_plan()
    live.add(0, [5], 7)
    for change, words in [
        (lambda: live.add(0, [6], 7), "0"),
        (lambda: live.add(1, [6], 17), "17 tokens do not lie in 1 pages of 16"),
        (lambda: live.add(1, [-6], 7), "-6"),
        (lambda: live.add(-1, [6], 7), "`request` is -1: a whole number of 32 bits from 0 on"),
        (lambda: live.remove(3), "3"),
        (lambda: live.grow(0, 17), "17 tokens do not lie in 1 pages"),
        (lambda: live.grow_all([1, 2]), "2 lengths for 1 rows"),
        (lambda: live.truncate(0, 2, 20), "2"),
    ]:
        with pytest.raises(ValueError, match=words):
            change()
    assert live.update() == 1
