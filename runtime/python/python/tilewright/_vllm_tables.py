"""Block tables and lengths of vLLM's batches on the host."""

from __future__ import annotations

import weakref
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch


class HostTable(NamedTuple):
    """A batch's page table on the host, where it lies."""

    entries: torch.Tensor
    """int32: a row for each request, or for each that there may be; only columns that lengths need are read."""
    order: Any
    """int32 ``[requests]``: the rows of the batch; their first ones if absent."""
    seq_lens: torch.Tensor
    """int32 ``[requests]``"""

    def addresses(self) -> Any:
        """As the native half takes it: they are read while this lives."""
        entries, order, lens = self
        rows, lengths = (entries.data_ptr(), entries.stride(0)), (lens.data_ptr(), len(lens))
        if order is None:
            return rows, entries.shape[1], lengths
        return rows, entries.shape[1], lengths, (order.__array_interface__["data"][0], len(order))


class HostTables:
    """Finds the host's copy of block tables that a step has on the device.

    The first model runner's `BlockTable` has both halves, and copies the host's to the device before metadata is built. Such tables are noted when they
    are made, and recognised by the address of their device half. Those of the second model runner have no half on the host: what it appends is
    written to a mirror too, whose rows are named in the order of the step's batch.
    """

    _known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    _mirrors: weakref.WeakValueDictionary[int, Mirror] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        note_tables()
        mirror_tables()

    def of(self, common: Any) -> HostTable:
        """The batch's table, without rows of padding if it is a mirror's. Waits for the device if the host has none."""
        rows = common.num_reqs
        lens = common.seq_lens_cpu_upper_bound
        if lens is None:
            lens = getattr(common, "_seq_lens_cpu", None)
        lens = common.seq_lens[:rows].cpu() if lens is None else lens
        if lens.dtype is not torch.int32 or not lens.is_contiguous():
            lens = lens.to(torch.int32).contiguous()
        tensor = common.block_table_tensor
        table = self._known.get(tensor.data_ptr())
        if table is not None:
            return HostTable(table.block_table.cpu, None, lens[:rows])
        mirror = self._mirrors.get(tensor.data_ptr())
        if mirror is not None and mirror.order is not None and mirror.order[1] == rows:
            order, _ = mirror.order
            return HostTable(mirror.entries, order, lens[: len(order)])
        return HostTable(tensor[:rows].cpu().contiguous(), None, lens[:rows])


class Mirror:
    """The host's copy of one group's block tables of the second model runner."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.entries = torch.zeros(shape, dtype=torch.int32)
        self._rows = self.entries.numpy()
        self._counts = [0] * shape[0]
        self.order: tuple[Any, int] | None = None
        """int32 ``[requests]``: requests of the step's batch, by their rows here, and rows with padding; None in a step that has no requests."""

    def append(self, request: int, blocks: list[int], overwrite: bool) -> None:
        begin = 0 if overwrite else self._counts[request]
        end = begin + len(blocks)
        self._rows[request, begin:end] = blocks
        self._counts[request] = end


def note_tables() -> None:
    """Notes the tables of the first model runner as they are made."""
    try:
        from vllm.v1.worker.block_table import BlockTable
    except ImportError:
        return  # a version with the second one alone
    if getattr(BlockTable.get_device_tensor, "_tilewright", False):
        return
    former = BlockTable.get_device_tensor

    @wraps(former)
    def get_device_tensor(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensor: torch.Tensor = former(self, *args, **kwargs)
        HostTables._known[tensor.data_ptr()] = self
        return tensor

    get_device_tensor._tilewright = True  # type: ignore[attr-defined]
    BlockTable.get_device_tensor = get_device_tensor


def mirror_tables() -> None:
    """Mirrors what the second model runner appends to its tables, and notes the order of each step's batch."""
    try:
        from vllm.v1.worker.gpu.block_table import BlockTables
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        append, dummy, prepare = (
            BlockTables.append_block_ids,
            BlockTables.get_dummy_block_tables,
            GPUModelRunner.prepare_attn,
        )
    except (ImportError, AttributeError):
        return  # a version without it, or with another one: its tables are copied from the device
    if getattr(append, "_tilewright", False):
        return

    @wraps(append)
    def append_block_ids(self: Any, req_index: int, new_block_ids: Any, overwrite: bool) -> None:
        append(self, req_index, new_block_ids, overwrite)
        mirrors = _mirrors_of(self)
        factors = getattr(self, "blocks_per_kv_block", None) or [1] * len(mirrors)
        for mirror, factor, blocks in zip(mirrors, factors, new_block_ids):
            if getattr(self, "redirect_writes_to_null_block", False):
                blocks = [0] * len(blocks)
            elif factor > 1:
                blocks = [block * factor + part for block in blocks for part in range(factor)]
            mirror.append(req_index, blocks, overwrite)

    @wraps(dummy)
    def get_dummy_block_tables(self: Any, *args: Any, **kwargs: Any) -> Any:
        for mirror in _mirrors_of(self):
            mirror.order = None
        return dummy(self, *args, **kwargs)

    @wraps(prepare)
    def prepare_attn(self: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        # Ranks that share a prompt have batches of their own.
        known = getattr(self, "pcp_manager", None) is None
        for mirror in _mirrors_of(self.block_tables):
            order = np.ascontiguousarray(input_batch.idx_mapping_np, np.int32) if known else None
            mirror.order = (order, input_batch.num_reqs_after_padding) if known else None
        return prepare(self, input_batch, *args, **kwargs)

    append_block_ids._tilewright = True  # type: ignore[attr-defined]
    BlockTables.append_block_ids = append_block_ids
    BlockTables.get_dummy_block_tables = get_dummy_block_tables
    GPUModelRunner.prepare_attn = prepare_attn


def _mirrors_of(tables: Any) -> list[Mirror]:
    """One a group, made with the first blocks, or a step without any."""
    mirrors: list[Mirror] | None = getattr(tables, "_tilewright_mirrors", None)
    if mirrors is None:
        mirrors = [Mirror(tuple(tensor.shape)) for tensor in tables.input_block_tables]
        tables._tilewright_mirrors = mirrors
        # Blocks behind a window may be another request's by now: tables that leave them out are copied from the device.
        windows = getattr(tables, "_sliding_window_reach", None) or [0] * len(mirrors)
        for tensor, mirror, window in zip(tables.input_block_tables, mirrors, windows):
            if not window:
                HostTables._mirrors[tensor.data_ptr()] = mirror
    return mirrors
