"""Which rows the next step computes: those that run, then those that still catch up, then new ones.

Moves sequences through the roster; knows no results, events or messages but the rows of a plan.
"""

from __future__ import annotations

from typing import NamedTuple

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.draft import Draft
from engine_core.scheduling.policy import choose_victim, may_join, may_share, must_wait_for_prompt
from engine_core.scheduling.roster import Roster
from engine_core.scheduling.rows import start_row
from engine_core.scheduling.sequence import Sequence, Status
from protos.worker import BlockCopy, SequenceStep


class Known(NamedTuple):
    """The first `num_tokens` of a sequence need not be computed; `block_ids` hold whole blocks.

    With a `source`, what is left of a block is copied from there.
    """

    block_ids: list[int]
    num_tokens: int
    source: Sequence | None = None


class Planner:
    """Fills drafts from one roster, within `bounds`."""

    def __init__(self, roster: Roster, bounds: Bounds) -> None:
        self._roster = roster
        self._pool = roster.pool
        self._cache = roster.cache
        self._tally = roster.tally
        self._bounds = bounds

    def plan(self, step_id: int, now: float) -> Draft:
        """Return what step `step_id` computes; empty when there is nothing to do."""
        draft = Draft(step_id, self._bounds.max_num_batched_tokens)
        self._plan_decodes(draft)
        self._plan_prefills(draft)
        self._admit(draft, now)
        return draft

    def _plan_decodes(self, draft: Draft) -> None:
        """Plan the rows that are one token behind; the others wait for their turn in `prefills`.

        This loop and the one in `Scheduler.apply` are the cost of a step.
        """
        step_id, room = draft.step_id, draft.budget
        steps, rows = draft.steps, draft.step_rows
        for sequence in self._roster.running:
            expected = sequence.num_expected
            if expected >= sequence.max_total:
                continue  # its last token is on the way
            planned = sequence.num_planned
            if expected - planned > 1:
                draft.prefills.append(sequence)
                continue
            if len(rows) >= room:
                break
            if planned < sequence.capacity:
                steps.append(sequence.decode_step)
            elif self._make_room(sequence, draft):
                steps.append(self._grow(sequence))
            else:
                continue
            sequence.num_planned = expected
            sequence.num_expected = expected + 1
            sequence.last_plan = step_id
            rows.append(sequence)
        draft.budget -= len(rows)
        self._tally.num_decode_tokens += len(rows)

    def _grow(self, sequence: Sequence) -> SequenceStep:
        new = self._pool.allocate(1)
        sequence.block_ids += new
        sequence.capacity += self._pool.block_size
        return SequenceStep(sequence.seq_id, 1, tuple(new))

    def _make_room(self, sequence: Sequence, draft: Draft) -> bool:
        """Evict, then preempt until a block is free; False when `sequence` sits this step out."""
        self._cache.evict(1)
        while not self._pool.num_free:
            if self._roster.is_returning:
                return False  # blocks come back with a plan in flight: take no more from others
            victim = choose_victim(self._roster.running)
            self._roster.preempt(victim)
            self._cache.evict(1)
            draft.has_preempted = True
            if victim is sequence:
                return False
        return True

    def _plan_prefills(self, draft: Draft) -> None:
        for sequence in draft.prefills:
            if draft.budget == 0:
                return
            if sequence.status is Status.RUNNING:  # not preempted since it was put on the list
                count = draft.advance(sequence, draft.step_rows)
                draft.steps.append(SequenceStep(sequence.seq_id, count))
                self._tally.num_prefill_tokens += count

    def _admit(self, draft: Draft, now: float) -> None:
        """Start waiting sequences in order while seats, budget and blocks for all of one allow."""
        if draft.has_preempted:
            return  # who just made room must not take it back
        running = self._roster.running
        for sequence in list(self._roster.waiting):
            if not draft.budget or len(running) >= self._bounds.max_num_seqs:
                return
            if not may_join(sequence, running):
                return
            known = self._known(sequence)
            if self._would_repeat(sequence, known):
                continue
            if not self._fits(sequence, known):
                return
            self._start(sequence, known, draft, now)

    def _known(self, sequence: Sequence) -> Known:
        """Return the most that need not be computed of `sequence`: a cached prefix, or a fork."""
        size = self._pool.block_size
        found = self._cache.find(sequence)
        cached = Known(found, len(found) * size)
        source = may_share(sequence)
        if source is None:
            return cached
        shared = min(source.num_prompt, len(sequence.tokens) - 1)
        if shared <= cached.num_tokens:
            return cached
        return Known(source.block_ids[: shared // size], shared, source)

    def _would_repeat(self, sequence: Sequence, known: Known) -> bool:
        """Return whether `sequence` would compute a block of its prompt that another choice is at.

        It waits for a step or two and shares it.
        """
        repeated = sequence.num_prompt - 1 - known.num_tokens
        return repeated >= self._pool.block_size and must_wait_for_prompt(sequence)

    def _fits(self, sequence: Sequence, known: Known) -> bool:
        """Return whether all of `sequence` and one more token find room beside its known blocks."""
        missing = self._pool.blocks_for(len(sequence.tokens) + 1) - len(known.block_ids)
        return missing <= self._pool.available_beside(known.block_ids)

    def _start(self, sequence: Sequence, known: Known, draft: Draft, now: float) -> None:
        """Start `sequence`: claim its known blocks first, so that none of them is evicted."""
        self._pool.claim(known.block_ids)
        missing = self._pool.blocks_for(len(sequence.tokens)) - len(known.block_ids)
        self._cache.evict(missing)
        new = self._pool.allocate(missing)
        self._roster.start(sequence, known.block_ids + new, known.num_tokens)
        if known.source is not None:
            self._fork(sequence, known.source, draft)
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now
            sequence.num_cached = min(known.num_tokens, sequence.num_prompt)
            if known.source is None:
                self._tally.looked_up(len(sequence.tokens), known.num_tokens)
        count = draft.advance(sequence, draft.start_rows)
        draft.starts.append(start_row(sequence, known.num_tokens, count))
        self._tally.num_prefill_tokens += count

    def _fork(self, sequence: Sequence, source: Sequence, draft: Draft) -> None:
        """Let the workers copy the page that `sequence` shares with `source` and will write to."""
        place, is_partial = divmod(sequence.num_computed, self._pool.block_size)
        if is_partial:
            copy = BlockCopy(source.block_ids[place], sequence.block_ids[place])
            draft.copies.append(copy)
            source.last_plan = draft.step_id  # which names its page
