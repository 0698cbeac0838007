"""Whether the queue has a place for one more request, of all tenants' and of its own."""

from __future__ import annotations

from collections import Counter

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.request import Problem, Refused
from engine_core.scheduling.roster import Roster
from protos.limits import fair_part
from protos.worker import Limits


def check_queue(roster: Roster, bounds: Bounds, limits: Limits) -> None:
    """Raise Refused when the queue has no place for the choices of one more request."""
    tenant, count = limits.tenant, limits.n
    total, most = len(roster.waiting) + len(roster.held), bounds.max_waiting
    own = bounds.of(tenant).waiting
    if total + count <= most and not own:
        return
    waiting = Counter(row.tenant for row in roster.waiting)
    waiting.update(row.tenant for row in roster.held.values())
    mine = waiting[tenant]
    if own and mine + count > own:
        why = f"{mine} of tenant {tenant!r} wait and {own} may (tenant_limits: waiting)"
        raise Refused(_full(roster, why, mine))
    if total + count > most and mine + count > fair_part(most, tenant, waiting):
        why = f"{total} requests wait and {most} may (max_waiting), {mine} of tenant {tenant!r}"
        raise Refused(_full(roster, why, total))


def _full(roster: Roster, why: str, num_waiting: int) -> Problem:
    retry_after_s = roster.tally.retry_after_s(num_waiting)
    return Problem("Overloaded", why, code="queue_full", retry_after_s=retry_after_s)
