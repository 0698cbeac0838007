"""Whose turn it is among tenants: deficit round robin over tokens, inside bands of priority.

Every token computed is a debt of its tenant; after each step all tenants with live sequences are
due an equal part of what was computed. Who is owed the most goes first. Pure bookkeeping: knows no
queues, seats or blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from engine_core.scheduling.sequence import Sequence

AGEING_S = 30.0
"""Waiting this long is worth one step of priority; to run is not to wait."""
Standing = tuple[int, float, float, int]


class Deficits:
    """Tokens that each tenant is owed (+) or ahead (−), within `window` tokens either way.

    The bound lets nobody save up for ever; a tenant without live sequences is forgotten.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._owed: dict[str, float] = {}
        self._spent = 0

    def of(self, tenant: str) -> float:
        """Return what `tenant` is owed; a newcomer a little more than who is owed the most."""
        owed = self._owed.get(tenant)
        return max(self._owed.values(), default=0.0) + 1 if owed is None else owed

    def charge(self, tenant: str, count: int) -> None:
        """Enter `count` tokens that are being computed for `tenant`."""
        self._owed[tenant] = self.of(tenant) - count
        self._spent += count

    def share_out(self, tenants: Collection[str]) -> None:
        """End a step: `tenants` are due equal parts of what was charged since the last call."""
        due = self._spent / max(len(tenants), 1)
        low, high = -self._window, self._window
        self._owed = {one: min(max(self.of(one) + due, low), high) for one in tenants}
        self._spent = 0


def standing(sequence: Sequence, best: int, owed: float, now: float) -> Standing:
    """Return the sort key of who computes its known tokens first; smaller goes first.

    Priority, raised by age but not above `best`, the best that is asking: so age lifts a sequence
    out of a band that is passed over, and gives no precedence within the best band. Then what the
    tenant is `owed`, then arrival.
    """
    priority, arrival, seq_id = sequence.order
    aged = priority - int(sequence.age.at(now) / AGEING_S)
    return max(aged, best), -owed, arrival, seq_id


def first_in_turn(rows: list[Sequence], deficits: Deficits, now: float) -> Sequence | None:
    """Return which of `rows` computes its known tokens first; None of none."""
    if len(rows) < 2:
        return rows[0] if rows else None
    best = min(row.order[0] for row in rows)
    return min(rows, key=lambda row: standing(row, best, deficits.of(row.tenant), now))


def blocks(rows: Iterable[Sequence]) -> Counter[str]:
    """Return how many blocks each tenant's `rows` hold; shared ones count for each row."""
    held: Counter[str] = Counter()
    for row in rows:
        held[row.tenant] += len(row.block_ids)
    return held


def heaviest(held: Mapping[str, int], rows: Iterable[Sequence]) -> Sequence | None:
    """Return the last of `rows` among those of the tenant that holds the most, None of none."""
    found: Sequence | None = None
    for row in rows:
        if found is None or held[row.tenant] >= held[found.tenant]:
            found = row
    return found
