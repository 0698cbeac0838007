"""The supervisor alone: when it has ended, who is hopeless, and how long a start waits."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millrace import supervisor as module
from millrace.console import Console
from millrace.placement import Replica
from millrace.replica_process import ReplicaProcess
from millrace.supervisor import HOPELESS_STARTS, Supervisor

DIES = "raise SystemExit(3)"
LIVES = "import signal; signal.pause()"
NEVER = [sys.executable, "-c", "raise SystemExit(1)"]
"""A probe that does not succeed."""


def replica(name: str, code: str, restart: str = "always", **rest: object) -> Replica:
    one = Replica(
        name=f"{name}-1", service=name, command=[sys.executable, "-S", "-c", code], environment={},
        ports={}, probe=None, probe_interval_s=0.01, probe_timeout_s=60, stop_grace_s=60,
        restart=restart, needs=[],
    )  # fmt: skip
    return replace(one, **rest)  # type: ignore[arg-type]


class Log:
    """What the supervisor says, and when it tells of a change."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "stack.log"
        self._changed = asyncio.Event()

    async def until(self, what: Callable[[], bool]) -> None:
        """Look at each change whether it is so."""
        while not what():
            self._changed.clear()
            await self._changed.wait()

    @contextmanager
    def over(
        self, *replicas: Replica, on_change: Callable[[], None] | None = None
    ) -> Iterator[Supervisor]:
        console = Console(self.path, [one.name for one in replicas], echo=False)
        on_change = on_change or self._changed.set
        yield Supervisor(list(replicas), self.path.parent, "run", console, on_change)
        console.close()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


async def test_it_has_ended_when_nothing_runs_and_nothing_will(log: Log) -> None:
    """Of two that are not started again the second one ends when it is told."""
    with log.over(replica("a", DIES, "no"), replica("b", LIVES, "no")) as stack:
        stack.start()
        first, second = stack.processes
        await asyncio.wait({stack._tasks[first.replica.name]})
        await log.until(second.healthy.is_set)
        assert not stack.ended.is_set()
        second.terminate()
        await stack.ended.wait()


async def test_a_fault_of_its_own_is_told_and_ends_it(log: Log) -> None:
    def fail() -> None:
        if stack.processes[0].num_starts and stack.processes[0].identity is None:
            raise RuntimeError("a fault")

    with log.over(replica("a", DIES), replica("b", LIVES), on_change=fail) as stack:
        stack.start()
        await stack.ended.wait()
        await stack.stop(asyncio.Event())
    assert "a-1: RuntimeError('a fault')" in log.path.read_text()


async def test_who_was_healthy_once_is_not_hopeless(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_DELAY_S", 0.0)
    once, never = replica("once", DIES), replica("never", DIES, probe=NEVER)
    with log.over(once, never) as stack:
        assert [state.num_restarts for state in stack.states()] == [0, 0]
        stack.start()
        await log.until(
            lambda: min(process.num_starts for process in stack.processes) >= HOPELESS_STARTS
        )
        assert stack.hopeless() == ["never-1"]
        probes = [task for task in asyncio.all_tasks() if "._probe" in repr(task)]
        assert sum(not probe.cancelling() for probe in probes) <= 2, "none of an earlier life"
        await stack.stop(asyncio.Event())


async def test_who_cannot_even_be_started_is_tried_again_and_hopeless(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(module, "FIRST_DELAY_S", 0.0)
    monkeypatch.setattr(ReplicaProcess, "_spawn", refuse)
    with log.over(replica("a", LIVES, probe=NEVER)) as stack:
        assert not await stack.processes[0]._probe()
        stack.start()
        await log.until(lambda: stack.hopeless() == ["a-1"])
        await stack.stop(asyncio.Event())
    assert "a-1 cannot be run (Cannot allocate memory); starts again in 0 s" in log.path.read_text()


async def test_each_start_is_later_until_one_was_steady(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, ages = list[float](), iter([0.0, 0.0, 0.0, 0.0, 11.0, 0.0])
    now = 0.0

    class Clock:
        """The loop's, as the supervisor sees it: each life of the replica lasts so long."""

        def time(self) -> float:
            return now

    async def sleep(delay_s: float) -> None:
        waits.append(delay_s)

    async def live(process: object) -> int:
        nonlocal now
        now += next(ages, -1.0)
        if len(waits) == 6:
            stack._stopping = True
        return 3

    monkeypatch.setattr(module, "MAX_DELAY_S", 0.5)
    with log.over(replica("a", DIES)) as stack:
        monkeypatch.setattr(stack, "_live", live)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(asyncio, "get_running_loop", Clock)
        await stack._keep(stack.processes[0])
    assert waits == [0.1, 0.2, 0.4, 0.5, 0.1, 0.2]
