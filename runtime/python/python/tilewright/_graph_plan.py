"""A plan that CUDA graphs capture once, for all batches of a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native
from ._run import Runs, stream_of

if TYPE_CHECKING:
    from ._attention import Attention
    from ._live_plan import LivePlan
    from ._plan import Plan


class GraphPlan(Runs):
    """What the CUDA graph of a decode step captures instead of one batch's plan, made by :meth:`Attention.graph_plan`.

    Capture ``run`` of every layer once; then, each step, :meth:`upload` the step's plan and replay. A plan that does not fit gets a graph of its
    own::

        made = next((one for one in steps if one.fits(plan)), None)
        if made is None:
            made = attention.graph_plan(plan)
            # capture a graph of the model, with `made.run(q, kv_cache, out)` in each layer
        made.upload(plan)
        # copy the step's inputs, and replay that graph

    ``run`` takes ``q``, ``out`` and ``lse`` of :attr:`batch` rows. The first ones, as many as the uploaded plan has, are computed; others are left
    as they are. Keep it, and the tensors, as long as the graph.
    """

    def __init__(self, attention: Attention, planned: _native.GraphPlan) -> None:
        super().__init__(attention)
        self._planned = planned

    @property
    def batch(self) -> int:
        """Queries that there is room for."""
        return self._planned.batch

    @property
    def pages(self) -> int:
        """Entries of the page table that there is room for; of a shared page only one counts for the plan."""
        return self._planned.page_entries

    def __repr__(self) -> str:
        return f"GraphPlan(batch={self.batch}, pages={self.pages}, {self.attention})"

    def fits(self, plan: Plan | LivePlan) -> bool:
        """Whether a plan fits: it has the tiles of the one that this was made for, or some of them, and no more of anything than there is room
        for.
        """
        return self._is_of(plan) and plan._planned.misfit(self._planned) is None

    def upload(self, plan: Plan | LivePlan, stream: Any = None) -> None:
        """Queues the copy of the plan that the next launches compute; of its lengths alone where nothing else of it has changed since it was
        uploaded last.

        Args:
            plan: the step's.
            stream: the one that graphs are launched on, as in :meth:`run`; torch's current one if absent.

        Raises:
            ValueError: a plan that does not fit, of another attention, or with a page that is not in a captured cache. What was uploaded before
                stays.
            CudaError: the driver's, or a stream that is being captured.
        """
        if not self._is_of(plan):
            raise ValueError(
                f"the plan is of {plan.attention}, this of {self.attention}: plans of another attention do not fit"
            )
        plan._planned.upload_to(self._planned, stream_of(stream, self.attention._device, uses_torch=True))

    def _is_of(self, plan: Plan | LivePlan) -> bool:
        return plan.attention is self.attention

    def _run(self, layer: tuple[Any, ...], batch: int) -> None:
        del batch  # it never changes
        self._planned.run(*layer)
