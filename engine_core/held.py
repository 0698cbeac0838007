"""Requests that wait in the front because no replica is ready yet: in order, bounded, mortal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_core.scheduling.request import FinishReason, Problem
from engine_core.scheduling.rows import slots_of
from protos.limits import fair_part
from protos.worker import Add


@dataclass(slots=True)
class Held:
    add: Add
    since: float
    slots: list[int]
    """Those that have not ended while waiting."""

    def remaining(self, now: float) -> Iterator[Add]:
        """Return what is left to be sent: the request, or single choices when some have ended.

        The deadline is relative to the moment of sending, so the time spent here is taken off; it
        is added to what has been waited.
        """
        limits, here_s = self.add.limits, now - self.since
        limits = msgspec.structs.replace(limits, waited_s=limits.waited_s + here_s)
        if limits.deadline_s is not None:
            limits = msgspec.structs.replace(limits, deadline_s=limits.deadline_s - here_s)
        whole = msgspec.structs.replace(self.add, limits=limits)
        if len(self.slots) == len(slots_of(self.add)):
            yield whole
            return
        for slot in self.slots:
            index = slot - self.add.slot
            yield msgspec.structs.replace(
                whole,
                slot=slot,
                limits=msgspec.structs.replace(
                    limits, n=1, first_choice=limits.first_choice + index
                ),
                resumed_token_ids=self.add.resumed_token_ids[index : index + 1],
            )


class HeldRequests:
    """At most `max_held` slots, and for every tenant its fair part of them."""

    def __init__(self, max_held: int) -> None:
        self._max_held = max_held
        self._rows: deque[Held] = deque()

    def __len__(self) -> int:
        return sum(len(row.slots) for row in list(self._rows))  # a scrape's thread asks, too

    def states(self, request_id: str, tenant: str) -> list[dict[str, Any]]:
        """Return the choices of that tenant's requests of that id that wait here."""
        return [
            {"choice": row.add.limits.first_choice + slot - row.add.slot, "state": "waiting"}
            for row in self._rows
            if (row.add.request_id, row.add.limits.tenant) == (request_id, tenant)
            for slot in row.slots
        ]

    def hold(self, add: Add, now: float) -> Problem | None:
        """Keep `add`; return why not when the bound is reached. A replay was let in before."""
        slots, tenant = list(slots_of(add)), add.limits.tenant
        held = Counter(row.add.limits.tenant for row in self._rows for _ in row.slots)
        part = fair_part(self._max_held, tenant, held)
        is_full = len(self) + len(slots) > self._max_held
        if is_full and held[tenant] + len(slots) > part and not add.attempt:
            return Problem(
                "Overloaded",
                f"no replica is ready and {len(self)} requests wait already (max_waiting)",
                code="queue_full",
                retry_after_s=5.0,
                reason=FinishReason.IGNORED,
            )
        self._rows.append(Held(add, now, slots))
        return None

    def drop(self, session: int, slot: int) -> None:
        """Forget one slot."""
        for row in self._rows:
            if row.add.session == session and slot in row.slots:
                row.slots.remove(slot)
        self._rows = deque(row for row in self._rows if row.slots)

    def drop_session(self, session: int) -> None:
        self._rows = deque(row for row in self._rows if row.add.session != session)

    def release(self, now: float) -> list[Add]:
        """Return all requests, oldest first, and hold none any more."""
        rows, self._rows = self._rows, deque()
        return [add for row in rows for add in row.remaining(now)]

    def overdue(self, now: float) -> list[tuple[int, int]]:
        """Return (session, slot) of all whose deadline has passed."""
        return [
            (row.add.session, slot)
            for row in self._rows
            if row.add.limits.deadline_s is not None
            and now - row.since >= row.add.limits.deadline_s
            for slot in row.slots
        ]
