"""The runner: one process that holds the lock, supervises the stack and stops it cleanly.

It may run in the foreground, with the logs on the terminal, or in the background after a fork; then
what it reports until the stack is ready goes through a pipe to the command that forked it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millrace import child
from millrace.console import Console, tail
from millrace.errors import CommandError
from millrace.placement import Replica
from millrace.processes import identify
from millrace.readiness import slowness, wait_until_ready
from millrace.state import RunState, StateFolder
from millrace.supervisor import Supervisor, meaning

LAST_LINES = 15
RETRY_S = 1.0
"""Between two looks for room on a full disk."""
DETACHED = "\0\n"
"""Line that ends the report of a runner in the background."""


@dataclass(frozen=True)
class Plan:
    """All that is to run, and what to call it."""

    replicas: list[Replica]
    root: Path
    url: str
    model: str
    ready_timeout_s: float
    is_public: bool = False
    """Whether others than this machine can reach `url`'s port."""


class Runner:
    """One run of a plan. `report` shows progress to the user; `echo` shows the logs as well."""

    def __init__(
        self, plan: Plan, folder: StateFolder, report: Callable[[str], None], echo: bool
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._report = report
        self._run = os.urandom(8).hex()
        self._ready = False
        self._again: asyncio.TimerHandle | None = None
        self._console = Console(folder.log, [r.name for r in plan.replicas], echo)
        self._supervisor = Supervisor(
            plan.replicas, plan.root, self._run, self._console, self._note_change
        )

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Run until SIGINT, SIGTERM or SIGHUP; return the exit status of the command.

        A SIGHUP that the caller ignores stays ignored: `nohup millrace up &`.
        """
        stop, hurry = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        for signum in (signal.SIGINT, signal.SIGTERM, *hang_up):
            loop.add_signal_handler(signum, lambda: (hurry if stop.is_set() else stop).set())
        self._write_state()
        guard = self._start_guard()
        self._supervisor.start()
        try:
            return await self._until(stop, on_ready)
        finally:
            self._console.say("stopping")
            await self._supervisor.stop(hurry)
            child.kill_marked(self._run)
            guard.communicate()
            if self._again is not None:
                self._again.cancel()
            self._console.say("stopped")  # `logs --follow` reads on until nothing runs
            self._folder.forget()
            self._console.close()

    async def _until(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> int:
        stopped = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(self._supervisor.ended.wait())
        ready = asyncio.create_task(self._become_ready(on_ready))
        try:
            await asyncio.wait({stopped, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not ready.result():
                return 1
            await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
            return 0 if stopped.done() else 1
        finally:
            for task in (stopped, ended, ready):
                task.cancel()

    async def _become_ready(self, on_ready: Callable[[], None]) -> bool:
        plan = self._plan
        reasons = await wait_until_ready(
            plan.url, self._supervisor, plan.ready_timeout_s, self._report
        )
        if reasons:
            last = "\n".join(tail(self._folder.log, LAST_LINES))
            self._report(f"gave up: {'; '.join(reasons)}. The last lines of the log:\n{last}")
            return False
        if slow := await slowness(plan.url):
            self._report(slow)
        self._ready = True
        self._note_change()
        on_ready()
        return True

    def _start_guard(self) -> subprocess.Popen[bytes]:
        """Start the process that cleans up should this one be killed; it watches a pipe of ours."""
        return subprocess.Popen(
            child.watching(self._run),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _note_change(self) -> None:
        """Write the state; on a disk that has become full the old one stays, and all runs on.

        It is written when there is room again, though nothing may change until then.
        """
        if self._again is not None:
            self._again.cancel()
            self._again = None
        try:
            self._write_state()
        except CommandError:
            self._folder.mark_old()
            self._again = asyncio.get_running_loop().call_later(RETRY_S, self._note_change)

    def _write_state(self) -> None:
        runner = identify(os.getpid())
        assert runner is not None
        self._folder.write(
            RunState(
                run=self._run,
                runner=runner,
                url=self._plan.url,
                model=self._plan.model,
                ready=self._ready,
                replicas=self._supervisor.states(),
            )
        )


def in_background(run: Callable[[Callable[[], None]], int]) -> int:
    """Fork and call `run(detach)` in the child; show what it prints until it calls `detach`.

    Returns 0 once detached. A child that ends before that has failed, also when it was asked to.
    Ctrl-C and SIGTERM end what has begun, and then this process as they end any other command.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os._exit(_background(run, writing))
    os.close(writing)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with os.fdopen(reading, errors="replace") as report:
            for line in report:
                if line == DETACHED:
                    return 0
                _show(line)
    except (KeyboardInterrupt, SystemExit):
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0 and status != -signal.SIGTERM:  # that one is `down`, before its time
        raise CommandError(f"what starts and watches the stack ended: {meaning(status)}")
    return status or 1


def _show(line: str) -> None:
    """Print a line; that nobody reads on (`up --detach | head -1`) ends the report, not the run."""
    try:
        print(line, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _background(run: Callable[[Callable[[], None]], int], writing: int) -> int:
    """Become a session of its own whose output goes to `writing` until `detach`."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, nothing), (1, writing), (2, writing)):
        os.dup2(source, target)
    os.close(writing)

    def detach() -> None:
        sys.stdout.write(DETACHED)
        sys.stdout.flush()
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)

    try:
        return run(detach)
    except CommandError as error:
        print(f"millrace: {error}")
        return 1
    except BaseException:  # nothing above the fork may see it: that is another process's story
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
