"""Hugging Face Transformers: continuous batching (``generate_batch``) whose decode attention reads shared prefixes once.

Call :func:`register`. With Transformers 5.17 set ``attn_implementation="paged|tilewright"`` then (:mod:`tilewright._paged_transformers`):
on a GPU no step waits for the device, and CUDA graphs serve changing batches.

With Transformers 5.24, whose cache has allocators, ``attn_implementation="sdpa"`` computes by Tilewright the requests of a step that bring few
tokens, over the pages of Transformers' own cache, without gathering them. Everything else stays as it was: prompts, sliding-window layers,
``generate``. On a GPU each step waits for its read indices there, since plans are made on the host, and CUDA graphs cannot be captured.

Requests share the pages of common prefixes by themselves, as Transformers' cache has them. Neither was run on a GPU yet.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.generation.continuous_batching import PagedAttentionCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ._attention import Attention, Heads
from ._plan import Plan

MOST_QUERY_TOKENS = 16
"""Requests that bring more tokens in a step than these are prompts, which want a kernel for prefill."""

_former_update = PagedAttentionCache.update


def register() -> str:
    """Serves continuous batching from now on.

    Returns:
        The ``attn_implementation`` that does it: ``sdpa`` or ``paged|tilewright``.

    Raises:
        RuntimeError: Transformers is of another version, and its cache is not as it is known.
    """
    if _has_allocators():
        PagedAttentionCache.update = _update  # type: ignore[method-assign]
        AttentionInterface.register("sdpa", _forward)
        return "sdpa"
    try:
        from . import _paged_transformers as paged
    except ImportError:
        paged = None  # type: ignore[assignment]
    if paged is None or not paged.serves():
        import transformers

        raise RuntimeError(f"Transformers {transformers.__version__} has another cache: 5.17 and 5.24 are known")
    paged.register()
    return paged.NAME


def unregister() -> None:
    """Leaves continuous batching as it was again."""
    if _has_allocators():
        PagedAttentionCache.update = _former_update  # type: ignore[method-assign]
        AttentionInterface.register("sdpa", sdpa_attention_forward)
    else:
        from . import _paged_transformers as paged

        paged.unregister()


def _has_allocators() -> bool:
    """Whether it is Transformers 5.24 or later. Those from 5.18 on have allocators as well, and give layers other arguments."""
    import transformers

    major, minor = transformers.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (5, 24)


@dataclass
class _Written:
    """A layer whose new K and V are in the cache, and whose attention comes next."""

    layer: int
    allocator: Any
    read_index: torch.Tensor


@dataclass
class _Step:
    """A step of a group of layers: its plan, and the requests that are left to SDPA."""

    indices: Any
    """Transformers' list of read indices. Every forward has a list of its own, which is the step's identity."""
    plan: Plan | None
    rows: torch.Tensor
    """Query tokens that the plan computes, among all of the step."""
    prompts: list[tuple[slice, slice]]
    """Query tokens and KV tokens of each request that it does not."""


class _Thread(threading.local):
    """Every generation has a thread of its own."""

    def __init__(self) -> None:
        self.written: _Written | None = None
        self.steps: dict[tuple[Any, ...], _Step] = {}


_thread = _Thread()
_attentions: dict[tuple[Any, ...], Attention] = {}


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _update(
    cache: PagedAttentionCache,
    key_states: torch.Tensor,
    value_states: torch.Tensor,
    layer_idx: int,
    kwargs: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes new K and V ``[1, KV heads, tokens, dim]`` to the cache. Where attention reads pages, nothing is gathered."""
    allocator: Any = cache.layer_to_allocator[layer_idx]
    read_index = kwargs["read_index"][allocator.index]
    if (
        cache.config._attn_implementation != "sdpa"
        or allocator.layer_type != "full_attention"
        or kwargs.get("block_table") is not None
        or read_index.numel() == 0  # prompts alone: their own K and V are all there is
    ):
        gathered: tuple[torch.Tensor, torch.Tensor] = _former_update(
            cache, key_states, value_states, layer_idx, kwargs=kwargs
        )
        return gathered
    kwargs["cu_seq_lens_k"] = kwargs["cu_seq_lens_k"][allocator.layer_type].to(torch.int32)
    kwargs["max_length_k"] = kwargs["max_length_k"][allocator.layer_type]
    keys, values = (states.squeeze(0).transpose(0, 1) for states in (key_states, value_states))
    allocator.update(keys, values, layer_idx, read_index[:0], kwargs["write_index"][allocator.index])
    _thread.written = _Written(layer_idx, allocator, read_index)
    return key_states, value_states


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Query ``[1, heads, tokens, dim]`` of all requests, one behind the other."""
    written, _thread.written = _thread.written, None
    if written is None or written.layer != getattr(module, "layer_idx", None):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    step = _step_of(written.allocator, query, scaling, kwargs)
    output = query.new_empty(query.shape[2], query.shape[1], query.shape[3])
    pages = written.allocator.get_cache_for_block_table(written.layer)
    if step.plan is not None:
        tokens = query[0].transpose(0, 1)
        if len(step.rows) == len(tokens):
            step.plan.run(tokens, pages, output)
        else:
            output[step.rows] = step.plan.run(tokens[step.rows], pages)
    for q, kv in step.prompts:
        keys, values = (cache.flatten(0, 1)[written.read_index[kv]].transpose(0, 1).unsqueeze(0) for cache in pages)
        mask = None if attention_mask is None else attention_mask[..., q, kv]
        part, _ = sdpa_attention_forward(
            module, query[:, :, q], keys, values, mask, dropout=dropout, scaling=scaling, **kwargs
        )
        output[q] = part[0]
    return output.unsqueeze(0), None


def _step_of(allocator: Any, query: torch.Tensor, scaling: float | None, kwargs: dict[str, Any]) -> _Step:
    """The step's plan, made by its first layer."""
    _, query_heads, _, dim = query.shape
    heads = Heads(query_heads, allocator.num_key_value_heads, dim)
    made_for = (heads, allocator.tokens_per_page, query.dtype, query.device, scaling)
    indices = kwargs["read_index"]
    step = _thread.steps.get((*made_for, allocator.index))
    if step is not None and step.indices is indices:
        return step
    attention = _attentions.get(made_for)
    if attention is None:
        attention = Attention(heads, allocator.tokens_per_page, dtype=query.dtype, device=query.device, scale=scaling)
        _attentions[made_for] = attention
    step = _plan(attention, indices, indices[allocator.index], kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"])
    _thread.steps[(*made_for, allocator.index)] = step
    return step


def _plan(
    attention: Attention, indices: Any, read: torch.Tensor, cu_seq_lens_q: torch.Tensor, cu_seq_lens_k: torch.Tensor
) -> _Step:
    """Plans the requests that bring few tokens.

    Tokens of a page are neighbours in the cache, so that every ``page_size``-th read index of a request names a page.
    """
    read = read.cpu()
    q_ends, kv_ends = cu_seq_lens_q.tolist(), cu_seq_lens_k.tolist()
    page_size = attention.page_size
    pages: list[torch.Tensor] = []
    seq_lens: list[int] = []
    query_lens: list[int] = []
    rows: list[int] = []
    prompts: list[tuple[slice, slice]] = []
    for q_begin, q_end, kv_begin, kv_end in zip(q_ends, q_ends[1:], kv_ends, kv_ends[1:]):
        if q_end - q_begin > MOST_QUERY_TOKENS:
            prompts.append((slice(q_begin, q_end), slice(kv_begin, kv_end)))
        elif q_end > q_begin:
            pages.append((read[kv_begin:kv_end:page_size] // page_size).to(torch.int32))
            seq_lens.append(kv_end - kv_begin)
            query_lens.append(q_end - q_begin)
            rows.extend(range(q_begin, q_end))
    plan = None
    if pages:
        tables = torch.nn.utils.rnn.pad_sequence(pages, batch_first=True, padding_value=-1)
        plan = attention.plan(block_tables=tables, seq_lens=seq_lens, query_lens=query_lens)
    return _Step(indices, plan, torch.tensor(rows, dtype=torch.int64, device=cu_seq_lens_q.device), prompts)
