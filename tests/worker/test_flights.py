"""Flights: two steps under way, results in order, failures by name, and an end that waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from protos import worker as wire
from worker.flights import Flight, Flights, StepFailed


class Device:
    """A runner whose steps are done when the test says so; those of `alone` need the others."""

    def __init__(self, alone: tuple[int, ...] = (), sick: tuple[int, ...] = ()) -> None:
        self.begun: list[int] = []
        self.done: dict[int, threading.Event] = {}
        self._alone = alone
        self._sick = sick

    def begin(self, plan: wire.ExecutePlan, land_earlier: Callable[[], None]) -> Flight:
        step_id = plan.step_id
        if step_id in self._alone:
            land_earlier()
        self.begun.append(step_id)
        if step_id < 0:
            raise RuntimeError("no such step")
        done = self.done[step_id] = threading.Event()
        if step_id in self._alone:
            return Flight(step_id, None, lambda: self._result(step_id))
        return Flight(step_id, lambda: self._wait(done), lambda: self._result(step_id))

    def _wait(self, done: threading.Event) -> None:
        assert done.wait(10)

    def _result(self, step_id: int) -> wire.StepResult:
        if step_id not in self._alone:
            self._wait(self.done[step_id])
        if step_id in self._sick:
            raise RuntimeError("the device is sick")
        return wire.StepResult(step_id)


class Life:
    """Flights over a device, what they have delivered, and what woke their thread."""

    def __init__(self, device: Device) -> None:
        self.delivered: list[int] = []
        self.told: list[Flight] = []
        self.woken = threading.Semaphore(0)
        self.flights = Flights(device, lambda r: self.delivered.append(r.step_id), self._tell)

    def _tell(self, flight: Flight) -> None:
        self.told.append(flight)
        self.woken.release()

    def begin(self, *step_ids: int) -> None:
        for step_id in step_ids:
            self.flights.begin(wire.ExecutePlan(step_id))

    def land(self) -> None:
        """Land the next flight that is done, as the server does."""
        assert self.woken.acquire(timeout=10)
        self.flights.land(self.told.pop(0))


def test_a_step_begins_while_the_one_before_is_computed() -> None:
    device = Device()
    life = Life(device)
    life.begin(1, 2)
    assert device.begun == [1, 2] and life.delivered == []
    device.done[1].set()
    life.land()
    assert life.delivered == [1]
    life.begin(3)
    for step_id in (2, 3):
        device.done[step_id].set()
        life.land()
    assert life.delivered == [1, 2, 3]
    life.flights.close()


def test_a_third_step_waits_for_the_first() -> None:
    device = Device()
    life = Life(device)
    life.begin(1, 2)
    threading.Timer(0.02, device.done[1].set).start()
    life.begin(3)
    assert life.delivered == [1] and device.begun == [1, 2, 3]
    for step_id in (2, 3):
        device.done[step_id].set()
    life.flights.land_all()
    assert life.delivered == [1, 2, 3]
    for _ in range(3):
        life.land()  # said too late, and no news
    assert life.delivered == [1, 2, 3]
    life.flights.close()


def test_a_step_that_needs_the_results_gets_them_first() -> None:
    device = Device(alone=(2, 3))
    life = Life(device)
    life.begin(1)
    device.done[1].set()
    life.begin(2, 3)
    assert life.delivered == [1, 2, 3]
    life.flights.close()


def test_what_cannot_begin_is_said_after_what_came_before() -> None:
    device = Device()
    life = Life(device)
    life.begin(1)
    device.done[1].set()
    with pytest.raises(StepFailed, match="step -2 failed: RuntimeError..no such step") as failed:
        life.begin(-2)
    assert (failed.value.step_id, life.delivered) == (-2, [1])
    life.flights.close()


@pytest.mark.parametrize("later", [2, -2])
def test_a_step_that_fails_on_the_device_is_named(later: int) -> None:
    """Also when it is found while the next one begins, or fails to."""
    device = Device(alone=(2,), sick=(1,))
    life = Life(device)
    life.begin(1)
    device.done[1].set()
    with pytest.raises(StepFailed, match="^step 1 failed: RuntimeError..the device is sick"):
        life.begin(later)
    assert life.delivered == []
    life.flights.close()


def test_the_end_waits_for_the_device_and_delivers_nothing() -> None:
    device = Device()
    life = Life(device)
    life.begin(1, 2)
    ended = threading.Thread(target=life.flights.close)
    ended.start()
    device.done[1].set()
    assert life.woken.acquire(timeout=10)
    assert ended.is_alive()
    device.done[2].set()
    ended.join(10)
    assert not ended.is_alive() and life.delivered == []
