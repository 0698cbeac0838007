"""How many requests may be under way at once, and when a refused one should come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.errors import Overloaded, Unavailable

MAX_RETRY_AFTER_S = 60.0


class Admission:
    """Counts the requests under way; refuses above a limit and while the gateway drains."""

    def __init__(
        self, max_concurrent_requests: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max = max_concurrent_requests
        self._clock = clock
        self._gap_s = 1.0  # moving mean of the time between two ends
        self._last_end_s: float | None = None
        self.num_active = 0
        self.is_leaving = False
        """/ready says no, so that balancers look elsewhere; who still comes is served."""
        self.is_draining = False

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Hold one place; raise Overloaded or Unavailable when there is none."""
        if self.is_draining:
            raise Unavailable("the gateway is shutting down", code="draining", retry_after_s=1)
        if self.num_active >= self._max:
            raise Overloaded(
                f"{self.num_active} requests are under way of {self._max} allowed at once",
                code="too_many_requests",
                retry_after_s=min(MAX_RETRY_AFTER_S, max(1.0, self._gap_s)),
            )
        if not self.num_active and self._last_end_s is not None:
            self._last_end_s = self._clock()  # the time in which nobody was there is no pace
        self.num_active += 1
        try:
            yield
        finally:
            self.num_active -= 1
            self._note_end()

    def _note_end(self) -> None:
        now = self._clock()
        if self._last_end_s is not None:
            self._gap_s += 0.1 * (now - self._last_end_s - self._gap_s)
        self._last_end_s = now
