"""What the books say to those who ask: how a request stands, how one would fare, what is cached.

Changes nothing.
"""

from __future__ import annotations

from math import inf

import msgspec

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.limits import Facts, admit, check_fit, room
from engine_core.scheduling.planning import Planner
from engine_core.scheduling.queue_bounds import check_queue
from engine_core.scheduling.request import Refused
from engine_core.scheduling.roster import Roster
from engine_core.scheduling.sequence import Sequence, Status
from protos.worker import Add


class ChoiceState(msgspec.Struct, frozen=True):
    """One choice of a live request."""

    choice: int
    state: str
    """As in the table of states, in lower case."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    num_blocks: int
    queue_place: int | None
    """1 = next; null when it does not wait."""
    num_preemptions: int
    age_s: float


class Refusal(msgspec.Struct, frozen=True):
    kind: str
    message: str
    param: str
    code: str


class Explanation(msgspec.Struct, frozen=True):
    """How a request would fare if it came now."""

    num_prompt_tokens: int
    max_total_tokens: int
    """Prompt and output at most."""
    num_cached_tokens: int
    num_blocks_needed: int
    """To start; the rest is taken as it grows."""
    num_blocks_free: int
    queue_place: int
    num_waiting: int
    num_running: int
    estimated_start_s: float | None
    """0 = the next step; null while nothing has ended from which to tell."""
    refused: Refusal | None = None


class BlockStates(msgspec.Struct, frozen=True):
    total: int
    free: int
    cached: int
    used: int


class CacheStatistics(msgspec.Struct, frozen=True):
    """Since the scheduler started; preempted requests that come back are not counted again."""

    layout: str
    block_size: int
    blocks: BlockStates
    hits: int
    """Requests of which something was found."""
    misses: int
    tokens_looked_up: int
    tokens_saved: int


class Inspection:
    """Reads one scheduler's books."""

    def __init__(self, roster: Roster, planner: Planner, facts: Facts, bounds: Bounds) -> None:
        self._roster = roster
        self._bounds = bounds
        self._planner = planner
        self._facts = facts

    def request(self, request_id: str, tenant: str, now: float) -> list[ChoiceState]:
        """Return the live choices of that tenant's requests of that id."""
        return [
            self._state(row, now)
            for row in self._roster.live()
            if row.request.request_id == request_id and row.tenant == tenant
        ]

    def _state(self, row: Sequence, now: float) -> ChoiceState:
        waits = row.status is Status.WAITING
        return ChoiceState(
            choice=row.choice,
            state=row.status.name.lower(),
            num_prompt_tokens=row.num_prompt,
            num_cached_tokens=row.num_cached,
            num_computed_tokens=row.num_computed,
            num_output_tokens=row.num_output,
            num_blocks=len(row.block_ids),
            queue_place=self._planner.outlook(row, now).place if waits else None,
            num_preemptions=row.num_preemptions,
            age_s=now - row.request.arrival,
        )

    def explain(self, add: Add, now: float, must_fit: bool) -> Explanation:
        """Return how `add` would fare; nothing is entered.

        `must_fit`: the text tier would refuse it where its max_tokens are more than the context.
        """
        layout, roster = self._roster.layout, self._roster
        try:
            own = self._bounds.of(add.limits.tenant)
            request = admit(add, self._facts, own, now)
            if must_fit:
                check_fit(request, self._facts)
            check_queue(roster, self._bounds, request.limits)
            row = Sequence(0, request, 0, room(self._facts, own))
        except Refused as refused:
            why = refused.problem
            refusal = Refusal(why.kind, why.message, why.param, why.code)
            length = len(add.prompt_token_ids) // 4
            return Explanation(
                length, 0, 0, layout.blocks_for(length), layout.num_available,
                0, roster.num_waiting, len(roster.running), None, refusal,
            )  # fmt: skip
        row.order = (row.order[0], inf, 0)  # behind those that have come
        outlook = self._planner.outlook(row, now)
        return Explanation(
            num_prompt_tokens=row.num_prompt,
            max_total_tokens=row.max_total,
            num_cached_tokens=outlook.num_cached,
            num_blocks_needed=outlook.num_blocks,
            num_blocks_free=layout.num_available,
            queue_place=outlook.place,
            num_waiting=roster.num_waiting,
            num_running=len(roster.running),
            estimated_start_s=0.0 if outlook.may_start else roster.tally.wait_s(outlook.place),
        )

    def cache(self) -> CacheStatistics:
        """Return what was found so far, and the blocks by state."""
        layout, tally = self._roster.layout, self._roster.tally
        free, cached = layout.num_free, layout.num_idle
        total = layout.num_blocks
        return CacheStatistics(
            layout=self._facts.layout,
            block_size=layout.block_size,
            blocks=BlockStates(total, free, cached, total - free - cached),
            hits=tally.num_found,
            misses=tally.num_not_found,
            tokens_looked_up=tally.num_prefix_queries,
            tokens_saved=tally.num_prefix_hits,
        )
