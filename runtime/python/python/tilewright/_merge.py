"""Attention over parts of the KV, merged by LSE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from . import _native
from ._run import _empty, stream_of
from ._tensors import Tensor, View, check, check_dense, check_written, torch_of, view

_DTYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_MOST_OF_A_LAUNCH = 8


def merge_states(
    states: Sequence[tuple[Tensor, Tensor]],
    out: Tensor | None = None,
    lse: Tensor | None = None,
    *,
    stream: Any = None,
) -> tuple[Tensor, Tensor]:
    """Merges attention over separate parts of the KV into attention over all of them. No token may be in two parts.

    Each row of ``out`` is ``sum_s exp(lse_s) * out_s / sum_s exp(lse_s)``, and its LSE ``ln(sum_s exp(lse_s))``. A row that is empty in all
    states becomes zeros and -inf. Sums are in f32 and in the order of the states, so the same states give the same bits.

    Args:
        states: output ``[..., dim]`` and LSE f32 ``[...]`` (natural logarithm; -inf where the part is empty) of each part, without gaps; on a
            GPU at most 8.
        out: like a state's output; every element is written. A new tensor if absent.
        lse: like a state's LSE. A new tensor if absent.
        stream: as in :meth:`Plan.run`.

    Returns:
        ``out`` and ``lse``.

    Raises:
        TypeError: an argument that is no tensor.
        ValueError: no state, or a dtype, device, shape or stride that does not fit.
        CudaError: the driver's, or a kernel that cannot be compiled.
    """
    if not states:
        raise ValueError("no state was given: a merge takes at least one")
    views: list[tuple[View, View]] = []
    for number, (output, sums) in enumerate(states):
        output, sums = view(f"states[{number}][0]", output), view(f"states[{number}][1]", sums)
        first = views[0][0] if views else output
        if first.dtype not in _DTYPES:
            raise ValueError(f"`{first.name}` is {first.dtype}: it can be float16, bfloat16 or float32")
        if not first.shape or first.shape[-1] == 0:
            raise ValueError(f"`{first.name}` has the shape {list(first.shape)}: [..., dim] is needed")
        check(output, first.dtype, first.device, first.shape, "that of the first state")
        check(sums, "float32", first.device, first.shape[:-1], "that of the state's output without `dim`")
        check_dense(output)
        check_dense(sums)
        views.append((output, sums))
    first = views[0][0]
    if first.device is not None and first.dtype == "float32":
        raise ValueError(f"`{first.name}` is float32, which only the CPU merges: use float16 or bfloat16 on a GPU")
    if first.device is not None and len(states) > _MOST_OF_A_LAUNCH:
        raise ValueError(
            f"{len(states)} states were given, a launch merges {_MOST_OF_A_LAUNCH} at most: merge them in groups, whose results are states again"
        )
    torch = torch_of(first.owner)
    if out is None:
        out = _empty("out", states[0][0], first.shape, first.dtype, torch)
    if lse is None:
        lse = _empty("lse", states[0][0], first.shape[:-1], "float32", torch)
    output, sums = view("out", out), view("lse", lse)
    check(output, first.dtype, first.device, first.shape, "that of a state's output")
    check(sums, "float32", first.device, first.shape[:-1], "that of a state's LSE")
    check_dense(output)
    check_dense(sums)
    read = [part for state in views for part in state]
    check_written(output, read)
    check_written(sums, [*read, output])
    _native.merge_states(
        [(output.address, sums.address) for output, sums in views],
        math.prod(first.shape[:-1]),
        first.shape[-1],
        _DTYPES[first.dtype],
        output.address,
        sums.address,
        first.device,
        stream_of(stream, first.device, uses_torch=torch is not None),
    )
    return out, lse
