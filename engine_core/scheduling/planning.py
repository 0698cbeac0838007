"""Which rows the next step computes: those that run, then those that still catch up, then new ones.

Moves sequences through the roster; knows no results, events or messages but the rows of a plan.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.draft import Draft
from engine_core.scheduling.fairness import (
    Deficits,
    Standing,
    blocks,
    first_in_turn,
    standing,
)
from engine_core.scheduling.fetching import Fetching
from engine_core.scheduling.policy import (
    Place,
    choose_blocks,
    choose_seat,
    choose_victim,
    may_join,
    may_share,
    must_wait_for_prompt,
)
from engine_core.scheduling.reuse import Known
from engine_core.scheduling.roster import Roster
from engine_core.scheduling.rotation import turn_full
from engine_core.scheduling.rows import start_row
from engine_core.scheduling.sequence import Sequence, Status
from engine_core.scheduling.speculation import Proposer, Speculation
from protos.worker import SequenceStep

DEFICIT_STEPS = 8
"""A tenant is owed, or owes, the tokens of so many full steps at most."""


class Outlook(NamedTuple):
    """What lies before a sequence that waits, or might."""

    num_cached: int
    num_blocks: int
    """To be free or evictable before it starts."""
    place: int
    """In the queue; 1 = next."""
    may_start: bool
    """The next step has room for it."""


class Planner:
    """Fills drafts from one roster, within `bounds`."""

    def __init__(
        self,
        roster: Roster,
        bounds: Bounds,
        propose: Proposer | None,
        fetching: Fetching | None = None,
    ) -> None:
        self._fetching = fetching
        self._roster = roster
        self._layout = roster.layout
        self._cache = roster.cache
        self._tally = roster.tally
        self._bounds = bounds
        self._has_block_limits = any(own.blocks for own in bounds.tenants.values())
        self._deficits = Deficits(DEFICIT_STEPS * bounds.max_num_batched_tokens)
        self._speculation: Speculation | None = None
        if propose is not None:
            self._speculation = Speculation(propose, roster, self._deficits, bounds)

    def plan(self, step_id: int, now: float) -> Draft:
        """Return what step `step_id` computes; empty when there is nothing to do."""
        draft = Draft(step_id, self._bounds.max_num_batched_tokens)
        tenants = self._roster.tenants
        if self._bounds.tenants:
            self._preempt_over_limits(now)
        self._preempt_for_memory(draft, now)
        if len(tenants) > 1:
            self._preempt_for_fairness(now)
        if self._speculation is None:
            self._plan_decodes(draft)
        else:
            self._speculation.reserve(draft)
        if len(tenants) > 1:
            for tenant, count in self._roster.seats.items():
                self._deficits.charge(tenant, count)  # a seat is worth a token a step
        if self._roster.full:
            turn_full(self._roster, draft, now)
        self._catch_up(draft, now)
        if self._speculation is not None:
            self._speculation.plan(draft)
        self._deficits.share_out(tenants)
        return draft

    def outlook(self, sequence: Sequence, now: float) -> Outlook:
        """Return what would be found of `sequence`, what it needs, and whose turn comes before."""
        known = self._known(sequence)
        rows = [row for row in self._roster.waiting if row is not sequence]
        best = min((row.order[0] for row in [*rows, sequence]), default=0)
        mine = self._standing(sequence, best, now)
        num_before = sum(self._standing(row, best, now) < mine for row in rows)
        held = blocks(self._roster.running)
        has_seat = self._has_seat() and not self._is_at_limit(sequence, held)
        return Outlook(
            num_cached=known.num_tokens,
            num_blocks=self._layout.blocks_for(self._most(sequence)) - len(known.block_ids),
            place=num_before + 1,
            may_start=not num_before and has_seat and self._fits(sequence, known),
        )

    def _standing(self, row: Sequence, best: int, now: float) -> Standing:
        return standing(row, best, self._deficits.of(row.tenant), now)

    # ── making way ───────────────────────────────────────────────────────────────────────────

    def _preempt_over_limits(self, now: float) -> None:
        """Preempt until no tenant's rows grow over the blocks that it may hold."""
        running = self._roster.running
        limited = [tenant for tenant in self._roster.seats if self._bounds.of(tenant).blocks]
        for tenant in limited:
            most = self._bounds.of(tenant).blocks
            rows = [row for row in running if row.tenant == tenant]
            while len(rows) > 1:
                held = sum(len(row.block_ids) for row in rows)
                if held + sum(self._must_grow(row) for row in rows) <= most:
                    break
                self._roster.preempt(rows.pop(), now)

    @staticmethod
    def _must_grow(row: Sequence) -> bool:
        """Return whether `row` needs a block to go on."""
        is_full = row.num_planned - row.num_guesses >= row.capacity
        return is_full and row.num_expected < row.max_total

    def _preempt_for_memory(self, draft: Draft, now: float) -> None:
        """Preempt until every row that needs a block to go on can have one.

        Before anything is planned, because a victim may stand anywhere among the rows.
        """
        running = self._roster.running
        while self._layout.num_available < len(running):
            needed = sum(self._must_grow(row) for row in running)
            if needed <= self._layout.num_available or self._roster.is_returning:
                return  # blocks that come back with a plan in flight are worth a step's wait
            self._roster.preempt(choose_victim(running), now)
            draft.has_preempted = True

    def _preempt_for_fairness(self, now: float) -> None:
        """Let a row of the tenant most over its share make way for whose turn it is, one a step."""
        running = self._roster.running
        candidate = self._next_waiting({}, [], now)
        if candidate is None or not may_join(candidate, running):
            return
        victim: Sequence | None = None
        if len(running) >= self._bounds.max_num_seqs:
            victim = choose_seat(candidate, running, self._roster.seats)
        elif not (self._fits(candidate, self._known(candidate)) or self._roster.is_returning):
            needed = self._layout.blocks_for(self._most(candidate))
            victim = choose_blocks(candidate, running, needed)
        if victim is not None:
            self._roster.preempt(victim, now)

    # ── going on ─────────────────────────────────────────────────────────────────────────────

    def _plan_decodes(self, draft: Draft) -> None:
        """Plan the rows that are one token behind; the others wait for their turn in `prefills`.

        The budget has a token for each of them. This loop and the one in `Entering._append` are
        the cost of a step.
        """
        step_id = draft.step_id
        steps, rows, growth = draft.steps, draft.step_rows, self._growth()
        for sequence in self._roster.running:
            expected = sequence.num_expected
            if expected >= sequence.max_total:  # its last token is on the way
                if not sequence.draws and sequence.num_left:
                    draft.prefills.append(sequence)
                continue
            planned = sequence.num_planned
            if expected - planned > 1:
                draft.prefills.append(sequence)
                continue
            if planned < sequence.capacity:
                steps.append(sequence.decode_step)
            elif self._layout.num_available:
                steps.append(self._grow(sequence, growth))
            else:
                continue
            sequence.num_planned = expected
            sequence.num_expected = expected + 1
            sequence.last_plan = step_id
            rows.append(sequence)
        draft.budget -= len(rows)
        self._tally.num_decode_tokens += len(rows)

    def _grow(self, sequence: Sequence, growth: int) -> SequenceStep:
        """Return a step of one token in a new page: only what is new crosses the wire."""
        if self._bounds.of(sequence.tenant).blocks:
            growth = 1  # so many were counted
        count = growth
        if growth > 1:
            most = self._layout.blocks_for(sequence.max_total) - len(sequence.block_ids)
            count = min(growth, most)
        return SequenceStep(sequence.seq_id, 1, self._roster.grow(sequence, count))

    def _growth(self) -> int:
        """Return how many pages a row takes at a time: more than one only if all rows could."""
        layout = self._layout
        is_plenty = layout.num_available >= layout.growth * len(self._roster.running)
        return layout.growth if is_plenty else 1

    # ── catching up ──────────────────────────────────────────────────────────────────────────

    def _catch_up(self, draft: Draft, now: float) -> None:
        """Spend what is left of the budget on known tokens, of running rows and of new ones."""
        prefills, passed = draft.prefills, dict[Place, int]()
        may_start = not draft.has_preempted  # room was made for those that run
        while draft.budget:
            may_start = may_start and self._has_seat()
            if may_start:
                sequence = self._next_waiting(passed, prefills, now)
            else:
                sequence = first_in_turn(prefills, self._deficits, now)
            if sequence is None:
                return
            if sequence.status is Status.RUNNING:
                prefills.remove(sequence)
                count = self._advance(sequence, draft, draft.step_rows, now)
                draft.steps.append(SequenceStep(sequence.seq_id, count))
                continue
            known = self._known(sequence)
            if not (may_join(sequence, self._roster.running) and self._fits(sequence, known)):
                may_start = False  # nobody overtakes the one whose turn it is
            elif self._fetching is None or not self._fetching.begin(sequence, known):
                self._start(sequence, known, draft, now)

    def _has_seat(self) -> bool:
        """Return whether one more may start; whoever comes back from host memory takes one."""
        roster = self._roster
        return len(roster.running) + len(roster.fetching) < self._bounds.max_num_seqs

    def _next_waiting(
        self, passed: dict[Place, int], prefills: list[Sequence], now: float
    ) -> Sequence | None:
        """Return whose turn it is, of `prefills` and those who wait and may start; None = nobody.

        Rows that may not start now are `passed`; of a tenant at its limits all at once, because to
        look at each would make its flood a cost of everybody's steps. All such tenants go first:
        to find them one by one among the others is a cost of their number squared.
        """
        held = blocks(self._roster.running) if self._has_block_limits else {}
        if self._bounds.tenants:
            self._pass_limited(passed, held)
        while True:
            rows = [*prefills, *self._roster.waiting.heads(passed)]
            sequence = first_in_turn(rows, self._deficits, now)
            if sequence is None or sequence.status is Status.RUNNING:
                return sequence
            place = self._roster.waiting.place(sequence)
            if self._is_at_limit(sequence, held):  # one behind those that were passed
                passed[place] = sys.maxsize
            elif self._would_repeat(sequence):
                passed[place] = self._roster.waiting.behind_choices(sequence, passed.get(place, 0))
            elif self._is_coming(sequence):
                passed[place] = passed.get(place, 0) + 1
            else:
                return sequence

    def _pass_limited(self, passed: dict[Place, int], held: Mapping[str, int]) -> None:
        for head in self._roster.waiting.heads(passed):
            if self._is_at_limit(head, held):
                passed[self._roster.waiting.place(head)] = sys.maxsize

    def _is_at_limit(self, sequence: Sequence, held: Mapping[str, int]) -> bool:
        """Return whether the tenant's own limits keep `sequence` waiting; `held` are the blocks of
        the tenants' running rows."""
        own = self._bounds.of(sequence.tenant)
        if own.seqs and self._roster.seats[sequence.tenant] >= own.seqs:
            return True
        mine = held.get(sequence.tenant, 0) if own.blocks else 0
        return mine > 0 and mine + self._layout.blocks_for(self._most(sequence)) > own.blocks

    def _known(self, sequence: Sequence) -> Known:
        """Return the most that need not be computed of `sequence`: a cached prefix, or a fork."""
        if not sequence.may_skip:
            return Known()
        cached = self._cache.find(sequence)
        source = None if self._layout.is_static else may_share(sequence)
        if source is None:
            return cached
        shared = min(source.num_prompt, len(sequence.tokens) - 1)
        if shared <= cached.num_tokens:
            return cached
        whole = source.block_ids[: shared // self._layout.block_size]
        return Known(shared, tuple(whole), source=source)

    def _would_repeat(self, sequence: Sequence) -> bool:
        """Return whether `sequence` would compute a block of its prompt that another choice is at.

        It waits for a step or two and shares it.
        """
        if self._layout.is_static or not sequence.may_skip:
            return False
        if not must_wait_for_prompt(sequence):
            return False
        known = self._known(sequence)
        return sequence.num_prompt - 1 - known.num_tokens >= self._layout.block_size

    def _is_coming(self, sequence: Sequence) -> bool:
        """Return whether host memory is about to bring another what `sequence` needs next."""
        if self._fetching is None or not self._roster.fetching:
            return False
        return self._fetching.is_coming(sequence, self._known(sequence))

    def _most(self, sequence: Sequence) -> int:
        """Return for how many tokens there must be room before `sequence` may start."""
        if self._layout.is_static:
            return sequence.max_total
        return min(len(sequence.tokens) + 1, sequence.max_total)

    def _fits(self, sequence: Sequence, known: Known) -> bool:
        return self._layout.fits(self._most(sequence), known.block_ids)

    def _start(self, sequence: Sequence, known: Known, draft: Draft, now: float) -> None:
        """Start `sequence`: claim what is known first, so that none of it is evicted."""
        layout, seq_id = self._layout, sequence.seq_id
        if known.source is None:
            self._cache.claim(sequence, known)
        else:
            layout.seq_cp(known.source.seq_id, seq_id, 0, known.num_tokens)
        length = self._most(sequence) if layout.is_static else len(sequence.tokens)
        self._cache.evict(layout.blocks_for(length) - len(known.block_ids))
        _, copies = layout.allocate(seq_id, length)
        self._roster.start(sequence, known.num_tokens)
        if known.source is not None and copies:
            draft.copies += copies
            known.source.last_plan = draft.step_id  # which names its page
        if sequence.scheduled_at is None:
            self._note_cached(sequence, known)
            sequence.scheduled_at = now
        count = self._advance(sequence, draft, draft.start_rows, now)
        draft.starts.append(start_row(sequence, known.num_tokens, count))

    def _advance(self, sequence: Sequence, draft: Draft, rows: list[Sequence], now: float) -> int:
        """Plan known tokens of a row; with the last of them it waits no more.

        Until then it is passed over for others, as one that has not started.
        """
        num_left = sequence.num_left
        count = draft.advance(sequence, rows)
        if count == num_left:
            sequence.age.serve(now)
        self._tally.num_prefill_tokens += count
        self._deficits.charge(sequence.tenant, count)
        return count

    def _note_cached(self, sequence: Sequence, known: Known) -> None:
        """Say what was found when a request first started; what its choices share is no hit."""
        elders = [row.num_cached for row in sequence.family if row.scheduled_at is not None]
        sequence.num_cached = min(known.num_tokens, sequence.num_prompt, *elders)
        if not elders:
            self._tally.looked_up(len(sequence.tokens), known.num_tokens)
