"""Block tables and lengths of vLLM's batches on the host."""

from __future__ import annotations

import weakref
from functools import wraps
from typing import Any

import numpy as np
import torch


class HostTables:
    """Finds the host's copy of block tables that a step has on the device.

    The first model runner's `BlockTable` has both halves, and copies the host's to the device before metadata is built. Such tables are noted when they
    are made, and recognised by the address of their device half. Those of the second model runner have no half on the host: what it appends is
    written to a mirror too, whose rows are taken in the order of the step's batch.
    """

    _known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    _mirrors: weakref.WeakValueDictionary[int, Mirror] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        note_tables()
        mirror_tables()

    def of(self, common: Any, page_size: int) -> tuple[Any, Any]:
        """Block tables int32 ``[requests, columns]`` and lengths int32 ``[requests]``. Waits for the device if the host has none."""
        rows = common.num_reqs
        lens = common.seq_lens_cpu_upper_bound
        if lens is None:
            lens = getattr(common, "_seq_lens_cpu", None)
        lens = common.seq_lens[:rows].cpu() if lens is None else lens[:rows]
        lens = lens.to(torch.int32)
        # Tables have columns for the longest request that there may be, which a plan would read all of.
        columns = max(1, -(-int(lens.max()) // page_size))
        tensor = common.block_table_tensor
        table = self._known.get(tensor.data_ptr())
        if table is not None:
            entries = table.block_table.cpu.numpy()[:rows, : min(columns, tensor.shape[1])]
            # By NumPy: torch wakes all its threads for a copy of more than 32768 elements, which took 5 ms of a step.
            return torch.from_numpy(np.ascontiguousarray(entries)), lens
        mirror = self._mirrors.get(tensor.data_ptr())
        mirrored = mirror.rows(rows, columns) if mirror is not None else None
        return tensor[:rows, :columns].cpu().contiguous() if mirrored is None else mirrored, lens


class Mirror:
    """The host's copy of one group's block tables of the second model runner."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._entries = np.zeros(shape, np.int32)
        self._counts = np.zeros(shape[0], np.int64)
        self.order: tuple[Any, int] | None = None
        """Requests of the step's batch, by their rows here, and rows with padding; None in a step that has no requests."""

    def append(self, request: int, blocks: list[int], overwrite: bool) -> None:
        begin = 0 if overwrite else self._counts[request]
        end = begin + len(blocks)
        self._entries[request, begin:end] = blocks
        self._counts[request] = end

    def rows(self, rows: int, columns: int) -> torch.Tensor | None:
        """Tables of the batch; None if this is not its step."""
        if self.order is None or self.order[1] != rows:
            return None
        order, _ = self.order
        tables = np.zeros((rows, min(columns, self._entries.shape[1])), np.int32)
        tables[: len(order)] = self._entries[order, : tables.shape[1]]
        return torch.from_numpy(tables)


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
            mirror.order = (input_batch.idx_mapping_np, input_batch.num_reqs_after_padding) if known else None
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
