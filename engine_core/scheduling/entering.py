"""What a result means for the rows of its plan: tokens entered, ends, and what comes beside tokens.

Every row of a result is judged by itself: what fails, fails alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine_core.scheduling.draft import Flight
from engine_core.scheduling.request import FinishReason, Problem
from engine_core.scheduling.results import (
    failures,
    is_plain,
    joined,
    tokens_by_row,
    with_logprobs,
)
from engine_core.scheduling.roster import Roster
from engine_core.scheduling.sequence import Sequence, Status, TokenEvent
from engine_core.scheduling.speculation import roll_back
from protos.worker import Bulk, Finished, Progress, SequenceFault, StepResult

_ON_ITS_WAY = (Status.RUNNING, Status.PREEMPTED)
"""Whose results are still awaited: a preempted row keeps what a plan in flight brings."""


class Entering:
    """Enters results into the rows of one roster, in the order of the plans."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def enter(self, flight: Flight, result: StepResult, now: float) -> list[TokenEvent]:
        """Enter the result of `flight`; return all events since the last call."""
        roster = self._roster
        roster.applied = flight.step_id
        rows: Iterable[tuple[Sequence, int]] = zip(flight.rows, result.token_ids, strict=False)
        if not is_plain(flight, result):
            rows = self._sound_rows(flight, result, now)
        if flight.chunks:
            self._enter_chunks(flight)
        if result.bulks:
            self._hand_out(flight, result.bulks)
        self._append(rows, now)
        for sequence in flight.embeds:
            self._finish_embedded(sequence, now)
        for sequence, num_computed in flight.chunks:
            if sequence.is_score and num_computed == sequence.num_prompt - 1:
                self._finish_scored(sequence, now)
        events = roster.take_events()
        if flight.guesses:
            self._roll_back(flight)
            roster.tally.num_right_guesses += sum(
                count - 1
                for seq_id, count in zip(result.seq_ids, result.counts, strict=True)
                if seq_id in flight.guesses
            )
            events = joined(events)
        if result.logprobs:
            events = with_logprobs(events, flight, result.logprobs)
        roster.take_back(flight.step_id)
        return events

    def _append(self, rows: Iterable[tuple[Sequence, int]], now: float) -> None:
        """This loop and the one in `Planner._plan_decodes` are the cost of a step."""
        running, preempted = Status.RUNNING, Status.PREEMPTED
        enter_prefix = self._roster.cache.enter
        publish = self._roster.events.append
        for sequence, token_id in rows:
            status = sequence.status
            tokens = sequence.tokens
            length = len(tokens)
            if status is running:
                sequence.num_computed = length
                if length >= sequence.enter_at:
                    enter_prefix(sequence, length)
            elif status is not preempted:
                continue  # ended while the plan was under way: overshot, dropped
            tokens.append(token_id)
            sequence.last_token_at = now
            if sequence.first_token_at is None:
                sequence.first_token_at = now
                if sequence.request.limits.report_progress:
                    self._tell_progress(sequence, length, now)
            finish, offset = None, length - sequence.first_output
            if token_id in sequence.stop_ids or length + 1 >= sequence.max_total:
                finish = self._finish_if_ended(sequence, now)
            publish(TokenEvent(sequence.session, sequence.slot, offset, (token_id,), finish))

    def _finish_if_ended(self, sequence: Sequence, now: float) -> Finished | None:
        reason = sequence.ending()
        if reason is FinishReason.UNFINISHED:
            if sequence.is_full:
                self._roster.shift(sequence, now)
            return None
        return self._roster.finish(sequence, reason, now)

    def _roll_back(self, flight: Flight) -> None:
        for row in flight.rows:
            if row.seq_id in flight.guesses and row.status is Status.RUNNING:
                roll_back(row)

    def _sound_rows(
        self, flight: Flight, result: StepResult, now: float
    ) -> list[tuple[Sequence, int]]:
        """Return the tokens of sound rows, one by one; end the rows that failed or brought none."""
        wrong = failures(flight, result)
        tokens = tokens_by_row(result)
        for sequence in flight.all_rows():
            if sequence.seq_id not in wrong:
                continue
            fault = wrong[sequence.seq_id]
            if not fault.code:
                self._roster.cache.distrust(sequence)
            if sequence.status in _ON_ITS_WAY:
                problem = problem_of(fault)
                self._roster.end(sequence, FinishReason.ERROR, now, problem=problem)
        sound = [row for row in flight.rows if row.seq_id not in wrong]
        return [(row, token_id) for row in sound for token_id in tokens[row.seq_id]]

    # ── beside tokens ────────────────────────────────────────────────────────────────────────

    def _enter_chunks(self, flight: Flight) -> None:
        for sequence, num_computed in flight.chunks:
            if sequence.status is not Status.RUNNING:
                continue
            sequence.num_computed = num_computed
            self._roster.cache.enter(sequence, num_computed)
            if sequence.request.limits.report_progress and sequence.first_token_at is None:
                self._tell_progress(sequence, num_computed)

    def _tell_progress(
        self, sequence: Sequence, num_computed: int, first_token_at: float | None = None
    ) -> None:
        told = Progress(sequence.slot, sequence.num_prompt, sequence.num_cached, num_computed)
        if first_token_at is not None:
            queue_s, prefill_s, _ = sequence.phases(first_token_at)
            told = msgspec.structs.replace(told, queue_s=queue_s, prefill_s=prefill_s)
        self._publish(sequence, progress=told)

    def _hand_out(self, flight: Flight, bulks: Iterable[Bulk]) -> None:
        """Publish what is too large for columns, keyed by slot, before the ends of its slots."""
        rows = {row.seq_id: row for row in flight.all_rows()}
        for bulk in bulks:
            sequence = rows.get(bulk.key)
            if sequence is None or sequence.status not in _ON_ITS_WAY:
                continue
            if bulk.prompt_logprobs:
                bulk = self._not_told(sequence, bulk)
                if not bulk.prompt_logprobs:
                    continue
            told = msgspec.structs.replace(bulk, key=sequence.slot)
            self._publish(sequence, bulks=(told,))

    def _not_told(self, sequence: Sequence, bulk: Bulk) -> Bulk:
        """Return what is new of the prompt's logprobs: a preempted row computes them again."""
        new = tuple(
            msgspec.structs.replace(row, key=sequence.slot)
            for row in bulk.prompt_logprobs
            if row.index > sequence.num_told
        )
        if new:
            sequence.num_told = new[-1].index
        return msgspec.structs.replace(bulk, prompt_logprobs=new)

    def _finish_embedded(self, sequence: Sequence, now: float) -> None:
        """The embedding is out, and with it all that was asked for."""
        if sequence.status not in _ON_ITS_WAY:
            return
        self._roster.end(sequence, FinishReason.STOPPED, now, num_output_tokens=0)

    def _finish_scored(self, sequence: Sequence, now: float) -> None:
        """All of its prompt is computed that tells something: no output is to follow."""
        if sequence.status not in _ON_ITS_WAY:
            return
        if sequence.owes_prompt_logprobs:
            problem = problem_of(SequenceFault(sequence.seq_id, "the worker told no logprobs"))
            self._roster.end(sequence, FinishReason.ERROR, now, problem=problem)
        else:
            self._roster.end(sequence, FinishReason.LENGTH, now)

    def _publish(
        self, sequence: Sequence, bulks: tuple[Bulk, ...] = (), progress: Progress | None = None
    ) -> None:
        event = TokenEvent(
            sequence.session, sequence.slot, sequence.num_output, (), bulks=bulks, progress=progress
        )
        self._roster.events.append(event)


def problem_of(fault: SequenceFault) -> Problem:
    """Return what the client is told: that its own fields cannot be met, or of a failure here."""
    if fault.code:
        return Problem("Unprocessable", fault.message, code=fault.code)
    return Problem("Internal", fault.message, code="sequence_fault")
