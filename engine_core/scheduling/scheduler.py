"""Decides what every step computes, and what its result means.

There are no phases: every sequence has tokens that are known and tokens that are computed, and a
step lets it catch up. Decoding is being one token behind. `schedule` may run for step N+1 before
the result of N is applied; it then counts on one token of each row that reaches its end, and what
a finished sequence still gets is dropped. With a proposer a step may bring a row several tokens.
Pure: no clock, no I/O; `now` is an argument.
"""

from __future__ import annotations

from collections import deque

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.compiling import Compiling
from engine_core.scheduling.context_shift import replay
from engine_core.scheduling.draft import Flight
from engine_core.scheduling.entering import Entering
from engine_core.scheduling.errands import Errands
from engine_core.scheduling.fetching import new_fetching
from engine_core.scheduling.host_tier import HostTier
from engine_core.scheduling.inspection import Inspection
from engine_core.scheduling.layouts import new_layout
from engine_core.scheduling.limits import Facts, admit, room
from engine_core.scheduling.planning import Planner
from engine_core.scheduling.prefix_cache import model_key
from engine_core.scheduling.prompt_lookup import prompt_lookup
from engine_core.scheduling.queue_bounds import check_queue
from engine_core.scheduling.request import FinishReason, Problem, Refused
from engine_core.scheduling.roster import Roster
from engine_core.scheduling.rows import refused_row, slots_of
from engine_core.scheduling.sequence import Sequence, TokenEvent
from engine_core.scheduling.speculation import Proposer
from protos.worker import Add, DropKeys, Errand, ErrandDone, ExecutePlan, ModelFacts, StepResult


class SlotInUse(Exception):
    """An `Add` names a slot that is live: its sender is at fault, nothing was changed."""


class Scheduler:
    """All sequences of one replica. Every accepted slot ends once, in `Roster.finish`."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        max_model_len: int,
        bounds: Bounds,
        prefix_key: bytes | None,
        layout: str = "block",
        propose: Proposer | None = None,
    ) -> None:
        """`prefix_key` names the model in the keys of the prefix cache; None = no such cache.

        `propose` guesses what rows say next (`speculation.py`); None = one token a step.
        """
        self._errands = Errands()
        self._tier = HostTier(bounds.host_blocks, self._errands) if bounds.host_blocks else None
        self.pool, cache = new_layout(layout, num_blocks, block_size, prefix_key, self._tier)
        self._roster = Roster(self.pool, cache)
        self.tally = self._roster.tally
        capacity, has_head = num_blocks * block_size, bounds.has_head
        self._facts = Facts(vocab_size, max_model_len, capacity, block_size, layout, has_head)
        self.max_model_len = self._facts.max_total
        self._bounds = bounds
        fetching = new_fetching(self._roster, self._tier)
        self._planner = Planner(self._roster, bounds, propose, fetching)
        self._compiling = Compiling(self._roster, self._errands)
        self._entering = Entering(self._roster)
        self.inspection = Inspection(self._roster, self._planner, self._facts, bounds)
        self._in_flight: deque[Flight] = deque()
        self._next_seq_id = 1
        self._next_step_id = 1
        self._next_deadline = float("inf")

    # ── what is asked ────────────────────────────────────────────────────────────────────────

    def add(self, add: Add, now: float) -> None:
        """Take in a request, or end it at once with the reason why it may not enter.

        Raises SlotInUse, and changes nothing, when one of its slots is live.
        """
        if taken := [slot for slot in slots_of(add) if self._roster.find(add.session, slot)]:
            raise SlotInUse(f"session {add.session}: slots {taken} are live")
        try:
            own = self._bounds.of(add.limits.tenant)
            request = admit(add, self._facts, own, now)
            if not request.attempt:  # what was let in before its replica was lost is in
                check_queue(self._roster, self._bounds, request.limits)
        except Refused as refused:
            self.refuse(add, refused.problem)
            return
        count, first = request.limits.n, self._next_seq_id
        self._next_seq_id += count
        most = room(self._facts, own)
        family = [Sequence(first + i, request, i, most) for i in range(count)]
        for sequence in family:
            sequence.family = family
            if request.resumed and sequence.may_shift:
                replay(sequence)
            self._enter(sequence, now)
        if request.limits.has_grammar:
            self._compiling.begin(family)

    def refuse(self, add: Add, problem: Problem) -> None:
        """End all slots of an `Add` that never entered."""
        num_prompt = len(add.prompt_token_ids) // 4
        for slot in slots_of(add):
            row = refused_row(slot, problem, num_prompt)
            self._roster.events.append(TokenEvent(add.session, slot, 0, (), row))

    def abort(self, session: int, slot: int, now: float) -> None:
        """End a slot wherever it is; unknown and finished ones are none of our business."""
        if sequence := self._roster.find(session, slot):
            self._roster.end(sequence, FinishReason.ABORTED, now)

    def stop_at(self, session: int, slot: int, num_output_tokens: int, now: float) -> None:
        """End a slot on the text tier's stop string, which counts `num_output_tokens` tokens."""
        if sequence := self._roster.find(session, slot):
            reason = FinishReason.STOPPED
            self._roster.end(sequence, reason, now, num_output_tokens=num_output_tokens)

    def pause(self, session: int, slot: int, now: float) -> None:
        """Hold a slot back whose reader is slow; it still ends as any other."""
        if sequence := self._roster.find(session, slot):
            self._roster.pause(sequence, now)

    def resume(self, session: int, slot: int) -> None:
        """Let a paused slot wait for its turn again."""
        if sequence := self._roster.find(session, slot):
            self._roster.resume(sequence)

    def close_session(self, session: int, now: float) -> None:
        """End all slots of a session: nobody reads them any more."""
        for sequence in self._roster.of_session(session):
            self._roster.end(sequence, FinishReason.ABORTED, now)

    def reset_cache(self) -> int:
        """Forget all that is cached and not in use; return how many blocks it had."""
        num_idle = self.pool.num_idle
        self._roster.cache.evict(self.pool.num_blocks)
        if self._tier is not None:
            self._tier.clear()
        return num_idle

    def take_events(self) -> list[TokenEvent]:
        """Return the events that no result has brought: refusals, aborts, deadlines."""
        return self._roster.take_events()

    @property
    def num_waiting(self) -> int:
        return self._roster.num_waiting

    @property
    def num_paused(self) -> int:
        return len(self._roster.paused)

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    def _enter(self, sequence: Sequence, now: float) -> None:
        self._roster.enter(sequence)
        if sequence.request.deadline is not None:
            self._next_deadline = min(self._next_deadline, sequence.request.deadline)
        reason = sequence.ending()
        if reason is not FinishReason.UNFINISHED:  # all of it had been delivered before the replay
            self._roster.end(sequence, reason, now)

    # ── what is computed ─────────────────────────────────────────────────────────────────────

    def under_way(self) -> tuple[tuple[int, int], ...]:
        """Return session and slot of every row of the plans in flight."""
        rows = (row for flight in self._in_flight for row in flight.all_rows())
        return tuple(dict.fromkeys((row.session, row.slot) for row in rows))

    def schedule(self, now: float) -> ExecutePlan | None:
        """Return the next step, or None when there is nothing to compute."""
        self.expire(now)
        draft = self._planner.plan(self._next_step_id, now)
        if draft.is_empty:
            return None
        self._next_step_id += 1
        self._in_flight.append(draft.flight())
        self.tally.step(self._bounds.max_num_batched_tokens - draft.budget)
        return draft.plan(self._roster.take_dropped())

    def expire(self, now: float) -> None:
        """End every sequence whose deadline has passed."""
        if now < self._next_deadline:
            return
        for row in list(self._roster.live()):
            if row.request.deadline is not None and row.request.deadline <= now:
                self._roster.end(row, FinishReason.DEADLINE, now)
        later = (row.request.deadline for row in self._roster.live())
        self._next_deadline = min((d for d in later if d is not None), default=float("inf"))

    # ── what the workers do beside it ────────────────────────────────────────────────────────

    @property
    def num_errands(self) -> int:
        """Errands that are not answered yet."""
        return len(self._errands)

    def take_errands(self) -> list[Errand | DropKeys]:
        """Return what the workers are to do before the next plan."""
        if self._tier is not None:
            self._tier.flush()
        return self._errands.take()

    def errand_done(self, answer: ErrandDone, now: float) -> None:
        """Enter what came of an errand."""
        self._errands.done(answer, now)

    # ── what came of it ──────────────────────────────────────────────────────────────────────

    def apply(self, result: StepResult, now: float) -> list[TokenEvent]:
        """Enter the result of the oldest plan in flight; return all events since the last call."""
        flight = self._in_flight.popleft()
        assert result.step_id == flight.step_id, f"{result.step_id} after {flight.step_id}"
        return self._entering.enter(flight, result, now)

    def check(self) -> str:
        """Return what is wrong in the books, with the culprit; empty when they are true."""
        return self._roster.check()


def scheduler_of(
    facts: ModelFacts,
    num_blocks: int,
    bounds: Bounds,
    max_model_len: int = 0,
    num_guesses: int = 0,
    *,
    has_prefix_cache: bool = True,
) -> Scheduler:
    """Return a scheduler for workers with these facts; a `max_model_len` of 0 is the model's.

    What of `bounds` the workers can is told by their facts.
    """
    longest = facts.max_position_embeddings
    return Scheduler(
        num_blocks=num_blocks,
        block_size=facts.block_size,
        vocab_size=facts.vocab_size,
        max_model_len=min(max_model_len or longest, longest),
        bounds=bounds._replace(host_blocks=facts.host_blocks, has_head=facts.has_head),
        prefix_key=model_key(facts) if has_prefix_cache else None,
        layout=facts.layout,
        propose=prompt_lookup(num_guesses),
    )
