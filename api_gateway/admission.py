"""How many requests may be under way at once, and when a refused one should come back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.errors import Overloaded, Unavailable
from protos.limits import fair_part

MAX_RETRY_AFTER_S = 60.0


class Admission:
    """Counts the requests under way; refuses above a limit and while the gateway drains.

    One tenant alone may have all places. When none is left, a tenant that holds less than an equal
    part gets one above the limit, so that nobody shuts others out, not even with requests whose
    bodies never come. The engine's queue has the same rule.
    """

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
        self._held: Counter[str] = Counter()  # by tenant; of those that hold any

    @contextmanager
    def enter(self, tenant: str) -> Iterator[None]:
        """Hold one place of a tenant's; raise Overloaded or Unavailable when there is none."""
        if self.is_draining:
            raise Unavailable("the gateway is shutting down", code="draining", retry_after_s=1)
        mine = self._held[tenant]
        if self.num_active >= self._max and mine >= fair_part(self._max, tenant, self._held):
            raise Overloaded(
                f"{self.num_active} requests are under way of {self._max} allowed at once, "
                f"{mine} of them yours",
                code="too_many_requests",
                retry_after_s=min(MAX_RETRY_AFTER_S, max(1.0, self._gap_s)),
            )
        if not self.num_active and self._last_end_s is not None:
            self._last_end_s = self._clock()  # the time in which nobody was there is no pace
        self.num_active += 1
        self._held[tenant] += 1
        try:
            yield
        finally:
            self.num_active -= 1
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]
            self._note_end()

    def _note_end(self) -> None:
        now = self._clock()
        if self._last_end_s is not None:
            self._gap_s += 0.1 * (now - self._last_end_s - self._gap_s)
        self._last_end_s = now
