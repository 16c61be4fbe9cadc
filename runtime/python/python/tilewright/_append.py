"""K and V of new tokens, written to the pages of a cache."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from ._run import cache_of, kv_strides_of, scales_of, stream_of
from ._tensors import (
    Integers,
    Tensor,
    View,
    check,
    check_dense,
    check_written,
    device_name,
    rows,
    torch_of,
    view,
)

if TYPE_CHECKING:
    from ._attention import Attention

_CODES = {"int64": "q", "int32": "i"}


def append(
    attention: Attention,
    k: Tensor,
    v: Tensor,
    kv_cache: Tensor | tuple[Tensor, Tensor],
    slots: Integers,
    k_scale: Tensor | float | None,
    v_scale: Tensor | float | None,
    cos_sin: Tensor | None,
    positions: Integers | None,
    seq_lens: Integers | None,
    interleaved: bool,
    stream: Any,
) -> None:
    """See :meth:`Attention.append`."""
    device = attention._device
    places = _numbers("slots", slots, "int64", device)
    length = places.shape[0]
    heads = attention._heads
    keys, values = view("k", k), view("v", v)
    for seen in (keys, values):
        check(seen, attention._dtype, device, (length, heads.kv, heads.dim), "[slots, KV heads, dim]")
    cache = cache_of(kv_cache, attention)
    kv_strides = kv_strides_of(*cache, attention._kv_layout)
    scales = scales_of(k_scale, v_scale, attention)
    rotary = _rotary(cos_sin, positions, seq_lens, length, device)
    for pages in cache:
        check_written(pages, [keys, values, places, *(scales or ()), *(rotary or ())])
    attention._native.append(
        rows(keys),
        rows(values),
        length,
        places.address,
        (cache[0].address, cache[1].address),
        cache[0].shape[0],
        kv_strides,
        scales and (scales[0].address, scales[1].address, scales[0].shape[0]),
        rotary
        and (
            rotary[0].address,
            rotary[0].shape[0],
            rotary[0].shape[1],
            bool(interleaved),
            rotary[1].address,
            seq_lens is not None,
        ),
        stream_of(stream, device, uses_torch=torch_of(k) is not None),
    )


def _rotary(
    cos_sin: Tensor | None, positions: Integers | None, seq_lens: Integers | None, length: int, device: int | None
) -> tuple[View, View] | None:
    """The table of angles, and where the tokens stand."""
    if cos_sin is None:
        if positions is not None or seq_lens is not None:
            raise ValueError("`positions` and `seq_lens` say by which angles K is rotated: give `cos_sin` too")
        return None
    if (positions is None) == (seq_lens is None):
        raise ValueError("`cos_sin` needs one of `positions` and `seq_lens`, by which K is rotated")
    table = view("cos_sin", cos_sin)
    check(table, "float32", device, (None, None), "[positions, rotated elements]: cosines, then sines")
    check_dense(table)
    if positions is not None:
        return table, _numbers("positions", positions, "int64", device, length)
    return table, _numbers("seq_lens", seq_lens, "int32", device, length)


def _numbers(name: str, values: Integers, dtype: str, device: int | None, length: int | None = None) -> View:
    """Whole numbers, one a token; on the CPU also as a sequence."""
    if isinstance(values, (list, tuple, range)):
        if device is not None:
            raise ValueError(
                f"`{name}` is a {type(values).__name__}: on a GPU, give an {dtype} tensor on {device_name(device)}"
            )
        try:
            numbers = array(_CODES[dtype], values)
        except (OverflowError, TypeError) as error:
            bits = dtype.removeprefix("int")
            raise TypeError(f"`{name}` has entries that are no whole numbers of {bits} bits: {error}") from error
        seen = View(name, numbers.buffer_info()[0], (len(numbers),), (1,), dtype, None, False, numbers)
    else:
        seen = view(name, values)
    check(seen, dtype, device, (length,), "one a token")
    check_dense(seen)
    return seen
