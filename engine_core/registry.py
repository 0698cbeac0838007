"""Workers say Hello here; `world_size` of a kind become a replica with a scheduler of its own.

Starts and watches the scheduler processes and hands the workers their leases. Knows no requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import Callable
from typing import IO, Any, NamedTuple

import msgspec
import zmq

from common.channel import Gone, Router
from engine_core.inbox import Inbox
from engine_core.replica import Fleet, Phase, Replica
from engine_core.scheduler_process import SchedulerConfig
from engine_core.socket_folder import SocketFolder
from protos.worker import (
    FromWorker,
    Hello,
    Lease,
    QueryAnswer,
    ReplicaLost,
    ReplicaReady,
    SchedulerListening,
    SchedulerState,
    StepOutput,
    ToFront,
    ToScheduler,
    Waiting,
)

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 1.0
START_TIMEOUT_S = 60.0
"""A scheduler that has not said a word so long after its start hangs; its workers wait for it."""
WATCH_INTERVAL_S = 0.5
LAST_WORD_S = 0.05
"""A scheduler that ends in order has said why; the word may come later than its end is seen."""
MAX_WATCH_GAP_S = 2.0
"""Looks at the schedulers further apart than this mean that the front itself has slept."""
RETRY_S = 1.0
"""Between a scheduler that ended before its workers had a lease, and the next one for them."""
MODEL_KEPT_S = 10.0
"""After a replica is lost: the time in which only workers of its model may take its place. A worker
of another model that waits would else answer the requests of this one, until the right worker is
back and is refused."""
MAX_FORMING = 16
"""Replicas on their way up, or down, at a time: each is a process, and a Hello costs nothing. The
workers of others wait for a turn."""


class Listener(NamedTuple):
    """Who is told what becomes of replicas."""

    ready: Callable[[Replica], None]
    output: Callable[[Replica, StepOutput], None]
    lost: Callable[[Replica, ReplicaLost], None]
    answer: Callable[[Replica, QueryAnswer], None]


class Registry:
    """Owns the door for workers and all scheduler processes; `config` is their common part."""

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        config: SchedulerConfig,
        fleet: Fleet,
        listener: Listener,
    ) -> None:
        self._context = context
        self._config = config
        self._fleet = fleet
        self._listener = listener
        router: Router[FromWorker] = Router(context, address, FromWorker)
        self.port = router.port
        self._door: Inbox[FromWorker] = Inbox(router, self._hear)
        self._lone: dict[bytes, Hello] = {}
        self._unleased: dict[int, dict[bytes, Hello]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._is_closing = False
        self._model_hash = ""
        self._keeping: asyncio.TimerHandle | None = None
        self._next_number = 1
        self._looked_at = self._awake_since = fleet.clock()
        self._watching = asyncio.create_task(self._watch())

    # ── workers ──────────────────────────────────────────────────────────────────────────────

    def _hear(self, peer: bytes, message: FromWorker) -> None:
        if not isinstance(message, Hello):
            log.warning("dropped what is no Hello", extra={"type": type(message).__name__})
            return
        if peer in self._lone or peer in self._members():
            return  # said again; a member has a lease, or is about to get one
        log.info("worker registered", extra={"host": message.host, "device": message.device})
        self._lone[peer] = message
        self._form()

    def _members(self) -> set[bytes]:
        """Return who is of a replica, or of one whose life is about to begin."""
        begun = [replica.members for replica in self._fleet.replicas.values()]
        return {peer for peers in (*begun, *self._unleased.values()) for peer in peers}

    def _form(self) -> None:
        """Make replicas of lone workers of the same model, build and device."""
        if not (self._fleet.replicas or self._unleased) and self._keeping is None:
            self._model_hash = ""
        kinds: dict[tuple[str, str, str], list[bytes]] = {}
        for peer, hello in self._lone.items():
            kinds.setdefault((hello.model_hash, hello.build, hello.device), []).append(peer)
        size = self._config.world_size
        for (model_hash, _, _), peers in kinds.items():
            if self._model_hash not in ("", model_hash):
                continue
            for start in range(0, len(peers) - size + 1, size):
                if self._is_full:
                    break
                self._model_hash = model_hash
                self._start(tuple(peers[start : start + size]))
        waiting = self._lone_workers()
        if waiting and waiting != self._fleet.lone_workers:
            log.warning(waiting)
        self._fleet.lone_workers = waiting

    @property
    def _is_full(self) -> bool:
        """True while as many replicas are being formed as may be."""
        return len(self._tasks) - len(self._fleet.ready()) >= MAX_FORMING

    def _lone_workers(self) -> str:
        """Say what the workers without a replica wait for; empty when there are none."""
        size, count = self._config.world_size, len(self._lone)
        if not count:
            return ""
        they = "1 worker waits" if count == 1 else f"{count} workers wait"
        if self._is_full:
            return f"{they} for a turn: {MAX_FORMING} replicas are formed at a time"
        if size == 1:
            who = ", ".join(f"{one.host} ({one.model_hash[:12]})" for one in self._lone.values())
            return f"{they}: of another model than the replicas' ({self._model_hash[:12]}): {who}"
        return (
            f"{they} for partners: a replica takes {size} (tensor_parallel_size), all of one "
            "model, build and device"
        )

    def _start(self, members: tuple[bytes, ...]) -> None:
        number, self._next_number = self._next_number, self._next_number + 1
        hellos = self._unleased[number] = {peer: self._lone.pop(peer) for peer in members}
        task = asyncio.create_task(self._live(number, hellos))
        self._tasks[number] = task
        task.add_done_callback(lambda task: self._over(number, task))

    def _over(self, number: int, task: asyncio.Task[None]) -> None:
        """Forget a life that is over; workers it has given no lease are for the next one."""
        self._tasks.pop(number, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a replica's life failed", extra={"replica": number}, exc_info=error)
            if replica := self._fleet.replicas.get(number):
                self._lose(replica, f"its scheduler does not start: {error!r}")
        if waiting := self._unleased.pop(number, None):
            asyncio.get_running_loop().call_later(RETRY_S, self._try_again, waiting)
        self._try_again({})  # there is room for one more

    def _keep_model(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        loop = asyncio.get_running_loop()
        self._keeping = loop.call_later(MODEL_KEPT_S, self._let_model_go)

    def _let_model_go(self) -> None:
        self._keeping = None
        self._try_again({})

    def _try_again(self, hellos: dict[bytes, Hello]) -> None:
        if not self._is_closing:
            taken = self._members()
            self._lone |= {peer: hello for peer, hello in hellos.items() if peer not in taken}
            self._form()

    def _lease(
        self, replica: Replica, hellos: dict[bytes, Hello], there: SchedulerListening
    ) -> None:
        """Give every member its rank; whoever had none when one turns out gone stays lone."""
        if self._is_closing:
            return  # no member hears us any more
        self._unleased.pop(replica.number, None)
        size = self._config.world_size
        for rank, peer in enumerate(replica.members):
            try:
                self._door.send(peer, Lease(replica.number, rank, size, there.port, there.key))
            except Gone:
                self._lone |= {p: hellos[p] for p in replica.members[rank + 1 :]}
                self._lose(replica, f"its worker of rank {rank} left before it had a lease")
                return

    # ── schedulers ───────────────────────────────────────────────────────────────────────────

    async def _live(self, number: int, hellos: dict[bytes, Hello]) -> None:
        """The life of a replica, from its process's start to its process's end.

        The socket's folder goes when the scheduler has spoken: both ends are open then, nobody else
        is to come, and whoever is killed later leaves nothing behind.
        """
        with SocketFolder() as folder:
            await self._live_at(folder, number, hellos)

    async def _live_at(self, folder: SocketFolder, number: int, hellos: dict[bytes, Hello]) -> None:
        address = f"ipc://{folder.path / str(number)}"
        scheduler: list[bytes] = []  # its identity, once it has spoken

        def send(message: ToScheduler) -> None:
            inbox.send(scheduler[0] if scheduler else b"", message)

        replica = Replica(number, tuple(hellos), send)
        replica.heard_at = self._fleet.clock()
        self._fleet.replicas[number] = replica

        def take(peer: bytes, message: ToFront) -> None:
            if not scheduler:
                folder.remove()
            scheduler[:] = [peer]
            if isinstance(message, SchedulerListening):
                self._lease(replica, hellos, message)
            else:
                self._report(replica, message)

        router: Router[ToFront] = Router(self._context, address, ToFront)
        inbox: Inbox[ToFront] = Inbox(router, take)
        try:
            process = await self._spawn(number, address)
            self._processes[number] = process
            if self._is_closing or replica.phase is Phase.LOST:
                end(process)
            status = await process.wait()
            if replica.phase is not Phase.LOST and not self._is_closing:
                await asyncio.sleep(LAST_WORD_S)
            self._lose(replica, f"its scheduler ended with status {status}")
        finally:
            self._processes.pop(number, None)
            inbox.close()

    async def _spawn(self, number: int, address: str) -> asyncio.subprocess.Process:
        config = msgspec.structs.replace(self._config, replica=number, front_address=address)
        log.info("replica starts", extra={"replica": number})
        with in_memory(msgspec.json.encode(config)) as file:  # an argument has 128 KiB at most
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "engine_core.scheduler_process", stdin=file
            )

    def _report(self, replica: Replica, message: ToFront) -> None:
        replica.heard_at = self._fleet.clock()
        match message:
            case StepOutput():
                if replica.phase is Phase.READY:
                    self._listener.output(replica, message)
            case QueryAnswer():
                self._listener.answer(replica, message)
            case SchedulerState():
                replica.state = message
            case ReplicaReady():
                replica.phase = Phase.READY
                replica.facts = message
                self._listener.ready(replica)
                self._form()  # there is room for one more
            case ReplicaLost():
                self._lose(replica, message.reason, message)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            self.lose_silent()
            self._tell_lone()

    def _tell_lone(self) -> None:
        """Tell lone workers what they wait for; forget those that have left without a word."""
        gone = []
        for peer in self._lone:
            try:
                self._door.send(peer, Waiting(self._fleet.lone_workers))
            except Gone:
                gone.append(peer)
        for peer in gone:
            del self._lone[peer]
        if gone:
            self._form()

    def lose_silent(self) -> None:
        """Lose each replica whose process should speak and says nothing: hung, or stopped."""
        now = self._fleet.clock()
        if now - self._looked_at > MAX_WATCH_GAP_S:  # what they said meanwhile is still unread
            self._awake_since = now
        self._looked_at = now
        for replica in list(self._fleet.replicas.values()):
            silence_s = now - max(replica.heard_at, self._awake_since)
            if silence_s > self._patience_s(replica):
                self._lose(replica, f"its scheduler has been silent for {silence_s:.1f} s")

    def _patience_s(self, replica: Replica) -> float:
        """Return how long its process may be silent: while workers load, it looks after them."""
        if replica.number in self._unleased:
            return START_TIMEOUT_S
        return self._config.worker_timeout_s if replica.phase is Phase.READY else math.inf

    def _lose(self, replica: Replica, reason: str, told: ReplicaLost | None = None) -> None:
        """Declare a replica lost, once, and have its task end its process; `told`: its words."""
        if replica.phase is Phase.LOST:
            return
        was_ready, replica.phase = replica.phase is Phase.READY, Phase.LOST
        del self._fleet.replicas[replica.number]
        if self._is_closing:
            return
        if was_ready:
            self._keep_model()
        log.warning("replica lost", extra={"replica": replica.number, "reason": reason})
        self._listener.lost(replica, told or ReplicaLost(reason))
        if process := self._processes.get(replica.number):
            end(process)
        self._form()

    async def close(self) -> None:
        """End all scheduler processes and the door."""
        self._is_closing = True
        self._watching.cancel()
        self._door.close()
        for process in self._processes.values():
            end(process)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def in_memory(content: bytes) -> IO[bytes]:
    """Return a file without a name that is read from its begin."""
    file = open(os.memfd_create("content"), "w+b")
    file.write(content)
    file.seek(0)
    return file


def end(process: asyncio.subprocess.Process) -> None:
    """Ask the process to end, and see to it after STOP_TIMEOUT_S."""
    if process.returncode is None:
        process.terminate()
        asyncio.get_running_loop().call_later(STOP_TIMEOUT_S, _kill, process)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
