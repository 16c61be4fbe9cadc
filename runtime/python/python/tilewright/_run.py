"""Checks a layer's tensors against a plan, and computes it."""

from __future__ import annotations

import itertools
import sys
import weakref
from array import array
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, overload

from ._tensors import (
    FP8,
    ITEM_BYTES,
    Tensor,
    View,
    check,
    check_apart,
    check_dense,
    check_written,
    device_name,
    normal_strides,
    rows,
    torch_of,
    view,
)

if TYPE_CHECKING:
    from ._attention import Attention

_FIRST_HANDLE = 2  # torch.compile makes constants of 0 and 1
_handles = itertools.count(_FIRST_HANDLE)
_plans: weakref.WeakValueDictionary[int, Runs] = weakref.WeakValueDictionary()


def plan_of(handle: int) -> Runs:
    """The plan with this handle.

    Raises:
        ValueError: there is none, or no longer.
    """
    plan = _plans.get(handle)
    if plan is None:
        raise ValueError(f"no plan has the handle {handle}: it was freed; keep the plan as long as its handle is used")
    return plan


class Runs:
    """What plans have in common. No slots: earlier versions of `torch.compile` do not see what is in them."""

    def __init__(self, attention: Attention) -> None:
        self._attention = attention
        self._handle = next(_handles)
        _plans[self._handle] = self
        torch = sys.modules.get("torch")
        # Earlier versions than 2.4 have no such ops; NumPy's arrays need none.
        if torch is not None and hasattr(getattr(torch, "library", None), "register_fake"):
            from . import torch_op  # noqa: F401  registers the op, so that `torch.compile` finds it

    @property
    def attention(self) -> Attention:
        """The attention that it was made by."""
        return self._attention

    @property
    def handle(self) -> int:
        """The number that stands for it in calls of the op ``torch.ops.tilewright.decode``."""
        return self._handle

    @property
    def batch(self) -> int:
        """Queries of the batch."""
        raise NotImplementedError

    def _run(self, layer: tuple[Any, ...], batch: int) -> None:
        raise NotImplementedError

    @overload
    def run(
        self,
        q: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        out: Tensor | None = None,
        *,
        lse: Tensor | None = None,
        return_lse: Literal[False] = False,
        sinks: Tensor | None = None,
        k_scale: Tensor | float | None = None,
        v_scale: Tensor | float | None = None,
        stream: Any = None,
    ) -> Tensor: ...

    @overload
    def run(
        self,
        q: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        out: Tensor | None = None,
        *,
        lse: Tensor | None = None,
        return_lse: Literal[True],
        sinks: Tensor | None = None,
        k_scale: Tensor | float | None = None,
        v_scale: Tensor | float | None = None,
        stream: Any = None,
    ) -> tuple[Tensor, Tensor]: ...

    def run(
        self,
        q: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        out: Tensor | None = None,
        *,
        lse: Tensor | None = None,
        return_lse: bool = False,
        sinks: Tensor | None = None,
        k_scale: Tensor | float | None = None,
        v_scale: Tensor | float | None = None,
        stream: Any = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Computes one layer. On a GPU it is queued on the stream, and nothing waits for it.

        The GIL is released meanwhile. Tensors are borrowed for the call; on a GPU they have to stay until the stream has passed it, which
        torch's allocator sees to for its current stream.

        Args:
            q: ``[batch, query heads, dim]``, any strides but that of a head's elements.
            kv_cache: K and V, each ``[pages, page_size, KV heads, dim]`` (``NHD``) or ``[pages, KV heads, page_size, dim]`` (``HND``), or one
                tensor with both, ``[pages, 2, ...]``.
            out: like ``q``; every element is written. A new tensor if absent.
            lse: f32 ``[batch, query heads]``: is written the natural-log sum of exponentials of the logits; -inf for a request without tokens
                and sinks.
            return_lse: return the LSE too, in a new tensor if ``lse`` is absent.
            sinks: f32 ``[query heads]``: a logit that each head has beside its tokens.
            k_scale: what the numbers of K in FP8 are multiplied by: f32 ``[1]`` or ``[KV heads]``, on the CPU also a number.
            v_scale: the same of V, of as many numbers.
            stream: on a GPU the stream to queue on: its address, or an object with ``cuda_stream`` (torch) or ``ptr`` (CuPy); torch's current
                one if absent. It has to live as long as the attention; torch's do.

        Returns:
            ``out``, or ``out`` and ``lse``.

        Raises:
            TypeError: an argument that is no tensor.
            ValueError: a dtype, device, shape, stride or page that does not fit.
            CudaError: the driver's, or a kernel that cannot be compiled.
        """
        torch = torch_of(q)
        if torch is not None and torch.compiler.is_compiling():
            return self._run_compiled(torch, q, kv_cache, out, lse, return_lse, sinks, k_scale, v_scale)
        attention, batch = self._attention, self.batch
        device, heads = attention._device, attention._heads
        query = view("q", q)
        shape = (batch, heads.query, heads.dim)
        check(query, attention._dtype, device, shape, "[queries of the plan, query heads, dim]")
        query_rows = rows(query)
        keys, values = cache_of(kv_cache, attention)
        kv_strides = kv_strides_of(keys, values, attention._kv_layout)

        read = [query, keys, values]
        seen_sinks = None
        if sinks is not None:
            seen_sinks = view("sinks", sinks)
            check(seen_sinks, "float32", device, (heads.query,), "[query heads]")
            check_dense(seen_sinks)
            read.append(seen_sinks)
        scales = scales_of(k_scale, v_scale, attention)
        read.extend(scales or ())

        if out is None:
            out = _empty("out", q, shape, attention._dtype, torch)
        output = view("out", out)
        check(output, attention._dtype, device, shape, "like `q`")
        output_rows = rows(output)
        check_apart(output)
        check_written(output, read)
        if lse is None and return_lse:
            lse = _empty("lse", q, shape[:2], "float32", torch)
        seen_lse = None
        if lse is not None:
            seen_lse = view("lse", lse)
            check(seen_lse, "float32", device, shape[:2], "[queries of the plan, query heads]")
            check_dense(seen_lse)
            check_written(seen_lse, [*read, output])

        self._run(
            (
                query_rows,
                output_rows,
                keys.address,
                values.address,
                keys.shape[0],
                kv_strides,
                seen_lse and seen_lse.address,
                seen_sinks and seen_sinks.address,
                scales and (scales[0].address, scales[1].address, scales[0].shape[0]),
                stream_of(stream, device, uses_torch=torch is not None),
            ),
            batch,
        )
        return (out, lse) if return_lse else out

    def _run_compiled(
        self,
        torch: Any,
        q: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        out: Tensor | None,
        lse: Tensor | None,
        return_lse: bool,
        sinks: Tensor | None,
        k_scale: Tensor | float | None,
        v_scale: Tensor | float | None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The same as one op of a graph that `torch.compile` makes."""
        keys, values = (kv_cache[:, 0], kv_cache[:, 1]) if isinstance(kv_cache, torch.Tensor) else kv_cache
        if isinstance(k_scale, (int, float)):
            k_scale = torch.full((1,), k_scale, dtype=torch.float32, device=q.device)
        if isinstance(v_scale, (int, float)):
            v_scale = torch.full((1,), v_scale, dtype=torch.float32, device=q.device)
        result, sums = torch.ops.tilewright.decode(
            q, keys, values, self._handle, sinks, k_scale, v_scale, return_lse or lse is not None
        )
        if out is not None:
            result = out.copy_(result)
        if lse is not None:
            sums = lse.copy_(sums)
        return (result, sums) if return_lse else result


def cache_of(kv_cache: Tensor | tuple[Tensor, Tensor], attention: Attention) -> tuple[View, View]:
    """K and V, of the right dtype and shape."""
    if isinstance(kv_cache, (tuple, list)):
        if len(kv_cache) != 2:
            raise ValueError(f"`kv_cache` has {len(kv_cache)} tensors: it is K and V, or one tensor with both")
        keys, values = view("kv_cache[0]", kv_cache[0]), view("kv_cache[1]", kv_cache[1])
        _check_cache(keys, attention, ())
        check(values, keys.dtype, attention._device, keys.shape, "that of K")
        return keys, values
    both = view("kv_cache", kv_cache)
    _check_cache(both, attention, (2,))
    keys = both._replace(shape=both.shape[:1] + both.shape[2:], strides=both.strides[:1] + both.strides[2:])
    return keys, keys._replace(address=both.address + both.strides[1] * ITEM_BYTES[both.dtype])


def _check_cache(cache: View, attention: Attention, both: tuple[int, ...]) -> None:
    """Refuses another dtype, device or shape than `[pages, (K and V,) ...]`; FP8 may be in `uint8` tensors."""
    page = both + attention._page_shape
    dtype = attention._kv_dtype
    if cache.shape[1:] == page and cache.dtype == dtype and cache.device == attention._device:
        return
    words = "page_size, KV heads, dim" if attention._kv_layout == "NHD" else "KV heads, page_size, dim"
    what = f"[pages, {'K and V, ' if both else ''}{words}] of `kv_layout` {attention._kv_layout}"
    check(cache, dtype, attention._device, (None, *page), what, ("uint8",) if dtype in FP8 else ())


def kv_strides_of(keys: View, values: View, layout: str) -> tuple[int, int, int]:
    """From page to page, token to token, head to head; the same for K and V."""
    strides = normal_strides(keys)
    if strides != normal_strides(values):
        raise ValueError(
            f"K has the strides {list(keys.strides)}, V {list(values.strides)}: both must be laid out alike"
        )
    page, second, third, _ = strides
    return (page, second, third) if layout == "NHD" else (page, third, second)


def scales_of(
    k_scale: Tensor | float | None, v_scale: Tensor | float | None, attention: Attention
) -> tuple[View, View] | None:
    """Scales of K and V, where these are FP8."""
    fp8 = attention._kv_dtype != attention._dtype
    if k_scale is None and v_scale is None:
        if fp8:
            raise ValueError(
                f"K and V are {attention._kv_dtype}, which has scales: give `k_scale` and `v_scale`, 1.0 if they are 1"
            )
        return None
    if k_scale is None or v_scale is None:
        raise ValueError("one of `k_scale` and `v_scale` is missing: give both")
    if not fp8:
        raise ValueError(
            f"K and V are {attention._kv_dtype}, which has no scales: they are for `kv_dtype` {' or '.join(FP8)}"
        )
    keys, values = _scale("k_scale", k_scale, attention), _scale("v_scale", v_scale, attention)
    if keys.shape != values.shape:
        raise ValueError(f"`k_scale` has {keys.shape[0]} numbers, `v_scale` {values.shape[0]}: give both as many")
    return keys, values


def _scale(name: str, scale: Tensor | float, attention: Attention) -> View:
    if isinstance(scale, Real):
        if attention._device is not None:
            where = device_name(attention._device)
            raise ValueError(
                f"`{name}` is a number: on a GPU, give a float32 tensor on {where} that is made once (`torch.tensor([{scale}])`)"
            )
        number = array("f", [float(scale)])
        return View(name, number.buffer_info()[0], (1,), (1,), "float32", None, False, number)
    seen = view(name, scale)
    if not seen.shape:
        seen = seen._replace(shape=(1,), strides=(1,))
    count = attention._heads.kv if seen.shape != (1,) else 1
    check(seen, "float32", attention._device, (count,), "one number, or one a KV head")
    check_dense(seen)
    return seen


def _empty(name: str, like: Tensor, shape: tuple[int, ...], dtype: str, torch: Any) -> Tensor:
    """A new tensor of the same library."""
    if torch is not None:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(like, numpy.ndarray):
        return numpy.empty(shape, like.dtype if name == "out" else dtype)
    raise TypeError(f"`{name}` is missing: only torch and NumPy make it, `q` is a {type(like).__name__}")


def stream_of(stream: Any, device: int | None, uses_torch: bool) -> int:
    """The address of a stream."""
    if device is None:
        return 0
    if stream is not None:
        address = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
        if not isinstance(address, int):
            raise TypeError(f"`stream` is a {type(stream).__name__}: give its address, a torch stream or a CuPy stream")
        return address
    torch = sys.modules.get("torch") if uses_torch else None
    if torch is None:
        raise ValueError(
            "`stream` is missing: only of torch tensors the current stream is known (0 is the default stream)"
        )
    return int(torch.cuda.current_stream(device).cuda_stream)
