"""Transformers before 5.18: continuous batching with ``attn_implementation="paged|tilewright"``.

The engine's scheduler, cache and CUDA graphs stay as they are. Steps that only decode take its fast path, whose block tables the host knows:
they are planned before the step is queued, and nothing waits for the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.generation.continuous_batching import PagedAttentionCache, initialization, input_outputs, model_runner

from ._attention import Attention, Heads
from ._graph_plan import GraphPlan
from ._plan import Plan

NAME = "paged|tilewright"

_Cache = Any
"""A `PagedAttentionCache` as it is before 5.18."""

MOST_QUERY_TOKENS = 256
"""Requests that bring more tokens in a step than these are prompts, which want a kernel for prefill."""

_UNSUPPORTED = ("s_aux", "softcap", "logit_cap")

_former_prepare = input_outputs.ContinuousBatchingIOs.prepare_batch_tensors
_former_compute = model_runner.ModelRunner.compute_batch
_former_ensure = initialization.ensure_decode_fast_path_is_available


def serves() -> bool:
    """Whether this version's cache and step are as they are known: before 5.18 the cache has groups of layers, later allocators."""
    return find_spec("transformers.generation.continuous_batching.cache_manager") is not None


def register() -> None:
    """Adds the implementation."""
    AttentionInterface.register(NAME, _forward)
    input_outputs.ContinuousBatchingIOs.prepare_batch_tensors = _prepare  # type: ignore[method-assign]
    model_runner.ModelRunner.compute_batch = _compute  # type: ignore[method-assign]
    initialization.ensure_decode_fast_path_is_available = _ensure


def unregister() -> None:
    """Takes it away again."""
    AttentionInterface._global_mapping.pop(NAME, None)
    input_outputs.ContinuousBatchingIOs.prepare_batch_tensors = _former_prepare  # type: ignore[method-assign]
    model_runner.ModelRunner.compute_batch = _former_compute  # type: ignore[method-assign]
    initialization.ensure_decode_fast_path_is_available = _former_ensure


@dataclass
class _Request:
    """A request of a step."""

    name: str
    past: int
    """Tokens in the cache before the step."""
    queries: int
    """Tokens that the step brings."""

    @property
    def tokens(self) -> int:
        return self.past + self.queries


@dataclass
class _Step:
    """A step of the engine, as the host knows it."""

    requests: list[_Request]
    plans: dict[tuple[Any, ...], tuple[Plan | None, Any]] = field(default_factory=dict)
    """Of each kind of layer: the plan of the requests that bring few tokens, and which tokens those are."""
    slots: torch.Tensor | None = None
    """Where K and V of the new tokens go, in steps that only decode."""


class _BlockTables:
    """Block tables of the steps of a plan, in one place: what an engine's lists keep from step to step is not copied again."""

    def __init__(self) -> None:
        self._lists: list[list[int]] = []
        self._entries = np.zeros((0, 1), np.int32)

    def of(self, cache: _Cache, group: int, requests: list[_Request]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The pages of these requests int32 ``[requests, columns]``, with others behind their tokens, and their tokens int32 ``[requests]``."""
        lists = cache.group_cache_managers[group].block_table
        for row, request in enumerate(requests):
            pages = lists[request.name]
            if row == len(self._lists):
                self._lists.append([])
            # Numbers are mostly the same objects, which is seen without looking at them.
            if self._lists[row] != pages:
                self._make_room(row + 1, len(pages))
                self._entries[row, : len(pages)] = pages
                self._lists[row] = pages.copy()
        self._make_room(len(requests), 1)
        return self._entries[: len(requests)], np.array([request.tokens for request in requests], np.int32)

    def _make_room(self, rows: int, columns: int) -> None:
        before = self._entries
        if rows > before.shape[0] or columns > before.shape[1]:
            grown = [size if needed <= size else 2 * needed for size, needed in zip(before.shape, (rows, columns))]
            self._entries = np.zeros(grown, np.int32)
            self._entries[: before.shape[0], : before.shape[1]] = before


@dataclass
class _Graphed:
    """A plan for steps of one number of rows, whose graphs have captured it."""

    plan: GraphPlan
    tables: _BlockTables = field(default_factory=_BlockTables)

    def update(self, cache: _Cache, group: int, requests: list[_Request]) -> bool:
        """Whether the plan has room for the step."""
        entries, lens = self.tables.of(cache, group, requests)
        return self.plan.update(block_tables=entries, seq_lens=lens)


@dataclass
class _Engine:
    """What is kept for a cache."""

    step: _Step | None = None
    padded: bool = False
    """Steps that only decode have powers of two of rows: for CUDA graphs, or for `torch.compile`."""
    attentions: dict[tuple[Any, ...], Attention] = field(default_factory=dict)
    graphed: dict[tuple[int, int, Attention], _Graphed] = field(default_factory=dict)
    """Of each group of layers, number of rows and kind of layer."""


_engines: weakref.WeakKeyDictionary[PagedAttentionCache, _Engine] = weakref.WeakKeyDictionary()


def _engine(cache: _Cache) -> _Engine:
    return _engines.setdefault(cache, _Engine())


def _ensure(config: Any, cb_config: Any, user_requested: bool) -> None:
    """Our implementation has block tables on every device."""
    if config._attn_implementation != NAME:
        _former_ensure(config, cb_config, user_requested)


def _prepare(self: Any, requests_in_batch: list[Any], *args: Any, **kwargs: Any) -> None:
    """Notes the requests of the next step, which the host knows."""
    if self.config._attn_implementation == NAME:
        requests = [_Request(r.state.request_id, r.state.position_offset, r.query_length) for r in requests_in_batch]
        _engine(self.cache).step = _Step(requests)
    _former_prepare(self, requests_in_batch, *args, **kwargs)


def _compute(self: Any, model: Any, batch_data: dict[str, Any]) -> None:
    """Plans a step that may replay a graph before it is queued."""
    engine = _engines.get(self.cache)
    if engine is not None and engine.step is not None and model.config._attn_implementation == NAME:
        engine.padded = self.pad_inputs
        if self.pad_inputs and batch_data.get("block_table") is not None:
            stream = self.inputs_and_outputs.compute_stream
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                _update_graphed(self, engine, batch_data["input_ids"].shape[1])
    _former_compute(self, model, batch_data)


def _update_graphed(runner: Any, engine: _Engine, rows: int) -> None:
    """Gives the plans that graphs of as many rows have captured the step's batch."""
    assert engine.step is not None
    for key, graphed in list(engine.graphed.items()):
        group, planned_rows, _ = key
        if planned_rows == rows and not graphed.update(runner.cache, group, engine.step.requests):
            # What was captured is too small for this step: it is captured again.
            del engine.graphed[key]
            _forget_graphs(runner.inputs_and_outputs, rows)


def _forget_graphs(ios: Any, rows: int) -> None:
    """Drops the graphs of steps with as many rows. What was queued of them is done first."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    pairs = getattr(ios, "io_pairs", None)
    for io in [ios] if pairs is None else [pair.device_io for pair in pairs]:
        graph = io.graphs._storage.pop((rows,), None)
        if graph is not None:
            graph.reset()


def _tables(cache: _Cache, group: int, requests: list[_Request]) -> dict[str, list[int]]:
    """The page table of these requests, from the host's lists: a row each."""
    lists = cache.group_cache_managers[group].block_table
    size = cache.block_size
    indptr, indices, last_page_len = [0], list[int](), list[int]()
    for request in requests:
        pages = lists[request.name]
        count = -(-request.tokens // size)
        indices += pages if len(pages) == count else pages[:count]
        indptr.append(len(indices))
        last_page_len.append(request.tokens - (count - 1) * size)
    return {"indptr": indptr, "indices": indices, "last_page_len": last_page_len}


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    cache: _Cache | None = None,
    block_table: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Query, key and value ``[1, heads, tokens, dim]`` of all requests of a step, one behind the other.

    Raises:
        ValueError: outside of continuous batching, or a layer with something that is not served.
    """
    if cache is None:
        raise ValueError(f"`{NAME}` is for continuous batching (`generate_batch`): use `sdpa` otherwise")
    sliding = getattr(module, "sliding_window", None)
    wants = [name for name in _UNSUPPORTED if kwargs.get(name) is not None] + (["sliding_window"] if sliding else [])
    if wants:
        raise ValueError(f"`{NAME}` does not serve layers with {', '.join(wants)}: use `paged|sdpa` or `paged|eager`")
    engine = _engine(cache)
    step = engine.step
    if step is None:
        raise ValueError(f"`{NAME}` was set while a step was prepared: set it before `generate_batch`")
    group, place = cache.layer_index_to_group_indices[module.layer_idx]
    tokens = query[0].transpose(0, 1)
    keys, values = cache.key_cache[place], cache.value_cache[place]
    if block_table is None:
        slots = kwargs["write_index"][group]
    else:
        if place == 0 or step.slots is None:
            step.slots = _slots(cache, block_table[group], kwargs["cu_seq_lens_k"])
        slots = step.slots
    keys.index_copy_(0, slots, key[0].transpose(0, 1))
    values.index_copy_(0, slots, value[0].transpose(0, 1))
    pages = tuple(part.view(-1, cache.block_size, *part.shape[1:]) for part in (keys, values))
    attention = _attention(engine, query, keys, cache.block_size, scaling)
    if block_table is not None:
        return _decode_plan(engine, step, cache, group, attention, tokens).run(tokens, pages).unsqueeze(0), None
    output = torch.zeros_like(tokens, memory_format=torch.contiguous_format)  # tokens of padding have no request
    found = step.plans.get((group, attention))
    if found is None:
        found = step.plans[group, attention] = _mixed_plan(step, cache, group, attention, query.device)
    plan, rows = found
    if plan is not None:
        output[rows] = plan.run(tokens[rows], pages)
    for (begin, end), request in _spans(step.requests):
        if request.queries > MOST_QUERY_TOKENS:
            new = slice(begin, end)
            k, v = key[0, :, new], value[0, :, new]
            if request.past > 0:
                table = _tables(cache, group, [request])["indices"]
                of = torch.tensor(table, device=query.device)
                k, v = (part[of].flatten(0, 1)[: request.tokens].transpose(0, 1) for part in pages)
            output[new] = _prompt(query[0, :, new], k, v, scaling).transpose(0, 1)
    return output.unsqueeze(0), None


def _spans(requests: list[_Request]) -> list[tuple[tuple[int, int], _Request]]:
    """Each request with its query tokens among all of the step."""
    spans, begin = [], 0
    for request in requests:
        spans.append(((begin, begin + request.queries), request))
        begin += request.queries
    return spans


def _slots(cache: _Cache, block_table: torch.Tensor, cu_seq_lens_k: torch.Tensor) -> torch.Tensor:
    """Where each request's newest token goes ``[requests]``: on the device, so that a graph does it. Padding goes where nobody reads."""
    lens = (cu_seq_lens_k[1:] - cu_seq_lens_k[:-1]).long()
    last = (lens - 1).clamp_(min=0)
    page = block_table.gather(1, (last // cache.block_size).unsqueeze(1)).squeeze(1).long()
    return torch.where(lens > 0, page * cache.block_size + last % cache.block_size, cache.write_trash_index)


def _attention(
    engine: _Engine, query: torch.Tensor, keys: torch.Tensor, page_size: int, scaling: float | None
) -> Attention:
    _, heads, _, dim = query.shape
    made_for = (heads, keys.shape[1], dim, page_size, query.dtype, query.device, scaling)
    attention = engine.attentions.get(made_for)
    if attention is None:
        of = Heads(heads, keys.shape[1], dim)
        attention = Attention(of, page_size, dtype=query.dtype, device=query.device, scale=scaling)
        engine.attentions[made_for] = attention
    return attention


def _decode_plan(
    engine: _Engine, step: _Step, cache: _Cache, group: int, attention: Attention, tokens: torch.Tensor
) -> Plan | GraphPlan:
    """The plan of a step that only decodes, with a row for each token, padding included."""
    rows = len(tokens)
    if engine.padded:
        graphed = engine.graphed.get((group, rows, attention))
        if graphed is None:
            tables = _tables(cache, group, step.requests)
            # Room for batches with twice as many pages: one that grows is planned for long without another capture.
            plan = attention.graph_plan(**tables, rows=rows, pages=2 * len(tables["indices"]) + rows)
            graphed = engine.graphed[group, rows, attention] = _Graphed(plan)
        return graphed.plan
    made, _ = step.plans.get((group, attention), (None, None))
    if made is None:
        made = attention.plan(**_tables(cache, group, step.requests))
        step.plans[group, attention] = (made, None)
    return made


def _mixed_plan(
    step: _Step, cache: _Cache, group: int, attention: Attention, device: torch.device
) -> tuple[Plan | None, Any]:
    """The plan of a step's requests that bring few tokens, and which tokens these are."""
    few = [(span, request) for span, request in _spans(step.requests) if request.queries <= MOST_QUERY_TOKENS]
    if not few:
        return None, None
    plan = attention.plan(
        **_tables(cache, group, [request for _, request in few]), query_lens=[request.queries for _, request in few]
    )
    rows = [row for (begin, end), _ in few for row in range(begin, end)]
    return plan, torch.tensor(rows, device=device)


def _prompt(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """Attention of a prompt's tokens ``[heads, tokens, dim]``, which are the last ones of K and V, by SDPA."""
    times = query.shape[0] // keys.shape[0]
    keys, values = (part.repeat_interleave(times, 0).unsqueeze(0) for part in (keys, values))
    new, tokens = query.shape[1], keys.shape[2]
    causal: dict[str, Any] = {"is_causal": True}
    if new < tokens:
        seen = torch.ones(new, tokens, dtype=torch.bool, device=query.device).tril_(tokens - new)
        causal = {"attn_mask": seen}
    sdpa: Callable[..., torch.Tensor] = torch.nn.functional.scaled_dot_product_attention
    return sdpa(query.unsqueeze(0), keys, values, scale=scaling, **causal)[0]
