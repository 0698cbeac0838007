"""Who runs first and who makes way: priority (lower first), then arrival.

A preempted sequence keeps its arrival, so it returns before everyone who came after it. The best
sequence is never a victim of another, so one always gets on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine_core.scheduling.sequence import Sequence, Status


def order(sequence: Sequence) -> tuple[int, int]:
    """Return the sort key of a sequence; smaller runs first, no two are equal."""
    return sequence.order


def choose_victim(running: Ordered) -> Sequence:
    """Return who loses its blocks: the lowest priority, of these the latest arrival."""
    return running[-1]


def may_join(candidate: Sequence, running: Ordered) -> bool:
    """Return whether `candidate` may run beside `running`: a suspect shares its steps with none."""
    if not running:
        return True
    return not (candidate.is_suspect or running[0].is_suspect)


def may_share(candidate: Sequence) -> Sequence | None:
    """Return a choice of the same request whose prompt `candidate` may share, or None."""
    return next((other for other in candidate.family if other.has_prompt), None)


def must_wait_for_prompt(candidate: Sequence) -> bool:
    """Return whether another choice of the same request is about to compute the same prompt."""
    is_running = any(other.status is Status.RUNNING for other in candidate.family)
    return is_running and may_share(candidate) is None


class Ordered:
    """Sequences by `order`, best first."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sequence:
        return self._rows[index]

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate best first; whoever is removed behind the iteration is not visited."""
        return iter(self._rows)

    def add(self, sequence: Sequence) -> None:
        insort(self._rows, sequence, key=order)

    def remove(self, sequence: Sequence) -> None:
        """Take out `sequence`, which must be in."""
        index = bisect_left(self._rows, order(sequence), key=order)
        assert self._rows[index] is sequence, f"{sequence} is not here"
        del self._rows[index]
