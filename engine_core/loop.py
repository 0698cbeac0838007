"""The only loop of the engine: admit → schedule → launch → collect → apply → publish.

With a link of depth 2, step N+1 is planned and under way before the result of N is waited for: the
workers go on while its tokens are handed out.

Synchronous, one thread. Knows a scheduler and two links; not what is behind them: ZeroMQ in the
scheduler process, direct calls in the offline API. Whoever drives it handles WorkerLost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from engine_core.answers import answer
from engine_core.publish import step_output
from engine_core.scheduling.request import Problem
from engine_core.scheduling.scheduler import Scheduler, SlotInUse
from engine_core.scheduling.sequence import TokenEvent
from protos.worker import (
    Abort,
    Add,
    CloseSession,
    DropKeys,
    Errand,
    ErrandDone,
    ExecutePlan,
    Pause,
    Query,
    Resume,
    SchedulerState,
    Shutdown,
    StepResult,
    StopAt,
    ToFront,
    ToScheduler,
)

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.4
STATE_INTERVAL_S = 0.4
AUDIT_INTERVAL_S = 60.0


class WorkerLost(Exception):
    """The workers of this replica are gone or not to be trusted; the message says why."""

    under_way: tuple[tuple[int, int], ...] | None = None
    """Session and slot of what they were computing, where that is known."""


class WorkerLink(Protocol):
    """The workers of one replica, as one. A `ModelRunner` in the same process is one, too."""

    @property
    def depth(self) -> int:
        """How many plans may be launched and not collected, at least 1."""
        ...

    def launch(self, plan: ExecutePlan) -> None:
        """Let `plan` be computed after those launched before; raise WorkerLost."""
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest plan launched; raise WorkerLost when that cannot be had."""
        ...

    def send(self, errand: Errand | DropKeys) -> None:
        """Have `errand` run after the plans and errands before it; raise WorkerLost."""
        ...

    def answers(self) -> list[ErrandDone]:
        """Return the answers to errands that came since the last call; never waits."""
        ...

    def wait(self) -> None:
        """No plan is under way: wait a moment for an answer or a message of the front."""
        ...


class FrontLink(Protocol):
    """Who asks and who gets the answers."""

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """Return all messages that are there, waiting up to `timeout_s` for the first."""
        ...

    def send(self, message: ToFront) -> None:
        """Hand over one message; never blocks."""
        ...


class EngineLoop:
    """Drives one scheduler. `clock` returns seconds; `worker_age` those since the worker spoke.

    `attend` may be called by a WorkerLink while it waits, so that cancels are noticed and the
    front keeps hearing from us during a long step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        workers: WorkerLink,
        front: FrontLink,
        clock: Callable[[], float],
        worker_age: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.scheduler = scheduler
        self.is_stopping = False
        self._workers = workers
        self._front = front
        self._clock = clock
        self._worker_age = worker_age
        self._is_busy = False
        self._num_in_flight = 0
        self._step_began: float | None = None
        self._schedule_s = 0.0
        self._execute_s = 0.0
        self._next_state = 0.0
        self._next_audit = clock() + AUDIT_INTERVAL_S
        self._leaks = ""

    def run(self) -> None:
        """Step until the front says Shutdown; raise WorkerLost, which says what was under way."""
        try:
            while not self.is_stopping:
                self.step()
        except WorkerLost as error:
            error.under_way = self.scheduler.under_way()
            raise

    def step(self) -> None:
        """Take in what is asked, launch what the link takes, hand out the tokens of one step.

        Waits up to IDLE_WAIT_S for a message when nothing is under way.
        """
        has_errands = self.scheduler.num_errands > 0
        self._admit(0.0 if self._is_busy or has_errands else IDLE_WAIT_S)
        if has_errands:
            for done in self._workers.answers():
                self.scheduler.errand_done(done, self._clock())
        self._launch()
        self._publish()
        self._is_busy = self._num_in_flight > 0
        if self._is_busy:
            self._collect()
        elif self.scheduler.num_errands:
            self._workers.wait()

    def _launch(self) -> None:
        """Plan and launch steps until the link takes no more or nothing is to be computed."""
        while self._num_in_flight < self._workers.depth:
            began = self._clock()
            plan = self.scheduler.schedule(began)
            for errand in self.scheduler.take_errands():
                self._workers.send(errand)
            if plan is None:
                return
            launched = self._clock()
            self._schedule_s += launched - began
            if not self._num_in_flight:
                self._step_began = launched
            self._num_in_flight += 1
            self._workers.launch(plan)

    def _collect(self) -> None:
        waited = self._clock()
        result = self._workers.collect()
        returned = self._clock()
        self._num_in_flight -= 1
        self._step_began = returned if self._num_in_flight else None
        self._publish(self.scheduler.apply(result, returned))
        self._execute_s += returned - waited
        self._schedule_s += self._clock() - returned

    def attend(self) -> None:
        """Take in what has arrived and say that we live, in the middle of a step."""
        self._admit(0.0)
        self.scheduler.expire(self._clock())
        self._publish()

    def _admit(self, timeout_s: float) -> None:
        for message in self._front.receive(timeout_s):
            self._take(message)
        now = self._clock()
        if now >= self._next_state:
            self._next_state = now + STATE_INTERVAL_S
            self._front.send(self.state(now))

    def _take(self, message: ToScheduler) -> None:
        now = self._clock()
        match message:
            case Add():
                self._add(message, now)
            case Abort():
                self.scheduler.abort(message.session, message.slot, now)
            case StopAt():
                count = message.num_output_tokens
                self.scheduler.stop_at(message.session, message.slot, count, now)
            case Pause():
                self.scheduler.pause(message.session, message.slot, now)
            case Resume():
                self.scheduler.resume(message.session, message.slot)
            case Query():
                self._front.send(answer(self.scheduler, message, now))
            case CloseSession():
                self.scheduler.close_session(message.session, now)
            case Shutdown():
                self.is_stopping = True

    def _add(self, add: Add, now: float) -> None:
        """The exception boundary of one request: what it breaks, it breaks alone."""
        try:
            self.scheduler.add(add, now)
        except SlotInUse:
            log.exception("dropped a request on live slots", extra={"request_id": add.request_id})
        except Exception as error:
            log.exception("admission failed", extra={"request_id": add.request_id})
            self.scheduler.refuse(add, Problem("Internal", f"admission failed: {error!r}"))

    def _publish(self, events: list[TokenEvent] | None = None) -> None:
        events = self.scheduler.take_events() if events is None else events
        if events:
            self._front.send(step_output(events))

    def state(self, now: float) -> SchedulerState:
        """Return the heartbeat: gauges, cumulative counters, and what the last audit found."""
        if now >= self._next_audit:
            self.audit()
        scheduler, tally = self.scheduler, self.scheduler.tally
        return SchedulerState(
            num_waiting=scheduler.num_waiting,
            num_running=scheduler.num_running,
            num_free_blocks=scheduler.pool.num_available,
            num_blocks=scheduler.pool.num_blocks,
            step_age_s=0.0 if self._step_began is None else now - self._step_began,
            worker_age_s=self._worker_age(),
            num_steps=tally.num_steps,
            num_preemptions=tally.num_preemptions,
            num_prefill_tokens=tally.num_prefill_tokens,
            num_decode_tokens=tally.num_decode_tokens,
            schedule_s=self._schedule_s,
            execute_s=self._execute_s,
            leaks=self._leaks,
            iteration_tokens=tuple(tally.iteration_tokens),
            num_prefix_queries=tally.num_prefix_queries,
            num_prefix_hits=tally.num_prefix_hits,
            num_cached_blocks=scheduler.pool.num_idle,
            num_paused=scheduler.num_paused,
            num_host_hits=tally.num_host_hits,
            num_host_losses=tally.num_host_losses,
            num_guesses=tally.num_guesses,
            num_right_guesses=tally.num_right_guesses,
        )

    def audit(self) -> None:
        """Check the books; what is wrong stays in the heartbeat until it is right again."""
        self._next_audit = self._clock() + AUDIT_INTERVAL_S
        self._leaks = self.scheduler.check()
        if self._leaks:
            log.error("the ledger is wrong", extra={"leaks": self._leaks})
