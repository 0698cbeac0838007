"""Who is live and where: waiting, running, or leaving while a plan in flight names its blocks.

Every way in and out of the running rows stands here, and the one end of a sequence. Decides
nothing: who runs and who makes way is said by the planner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from engine_core.scheduling.context_shift import drop_middle
from engine_core.scheduling.kv_layout import KvLayout
from engine_core.scheduling.ledger import Leaving, Returning, Sessions, discrepancies
from engine_core.scheduling.policy import Ordered, Queues
from engine_core.scheduling.request import FinishReason, Problem
from engine_core.scheduling.reuse import Reuse
from engine_core.scheduling.rows import finished_row
from engine_core.scheduling.sequence import FINISHED, Sequence, Status, TokenEvent
from engine_core.scheduling.tally import Tally
from protos.worker import Finished


def _take_one(counts: Counter[str], tenant: str) -> None:
    counts[tenant] -= 1
    if not counts[tenant]:
        del counts[tenant]


class Roster:
    """The live sequences of one replica. `applied` is the last step whose result is known."""

    def __init__(self, layout: KvLayout, cache: Reuse) -> None:
        self.layout = layout
        self.cache = cache
        self.tally = Tally()
        self.waiting = Queues()
        self.running = Ordered()
        self.paused: dict[int, Sequence] = {}
        self.applied = 0
        self.tenants: Counter[str] = Counter()
        """Live sequences by tenant."""
        self.seats: Counter[str] = Counter()
        """Running sequences by tenant."""
        self.held: dict[int, Sequence] = {}
        """Those that wait for an errand of the workers, by seq_id."""
        self.fetching: set[int] = set()
        """Sequences, ended or not, whose table is being filled from host memory."""
        self._sessions: Sessions = {}
        self._returning: Returning = {}
        self._dropped: list[int] = []  # rows the workers are to forget with the next plan
        self.full: list[Sequence] = []
        """Running rows whose keys the next plan is to turn."""
        self.events: list[TokenEvent] = []
        """Published and not yet taken; the same list for ever."""

    @property
    def num_waiting(self) -> int:
        leaving = (row for rows in self._returning.values() for row, _ in rows)
        coming = (row for row in leaving if row.status is Status.PREEMPTED and not row.is_paused)
        return len(self.waiting) + len(self.held) + sum(1 for _ in coming)

    @property
    def is_returning(self) -> bool:
        """True when blocks come back with a plan in flight or an errand."""
        return bool(self._returning or self.fetching)

    def find(self, session: int, slot: int) -> Sequence | None:
        return self._sessions.get(session, {}).get(slot)

    def of_session(self, session: int) -> list[Sequence]:
        return list(self._sessions.get(session, {}).values())

    def live(self) -> Iterator[Sequence]:
        return (row for rows in self._sessions.values() for row in rows.values())

    # ── in and out ───────────────────────────────────────────────────────────────────────────

    def enter(self, sequence: Sequence) -> None:
        """Take in a new sequence; it waits."""
        if not self._sessions:
            self.tally.awoke(sequence.request.arrival)
        self._sessions.setdefault(sequence.session, {})[sequence.slot] = sequence
        self.tenants[sequence.tenant] += 1
        self.waiting.add(sequence)

    def start(self, sequence: Sequence, num_computed: int) -> None:
        """Let a waiting sequence run in its table; its first `num_computed` tokens are there."""
        self.waiting.remove(sequence)
        sequence.move(Status.RUNNING)
        self.running.add(sequence)
        self.seats[sequence.tenant] += 1
        sequence.block_ids = self.layout.table(sequence.seq_id)
        sequence.capacity = len(sequence.block_ids) * self.layout.block_size
        sequence.num_computed = sequence.num_planned = num_computed
        sequence.is_inexact = False
        sequence.has_fetched = False
        self.cache.watch(sequence, num_computed)

    def grow(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """Give a running sequence `count` more blocks, which must be available; return them."""
        layout = self.layout
        self.cache.evict(count)
        sequence.capacity += count * layout.block_size
        return layout.allocate(sequence.seq_id, sequence.capacity).block_ids

    def hold(self, sequence: Sequence, status: Status) -> None:
        """Let a waiting sequence wait for an errand, which `status` names."""
        self.waiting.remove(sequence)
        sequence.move(status)
        self.held[sequence.seq_id] = sequence

    def release(self, sequence: Sequence) -> None:
        """The errand is done: it waits for its turn again."""
        del self.held[sequence.seq_id]
        self._requeue(sequence)

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Take a running sequence off the workers for the need of others."""
        sequence.num_preemptions += 1
        self.tally.num_preemptions += 1
        self.set_back(sequence, now)

    def shift(self, sequence: Sequence, now: float) -> None:
        """The context is full: what is left of it is computed anew, or turned by the next plan.

        A row that is off the workers already is shortened when it waits again.
        """
        if sequence.status is not Status.RUNNING:
            return
        if sequence.request.limits.rotate_kv:
            self.full.append(sequence)
        else:
            self.set_back(sequence, now)

    def set_back(self, sequence: Sequence, now: float) -> None:
        """Take a running sequence off the workers; it waits again when no plan names it."""
        sequence.move(Status.PREEMPTED)
        sequence.age.wait(now)
        self._leave(sequence)
        if sequence.last_plan <= self.applied:
            self._requeue(sequence)

    def pause(self, sequence: Sequence, now: float) -> None:
        """Hold `sequence` back until `resume`; what it holds goes to others."""
        sequence.is_paused = True
        if sequence.status is Status.RUNNING:
            self.preempt(sequence, now)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
            self._pause(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Let `sequence` wait for its turn again."""
        sequence.is_paused = False
        if sequence.status is Status.PAUSED:
            del self.paused[sequence.seq_id]
            sequence.move(Status.WAITING)
            self.waiting.add(sequence)

    def _pause(self, sequence: Sequence) -> None:
        sequence.move(Status.PAUSED)
        self.paused[sequence.seq_id] = sequence

    def restart(self, sequence: Sequence) -> None:
        """Let the workers drop a running row: the next plan starts it again, in the same table."""
        self._dropped.append(sequence.seq_id)

    def take_dropped(self) -> list[int]:
        """Return the rows that have left since the last call; the next plan names them."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def take_back(self, step_id: int) -> None:
        """No plan in flight names these rows any more: what they computed is kept or free."""
        for sequence, num_planned in self._returning.pop(step_id, ()):
            self.cache.retire(sequence, num_planned)
            if sequence.status is Status.PREEMPTED:
                self._requeue(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Take a row off the workers; its table returns when no plan in flight names it."""
        self.running.remove(sequence)
        _take_one(self.seats, sequence.tenant)
        self._dropped.append(sequence.seq_id)
        leaving = Leaving(sequence, sequence.num_planned - sequence.num_guesses)
        sequence.block_ids, sequence.capacity = [], 0
        sequence.num_planned = sequence.num_computed = sequence.num_guesses = 0
        if sequence.last_plan > self.applied:
            self._returning.setdefault(sequence.last_plan, []).append(leaving)
        else:
            self.cache.retire(*leaving)

    def _requeue(self, sequence: Sequence) -> None:
        """A preempted sequence waits again, to be computed anew with all it has put out."""
        if sequence.is_full:
            drop_middle(sequence)
        sequence.num_expected = len(sequence.tokens)
        if sequence.is_paused:
            self._pause(sequence)
            return
        sequence.move(Status.WAITING)
        self.waiting.add(sequence)

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
            self.waiting.remove(sequence)
        else:
            self.held.pop(sequence.seq_id, None)
            self.paused.pop(sequence.seq_id, None)
        sequence.move(FINISHED[reason])
        if all(choice.has_ended for choice in sequence.family):
            sequence.family.clear()  # what knows itself would wait for a collection of garbage
        _take_one(self.tenants, sequence.tenant)
        slots = self._sessions[sequence.session]
        del slots[sequence.slot]
        if not slots:
            del self._sessions[sequence.session]
        self.tally.finished(now)
        return finished_row(sequence, reason, now, num_output_tokens, problem)

    def end(
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
        self.events.append(TokenEvent(sequence.session, sequence.slot, offset, (), row))

    def take_events(self) -> list[TokenEvent]:
        """Return what was published since the last call."""
        events = self.events[:]
        self.events.clear()
        return events

    def check(self) -> str:
        """Return what is wrong in the books, with the culprit; empty when they are true."""
        found = discrepancies(
            self.layout, (*self.cache.holders(), *self.fetching), self._sessions, self.waiting,
            self.running, self.held.values(), self.paused.values(), self._returning,
        )  # fmt: skip
        if self.seats != (seats := Counter(row.tenant for row in self.running)):
            found.append(f"seats {dict(self.seats)} are counted, {dict(seats)} are taken")
        if self.tenants != (tenants := Counter(row.tenant for row in self.live())):
            found.append(f"tenants {dict(self.tenants)} are counted, {dict(tenants)} are live")
        return "; ".join([*found, *self.cache.check()])
