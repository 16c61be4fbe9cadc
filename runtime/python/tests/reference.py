"""Attention in f64, and random batches over paged caches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOLERANCES = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def attention(q, keys, values, rows, scale=None, window=None, softcap=None, sinks=None):
    """Output and LSE in f64 of queries `[batch, heads, dim]`.

    K and V are `[pages, page_size, KV heads, dim]`; `rows` has the pages and the tokens that each query sees.
    """
    batch, heads, dim = q.shape
    page_size, kv_heads = keys.shape[1:3]
    group = heads // kv_heads
    scale = dim**-0.5 if scale is None else scale
    out, lse = np.zeros((batch, heads, dim)), np.full((batch, heads), -np.inf)
    for query, (pages, tokens) in enumerate(rows):
        used = np.asarray(pages, np.int64)[: -(-tokens // page_size)]
        k, v = (
            np.repeat(cache[used].astype(np.float64).reshape(-1, kv_heads, dim)[:tokens], group, axis=1)
            for cache in (keys, values)
        )
        logits = np.einsum("hd,thd->ht", q[query].astype(np.float64), k) * scale
        if softcap is not None:
            logits = softcap * np.tanh(logits / softcap)
        if window is not None:
            logits[:, : max(0, tokens - window)] = -np.inf
        if sinks is not None:
            logits = np.concatenate([logits, np.asarray(sinks, np.float64)[:, None]], axis=1)
            v = np.concatenate([v, np.zeros((1, heads, dim))])
        if logits.shape[1] == 0:
            continue
        top = logits.max(axis=1, keepdims=True)
        weights = np.exp(logits - top)
        total = weights.sum(axis=1, keepdims=True)
        out[query] = np.einsum("ht,thd->hd", weights / total, v)
        lse[query] = (top + np.log(total))[:, 0]
    return out, lse


@dataclass
class Batch:
    """Requests with their pages and tokens, over K and V `[pages, page_size, KV heads, dim]`."""

    rows: list[tuple[list[int], int]]
    page_size: int
    keys: np.ndarray
    values: np.ndarray
    q: np.ndarray

    @property
    def csr(self):
        """`indptr`, `indices`, `last_page_len`."""
        used = [pages[: -(-tokens // self.page_size)] for pages, tokens in self.rows]
        indptr = np.cumsum([0, *map(len, used)], dtype=np.int32)
        indices = np.array([page for row in used for page in row], np.int32)
        last = [(tokens - 1) % self.page_size + 1 if tokens else 0 for _, tokens in self.rows]
        return indptr, indices, np.array(last, np.int32)

    @property
    def block_tables(self):
        """`block_tables` with junk behind the tokens, and `seq_lens`."""
        columns = max((len(pages) for pages, _ in self.rows), default=0) + 1
        tables = np.full((len(self.rows), columns), -1, np.int32)
        for row, (pages, _) in zip(tables, self.rows):
            row[: len(pages)] = pages
        return tables, np.array([tokens for _, tokens in self.rows], np.int32)

    def cache(self, layout):
        """K and V in a layout."""
        if layout == "NHD":
            return self.keys, self.values
        return tuple(np.ascontiguousarray(cache.transpose(0, 2, 1, 3)) for cache in (self.keys, self.values))


def random_batch(seed, heads, page_size=16, dtype=np.float32, requests=9, most_pages=7):
    """Requests that share prefixes of several lengths, some of them without tokens."""
    rng = np.random.default_rng(seed)
    free = iter(rng.permutation(requests * most_pages + 20).tolist())
    prefixes = [[next(free) for _ in range(rng.integers(1, 4))] for _ in range(2)]
    prefixes.append(prefixes[0] + [next(free)])
    rows = []
    for request in range(requests):
        if request % 5 == 4:
            rows.append(([], 0))
            continue
        prefix = prefixes[rng.integers(len(prefixes))] if rng.random() < 0.7 else []
        own = [next(free) for _ in range(rng.integers(1, 4))]
        # The last page is full, or has any number of tokens.
        last = int(rng.integers(1, page_size + 1))
        rows.append((prefix + own, (len(prefix) + len(own) - 1) * page_size + last))
    query, kv, dim = heads
    pages = requests * most_pages + 20
    cache = rng.uniform(-1, 1, (2, pages, page_size, kv, dim))
    for keys in cache[0, :, :, :, 0]:
        keys *= 4  # logits of some size
    q = rng.uniform(-1, 1, (requests, query, dim)).astype(dtype)
    return Batch(rows, page_size, cache[0].astype(dtype), cache[1].astype(dtype), q)


def close(out, expected, dtype="float32"):
    """Asserts that numbers agree as far as the dtype has digits; infinities are equal."""
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def angles(positions, dim):
    """Of each position the cosines of `dim / 2` angles, then their sines."""
    at = np.arange(positions)[:, None] / 10_000.0 ** (np.arange(0, dim, 2) / dim)
    return np.concatenate([np.cos(at), np.sin(at)], axis=1).astype(np.float32)


def rotated(keys, table, positions, interleaved):
    """`[tokens, heads, dim]` with the first elements rotated, in f64."""
    out, dim = keys.astype(np.float64), table.shape[1]
    cosines, sines = np.split(table[positions].astype(np.float64)[:, None], 2, axis=2)
    pairs = (slice(0, dim, 2), slice(1, dim, 2)) if interleaved else (slice(0, dim // 2), slice(dim // 2, dim))
    first, second = (out[..., pair].copy() for pair in pairs)
    out[..., pairs[0]], out[..., pairs[1]] = first * cosines - second * sines, second * cosines + first * sines
    return out
