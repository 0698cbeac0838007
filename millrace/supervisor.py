"""Keeps the replicas of a stack alive: order of start, restarts, order of stop.

Dependencies start first and are waited for as the file says; a process that ends is started again
by its restart policy, later each time; the stop goes the other way, dependents first.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from common.errors import CANNOT_WORK
from millrace.console import Console
from millrace.placement import Replica
from millrace.replica_process import ReplicaProcess
from millrace.state import ReplicaState

FIRST_DELAY_S, MAX_DELAY_S, STEADY_S = 0.1, 10.0, 10.0
HOPELESS_STARTS = 4
"""A replica that was never healthy in this many starts will not be in the next one either."""


class Supervisor:
    """Runs `replicas` (dependencies first) from `start` to `stop`, in one event loop."""

    def __init__(
        self,
        replicas: list[Replica],
        root: Path,
        run: str,
        console: Console,
        on_change: Callable[[], None],
    ) -> None:
        self.processes = [ReplicaProcess(r, root, run, console.write) for r in replicas]
        self.ended = asyncio.Event()
        """Set when nothing runs any more, or the supervisor itself has failed."""
        self._console = console
        self._on_change = on_change
        self._stopping = False
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin to start everything, in order."""
        for process in self.processes:
            task = asyncio.create_task(self._keep(process), name=process.replica.name)
            task.add_done_callback(self._done)
            self._tasks[process.replica.name] = task

    def states(self) -> list[ReplicaState]:
        """Return what there is to know about every replica."""
        return [
            ReplicaState(
                name=p.replica.name,
                service=p.replica.service,
                process=p.identity,
                ports=p.replica.ports,
                num_restarts=max(0, p.num_starts - 1),
                healthy=p.healthy.is_set(),
            )
            for p in self.processes
        ]

    def unhealthy(self) -> list[str]:
        """Return the names of the replicas whose probe has not succeeded yet."""
        return [p.replica.name for p in self.processes if not p.healthy.is_set()]

    def hopeless(self) -> list[str]:
        """Return the names of the replicas that only fail."""
        return [
            p.replica.name
            for p in self.processes
            if not p.was_healthy
            and (p.num_starts >= HOPELESS_STARTS or self._tasks[p.replica.name].done())
        ]

    async def stop(self, hurry: asyncio.Event) -> None:
        """End everything, dependents first; `hurry` skips what is left of the grace."""
        self._stopping = True
        services = list(dict.fromkeys(p.replica.service for p in self.processes))
        for service in reversed(services):
            these = [p for p in self.processes if p.replica.service == service]
            await asyncio.gather(*(self._end(process, hurry) for process in these))

    async def _end(self, process: ReplicaProcess, hurry: asyncio.Event) -> None:
        task = self._tasks[process.replica.name]
        if process.identity is None:
            task.cancel()
        process.terminate()
        hurrying = asyncio.create_task(hurry.wait())
        await asyncio.wait(
            {task, hurrying},
            timeout=process.replica.stop_grace_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        hurrying.cancel()
        if not task.done():
            self._console.say(f"{process.replica.name} does not stop: killed")
            process.kill()
        await asyncio.wait({task})

    async def _keep(self, process: ReplicaProcess) -> None:
        await self._dependencies(process.replica)
        delay_s = FIRST_DELAY_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                status = await self._live(process)
                cause = f"ended ({meaning(status)})"
            except OSError as error:  # the system has no process, memory or file for it just now
                status, cause = 1, f"cannot be run ({error.strerror})"
            self._on_change()
            if self._stopping or not wants_restart(process, status):
                return
            delay_s = FIRST_DELAY_S if loop.time() - began > STEADY_S else delay_s
            self._console.say(f"{process.replica.name} {cause}; starts again in {delay_s:g} s")
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_DELAY_S)

    async def _live(self, process: ReplicaProcess) -> int:
        probing = asyncio.create_task(self._probe(process))
        try:
            return await process.live(process.start())
        finally:
            probing.cancel()

    async def _probe(self, process: ReplicaProcess) -> None:
        self._on_change()
        await process.probe_until_healthy()
        self._on_change()

    async def _dependencies(self, replica: Replica) -> None:
        for other in self.processes:
            if other.replica.service in replica.needs:
                await other.healthy.wait()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._console.say(f"{task.get_name()}: {error!r}")
            self.ended.set()
        if all(t.done() for t in self._tasks.values()):
            self.ended.set()


def wants_restart(process: ReplicaProcess, status: int) -> bool:
    """Apply compose's restart policy; what cannot work has had its one chance."""
    if status == CANNOT_WORK and not process.was_healthy:
        return False
    policy, _, limit = process.replica.restart.partition(":")
    if policy == "on-failure":
        return status != 0 and (not limit or process.num_starts <= int(limit))
    return policy in ("always", "unless-stopped")


def meaning(status: int) -> str:
    """Say what an exit status means."""
    if status == -signal.SIGKILL:
        return "signal 9, the system's way when memory runs out"
    return f"signal {-status}" if status < 0 else f"exit status {status}"
