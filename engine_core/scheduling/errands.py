"""Errands: what the workers do beside the steps. Asked for here, answered in any order.

Knows numbers and who waits for an answer; not what an errand is about.
"""

from __future__ import annotations

from collections.abc import Callable

from protos.worker import DropKeys, Errand, ErrandDone

Then = Callable[[ErrandDone, float], None]
"""What is to be done with the answer, and the time at which it came."""


class Errands:
    """Those of one replica. They go out in the order of their asking, before the next plan."""

    def __init__(self) -> None:
        self._next_id = 1
        self._unsent: list[Errand | DropKeys] = []
        self._open: dict[int, Then] = {}

    def __len__(self) -> int:
        """How many are not answered yet."""
        return len(self._open)

    def ask(self, make: Callable[[int], Errand], then: Then) -> None:
        """Send what `make` makes of an errand_id, and call `then` with its answer."""
        errand_id, self._next_id = self._next_id, self._next_id + 1
        self._open[errand_id] = then
        self._unsent.append(make(errand_id))

    def say(self, message: DropKeys) -> None:
        """Send what needs no answer."""
        self._unsent.append(message)

    def take(self) -> list[Errand | DropKeys]:
        """Return what was asked for since the last call."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def done(self, answer: ErrandDone, now: float) -> None:
        """Enter an answer; each errand has one."""
        self._open.pop(answer.errand_id)(answer, now)
