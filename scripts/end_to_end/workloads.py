"""Prompts that share prefixes, a system prompt, PAT's trees, a trace of conversations, and prompts that share nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

CATALOGUE = Path(__file__).resolve().parents[2] / "scenarios" / "catalogue"
WIDE = 256
"""Requests of the batch that shows what a step costs on the host."""
TRACE_BLOCK = 512
"""Tokens that a hash id of a trace stands for."""


@dataclass
class Workload:
    """A batch that decodes together. Prompts are whole pages and a token, so that all of a prompt but its last token can be put into the cache before."""

    name: str
    page_size: int
    prompts: list[list[int]]
    levels: list[list[list[int]]]
    """Prompts that put prefixes into the cache first, one level of the trees after the other: a page is shared once it is there."""

    @classmethod
    def of(cls, name: str, page_size: int, prompts: list[list[int]], shared: list[list[list[int]]]) -> Workload:
        whole = [prompt[: len(prompt) // page_size * page_size] for prompt in prompts]
        return cls(
            name,
            page_size,
            [[*prompt, 1] for prompt in whole if prompt],
            [*shared, [[*prompt, 1] for prompt in whole if prompt]],
        )

    @property
    def unique_pages(self) -> int:
        """Pages of all prompts, shared ones once."""
        seen: set[int] = set()
        own = 0
        for prompt in self.prompts:
            key = 0
            for begin in range(0, len(prompt), self.page_size):
                page = tuple(prompt[begin : begin + self.page_size])
                key = hash((key, page))
                if len(page) < self.page_size:
                    own += 1
                else:
                    seen.add(key)
        return len(seen) + own

    @property
    def tokens(self) -> int:
        """Tokens of all prompts, each with all of its own."""
        return sum(map(len, self.prompts))

    @property
    def longest(self) -> int:
        return max(map(len, self.prompts))

    def cache_tokens(self, block_size: int, growth: int) -> int:
        """Pages of all prompts, those that requests grow into, and one that they begin with."""
        return self.unique_pages * self.page_size + len(self.prompts) * (growth + 2 * block_size)


def _tokens(vocabulary: int, seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, vocabulary, count).tolist()


def shared(vocabulary: int, requests: int, prefix: int, own: int = 256, page_size: int = 256) -> Workload:
    """Requests with one system prompt, and tokens of their own."""
    system = _tokens(vocabulary, 1, prefix)
    prompts = [system + _tokens(vocabulary, 1000 + i, own) for i in range(requests)]
    return Workload.of(f"{requests} requests, {prefix} shared tokens", page_size, prompts, [[[*system, 1]]])


APART = ((64, 2048), (8, 1024))
"""Requests, and tokens of each, of batches with nothing in common: nothing is gained there, and nothing may be lost."""


def apart(vocabulary: int, requests: int, length: int, page_size: int = 256) -> Workload:
    """Requests of about one length that have nothing in common."""
    # Lengths a little apart, as those of real requests are, in whole pages.
    pages = [length // page_size + (i % 3 - 1 if length > page_size else 0) for i in range(requests)]
    prompts = [_tokens(vocabulary, 5_000_003 + i, count * page_size) for i, count in enumerate(pages)]
    return Workload.of(f"{requests} requests of {length} tokens, nothing shared", page_size, prompts, [])


FIRST_TREES = ("1,8,512_32,2048,256", "4,16,256,512_512,32,128,32", "1,10_4096,416", "1,4,256_32,256,32")
"""Long shared nodes, several roots, few requests, short ones."""


def trees(vocabulary: int, count: int, most_tokens: int, scale: int = 1) -> list[Workload]:
    """Trees of the catalogue's scenario of PAT, figure 9, with as many tokens of K and V as there may be."""
    # Strings as they are: `256_1024` is a number in YAML 1.1.
    scenario = yaml.load((CATALOGUE / "pat-fig9.yaml").read_text(), yaml.BaseLoader)
    page_size = int(scenario["page_sizes"][0])
    texts = [*FIRST_TREES, *(text for text in scenario["trees"] if text not in FIRST_TREES)]
    found = []
    for text in texts:
        nodes, tokens = ([int(number) for number in part.split(",")] for part in text.split("_"))
        nodes = [max(1, number // scale) for number in nodes]
        if len(found) < count and sum(n * t for n, t in zip(nodes, tokens)) <= most_tokens:
            found.append(_tree(vocabulary, page_size, text, nodes, tokens))
    return found


def _tree(vocabulary: int, page_size: int, text: str, nodes: list[int], tokens: list[int]) -> Workload:
    levels: list[list[list[int]]] = []
    above: list[list[int]] = [[]]
    for depth, (count, length) in enumerate(zip(nodes, tokens)):
        parents = len(above) or 1
        above = [
            above[node * parents // count] + _tokens(vocabulary, (depth + 1) * 1_000_003 + node, length)
            for node in range(count)
        ]
        if depth + 1 < len(nodes):
            levels.append([[*prompt, 1] for prompt in above])
    return Workload.of(f"tree {text}", page_size, above, levels)


def conversations(
    vocabulary: int, trace: Path | None, most_tokens: int, most_requests: int = 64, scale: int = 1
) -> Workload:
    """Requests of a trace that decode at the same time, each at 25 tokens/s."""
    requests = _read(trace) if trace else _generate()
    at = 75_000
    decoding = [
        request
        for request in requests
        if request["timestamp"]
        <= at
        < request["timestamp"] + 40 * request["output_length"] + request["input_length"] / 20
    ]
    chosen: list[tuple[list[int], int]] = []
    seen: set[int] = set()
    for request in decoding[:most_requests]:
        ids = request["hash_ids"]
        if TRACE_BLOCK * len(seen.union(ids)) // scale <= most_tokens:
            seen.update(ids)
            chosen.append((ids, max(2, request["input_length"] // scale)))
    if not chosen:
        raise ValueError(f"no request of the trace decodes at {at / 1000:.0f} s and fits")
    block = TRACE_BLOCK // scale

    def prompt(ids: list[int]) -> list[int]:
        return [token for id in ids for token in _tokens(vocabulary, 7_000_003 + id, block)]

    common = {
        tuple(ids[: next((i for i, (a, b) in enumerate(zip(ids, others)) if a != b), min(len(ids), len(others)))])
        for ids, _ in chosen
        for others, _ in chosen
        if others is not ids
    }
    lengths = sorted({len(ids) for ids in common} - {0})
    levels = [[[*prompt(list(ids)), 1] for ids in common if len(ids) == length] for length in lengths]
    name = f"{len(chosen)} conversations of {trace.name if trace else 'a generated trace'}"
    return Workload.of(name, 256 // scale, [prompt(ids)[:length] for ids, length in chosen], levels)


def chosen(args, vocabulary: int, most_tokens: int) -> Iterator[Workload]:
    """Those of the command line."""
    scale = 16 if args.small else 1
    for kind in args.workloads.split(","):
        if kind == "shared":
            yield shared(vocabulary, max(2, args.requests // scale), args.prefix // scale, 256 // scale, 256 // scale)
        elif kind == "wide":
            yield shared(vocabulary, WIDE // scale, args.prefix // scale, 256 // scale, 256 // scale)
        elif kind == "apart":
            for requests, length in APART:
                yield apart(vocabulary, max(2, requests // scale), length // scale, 256 // scale)
        elif kind == "trees":
            yield from trees(vocabulary, args.trees, most_tokens, scale)
        elif kind == "trace":
            yield conversations(vocabulary, args.trace, most_tokens, scale=scale)
        else:
            raise SystemExit(f"error: there is no workload {kind}: shared, apart, wide, trees, trace")


def _read(path: Path) -> list[dict]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _generate() -> list[dict]:
    """As the generator of the catalogue's `conversation` does, from other random numbers."""
    settings = yaml.safe_load((CATALOGUE / "conversation.yaml").read_text())["trace"]["generate"]
    rng = np.random.default_rng(5)
    requests: list[dict] = []
    time, next_id = 0.0, 1
    for _ in range(settings["requests"]):
        time += rng.exponential(1000 / settings["requests_per_second"])
        turn = max(1, int(rng.exponential(settings["turn_tokens"])))
        said, ids = 0, [0]  # the system prompt
        if requests and rng.random() < settings["follow_ups"]:
            before = requests[rng.integers(len(requests))]
            whole = before["input_length"] // TRACE_BLOCK
            if whole:  # a follow-up repeats the whole blocks of the conversation so far
                said, ids = before["input_length"], list(before["hash_ids"][:whole])
        length = max(said + turn, TRACE_BLOCK + 1)
        while len(ids) * TRACE_BLOCK < length:
            ids.append(next_id)
            next_id += 1
        output = max(1, int(rng.exponential(settings["output_tokens"])))
        requests.append({"timestamp": time, "input_length": length, "output_length": output, "hash_ids": ids})
    return requests
