"""The Engine service: callers' streams in, replicas' output out.

Knows sessions, which replica each slot runs on, and requests held until one is ready. Never looks
into a column, never waits for a caller, decides nothing about blocks or steps.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import msgspec

from common.channel import Gone
from engine_core.answers import REQUEST_STATE, RequestStateQuestion
from engine_core.caller import CallerSession
from engine_core.held import HeldRequests
from engine_core.inquiries import Inquiries
from engine_core.replica import Fleet, Replica
from engine_core.scheduling.request import FinishReason, Problem
from engine_core.scheduling.rows import refused_row, slots_of
from engine_core.translate import to_add
from protos.common_pb2 import EngineState, Query
from protos.engine_pb2 import EngineReply, EngineRequest, GenerateRequest
from protos.engine_pb2_grpc import EngineServicer
from protos.limits import LIMITS
from protos.words import REPLICA_LEFT, REPLICA_LOST
from protos.worker import (
    Abort,
    Add,
    CloseSession,
    Finished,
    Pause,
    QueryAnswer,
    ReplicaLost,
    Resume,
    StepOutput,
    StopAt,
    ToScheduler,
)

log = logging.getLogger(__name__)

STATE_INTERVAL_S = 0.5
"""A state costs three processes a message."""
HELD_INTERVAL_S = 0.25
"""While requests wait for a replica: they have deadlines."""
Context = grpc.aio.ServicerContext[EngineRequest, EngineReply]


class Front(EngineServicer):
    """Servicer and switchboard. `observe(replica, row)` sees every end that a replica reports."""

    def __init__(
        self,
        engine: str,
        fleet: Fleet,
        max_waiting: int,
        observe: Callable[[Replica, Finished], None],
    ) -> None:
        self.sessions: dict[int, CallerSession] = {}
        self._engine = engine
        self._fleet = fleet
        self._held = HeldRequests(max_waiting)
        self._observe = observe
        self._inquiries = Inquiries()
        self._numbers = itertools.count(random.getrandbits(32) << 24)
        self._last_ready: bool | None = None
        self._is_draining = False

    # ── callers ──────────────────────────────────────────────────────────────────────────────

    async def Session(self, requests: AsyncIterator[EngineRequest], context: Context) -> None:
        """Serve one caller until its stream ends, then end all its requests."""
        caller = CallerSession(next(self._numbers))
        self.sessions[caller.number] = caller
        caller.tell(self.state())
        log.info("session opened", extra={"session": caller.number, "peer": context.peer()})
        writer = asyncio.create_task(caller.write_all(context.write))
        writer.add_done_callback(_say_why)
        try:
            async for message in requests:
                if message.session == caller.number:
                    self.receive(caller, message)
        finally:
            writer.cancel()
            self._close(caller)

    def receive(self, caller: CallerSession, message: EngineRequest) -> None:
        """Take in what one message asks: adds, then aborts, then stops, then all else."""
        for request in message.adds:
            self._add(caller, request)
        for slot in message.aborts:
            self._pass_on(caller, Abort(caller.number, slot), FinishReason.ABORTED)
        for stop in message.stops:
            order = StopAt(caller.number, stop.slot, stop.num_output_tokens)
            self._pass_on(caller, order, FinishReason.STOPPED)
        for slot in message.pauses:
            self._hold_back(caller, slot, is_paused=True)
        for slot in message.resumes:
            self._hold_back(caller, slot, is_paused=False)
        for query in message.queries:
            self._inquiries.ask(
                caller, query, self._fleet.ready(), self._send, self._states_of_held(query)
            )

    def _states_of_held(self, query: Query) -> list[dict[str, Any]]:
        """Return what is held of the request whose state is asked for; no replica knows of it."""
        if query.kind != REQUEST_STATE:
            return []
        try:
            asked = msgspec.json.decode(query.body_json, type=RequestStateQuestion)
        except msgspec.DecodeError:
            return []  # the schedulers say what is wrong with it
        return self._held.states(asked.request_id, asked.tenant)

    def _add(self, caller: CallerSession, request: GenerateRequest) -> None:
        """The exception boundary of one request."""
        try:
            add = to_add(caller.number, request)
        except ValueError as error:
            problem = Problem("InvalidRequest", f"malformed request: {error}")
            count = min(max(request.limits.n, 1), int(LIMITS["n"].high))
            self._end(caller, [request.slot + i for i in range(count)], problem)
            return
        slots = [*slots_of(add)]
        if taken := [slot for slot in slots if slot in caller.slots]:
            log.error("dropped a request on live slots", extra={"slots": taken})
        elif self._is_draining:
            self._end(caller, slots, lost("the engine is shutting down", REPLICA_LEFT))
        else:
            self._place(caller, add)

    def _place(self, caller: CallerSession, add: Add) -> None:
        replica = self._fleet.pick()
        if replica is None:
            problem = self._held.hold(add, self._fleet.clock())
            if problem:
                self._end(caller, [*slots_of(add)], problem)
                return
        for slot in slots_of(add):
            caller.place(slot, replica)
        if replica is not None:
            self._send(replica, add)

    def _hold_back(self, caller: CallerSession, slot: int, *, is_paused: bool) -> None:
        """Pause or resume a live slot; one that is held here is paused when it gets its replica."""
        if slot not in caller.slots:
            return
        (caller.paused.add if is_paused else caller.paused.discard)(slot)
        replica = caller.slots[slot]
        if replica is not None:
            order = Pause if is_paused else Resume
            self._send(replica, order(caller.number, slot))

    def _send(self, replica: Replica, message: ToScheduler) -> None:
        try:
            replica.send(message)
        except Gone:  # its process has ended: `replica_lost` will end all that ran there
            log.warning("replica does not listen", extra={"replica": replica.number})

    def _pass_on(self, caller: CallerSession, order: Abort | StopAt, reason: FinishReason) -> None:
        """Hand an order to the replica of its slot; end a held slot here."""
        if order.slot not in caller.slots:
            return
        replica = caller.slots[order.slot]
        if replica is not None:
            self._send(replica, order)
            return
        self._held.drop(caller.number, order.slot)
        self._end(caller, [order.slot], Problem("", "", reason=reason))

    def _close(self, caller: CallerSession) -> None:
        del self.sessions[caller.number]
        self._held.drop_session(caller.number)
        self._inquiries.drop_session(caller.number)
        for slot in list(caller.slots):
            caller.forget(slot)
        for replica in self._fleet.ready():
            self._send(replica, CloseSession(caller.number))
        log.info("session closed", extra={"session": caller.number})

    def _end(self, caller: CallerSession, slots: list[int], problem: Problem) -> None:
        caller.end([refused_row(slot, problem, 0) for slot in slots])

    # ── replicas ─────────────────────────────────────────────────────────────────────────────

    def replica_output(self, replica: Replica, output: StepOutput) -> None:
        """Hand a step's columns to their callers as they are."""
        for part in output.sessions:
            for row in part.finishes:
                self._observe(replica, row)
            caller = self.sessions.get(part.session)
            if caller is not None:
                caller.deliver(part)

    def replica_answer(self, replica: Replica, answer: QueryAnswer) -> None:
        """Hand on what a replica knows of a question."""
        self._inquiries.answered(replica, answer)

    def replica_ready(self, replica: Replica) -> None:
        """Give a new replica what was held for want of one."""
        self._place_held()
        self.announce()

    def _place_held(self) -> None:
        for add in self._held.release(self._fleet.clock()):
            caller = self.sessions[add.session]
            slots = slots_of(add)
            paused = caller.paused.intersection(slots)
            for slot in slots:
                caller.forget(slot)
            self._place(caller, add)
            for slot in paused:
                self._hold_back(caller, slot, is_paused=True)

    def replica_lost(self, replica: Replica, told: ReplicaLost) -> None:
        """End all that ran or waited there; whoever holds the tokens replays it elsewhere."""
        message, under_way = f"replica {replica.number} is lost: {told.reason}", told.under_way
        for number, caller in self.sessions.items():
            slots = [slot for slot, place in caller.slots.items() if place is replica]
            ran = [s for s in slots if under_way is None or (number, s) in under_way]
            waited = [slot for slot in slots if slot not in ran]
            if ran:
                self._end(caller, ran, lost(message))
            if waited:
                self._end(caller, waited, lost(message, REPLICA_LEFT))
        self._inquiries.replica_lost(replica)
        self.announce()

    @property
    def num_held(self) -> int:
        """Choices that wait here for a replica."""
        return len(self._held)

    # ── health ───────────────────────────────────────────────────────────────────────────────

    def reasons(self) -> list[str]:
        """Return why this engine is not ready; empty = it is."""
        return ["the engine is shutting down"] if self._is_draining else self._fleet.reasons()

    def state(self) -> EngineState:
        return self._fleet.report(self._engine, len(self._held), self.reasons())

    def announce(self) -> None:
        """Tell every caller how the engine is."""
        state = self.state()
        if state.ready != self._last_ready:
            self._last_ready = state.ready
            log.info("ready" if state.ready else "not ready", extra={"reasons": [*state.reasons]})
        for caller in self.sessions.values():
            caller.tell(state)

    async def tick(self) -> None:
        """Announce, let held requests expire, and place them once a replica speaks; for ever."""
        while True:
            await asyncio.sleep(HELD_INTERVAL_S if len(self._held) else STATE_INTERVAL_S)
            for number, slot in self._held.overdue(self._fleet.clock()):
                self._held.drop(number, slot)
                late = Problem("", "", reason=FinishReason.DEADLINE)
                self._end(self.sessions[number], [slot], late)
            if self._fleet.pick() is not None:
                self._place_held()
            self.announce()

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new and wait until all has ended, `timeout_s` seconds at most."""
        self._is_draining = True
        self.announce()
        end = self._fleet.clock() + timeout_s
        while any(caller.slots for caller in self.sessions.values()):
            if self._fleet.clock() >= end:
                return
            await asyncio.sleep(0.05)


def lost(message: str, code: str = REPLICA_LOST) -> Problem:
    """Return the end that tells the tier above to replay; REPLICA_LEFT is no mark against it."""
    return Problem("Unavailable", message, code=code, reason=FinishReason.ERROR)


def _say_why(writer: asyncio.Task[None]) -> None:
    if not writer.cancelled() and (error := writer.exception()):
        log.info("stream broke", extra={"reason": repr(error)})
