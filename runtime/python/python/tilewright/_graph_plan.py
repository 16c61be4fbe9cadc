"""A plan that CUDA graphs capture once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native
from ._page_table import page_table
from ._run import Runs, stream_of
from ._tensors import Integers, Tensor, counts

if TYPE_CHECKING:
    from ._attention import Attention


class GraphPlan(Runs):
    """A plan of fixed size, made by :meth:`Attention.graph_plan`: what has captured its ``run`` serves every batch that fits.

    On a GPU, :meth:`update`, :meth:`set_lengths`, ``run`` and launches of graphs are ordered by one stream: an update is read by what is
    queued after it. Run it once before it is captured, and keep it as long as the graph. On the CPU it is a plan like others.
    """

    def __init__(
        self, attention: Attention, planned: _native.GraphPlan, rows: int, device_lens: Tensor | None = None
    ) -> None:
        super().__init__(attention)
        self._planned = planned
        self._rows = rows
        # Kernels read them as long as this lives.
        self._device_lens = device_lens

    @property
    def batch(self) -> int:
        """Rows of query and output."""
        return self._rows

    def __repr__(self) -> str:
        return f"GraphPlan(rows={self.batch}, {self.attention})"

    def update(
        self,
        indptr: Integers | None = None,
        indices: Integers | None = None,
        last_page_len: Integers | None = None,
        *,
        block_tables: Integers | None = None,
        seq_lens: Integers | None = None,
        stream: Any = None,
    ) -> bool:
        """Plans another batch, and queues the copy of its plan.

        The page table is compared with the one before, where it lies. Requests that grew inside their last pages cost a copy of lengths, if
        these are not read from ``device_lens``; few that gained a page, came or went cost what they change; else the batch is planned from nothing.

        Args:
            indptr: the page table, as in :meth:`Attention.plan`.
            indices: as there.
            last_page_len: as there.
            block_tables: as there.
            seq_lens: as there.
            stream: as in ``run``.

        Returns:
            Whether there was room. If not, the plan is as it was: make another one, and capture again.

        Raises:
            ValueError: a page table that makes no sense, more requests than rows, or on a GPU a page beyond a cache that it was run with. The
                plan is as it was.
            CudaError: the driver's, or a stream that is being captured.
            RuntimeError: another thread updated the plan at the same time.
        """
        table, held = page_table(indptr, indices, last_page_len, block_tables, seq_lens)
        fits = self._update(table, stream_of(stream, self._attention._device, uses_torch=True))
        del held  # the arrays had to live until they were read
        return fits

    def _update(self, table: Any, stream: int) -> bool:
        """As :meth:`update`, of a table's addresses."""
        return self._planned.update(table, stream)

    def _update_rows(
        self, place: tuple[int, int, int, int], lens: int, requests: int, order: int, writes: int, stream: int
    ) -> bool:
        """As :meth:`update`, of block tables by addresses.

        Args:
            place: of the tables, the entries from row to row, columns, rows.
            lens: of int32 ``[requests]``.
            requests: of the batch.
            order: of int32 ``[requests]``: the rows of the batch; 0 for the first ones.
            writes: of uint64 ``[rows]``: the last write to each row; 0 if they are not counted.
            stream: as in ``run``.
        """
        return self._planned.update_rows(*place, lens, requests, order, writes, stream)

    def set_lengths(self, seq_lens: Integers, stream: Any = None) -> None:
        """Gives the plan new lengths, and queues their copy: requests have grown inside their last pages.

        Args:
            seq_lens: ``[batch]``: tokens of each request.
            stream: as in ``run``.

        Raises:
            ValueError: another number of lengths than requests, or a length that needs another number of pages.
            CudaError: the driver's, or a stream that is being captured.
        """
        lens = counts("seq_lens", seq_lens)
        self._planned.set_lengths(lens, stream_of(stream, self.attention._device, uses_torch=True))

    def _run(self, layer: tuple[Any, ...], batch: int) -> None:
        del batch  # it never changes
        self._planned.run(layer)
