"""Decides what every step computes, and what its result means.

There are no phases: every sequence has tokens that are known and tokens that are computed, and a
step lets it catch up. Decoding is being one token behind. `schedule` may run for step N+1 before
the result of N is applied; it then counts on one token of each row that reaches its end, and what
a finished sequence still gets is dropped. Pure: no clock, no I/O; `now` is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine_core.scheduling.block_pool import BlockPool
from engine_core.scheduling.draft import Draft, Flight
from engine_core.scheduling.ledger import Returning, Sessions, discrepancies
from engine_core.scheduling.limits import Facts, admit
from engine_core.scheduling.policy import Ordered, choose_victim, may_join
from engine_core.scheduling.request import FinishReason, Problem, Refused
from engine_core.scheduling.results import failures, is_plain, tokens_by_row, with_logprobs
from engine_core.scheduling.rows import finished_row, refused_row, slots_of, start_row
from engine_core.scheduling.sequence import FINISHED, Sequence, Status, TokenEvent
from engine_core.scheduling.tally import Tally
from protos.worker import Add, ExecutePlan, Finished, SequenceStep, StepResult


class SlotInUse(Exception):
    """An `Add` names a slot that is live: its sender is at fault, nothing was changed."""


class Scheduler:
    """All sequences of one replica. Every accepted slot ends by exactly one event, in `finish`."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_waiting: int,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.tally = Tally()
        self.max_model_len = min(max_model_len, num_blocks * block_size)
        self._facts = Facts(vocab_size, max_model_len, num_blocks * block_size)
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_waiting = max_waiting
        self._sessions: Sessions = {}
        self._waiting = Ordered()
        self._running = Ordered()
        self._returning: Returning = {}
        self._dropped: list[int] = []  # rows the workers are to forget with the next plan
        self._in_flight: deque[Flight] = deque()
        self._events: list[TokenEvent] = []
        self._next_seq_id = 1
        self._next_step_id = 1
        self._applied = 0
        self._next_deadline = float("inf")

    # ── what is asked ────────────────────────────────────────────────────────────────────────

    def add(self, add: Add, now: float) -> None:
        """Take in a request, or end it at once with the reason why it may not enter.

        Raises SlotInUse, and changes nothing, when one of its slots is live.
        """
        live = self._sessions.get(add.session, {})
        if taken := [slot for slot in slots_of(add) if slot in live]:
            raise SlotInUse(f"session {add.session}: slots {taken} are live")
        try:
            request = admit(add, self._facts, now)
            self._check_queue(request.limits.n)
        except Refused as refused:
            self.refuse(add, refused.problem)
            return
        for index in range(request.limits.n):
            self._enter(Sequence(self._next_seq_id, request, index, self.max_model_len), now)
            self._next_seq_id += 1

    def refuse(self, add: Add, problem: Problem) -> None:
        """End all slots of an `Add` that never entered."""
        num_prompt = len(add.prompt_token_ids) // 4
        for slot in slots_of(add):
            row = refused_row(slot, problem, num_prompt)
            self._events.append(TokenEvent(add.session, slot, 0, (), row))

    def abort(self, session: int, slot: int, now: float) -> None:
        """End a slot wherever it is; unknown and finished ones are none of our business."""
        if sequence := self._live(session, slot):
            self._end(sequence, FinishReason.ABORTED, now)

    def stop_at(self, session: int, slot: int, num_output_tokens: int, now: float) -> None:
        """End a slot on the text tier's stop string, which counts `num_output_tokens` tokens."""
        if sequence := self._live(session, slot):
            self._end(sequence, FinishReason.STOPPED, now, num_output_tokens=num_output_tokens)

    def close_session(self, session: int, now: float) -> None:
        """End all slots of a session: nobody reads them any more."""
        for sequence in list(self._sessions.get(session, {}).values()):
            self._end(sequence, FinishReason.ABORTED, now)

    def take_events(self) -> list[TokenEvent]:
        """Return the events that no result has brought: refusals, aborts, deadlines."""
        events, self._events = self._events, []
        return events

    @property
    def num_waiting(self) -> int:
        rows = (row for rows in self._returning.values() for row in rows)
        return len(self._waiting) + sum(row.status is Status.PREEMPTED for row, _ in rows)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def _live(self, session: int, slot: int) -> Sequence | None:
        return self._sessions.get(session, {}).get(slot)

    def _check_queue(self, count: int) -> None:
        if len(self._waiting) + count > self._max_waiting:
            raise Refused(
                Problem(
                    "Overloaded",
                    f"{len(self._waiting)} requests wait and {self._max_waiting} may (max_waiting)",
                    code="queue_full",
                    retry_after_s=self.tally.retry_after_s(len(self._waiting)),
                )
            )

    def _enter(self, sequence: Sequence, now: float) -> None:
        self._sessions.setdefault(sequence.session, {})[sequence.slot] = sequence
        self._waiting.add(sequence)
        if sequence.request.deadline is not None:
            self._next_deadline = min(self._next_deadline, sequence.request.deadline)
        reason = sequence.ending()
        if reason is not FinishReason.UNFINISHED:  # all of it had been delivered before the replay
            self._end(sequence, reason, now)

    # ── what is computed ─────────────────────────────────────────────────────────────────────

    def schedule(self, now: float) -> ExecutePlan | None:
        """Return the next step, or None when there is nothing to compute."""
        self.expire(now)
        draft = Draft(self._next_step_id, self._max_num_batched_tokens)
        self._plan_decodes(draft)
        self._plan_prefills(draft)
        self._admit(draft, now)
        if draft.is_empty:
            return None
        self._next_step_id += 1
        self._in_flight.append(draft.flight())
        dropped, self._dropped = self._dropped, []
        self.tally.step(self._max_num_batched_tokens - draft.budget)
        return draft.plan(dropped)

    def expire(self, now: float) -> None:
        """End every sequence whose deadline has passed."""
        if now < self._next_deadline:
            return
        rows = [row for rows in self._sessions.values() for row in rows.values()]
        for row in rows:
            if row.request.deadline is not None and row.request.deadline <= now:
                self._end(row, FinishReason.DEADLINE, now)
        later = (r.request.deadline for rows in self._sessions.values() for r in rows.values())
        self._next_deadline = min((d for d in later if d is not None), default=float("inf"))

    def _plan_decodes(self, draft: Draft) -> None:
        """Plan the rows that are one token behind; the others wait for their turn in `prefills`.

        This loop and the one in `apply` are the cost of a step.
        """
        step_id, room = draft.step_id, draft.budget
        steps, rows = draft.steps, draft.step_rows
        for sequence in self._running:
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
        self.tally.num_decode_tokens += len(rows)

    def _grow(self, sequence: Sequence) -> SequenceStep:
        new = self.pool.allocate(1)
        sequence.block_ids += new
        sequence.capacity += self.pool.block_size
        return SequenceStep(sequence.seq_id, 1, tuple(new))

    def _make_room(self, sequence: Sequence, draft: Draft) -> bool:
        """Preempt until a block is free; False when `sequence` has to sit this step out."""
        while not self.pool.num_free:
            if self._returning:
                return False  # blocks come back with a plan in flight: take no more from others
            victim = choose_victim(self._running)
            self._preempt(victim)
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
                self.tally.num_prefill_tokens += count

    def _admit(self, draft: Draft, now: float) -> None:
        """Start waiting sequences in order while seats, budget and blocks for all of one allow."""
        if draft.has_preempted:
            return  # who just made room must not take it back
        while self._waiting and draft.budget and len(self._running) < self._max_num_seqs:
            sequence = self._waiting[0]
            length = len(sequence.tokens)
            if not may_join(sequence, self._running):
                return
            if self.pool.blocks_for(length + 1) > self.pool.num_free:
                return
            self._waiting.remove(sequence)
            sequence.block_ids = self.pool.allocate(self.pool.blocks_for(length))
            self._start(sequence, draft, now)

    def _start(self, sequence: Sequence, draft: Draft, now: float) -> None:
        sequence.move(Status.RUNNING)
        self._running.add(sequence)
        sequence.capacity = len(sequence.block_ids) * self.pool.block_size
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now
        count = draft.advance(sequence, draft.start_rows)
        draft.starts.append(start_row(sequence, count))
        self.tally.num_prefill_tokens += count

    def _preempt(self, sequence: Sequence) -> None:
        sequence.move(Status.PREEMPTED)
        sequence.num_preemptions += 1
        self.tally.num_preemptions += 1
        self._leave(sequence)
        if sequence.last_plan <= self._applied:
            self._requeue(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Take a row off the workers; its blocks return when no plan in flight names it."""
        self._running.remove(sequence)
        self._dropped.append(sequence.seq_id)
        blocks, sequence.block_ids, sequence.capacity = sequence.block_ids, [], 0
        sequence.num_planned = sequence.num_computed = 0
        if sequence.last_plan > self._applied:
            self._returning.setdefault(sequence.last_plan, []).append((sequence, blocks))
        else:
            self.pool.free(blocks)

    def _requeue(self, sequence: Sequence) -> None:
        """A preempted sequence waits again, to be computed anew with all it has put out."""
        sequence.num_expected = len(sequence.tokens)
        sequence.move(Status.WAITING)
        self._waiting.add(sequence)

    # ── what came of it ──────────────────────────────────────────────────────────────────────

    def apply(self, result: StepResult, now: float) -> list[TokenEvent]:
        """Enter the result of the oldest plan in flight; return all events since the last call."""
        flight = self._in_flight.popleft()
        assert result.step_id == flight.step_id, f"{result.step_id} after {flight.step_id}"
        self._applied = flight.step_id
        for sequence, num_computed in flight.chunks:
            if sequence.status is Status.RUNNING:
                sequence.num_computed = num_computed
        rows: Iterable[tuple[Sequence, int]] = zip(flight.rows, result.token_ids, strict=False)
        if not is_plain(flight, result):
            rows = self._sound_rows(flight, result, now)
        self._append(rows, now)
        events = self.take_events()
        if result.logprobs:
            events = with_logprobs(events, flight, result.logprobs)
        self._take_back(flight.step_id)
        return events

    def _append(self, rows: Iterable[tuple[Sequence, int]], now: float) -> None:
        running, preempted = Status.RUNNING, Status.PREEMPTED
        publish = self._events.append
        for sequence, token_id in rows:
            status = sequence.status
            tokens = sequence.tokens
            length = len(tokens)
            if status is running:
                sequence.num_computed = length
            elif status is not preempted:
                continue  # ended while the plan was under way: overshot, dropped
            tokens.append(token_id)
            sequence.last_token_at = now
            if sequence.first_token_at is None:
                sequence.first_token_at = now
            finish = None
            if token_id in sequence.stop_ids or length + 1 >= sequence.max_total:
                finish = self._finish_if_ended(sequence, now)
            offset = length - sequence.num_prompt
            publish(TokenEvent(sequence.session, sequence.slot, offset, (token_id,), finish))

    def _finish_if_ended(self, sequence: Sequence, now: float) -> Finished | None:
        reason = sequence.ending()
        if reason is FinishReason.UNFINISHED:
            return None
        return self.finish(sequence, reason, now)

    def _sound_rows(
        self, flight: Flight, result: StepResult, now: float
    ) -> list[tuple[Sequence, int]]:
        """Return the rows that brought their token; end those that failed or brought none."""
        wrong = failures(flight, result)
        tokens = tokens_by_row(result)
        for sequence in [*flight.rows, *(row for row, _ in flight.chunks)]:
            if sequence.seq_id in wrong and sequence.status in (Status.RUNNING, Status.PREEMPTED):
                reason = FinishReason.ERROR
                problem = Problem("Internal", wrong[sequence.seq_id], code="sequence_fault")
                self._end(sequence, reason, now, problem=problem)
        return [(row, tokens[row.seq_id][0]) for row in flight.rows if row.seq_id not in wrong]

    def _take_back(self, step_id: int) -> None:
        """No plan in flight names these rows any more: their blocks are free."""
        for sequence, blocks in self._returning.pop(step_id, ()):
            self.pool.free(blocks)
            if sequence.status is Status.PREEMPTED:
                self._requeue(sequence)

    # ── the one end ──────────────────────────────────────────────────────────────────────────

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        *,
        num_output_tokens: int | None = None,
        problem: Problem | None = None,
    ) -> Finished:
        """End a live sequence, free what it holds, and return its terminal row."""
        if sequence.status is Status.RUNNING:
            self._leave(sequence)
        elif sequence.status is Status.WAITING:
            self._waiting.remove(sequence)
        sequence.move(FINISHED[reason])
        slots = self._sessions[sequence.session]
        del slots[sequence.slot]
        if not slots:
            del self._sessions[sequence.session]
        self.tally.finished(now)
        return finished_row(sequence, reason, now, num_output_tokens, problem)

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        *,
        num_output_tokens: int | None = None,
        problem: Problem | None = None,
    ) -> None:
        """Finish outside a token: the event carries nothing else."""
        row = self.finish(
            sequence, reason, now, num_output_tokens=num_output_tokens, problem=problem
        )
        offset = sequence.num_output
        self._events.append(TokenEvent(sequence.session, sequence.slot, offset, (), row))

    def check(self) -> str:
        """Return what is wrong in the books, with the culprit; empty when they are true."""
        found = discrepancies(
            self.pool, self._sessions, self._waiting, self._running, self._returning
        )
        return "; ".join(found)
