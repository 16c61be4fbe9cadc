"""A plan that follows a batch step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native
from ._run import Runs, stream_of
from ._tensors import Integers, counts, integers

if TYPE_CHECKING:
    from ._attention import Attention


class LivePlan(Runs):
    """A plan that follows a batch by its changes, made by :meth:`Attention.live_plan`: a step costs what has changed.

    Requests are rows of the batch, numbered from 0. Tell what happens to them, call :meth:`update` once a step, then run each layer.

    Every change raises ``ValueError`` for an unknown request, a number that is taken, a negative page, or tokens that do not lie in the
    pages; nothing has changed then.
    """

    def __init__(self, attention: Attention, planned: _native.LivePlan) -> None:
        super().__init__(attention)
        self._planned = planned
        self._batch = 0

    @property
    def batch(self) -> int:
        """Rows as of the last :meth:`update`: one more than the largest number of a request."""
        return self._batch

    def __repr__(self) -> str:
        return f"LivePlan(batch={self.batch}, {self.attention})"

    def add(self, request: int, pages: Integers, tokens: int) -> None:
        """A request arrives with these pages, those that its tokens use."""
        self._planned.add(_count("request", request), integers("pages", pages), _count("tokens", tokens))

    def remove(self, request: int) -> None:
        """A request leaves."""
        self._planned.remove(_count("request", request))

    def append(self, request: int, new_pages: Integers, tokens: int) -> None:
        """A request has further pages, and this many tokens in all."""
        self._planned.append(_count("request", request), integers("new_pages", new_pages), _count("tokens", tokens))

    def truncate(self, request: int, pages_kept: int, tokens: int) -> None:
        """A request keeps its first pages, and this many tokens."""
        self._planned.truncate(_count("request", request), _count("pages_kept", pages_kept), _count("tokens", tokens))

    def rename(self, old: int, new: int) -> None:
        """A request gets another number, as when an engine moves its last row into a hole."""
        self._planned.rename(_count("old", old), _count("new", new))

    def grow(self, request: int, tokens: int) -> None:
        """A request has this many tokens, in the same pages."""
        self._planned.grow(_count("request", request), _count("tokens", tokens))

    def grow_all(self, tokens: Integers) -> None:
        """All requests have these tokens ``[batch]``, in the same pages; 0 where there is no request."""
        self._planned.grow_all(counts("tokens", tokens))

    def update(self) -> int:
        """Plans the batch as it is now, and returns its rows.

        Raises:
            ValueError: a batch beyond 32-bit counts.
        """
        self._batch = self._planned.update()
        return self._batch

    def upload(self, stream: Any = None) -> None:
        """As :meth:`Plan.upload`."""
        self._planned.upload(stream_of(stream, self.attention._device, uses_torch=True))

    def _run(self, layer: tuple[Any, ...], batch: int) -> None:
        self._planned.run(layer, batch)


def _count(name: str, number: int) -> int:
    if not 0 <= number < 1 << 32:
        raise ValueError(f"`{name}` is {number}: a whole number of 32 bits from 0 on is needed")
    return number
