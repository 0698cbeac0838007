"""The scheduler's end of the channel to its workers: they join, compute steps, and may be lost.

A tensor-parallel group is one failure unit: a rank that faults, falls silent, answers late or
disconnects loses the whole replica. Whose identity does not begin with the key of the leases is
refused unread, as others may reach the port too; who names no rank of its own is ignored.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Collection

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from common.channel import Gone, Router
from engine_core.loop import WorkerLost
from protos.worker import (
    Allocate,
    ErrandDone,
    ExecutePlan,
    FromWorker,
    Heartbeat,
    KvReport,
    ModelFacts,
    StepResult,
    ToWorker,
    WorkerFault,
    WorkerReady,
)

log = logging.getLogger(__name__)

POLL_S = 0.2
CONTACT_TIMEOUT_S = 30.0
DEPTH = 2
"""Plans under way: the workers find the next one when they have answered the last."""
MAX_GAP_S = 2.0
"""Looks at the time further apart than this mean that we have slept: a link looks ten times as
often while it waits."""


class Awake:
    """A clock that stands still while this process is stopped, perhaps together with its workers:
    what they said meanwhile is still unread, and what they did not say they had no chance to."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at = clock()
        self._slept_s = 0.0

    def __call__(self) -> float:
        now = self._clock()
        if now - self._looked_at > MAX_GAP_S:
            self._slept_s += now - self._looked_at
        self._looked_at = now
        return now - self._slept_s


class ZmqWorkerLink:
    """All ranks of one replica as one WorkerLink; `clock` returns seconds."""

    def __init__(
        self,
        router: Router[FromWorker],
        world_size: int,
        clock: Callable[[], float],
        key: str,
        *,
        join_timeout_s: float,
        step_timeout_s: float,
        worker_timeout_s: float,
    ) -> None:
        self._router = router
        self._world_size = world_size
        self._wake_on: zmq.Socket[bytes] | None = None
        self._while_waiting: Callable[[], None] = lambda: None
        self._next_attend = 0.0  # heartbeats wake us, too: only the clock tells a long wait
        self._clock = clock
        self._join_timeout_s = join_timeout_s
        self._step_timeout_s = step_timeout_s
        self._worker_timeout_s = worker_timeout_s
        self._decode = msgspec.msgpack.Decoder(FromWorker).decode
        self._peers: dict[bytes, int] = {}  # identity → rank
        self._key = key.encode()
        self._has_refused = False
        self._sockets: dict[int, int] = {}  # file descriptor → rank
        self._heard: dict[int, float] = {}
        self._backlog: deque[tuple[int, FromWorker]] = deque()
        self._launched: deque[int] = deque()  # step ids
        self._answers: list[deque[StepResult]] = [deque() for _ in range(world_size)]  # by rank
        self._errands: defaultdict[int, dict[int, ErrandDone]] = defaultdict(dict)  # by id and rank
        self._monitor = router.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        for socket in (router.socket, self._monitor):
            self._poller.register(socket, zmq.POLLIN)

    def attend(self, wake_on: zmq.Socket[bytes], while_waiting: Callable[[], None]) -> None:
        """From now on call `while_waiting` whenever a wait finds `wake_on` readable, or is long."""
        self._poller.register(wake_on, zmq.POLLIN)
        self._wake_on = wake_on
        self._while_waiting = while_waiting

    # ── joining ──────────────────────────────────────────────────────────────────────────────

    def join(self) -> tuple[list[ModelFacts], int, WorkerReady]:
        """Wait for all ranks, let them allocate the least that fits all of them.

        Returns facts by rank, the number of blocks, and what the slowest rank says.
        """
        self._await_contact()
        deadline = self._clock() + self._join_timeout_s
        reports: dict[int, KvReport] = {}
        while len(reports) < self._world_size:
            message = self._next(deadline, f"{len(reports)} of {self._world_size} workers loaded")
            if isinstance(message, KvReport):
                reports[message.rank] = message
        facts = [reports[rank].facts for rank in range(self._world_size)]
        num_blocks = min(one.max_blocks for one in facts)
        if num_blocks < 1:
            raise WorkerLost("no memory is left for the KV cache; raise kv_cache_memory")
        self.send(Allocate(num_blocks))
        ready: dict[int, WorkerReady] = {}
        while len(ready) < self._world_size:
            message = self._next(deadline, "a worker did not get ready")
            if isinstance(message, WorkerReady):
                ready[message.rank] = message
        slowest = max(ready.values(), key=lambda one: sum(one.startup_s.values()))
        return facts, num_blocks, slowest

    def _await_contact(self) -> None:
        """Wait until every rank has said something: one that died with its lease never will."""
        deadline = self._clock() + CONTACT_TIMEOUT_S
        while len(self._peers) < self._world_size:
            self.wait()
            if self._clock() > deadline and len(self._peers) < self._world_size:
                came = f"{len(self._peers)} of {self._world_size} workers came"
                raise WorkerLost(f"{came} within {CONTACT_TIMEOUT_S:g} s")

    # ── computing ────────────────────────────────────────────────────────────────────────────

    @property
    def depth(self) -> int:
        return DEPTH

    def launch(self, plan: ExecutePlan) -> None:
        """Send `plan` to every rank; they compute plans in the order in which they come."""
        self._launched.append(plan.step_id)
        self.send(plan)

    def collect(self) -> StepResult:
        """Wait until every rank has computed the oldest plan; rank 0's result counts."""
        step_id = self._launched.popleft()
        deadline = self._clock() + self._step_timeout_s
        why = f"step {step_id} took longer than {self._step_timeout_s:g} s"
        while not all(self._answers):
            rank, message = self._hear(deadline, why)
            if isinstance(message, StepResult):
                self._answers[rank].append(message)
        results = [answers.popleft() for answers in self._answers]
        for rank, result in enumerate(results):
            if result.step_id != step_id:
                raise WorkerLost(f"rank {rank} answered step {result.step_id}, not {step_id}")
        return results[0]

    def send(self, message: ToWorker) -> None:
        """Send `message` to every rank, behind what went before."""
        try:
            for peer in self._peers:
                self._router.send(peer, message)
        except Gone as error:
            self._take_leave()
            raise WorkerLost(f"worker {error} is not connected") from error

    def answers(self) -> list[ErrandDone]:
        """Return one answer to each errand that all ranks have answered: the worst of them."""
        while self._router.socket.poll(0):
            self._receive()
        found = [i for i, by_rank in self._errands.items() if len(by_rank) == self._world_size]
        return [worst(self._errands.pop(errand_id).values()) for errand_id in found]

    def wait(self) -> None:
        """Take in whatever happens first, POLL_S seconds at most."""
        ready = dict(self._poller.poll(int(POLL_S * 1000)))
        if self._router.socket in ready:
            self._receive()
        if self._monitor in ready:
            self._notice_disconnects()
        now = self._clock()
        if self._wake_on in ready or now >= self._next_attend:
            self._next_attend = now + POLL_S
            self._while_waiting()

    def age(self) -> float:
        """Return seconds since the most silent rank spoke; raise WorkerLost when it is gone."""
        while self._router.socket.poll(0):
            self._receive()
        self._notice_disconnects()
        silence = self._clock() - min(self._heard.values())
        if silence > self._worker_timeout_s:
            raise WorkerLost(f"a worker has been silent for {silence:.1f} s")
        return silence

    def close(self) -> None:
        self._router.socket.disable_monitor()
        self._monitor.close()
        self._router.close()

    # ── hearing ──────────────────────────────────────────────────────────────────────────────

    def _next(self, deadline: float, why: str) -> FromWorker:
        return self._hear(deadline, f"{why} within {self._join_timeout_s:g} s")[1]

    def _hear(self, deadline: float, why: str) -> tuple[int, FromWorker]:
        """Return the next message of a rank; raise WorkerLost(`why`) at `deadline`."""
        while not self._backlog:
            self.wait()
            if self._clock() > deadline and not self._backlog:
                raise WorkerLost(why)
        return self._backlog.popleft()

    def _receive(self) -> None:
        """Take one message in; only those of our ranks count, and heartbeats only as a sign."""
        peer, *_, body = self._router.socket.recv_multipart(copy=False)
        if not peer.bytes.startswith(self._key):
            self._refuse(peer.bytes)
            return
        try:
            message = self._decode(body.buffer)
        except msgspec.DecodeError:
            log.warning("dropped what no worker says", extra={"peer": repr(peer.bytes)})
            return
        if isinstance(message, KvReport | Heartbeat) and 0 <= message.rank < self._world_size:
            if message.rank not in self._peers.values():
                self._peers[peer.bytes] = message.rank
        rank = self._peers.get(peer.bytes)
        if rank is None:
            return
        self._sockets[body.get(zmq.SRCFD)] = rank
        self._heard[rank] = self._clock()
        if isinstance(message, WorkerFault):
            raise WorkerLost(f"rank {rank} failed in step {message.step_id}: {message.message}")
        if isinstance(message, ErrandDone):
            self._errands[message.errand_id][rank] = message
        elif not isinstance(message, Heartbeat):
            self._backlog.append((rank, message))

    def _refuse(self, peer: bytes) -> None:
        """Say once that somebody spoke who is none of ours: a flood of it shall cost us little.

        The connection stands: ZeroMQ ends it only together with those of our workers.
        """
        if not self._has_refused:
            self._has_refused = True
            log.warning("refused a peer that has no lease", extra={"peer": repr(peer)})

    def _notice_disconnects(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            rank = self._sockets.get(int(event["value"]))
            if rank is not None:
                self._take_leave()
                raise WorkerLost(f"rank {rank} disconnected")

    def _take_leave(self) -> None:
        """Hear what was said before a connection ended: a fault tells more than the end of it."""
        while self._router.socket.poll(0):
            self._receive()


def worst(answers: Collection[ErrandDone]) -> ErrandDone:
    """Return what holds for all ranks: any error, and the fewest good blocks."""
    failed = [answer for answer in answers if answer.error]
    return failed[0] if failed else min(answers, key=lambda answer: answer.num_blocks)
