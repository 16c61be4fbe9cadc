"""K and V of new tokens, written to the pages of a cache."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from ._run import cache_of, kv_strides_of, scales_of
from ._tensors import Integers, Tensor, check, check_dense, check_written, device_name, rows, view

if TYPE_CHECKING:
    from ._attention import Attention


def append(
    attention: Attention,
    k: Tensor,
    v: Tensor,
    kv_cache: Tensor | tuple[Tensor, Tensor],
    slots: Integers,
    k_scale: Tensor | float | None,
    v_scale: Tensor | float | None,
) -> None:
    """See :meth:`Attention.append`."""
    if attention._device is not None:
        raise ValueError(
            f"the attention is on {device_name(attention._device)}, tokens are appended on the CPU alone: "
            "on a GPU, write K and V to their pages by torch or the engine's own kernel"
        )
    length, address, held = _slots(slots)
    heads = attention._heads
    tokens = view("k", k), view("v", v)
    for seen in tokens:
        check(seen, attention._dtype, None, (length, heads.kv, heads.dim), "[slots, KV heads, dim]")
    cache = cache_of(kv_cache, attention)
    kv_strides = kv_strides_of(*cache, attention._kv_layout)
    scales = scales_of(k_scale, v_scale, attention)
    for pages in cache:
        check_written(pages, [*tokens, *(scales or ())])
    for seen, pages, scale in zip(tokens, cache, scales or (None, None)):
        attention._native.append(
            rows(seen),
            (address, length),
            pages.address,
            pages.shape[0],
            kv_strides,
            None if scale is None else (scale.address, scale.shape[0]),
        )
    del held


def _slots(slots: Integers) -> tuple[int, int, object]:
    """Their number, address, and what holds them."""
    if isinstance(slots, (list, tuple, range)):
        try:
            numbers = array("q", slots)
        except (OverflowError, TypeError) as error:
            raise TypeError(f"`slots` has entries that are no whole numbers of 64 bits: {error}") from error
        return len(numbers), numbers.buffer_info()[0], numbers
    seen = view("slots", slots)
    check(seen, "int64", None, (None,), "one slot a token")
    check_dense(seen)
    return seen.shape[0], seen.address, seen.owner
