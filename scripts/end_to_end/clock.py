"""How long a run takes, and may take."""

from __future__ import annotations

import time


class Clock:
    """The time that there is."""

    def __init__(self, began: float, seconds: float) -> None:
        self._began, self._seconds = began, seconds

    def spent(self) -> float:
        return time.perf_counter() - self._began

    def left(self) -> float:
        return self._seconds - self.spent() if self._seconds else float("inf")
