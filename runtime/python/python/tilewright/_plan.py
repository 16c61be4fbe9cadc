"""The plan of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native
from ._run import Runs, stream_of
from ._tensors import Integers, counts

if TYPE_CHECKING:
    from ._attention import Attention


class Plan(Runs):
    """The plan of a batch, made by :meth:`Attention.plan`. Several threads may run it at once."""

    def __init__(self, attention: Attention, planned: _native.Plan) -> None:
        super().__init__(attention)
        self._planned = planned

    @property
    def batch(self) -> int:
        """Queries: as many as requests, unless some bring several."""
        return self._planned.batch

    def __repr__(self) -> str:
        return f"Plan(batch={self.batch}, {self.attention})"

    def set_lengths(self, seq_lens: Integers) -> None:
        """Gives the plan new lengths: requests have grown inside their last pages, and need no other plan.

        Args:
            seq_lens: ``[batch]``: tokens of each request.

        Raises:
            ValueError: another number of lengths than requests, or a length that needs another number of pages.
        """
        self._planned.set_lengths(counts("seq_lens", seq_lens))

    def upload(self, stream: Any = None) -> None:
        """Copies the plan, or its new lengths, to the GPU before it is run: before a CUDA graph is captured, or replayed with new lengths.

        A graph that has captured ``run`` reads the plan's own memory: keep the plan as long as the graph. On the CPU nothing is done.

        Args:
            stream: the stream to copy on, as in :meth:`run`; torch's current one if absent.

        Raises:
            CudaError: the driver's.
        """
        self._planned.upload(stream_of(stream, self.attention._device, uses_torch=True))

    def _run(self, layer: tuple[Any, ...], batch: int) -> None:
        del batch  # it never changes
        self._planned.run(layer)
