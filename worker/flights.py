"""Flights: the steps that have begun and are not answered yet, at most two, landed in their order.

A device computes one step while the next is being launched. Knows steps and results; no rows, no
arrays and no socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from protos import worker as wire

MOST_FLIGHTS = 2
"""As many as the scheduler plans ahead (`engine_core/worker_link.py`)."""


class Flight(NamedTuple):
    """A step that has begun."""

    step_id: int
    wait: Callable[[], None] | None
    """Returns when the device is done, in any thread; None = nothing is left to wait for."""
    result: Callable[[], wire.StepResult]
    """Waits, settles the rows, and may be called once, after that of the step before."""


class Runner(Protocol):
    """What begins steps: a ModelRunner, or what stands for one in a benchmark."""

    def begin(self, plan: wire.ExecutePlan, land_earlier: Callable[[], None]) -> Flight:
        """Begin a step; call `land_earlier` before what needs the results of those before it."""
        ...


class StepFailed(Exception):
    """A whole step failed: rows and cache are no longer trusted."""

    def __init__(self, step_id: int, cause: Exception) -> None:
        super().__init__(f"step {step_id} failed: {cause!r}")
        self.step_id = step_id
        self.cause = cause


class Flights:
    """Those of one life. All methods belong to one thread, which `told` wakes from another."""

    def __init__(
        self,
        runner: Runner,
        deliver: Callable[[wire.StepResult], None],
        told: Callable[[Flight], None],
    ) -> None:
        """`deliver` gets each result in order; `told` is called when a device has done a step."""
        self._runner = runner
        self._deliver = deliver
        self._told = told
        self._flying: deque[Flight] = deque()
        self._watcher = ThreadPoolExecutor(1, "flight")

    def begin(self, plan: wire.ExecutePlan) -> None:
        """Begin a step and deliver what need not be waited for; raise StepFailed.

        When it cannot begin, the results of the steps before it are delivered first.
        """
        while len(self._flying) >= MOST_FLIGHTS:
            self._land()
        try:
            flight = self._runner.begin(plan, self.land_all)
        except StepFailed:
            raise
        except Exception as error:
            self.land_all()
            raise StepFailed(plan.step_id, error) from error
        self._flying.append(flight)
        if flight.wait is None:
            self.land_all()
        else:
            done = self._watcher.submit(flight.wait)
            done.add_done_callback(lambda _: self._told(flight))

    def land(self, flight: Flight) -> None:
        """Deliver the result of `flight`, which is done, unless that has been; raise StepFailed."""
        if self._flying and self._flying[0] is flight:
            self._land()

    def land_all(self) -> None:
        """Wait for every step that has begun and deliver its result; raise StepFailed."""
        while self._flying:
            self._land()

    def _land(self) -> None:
        flight = self._flying.popleft()
        try:
            result = flight.result()
        except Exception as error:
            raise StepFailed(flight.step_id, error) from error
        self._deliver(result)

    def close(self) -> None:
        """Wait until the device is done with all that has begun; deliver nothing."""
        self._watcher.shutdown()
