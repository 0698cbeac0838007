"""A plan while it is made, and what must be remembered of it until its result is applied."""

from __future__ import annotations

from typing import NamedTuple

from engine_core.scheduling.sequence import Sequence
from protos.worker import BlockCopy, ExecutePlan, SequenceStart, SequenceStep, Shift


class Flight(NamedTuple):
    """A plan on its way: `rows` bring a token each, in the order the worker reports them."""

    step_id: int
    rows: list[Sequence]
    chunks: list[tuple[Sequence, int]]
    """Rows that end before their last known token, with `num_computed` after the step."""
    embeds: list[Sequence]
    """Rows that reach the end of their prompt and draw nothing: an embedding comes of them."""
    guesses: dict[int, int]
    """How many guesses a row is to verify, by seq_id: so many tokens more it may bring."""

    def all_rows(self) -> list[Sequence]:
        """Return every row of the plan."""
        return [*self.rows, *(row for row, _ in self.chunks), *self.embeds]


class Draft:
    """The rows of step `step_id` so far and the tokens that may still be added."""

    __slots__ = (
        "budget", "chunks", "copies", "due", "embeds", "guesses", "has_preempted", "prefills",
        "shifts",
        "start_rows", "starts", "step_id", "step_rows", "steps",
    )  # fmt: skip

    def __init__(self, step_id: int, budget: int) -> None:
        self.step_id = step_id
        self.budget = budget
        self.starts: list[SequenceStart] = []
        self.start_rows: list[Sequence] = []
        self.steps: list[SequenceStep] = []
        self.step_rows: list[Sequence] = []
        self.chunks: list[tuple[Sequence, int]] = []
        self.due: list[tuple[Sequence, tuple[int, ...]]] = []
        self.embeds: list[Sequence] = []
        self.guesses: dict[int, int] = {}
        self.copies: list[BlockCopy] = []
        self.shifts: list[Shift] = []
        self.prefills: list[Sequence] = []
        self.has_preempted = False

    @property
    def is_empty(self) -> bool:
        return not (self.steps or self.starts)

    def advance(self, sequence: Sequence, rows: list[Sequence]) -> int:
        """Plan as much of `sequence` as the budget allows; return the number of tokens.

        At the end of its known tokens it joins `rows` and one more token is expected of it.
        """
        count = min(sequence.num_left, self.budget)
        self.budget -= count
        sequence.num_planned += count
        sequence.last_plan = self.step_id
        if sequence.num_planned < sequence.num_expected:  # always so of a score
            self.chunks.append((sequence, sequence.num_planned))
        elif sequence.is_embed:
            self.embeds.append(sequence)
        else:
            sequence.num_expected += 1
            rows.append(sequence)
        return count

    def plan(self, finished: list[int]) -> ExecutePlan:
        """Return the message to the workers; `finished` are the rows they drop first."""
        return ExecutePlan(
            self.step_id,
            tuple(self.starts),
            tuple(self.steps),
            tuple(finished),
            tuple(self.copies),
            tuple(self.shifts),
        )

    def flight(self) -> Flight:
        rows = self.start_rows + self.step_rows
        return Flight(self.step_id, rows, self.chunks, self.embeds, self.guesses)
