"""Block tables and lengths of vLLM's batches on the host."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch

_INT32 = torch.int32
# No two writes have the same number, to whatever table.
_numbers = itertools.count(1)


class HostTable(NamedTuple):
    """A batch's page table on the host, where it lies."""

    source: Rows
    """Rows of which the batch's are some."""
    lens: torch.Tensor
    """int32 ``[requests]`` or longer."""
    requests: int
    """Of the batch, without padding."""

    @property
    def entries(self) -> torch.Tensor:
        """int32: a row for each request, or for each that there may be; only columns that lengths need are read."""
        return self.source.entries

    @property
    def order(self) -> Any:
        """int32 ``[requests]``: the rows of the batch; their first ones if absent."""
        return self.source.order[: self.requests] if self.source.order_address else None

    @property
    def seq_lens(self) -> torch.Tensor:
        """int32 ``[requests]``"""
        return self.lens[: self.requests]

    def addresses(self) -> Any:
        """As the native half takes any page table: they are read while this lives."""
        source, lengths = self.source, (self.lens.data_ptr(), self.requests)
        entries, stride, columns, _ = source.place
        if not source.order_address:
            return (entries, stride), columns, lengths
        return (entries, stride), columns, lengths, (source.order_address, self.requests)


class Rows:
    """Rows of block tables on the host."""

    __slots__ = ("__weakref__", "entries", "order", "order_address", "place", "writes", "writes_address")

    def __init__(self, entries: torch.Tensor, writes: Any = None) -> None:
        self.entries = entries
        self.writes = writes
        """uint64 ``[rows]``: the last write to each row, 0 where nobody knows; absent where nobody counts."""
        self.place: tuple[int, int, int, int] = (entries.data_ptr(), entries.stride(0), entries.shape[1], len(entries))
        """Address, entries from row to row, columns, rows."""
        self.order: Any = None
        self.order_address = 0
        self.writes_address = 0 if writes is None else _address(writes)


class HostTables:
    """Finds the host's copy of block tables that a step has on the device.

    The first model runner's `BlockTable` has both halves, and copies the host's to the device before metadata is built. Such tables are noted when they
    are made, and recognised by the address of their device half. Their methods count what they write (`_count_writes`). Those of the second model runner have no half on the host: what it appends is written to a mirror too, whose rows are named in the order of the
    step's batch. Rows that nothing was written to since the step before are not read, but for their last block.
    """

    _known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    _mirrors: weakref.WeakValueDictionary[int, Mirror] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        note_tables()
        mirror_tables()
        # What was found last. It keeps the device's half, so that nothing else comes to its address.
        self._address = 0
        self._table: Any = None
        self._rows: Rows | None = None
        self._mirror: Mirror | None = None

    def of(self, common: Any) -> HostTable:
        """The batch's table, without rows of padding if it is a mirror's. Waits for the device if the host has none."""
        rows = common.num_reqs
        lens = common.seq_lens_cpu_upper_bound
        if lens is None or lens.dtype is not _INT32 or not lens.is_contiguous() or lens.numel() < rows:
            lens = _lengths(common, rows)
        tensor = common.block_table_tensor
        address = tensor.data_ptr()
        if address != self._address:
            self._find(address)
        mirror = self._mirror
        if mirror is not None:
            if mirror.padded == rows:
                return HostTable(mirror, lens, mirror.requests)
        elif self._table is not None:
            source = self._rows
            entries = self._table.block_table.cpu
            if source is None or source.entries is not entries or source.writes is not _writes_of(self._table):
                source = self._rows = Rows(entries, _writes_of(self._table))
            return HostTable(source, lens, rows)
        return HostTable(Rows(tensor[:rows].cpu().contiguous()), lens, rows)

    def _find(self, address: int) -> None:
        self._table, self._rows, self._mirror = self._known.get(address), None, None
        if self._table is None:
            self._mirror = self._mirrors.get(address)
        # One that is not known yet may be by the next step.
        self._address = 0 if self._table is None and self._mirror is None else address


def _lengths(common: Any, rows: int) -> torch.Tensor:
    """int32 ``[requests]`` on the host, from wherever they are."""
    lens: torch.Tensor | None = common.seq_lens_cpu_upper_bound
    if lens is None:
        lens = getattr(common, "_seq_lens_cpu", None)
    if lens is None:
        lens = common.seq_lens[:rows].cpu()
    if lens.numel() < rows:
        raise ValueError(f"{lens.numel()} lengths for a batch of {rows} requests")
    return lens.to(_INT32).contiguous()


class Mirror(Rows):
    """The host's copy of one group's block tables of the second model runner."""

    __slots__ = ("_counts", "_device", "_rows", "padded", "requests")

    def __init__(self, device: torch.Tensor) -> None:
        super().__init__(torch.zeros(tuple(device.shape), dtype=_INT32), np.zeros(len(device), np.uint64))
        self._device = device
        self._rows = self.entries.numpy()
        rows = len(self.entries)
        self._counts = [0] * rows
        self.order = np.zeros(rows, np.int32)
        """The first ones are the requests of the step's batch, by their rows here."""
        self.order_address = _address(self.order)
        self.requests = 0
        self.padded: int | None = None
        """Rows of the step's batch with padding; None in a step that has no requests."""

    def append(self, request: int, blocks: list[int], overwrite: bool) -> None:
        if not blocks and not overwrite:
            return  # as for other groups than the one that grew
        begin = 0 if overwrite else self._counts[request]
        end = begin + len(blocks)
        self._rows[request, begin:end] = blocks
        self._counts[request] = end
        self.writes[request] = next(_numbers)

    def note(self, order: Any, padded: int) -> None:
        """The step's batch: ``[requests]``, and with padding."""
        self.requests = len(order)
        self.order[: self.requests] = order
        self.padded = padded


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


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
    _count_writes(BlockTable)
    BlockTable.get_device_tensor = get_device_tensor


# The methods of the first model runner's `BlockTable`: those that write to rows, those that lend them to others, and the rest.
_WRITING = {"append_row", "add_row", "clear_row", "move_row", "swap_row", "clear"}
_LENDING = {"get_cpu_tensor", "get_numpy_array"}
_OTHERS = {
    "__init__",
    "_make_buffer",
    "commit_block_table",
    "compute_slot_mapping",
    "get_device_tensor",
    "map_to_kernel_blocks",
}


def _count_writes(tables: type) -> None:
    """Has the methods of tables count their writes, where all methods are known."""
    methods = {name for name, value in vars(tables).items() if callable(value) or isinstance(value, staticmethod)}
    if not _WRITING | _LENDING <= methods <= _WRITING | _LENDING | _OTHERS:
        return  # another version: who writes to rows is not known

    def append_row(table: Any, writes: Any, block_ids: Any, row_idx: int) -> None:
        writes[row_idx] = next(_numbers)  # `add_row` comes here too

    def clear_row(table: Any, writes: Any, row_idx: int) -> None:
        writes[row_idx] = next(_numbers)

    def move_row(table: Any, writes: Any, src: int, tgt: int) -> None:
        # A row that moves is known by its number. What it leaves behind is anybody's.
        writes[tgt] = writes[src]
        writes[src] = 0

    def swap_row(table: Any, writes: Any, src: int, tgt: int) -> None:
        writes[[src, tgt]] = writes[[tgt, src]]

    def clear(table: Any, writes: Any) -> None:
        # What was there before may be put back without a word, as after a warm-up with empty rows.
        writes[:] = 0

    def lent(table: Any, writes: Any) -> None:
        # Whoever has the memory may write to it from now on.
        writes[:] = 0
        table._tilewright_writes = None

    counted = {count.__name__: count for count in (append_row, clear_row, move_row, swap_row, clear)}
    for name, count in {**counted, **dict.fromkeys(_LENDING, lent)}.items():
        setattr(tables, name, _counting(getattr(tables, name), count))
    tables._tilewright_counts = True  # type: ignore[attr-defined]


def _counting(former: Callable[..., Any], count: Callable[..., None]) -> Callable[..., Any]:
    """A method that counts, too."""

    @wraps(former)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = former(self, *args, **kwargs)
        writes = _writes_of(self)
        if writes is not None:
            count(self, writes, *args, **kwargs)
        return result

    return method


def _writes_of(table: Any) -> Any:
    """The last write to each row, as :attr:`Rows.writes`. Methods of a class that inherits from a counted one may be others."""
    try:
        return table._tilewright_writes
    except AttributeError:
        counts = "_tilewright_counts" in vars(type(table))
        writes = np.zeros(len(table.block_table.cpu), np.uint64) if counts else None
        table._tilewright_writes = writes
        return writes


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
            mirror.padded = None
        return dummy(self, *args, **kwargs)

    @wraps(prepare)
    def prepare_attn(self: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        # Ranks that share a prompt have batches of their own.
        known = getattr(self, "pcp_manager", None) is None
        for mirror in _mirrors_of(self.block_tables):
            if known:
                mirror.note(input_batch.idx_mapping_np, input_batch.num_reqs_after_padding)
            else:
                mirror.padded = None
        return prepare(self, input_batch, *args, **kwargs)

    append_block_ids._tilewright = True  # type: ignore[attr-defined]
    BlockTables.append_block_ids = append_block_ids
    BlockTables.get_dummy_block_tables = get_dummy_block_tables
    GPUModelRunner.prepare_attn = prepare_attn


def _mirrors_of(tables: Any) -> list[Mirror]:
    """One a group, made with the first blocks, or a step without any."""
    mirrors: list[Mirror] | None = getattr(tables, "_tilewright_mirrors", None)
    if mirrors is None:
        mirrors = [Mirror(tensor) for tensor in tables.input_block_tables]
        tables._tilewright_mirrors = mirrors
        # Blocks behind a window may be another request's by now: tables that leave them out are copied from the device.
        windows = getattr(tables, "_sliding_window_reach", None) or [0] * len(mirrors)
        for tensor, mirror, window in zip(tables.input_block_tables, mirrors, windows):
            if not window:
                HostTables._mirrors[tensor.data_ptr()] = mirror
    return mirrors
