"""Block tables and lengths of vLLM's batches on the host."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class HostTables:
    """Finds the host's copy of block tables that a step has on the device.

    The first model runner's `BlockTable` has both halves, and copies the host's to the device before metadata is built. Such tables are noted when they
    are made, and recognised by the address of their device half.
    """

    _known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        note_tables()

    def of(self, common: Any) -> tuple[Any, Any]:
        """Block tables int32 ``[requests, columns]`` and lengths int32 ``[requests]``. Waits for the device if the host has none."""
        rows = common.num_reqs
        lens = common.seq_lens_cpu_upper_bound
        if lens is None:
            lens = getattr(common, "_seq_lens_cpu", None)
        lens = common.seq_lens[:rows].cpu() if lens is None else lens[:rows]
        tensor = common.block_table_tensor
        table = self._known.get(tensor.data_ptr())
        if table is None:
            return tensor[:rows].cpu(), lens.to(torch.int32)
        columns = tensor.shape[1]
        return table.block_table.cpu[:rows, :columns], lens.to(torch.int32)


def note_tables() -> None:
    """Notes the tables of the first model runner as they are made."""
    try:
        from vllm.v1.worker.block_table import BlockTable
    except ImportError:
        return  # a version with the second one alone
    if getattr(BlockTable.get_device_tensor, "_tilewright", False):
        return
    former = BlockTable.get_device_tensor

    def get_device_tensor(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensor: torch.Tensor = former(self, *args, **kwargs)
        HostTables._known[tensor.data_ptr()] = self
        return tensor

    get_device_tensor._tilewright = True  # type: ignore[attr-defined]
    BlockTable.get_device_tensor = get_device_tensor
