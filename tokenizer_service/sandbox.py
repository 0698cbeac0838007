"""A child process for work that may never end, eat memory or crash: it may be killed.

Parent and child speak messages with a four-byte length in front, one exchange at a time; tenants
take turns (`turns.py`). The child limits its own memory and processor time; the parent limits the
time on the wall and starts a fresh child after any overrun. A child that was stopped, starved or
killed by others is no fault of the request in it, which is asked once more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from common.errors import Internal, Unavailable
from common.settings import inherited
from tokenizer_service.turns import Asker, Turns

log = logging.getLogger(__name__)
LENGTH = struct.Struct("<I")
MEMORY_BYTES = 512 * 2**20
START_TIMEOUT_S = 30.0
KEPT = ("TZ", "LD_LIBRARY_PATH")
"""What a child is told of our environment: templates tell the time."""
OF_OTHERS = (-signal.SIGKILL, -signal.SIGTERM)
"""Statuses of children that others have ended: an operator, or a machine without memory."""
LEAST_SHARE = 0.25
"""Of the time given: a child that had less of a processor was kept from it."""
STARTS = 2
"""A child that is killed while it starts is no fault of the request that waits for it."""


class Overrun(Exception):
    """The child took too long, or died of a limit; the message says which."""


class Disturbed(Exception):
    """The child was killed or kept from the processor by others; the message says which."""


class Sandbox:
    """The parent's end. Starts the child at first need; belongs to one event loop."""

    def __init__(self, module: str, setup: bytes, timeout_s: float, most_waiting: int) -> None:
        """`module` runs `serve` as its main; it is sent `setup` first and answers it.

        `most_waiting` messages of one tenant may wait.
        """
        self._module = module
        self._setup = setup
        self._timeout_s = timeout_s
        self._process: Process | None = None
        self._turns = Turns(most_waiting)
        self._loop: asyncio.Task[None] | None = None

    async def ask(self, message: bytes, asker: Asker) -> bytes:
        """Return the child's answer.

        Raises Overrun; Internal when no child starts; Unavailable when others disturb it twice;
        Overloaded when too much of the asker's waits already.
        """
        if self._loop is None:
            self._loop = asyncio.create_task(self._serve())
        return await self._turns.add(message, asker)

    async def close(self) -> None:
        """End the child; those who wait are cancelled."""
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop
            self._loop = None
        self._turns.cancel()
        await self._kill()

    async def _serve(self) -> None:
        """Ask one after the other; the caller's cancellation never cuts an exchange."""
        while True:
            tenant, message = await self._turns.next()
            try:
                told = await self._exchange(message)
            except Exception as error:  # whatever it is, the next one is served
                for answer in self._turns.take(tenant, message):
                    answer.set_exception(error)
            else:
                for answer in self._turns.take(tenant, message):
                    answer.set_result(told)

    async def _exchange(self, message: bytes) -> bytes:
        with suppress(Disturbed):
            return await self._try(message)
        try:
            return await self._try(message)
        except Disturbed as why:
            what = f"the process of {self._module} {why}, twice"
            raise Unavailable(what, retry_after_s=1) from None

    async def _try(self, message: bytes) -> bytes:
        try:
            child = await self._child()
            begun_s = cpu_s(child.pid)
            async with asyncio.timeout(self._timeout_s):
                return await exchange(child, message)
        except TimeoutError:
            used_s = cpu_s(child.pid) - begun_s
            await self._kill()
            if used_s < self._timeout_s * LEAST_SHARE:
                raise Disturbed(f"had {used_s:.2g} s in {self._timeout_s:g} s") from None
            raise Overrun(f"took longer than {self._timeout_s:g} s") from None
        except (EOFError, OSError):
            if await self._kill() in OF_OTHERS:
                raise Disturbed("was killed") from None
            raise Overrun("used more memory or processor time than it may") from None
        except Exception:
            await self._kill()  # its answer, if one is under way, is not the next one's
            raise

    async def _child(self) -> Process:
        if self._process is not None and not has_ended(self._process):
            return self._process
        await self._kill()  # one that was killed while it idled is no fault of this request
        return await self._fresh(STARTS)

    async def _fresh(self, num_starts: int) -> Process:
        try:
            return await self._start()
        except (EOFError, OSError, RuntimeError) as error:  # the last: no thread to wait for it
            await self._kill()
            if num_starts > 1 and not isinstance(error, TimeoutError | RuntimeError):
                return await self._fresh(num_starts - 1)
            raise Internal(f"the process of {self._module} does not start: {error!r}") from error

    async def _start(self) -> Process:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            # -P: what lies in the current folder is no code, where it is not ours already.
            *("-P", "-m", self._module, str(int(self._timeout_s) + 1)),
            stdin=PIPE,
            stdout=PIPE,
            env={
                "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path),
                **{name: value for name, value in inherited({}).items() if name in KEPT},
            },
        )
        async with asyncio.timeout(START_TIMEOUT_S):
            await exchange(self._process, self._setup)
        return self._process

    async def _kill(self) -> int | None:
        """End the child; return its status, which is its own if it had ended before."""
        process, self._process = self._process, None
        if process is None:
            return None
        if not has_ended(process):
            with suppress(ProcessLookupError):  # `process.kill` would take its status from asyncio
                os.kill(process.pid, signal.SIGKILL)
        if process.stdin is not None:
            process.stdin.close()
        code = await process.wait()
        log.info("sandbox ended", extra={"child": self._module, "exit_code": code})
        return code


def has_ended(child: Process) -> bool:
    """Ask the kernel: the event loop may not have noticed yet. Leaves the status to be read."""
    if child.returncode is not None:
        return True
    try:
        status = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # its status has been read already
        return True
    return status is not None


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has had, 0 when it is gone (Linux)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def exchange(child: Process, message: bytes) -> bytes:
    """Send one message and return the answer; raise EOFError when the child ends."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(LENGTH.pack(len(message)) + message)
    await child.stdin.drain()
    (length,) = LENGTH.unpack(await child.stdout.readexactly(LENGTH.size))
    return await child.stdout.readexactly(length)


# ── the child ────────────────────────────────────────────────────────────────────────────────

Answer = Callable[[bytes], bytes]


def serve(prepare: Callable[[bytes], Answer]) -> None:
    """Answer the parent's messages until it closes the pipe; `prepare` is given the setup.

    The parent's argument is how many seconds of processor time each message may take.
    """
    cpu_s = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    source, target = sys.stdin.buffer, sys.stdout.buffer
    answer = prepare(read_message(source) or b"")
    confine()
    write_message(target, b"{}")
    while (message := read_message(source)) is not None:
        allow_cpu(cpu_s)
        write_message(target, answer(message))


def confine() -> None:
    """Give up memory, files and cores for the rest of this process's life."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def allow_cpu(seconds: int) -> None:
    """Let the kernel end this process `seconds` of processor time from now."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, hard))


def read_message(source: BinaryIO) -> bytes | None:
    """Return the next message, or None at the end of the pipe."""
    header = source.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    return source.read(LENGTH.unpack(header)[0])


def write_message(target: BinaryIO, message: bytes) -> None:
    """Send the parent a message; end without a word where it is gone."""
    try:
        target.write(LENGTH.pack(len(message)) + message)
        target.flush()
    except BrokenPipeError:
        os._exit(1)  # the parent was killed, and its terminal is not ours to write to
