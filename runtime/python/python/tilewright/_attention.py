"""Attention of one kind of layer on one device."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, overload

from . import _native
from ._append import append
from ._cubins import archive_of
from ._graph_plan import GraphPlan
from ._live_plan import LivePlan
from ._page_table import page_table
from ._plan import Plan
from ._run import stream_of
from ._tensors import FP8, Integers, Tensor, check, check_dense, counts, device_name, dtype_name, view

_DTYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


class Heads(NamedTuple):
    """The heads of an attention layer on this rank."""

    query: int
    """Query heads."""
    kv: int
    """KV heads; divides ``query``."""
    dim: int
    """Elements of one head's vector."""


class Attention:
    """Decode attention of one kind of layer on one device, for pages of one size. Several threads may use it at once.

    :meth:`plan` finds shared prefixes, chooses tiles and packs a batch: once a step, for all layers. ``run`` of the plan computes one layer.

    Args:
        heads: query heads, KV heads, and elements of a head.
        page_size: tokens of a page.
        dtype: of Q and the output, and of K and V: ``float16``, ``bfloat16``, or on the CPU ``float32``. A torch or NumPy dtype, or its name.
        kv_dtype: of K and V, if another: ``float8_e4m3fn`` or ``float8_e5m2``, whose bits may be in ``uint8`` tensors.
        kv_layout: ``NHD`` for caches ``[pages, page_size, KV heads, dim]``, ``HND`` for ``[pages, KV heads, page_size, dim]``. Any strides.
        device: ``cpu``, ``cuda``, ``cuda:1``, or a torch device. A GPU is used in its primary context, which torch uses too.
        scale: factor of the logits; ``1 / sqrt(dim)`` if absent.
        window: sliding window: a query sees this many tokens, its own among them.
        softcap: logits are ``softcap * tanh(logit / softcap)``.
        threads: of the CPU backend; all that the process may run on if absent.
        selector: file with the tile selector to use, as ``tilewright tune`` writes it.
        cubins: file with compiled kernels, as ``cubin_archive`` writes it; else the one that ``TILEWRIGHT_CUBINS`` names, else the package's own.
        invariant: a request's output and LSE have the same bits whatever else is in the batch, however requests share pages and whichever pages they have, on
            one device and for the same options. Pages have a multiple of 16 tokens then.
        fetch_nvrtc: fetch NVRTC, with which kernels are compiled, where the machine has none.

    Raises:
        ValueError: options that make no sense.
        CudaError: no GPU, driver or NVRTC, or a GPU that the kernels cannot run on.
    """

    __slots__ = (
        "__weakref__",
        "_device",
        "_dtype",
        "_heads",
        "_kv_dtype",
        "_kv_layout",
        "_native",
        "_page_shape",
        "_page_size",
    )

    def __init__(
        self,
        heads: Heads | tuple[int, int, int],
        page_size: int,
        *,
        dtype: Any = "float16",
        kv_dtype: Any = None,
        kv_layout: str = "NHD",
        device: Any = "cpu",
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        threads: int | None = None,
        selector: str | os.PathLike[str] | None = None,
        cubins: str | os.PathLike[str] | None = None,
        invariant: bool = False,
        fetch_nvrtc: bool = False,
    ) -> None:
        self._heads = Heads(*heads)
        self._page_size = page_size
        for name, number in (*zip(("query", "kv", "dim"), self._heads), ("page_size", page_size)):
            if not isinstance(number, int) or not 1 <= number < 1 << 31:
                raise ValueError(f"`{name}` is {number!r}: a whole number from 1 on is needed")
        self._dtype = dtype_name(dtype)
        if self._dtype not in _DTYPES:
            raise ValueError(f"`dtype` is {self._dtype}: it can be float16, bfloat16 or float32")
        self._kv_dtype = self._dtype if kv_dtype is None else dtype_name(kv_dtype)
        if self._kv_dtype not in (self._dtype, *FP8):
            raise ValueError(
                f"`kv_dtype` is {self._kv_dtype}: it can be {self._dtype}, as the query, {' or '.join(FP8)}"
            )
        if kv_layout not in ("NHD", "HND"):
            raise ValueError(
                f"`kv_layout` is {kv_layout!r}: it can be 'NHD' ([pages, page_size, KV heads, dim]) or 'HND' ([pages, KV heads, page_size, dim])"
            )
        if invariant and page_size % 16:
            raise ValueError(f"`page_size` is {page_size}: with `invariant` it must be a multiple of 16")
        self._kv_layout = kv_layout
        tokens, dim = (page_size, self._heads.kv), self._heads.dim
        self._page_shape = (*tokens, dim) if kv_layout == "NHD" else (*reversed(tokens), dim)
        self._device = _device_number(device)
        if self._device is None and self._heads.dim % 16:
            raise ValueError(f"`dim` is {self._heads.dim}: on the CPU it must be a multiple of 16")
        if self._device is not None and self._dtype == "float32":
            raise ValueError("`dtype` is float32, which only the CPU computes: use float16 or bfloat16 on a GPU")
        fp8 = f"{FP8[self._kv_dtype]}-" if self._kv_dtype in FP8 else ""
        for name, count in (("window", window), ("threads", threads)):
            if count is not None and not 0 <= count < 1 << 32:
                raise ValueError(f"`{name}` is {count}: a whole number of 32 bits is needed")
        self._native = _native.Attention(
            self._heads,
            page_size,
            fp8 + _DTYPES[self._dtype],
            scale,
            window,
            softcap,
            threads,
            None if selector is None else os.fspath(selector),
            archive_of(cubins, on_gpu=self._device is not None),
            invariant,
            fetch_nvrtc,
            self._device,
        )

    @property
    def heads(self) -> Heads:
        """Query heads, KV heads, and elements of a head."""
        return self._heads

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._page_size

    @property
    def dtype(self) -> str:
        """The name of the dtype of Q and the output."""
        return self._dtype

    @property
    def kv_dtype(self) -> str:
        """The name of the dtype of K and V."""
        return self._kv_dtype

    @property
    def kv_layout(self) -> str:
        """``NHD`` or ``HND``."""
        return self._kv_layout

    @property
    def device(self) -> str:
        """``cpu``, or ``cuda:`` and the GPU's number."""
        return "cpu" if self._device is None else device_name(self._device)

    def __repr__(self) -> str:
        kv = "" if self._kv_dtype == self._dtype else f", kv_dtype={self._kv_dtype!r}"
        return (
            f"Attention({self._heads}, page_size={self._page_size}, dtype={self._dtype!r}{kv}, kv_layout={self._kv_layout!r}, "
            f"device={self.device!r})"
        )

    def prepare(self) -> None:
        """Compiles the kernels, which the first plan does otherwise. Compiled kernels are cached on disk.

        Raises:
            CudaError: a kernel that cannot be compiled or loaded.
        """
        self._native.prepare()

    @overload
    def plan(
        self, indptr: Integers, indices: Integers, last_page_len: Integers, *, query_lens: Integers | None = None
    ) -> Plan: ...

    @overload
    def plan(self, *, block_tables: Integers, seq_lens: Integers, query_lens: Integers | None = None) -> Plan: ...

    def plan(
        self,
        indptr: Integers | None = None,
        indices: Integers | None = None,
        last_page_len: Integers | None = None,
        *,
        block_tables: Integers | None = None,
        seq_lens: Integers | None = None,
        query_lens: Integers | None = None,
    ) -> Plan:
        """Plans a batch, from compressed rows as FlashInfer takes them or from block tables as vLLM has them.

        The plan serves all layers of the step, and later steps as long as no request needs another page (:meth:`Plan.set_lengths`).
        All arguments are lists or int32 tensors on the CPU, and are read before the call returns.

        Args:
            indptr: ``[batch + 1]``: the pages of request i are ``indices[indptr[i]:indptr[i + 1]]``.
            indices: pages of all requests.
            last_page_len: ``[batch]``: tokens in the last page of each request.
            block_tables: ``[batch, max_pages]``: the pages of each request. Entries behind its tokens are not read.
            seq_lens: ``[batch]``: tokens of each request, with block tables.
            query_lens: ``[batch]``: query tokens that each request brings (speculative decoding), the last ones of its tokens; one if absent.
                Query and output are then ``[queries, query heads, dim]``, one request behind the other.

        Raises:
            ValueError: a page table that makes no sense.
            CudaError: a kernel that cannot be compiled.
        """
        table, held = page_table(indptr, indices, last_page_len, block_tables, seq_lens)
        queries: Sequence[int] | None = None if query_lens is None else counts("query_lens", query_lens)
        planned = Plan(self, self._native.plan(table, queries))
        del held  # the arrays had to live until they were read
        return planned

    def _plan(self, table: Any) -> Plan:
        """As :meth:`plan`, of a table's addresses."""
        return Plan(self, self._native.plan(table, None))

    @overload
    def graph_plan(
        self,
        indptr: Integers,
        indices: Integers,
        last_page_len: Integers,
        *,
        rows: int,
        pages: int,
        device_lens: Tensor | None = None,
        stream: Any = None,
    ) -> GraphPlan: ...

    @overload
    def graph_plan(
        self,
        *,
        block_tables: Integers,
        seq_lens: Integers,
        rows: int,
        pages: int,
        device_lens: Tensor | None = None,
        stream: Any = None,
    ) -> GraphPlan: ...

    @overload
    def graph_plan(
        self, *, rows: int, pages: int, device_lens: Tensor | None = None, stream: Any = None
    ) -> GraphPlan: ...

    def graph_plan(
        self,
        indptr: Integers | None = None,
        indices: Integers | None = None,
        last_page_len: Integers | None = None,
        *,
        block_tables: Integers | None = None,
        seq_lens: Integers | None = None,
        rows: int,
        pages: int,
        device_lens: Tensor | None = None,
        stream: Any = None,
    ) -> GraphPlan:
        """A plan of fixed size: a CUDA graph that has captured its ``run`` serves every batch that :meth:`GraphPlan.update` takes.

        The page table is of the batch that it begins with, as in :meth:`plan`; the plan has the launches of that batch's tiles, and refuses
        batches that want others or have more of something. Without a page table it serves all batches of its size, with a launch for each
        tile, most of them empty; those with more of something are planned request by request.

        Args:
            rows: requests that it has room for. Query and output have as many rows; those behind the batch are zero.
            pages: entries of the page tables of such batches.
            device_lens: int32 ``[rows]`` on the attention's GPU, which the engine keeps current: tokens of each request as in the last
                update, zeros behind the batch. Kernels read them there; updates copy none, and make no call of the driver while requests grow
                inside their pages. On the CPU lengths are those of updates.
            stream: on a GPU the stream of all calls, as in :meth:`GraphPlan.run`; torch's current one if absent.

        Raises:
            ValueError: a page table that makes no sense, more requests than rows, or another dtype, device or shape of `device_lens`.
            CudaError: a kernel that cannot be compiled, or the driver's.
        """
        for name, number in (("rows", rows), ("pages", pages)):
            if not isinstance(number, int) or not 1 <= number < 1 << 31:
                raise ValueError(f"`{name}` is {number!r}: a whole number from 1 on is needed")
        table, held = None, None
        if any(part is not None for part in (indptr, indices, last_page_len, block_tables, seq_lens)):
            table, held = page_table(indptr, indices, last_page_len, block_tables, seq_lens)
        lens = None
        if device_lens is not None:
            lens = view("device_lens", device_lens)
            check(lens, "int32", self._device, (rows,), "a length for each row")
            check_dense(lens)
        queue = stream_of(stream, self._device, uses_torch=True)
        native = self._native.graph_plan(table, rows, pages, None if lens is None else lens.address, queue)
        planned = GraphPlan(self, native, rows, device_lens)
        del held  # the arrays had to live until they were read
        return planned

    def append(
        self,
        k: Tensor,
        v: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        slots: Integers,
        *,
        k_scale: Tensor | float | None = None,
        v_scale: Tensor | float | None = None,
        cos_sin: Tensor | None = None,
        positions: Integers | None = None,
        seq_lens: Integers | None = None,
        interleaved: bool = False,
        stream: Any = None,
    ) -> None:
        """Writes K and V of new tokens to the pages of a cache, K rotated if ``cos_sin`` is given. On a GPU it is queued on the stream: one launch,
        which a CUDA graph may capture once the same has run before.

        Args:
            k: ``[tokens, KV heads, dim]``, of the query's dtype; any strides but that of a head's elements.
            v: the same of V.
            kv_cache: as in :meth:`Plan.run`; is written.
            slots: int64 ``[tokens]``: where each token goes: its page times ``page_size`` plus its place in the page, as vLLM's slot mappings
                have it. A token with a negative slot is not written; nor is on a GPU, which cannot refuse it, one with a slot in no page.
            k_scale: what K is divided by where the cache is FP8, as in :meth:`Plan.run`; beyond 448 it becomes 448, in e5m2 57344.
            v_scale: the same of V.
            cos_sin: float32 ``[positions, rotated]``: of each position the cosines of ``rotated / 2`` angles, then their sines (RoPE).
                The first ``rotated`` elements of each head of K are rotated, a multiple of 16.
            positions: int64 ``[tokens]``: where each token stands. On a GPU one that stands beyond the table is not written.
            seq_lens: int32 ``[tokens]``, instead of positions: each token is the last of so many.
            interleaved: rotate elements 2 i and 2 i + 1 together (GPT-J), not i and i + ``rotated / 2`` (GPT-NeoX).
            stream: as in :meth:`Plan.run`.

        Raises:
            TypeError: an argument that is no tensor.
            ValueError: a dtype, device, shape, stride, slot or position that does not fit. The cache is as it was, unless K fits and V does not.
            CudaError: the driver's, or a kernel that cannot be compiled.
        """
        append(self, k, v, kv_cache, slots, k_scale, v_scale, cos_sin, positions, seq_lens, interleaved, stream)

    def live_plan(self) -> LivePlan:
        """A plan that follows a batch by its changes: a step costs what has changed.

        Raises:
            CudaError: a kernel that cannot be compiled.
        """
        return LivePlan(self, self._native.live_plan())


def _device_number(device: Any) -> int | None:
    """The GPU's number; None for the CPU."""
    kind, _, number = str(device).partition(":")
    if kind == "cpu":
        return None
    if kind != "cuda" or (number and not number.isdecimal()):
        raise ValueError(f"`device` is {device!s}: it can be cpu, cuda, or cuda:1")
    if number:
        return int(number)
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_available() else 0
