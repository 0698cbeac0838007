"""Who runs first, who makes way, who may run beside whom: choices over rows, without side effects.

Running rows stand in order of priority (lower first), then arrival. The best one is never a victim
of another, so one always gets on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import attrgetter

from engine_core.scheduling.fairness import blocks, heaviest
from engine_core.scheduling.sequence import Sequence, Status


def choose_victim(running: Ordered) -> Sequence:
    """Return who loses its blocks, of the lowest priority: the last row of who holds the most."""
    lowest = running[-1].order[0]
    candidates = [row for row in islice(running, 1, None) if row.order[0] == lowest]
    return heaviest(blocks(running), candidates) or running[-1]


def choose_seat(candidate: Sequence, running: Ordered, seats: Mapping[str, int]) -> Sequence | None:
    """Return who gives its seat to `candidate`: the last row of the tenant that has the most.

    None when that tenant would then have fewer than the candidate's: so no seat goes back.
    """
    return _yielding(candidate, running, seats, 1, lambda _: 1)


def choose_blocks(candidate: Sequence, running: Ordered, needed: int) -> Sequence | None:
    """Return who gives its blocks to `candidate`, which needs `needed` of them; None likewise."""
    return _yielding(candidate, running, blocks(running), needed, lambda row: len(row.block_ids))


def _yielding(
    candidate: Sequence,
    running: Ordered,
    held: Mapping[str, int],
    needed: int,
    part: Callable[[Sequence], int],
) -> Sequence | None:
    mine = held.get(candidate.tenant, 0) + needed
    if max(held.values(), default=0) < mine:
        return None  # the usual answer, without a look at the rows
    weaker = [row for row in islice(running, 1, None) if row.order[0] >= candidate.order[0]]
    victim = heaviest(held, weaker)
    if victim is None:
        return None
    left = held[victim.tenant] - part(victim)
    return victim if left >= mine else None


def may_join(candidate: Sequence, running: Ordered) -> bool:
    """Return whether `candidate` may run beside `running`: a suspect shares its steps with none."""
    if not running:
        return True
    return not (candidate.is_suspect or running[0].is_suspect)


def may_share(candidate: Sequence) -> Sequence | None:
    """Return a choice of the same request whose prompt `candidate` may share, or None."""
    if candidate.num_dropped:
        return None
    return next((other for other in candidate.family if other.has_prompt), None)


def must_wait_for_prompt(candidate: Sequence) -> bool:
    """Return whether another choice of the same request is about to compute the same prompt."""
    is_running = any(
        other.status is Status.RUNNING and not other.num_dropped for other in candidate.family
    )
    return is_running and not candidate.num_dropped and may_share(candidate) is None


_order = attrgetter("order")


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
        insort(self._rows, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Take out `sequence`, which must be in."""
        index = bisect_left(self._rows, sequence.order, key=_order)
        assert self._rows[index] is sequence, f"{sequence} is not here"
        del self._rows[index]


Place = tuple[int, str]
"""A priority and a tenant."""


class Queues:
    """Waiting sequences, each tenant's of one priority in a queue of its own."""

    __slots__ = ("_num", "_queues")

    def __init__(self) -> None:
        self._queues: dict[Place, Ordered] = {}
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Sequence]:
        return (row for queue in self._queues.values() for row in queue)

    def add(self, sequence: Sequence) -> None:
        self._queues.setdefault(self.place(sequence), Ordered()).add(sequence)
        self._num += 1

    def remove(self, sequence: Sequence) -> None:
        """Take out `sequence`, which must be in."""
        place = self.place(sequence)
        queue = self._queues[place]
        queue.remove(sequence)
        self._num -= 1
        if not queue:
            del self._queues[place]

    @staticmethod
    def place(sequence: Sequence) -> Place:
        """Return which queue is that of `sequence`."""
        return sequence.order[0], sequence.tenant

    def behind_choices(self, sequence: Sequence, first: int) -> int:
        """Return where those behind `sequence` stand that are not choices of the same prompt.

        It is the `first` of its queue, where the choices of a request stand side by side.
        """
        queue = self._queues[self.place(sequence)]
        while first < len(queue) and queue[first].is_choice_like(sequence):
            first += 1
        return first

    def heads(self, passed: Mapping[Place, int]) -> list[Sequence]:
        """Return the first of every queue behind the `passed` of it."""
        return [
            queue[first]
            for place, queue in self._queues.items()
            if (first := passed.get(place, 0)) < len(queue)
        ]
