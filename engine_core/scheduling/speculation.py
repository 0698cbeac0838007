"""Guesses for what a row says next: the workers verify them, so a step may bring several tokens.

The workers draw the target's token after each guess, with the noise of that place, and keep the
guesses that are equal; so the output is the same with any guesses, and only the steps are fewer.
A plan reserves the worst case, all guesses right. What is not kept is rolled back when the result
is applied; the blocks stay with the row. A guess builds on the last token, so a row is planned
again only when the result of its last plan is applied.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.draft import Draft
from engine_core.scheduling.fairness import Deficits
from engine_core.scheduling.roster import Roster
from engine_core.scheduling.sequence import Sequence
from protos.worker import SequenceStep

Proposer = Callable[["array[int]", int], Iterable[int]]
"""From the tokens of a row and a bound to guesses for the tokens after them, nearest first."""


class Speculation:
    """Plans the rows that are one token behind, each with what `propose` guesses for it."""

    def __init__(
        self, propose: Proposer, roster: Roster, deficits: Deficits, bounds: Bounds
    ) -> None:
        self._propose = propose
        self._bounds = bounds
        self._roster = roster
        self._deficits = deficits

    def reserve(self, draft: Draft) -> None:
        """Keep a token of the budget, and a block where one is due, for every row that goes on.

        The rows that catch up come into `prefills`, as in a plan without guesses.
        """
        for sequence in self._roster.running:
            left = sequence.num_left
            if sequence.num_expected > len(sequence.tokens) or not left or sequence.is_full:
                continue  # its last token or its embedding is on the way, or its context is full
            if left > 1 or not sequence.draws:
                draft.prefills.append(sequence)
                continue
            if sequence.num_planned < sequence.capacity:
                draft.due.append((sequence, ()))
            elif self._roster.layout.num_available:
                draft.due.append((sequence, self._roster.grow(sequence, 1)))
            else:
                continue
            draft.budget -= 1

    def plan(self, draft: Draft) -> None:
        """Plan those rows, with guesses from what prompts have left of the budget and the blocks.

        Last, so that guesses take nothing from anyone.
        """
        for sequence, new in draft.due:
            most = min(draft.budget, sequence.max_total - sequence.num_expected - 1)
            guesses = self._guess(sequence, most)
            self._enter(sequence, new, guesses, draft)

    def _guess(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        cells = sequence.capacity + self._num_spare(sequence) * self._roster.layout.block_size
        most = min(most, cells - sequence.num_expected)
        return tuple(self._propose(sequence.tokens, most))[:most] if most > 0 else ()

    def _num_spare(self, sequence: Sequence) -> int:
        """Return how many blocks may go to guesses: they stay with the row, right or wrong.

        One for each row is left, and a tenant's own bound counts a block a row and step.
        """
        if self._bounds.of(sequence.tenant).blocks:
            return 0
        return max(0, self._roster.layout.num_available - len(self._roster.running))

    def _enter(
        self, sequence: Sequence, new: tuple[int, ...], guesses: tuple[int, ...], draft: Draft
    ) -> None:
        count, known = len(guesses), sequence.num_expected
        missing = self._roster.layout.blocks_for(known + count) - len(sequence.block_ids)
        if missing > 0:
            new = new + self._roster.grow(sequence, missing)
        if new or guesses:
            draft.steps.append(SequenceStep(sequence.seq_id, 1 + count, new, guesses))
        else:
            draft.steps.append(sequence.decode_step)
        draft.step_rows.append(sequence)
        if guesses:
            draft.guesses[sequence.seq_id] = count
        draft.budget -= count
        self._roster.tally.num_decode_tokens += 1 + count
        self._roster.tally.num_guesses += count
        self._deficits.charge(sequence.tenant, count)
        sequence.num_guesses = count
        sequence.num_planned = known + count
        sequence.num_expected = known + count + 1
        sequence.last_plan = draft.step_id


def roll_back(sequence: Sequence) -> None:
    """The result of a plan with guesses is in: what was reserved beyond it is planned no more."""
    sequence.num_planned = sequence.num_computed
    sequence.num_expected = len(sequence.tokens)
    sequence.num_guesses = 0
