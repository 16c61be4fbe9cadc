"""The op ``torch.ops.tilewright.decode``, which stands for :meth:`Plan.run` in graphs that ``torch.compile`` makes.

It is registered when a plan is made and torch is imported, or by importing this module. The plan is given by its ``handle``, a number: the op
computes what the plan says when it is executed, so that one compiled graph serves every step.
"""

from __future__ import annotations

import torch

from ._run import plan_of

_LIBRARY = torch.library.Library("tilewright", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "decode(Tensor q, Tensor keys, Tensor values, SymInt plan, Tensor? sinks=None, Tensor? k_scale=None, Tensor? v_scale=None, "
    "bool return_lse=False) -> (Tensor, Tensor)"
)


def _decode(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: int,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output like ``q``, and the LSE f32 ``[batch, query heads]``, which is empty unless it is asked for."""
    planned = plan_of(plan)
    if return_lse:
        return planned.run(q, (keys, values), sinks=sinks, k_scale=k_scale, v_scale=v_scale, return_lse=True)
    out = planned.run(q, (keys, values), sinks=sinks, k_scale=k_scale, v_scale=v_scale)
    return out, q.new_empty(0, dtype=torch.float32)


for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("decode", _decode, _device)  # type: ignore[no-untyped-call]


@torch.library.register_fake("tilewright::decode", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _fake(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: int,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    torch._check(q.dim() == 3, lambda: f"`q` has {q.dim()} dimensions: [batch, query heads, dim] is needed")
    torch._check(
        keys.dim() == 4 and values.dim() == 4,
        lambda: "K and V are [pages, page_size, KV heads, dim] or [pages, KV heads, ...]",
    )
    lse = q.shape[:2] if return_lse else (0,)
    return q.new_empty(q.shape), q.new_empty(lse, dtype=torch.float32)
