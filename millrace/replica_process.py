"""One replica as a process: start, copy its output, notice its end, probe it, end it.

Each process leads a session of its own, so that a Ctrl-C on the terminal reaches only the runner
and a group can be killed whole. Knows nothing of other replicas, order or restarts.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from common.settings import inherited
from millrace import child
from millrace.placement import Replica
from millrace.processes import ProcessId, identify, kill_group

GRPC_LOGS = {"GRPC_VERBOSITY": "ERROR"}
"""The library of gRPC else writes lines of its own, no JSON, when a peer ends. The caller may ask
for them."""

PIPE_BYTES = 2**20
"""What a replica may write while the disk of its log stands still; beyond it the replica does, too.
As much as the system gives to anyone; 64 KiB, its default, are 160 requests."""


def from_the_root(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the files that the caller's environment names, for processes in another folder."""
    is_path = re.compile("MILLRACE_(CONFIG|ENGINE_TENANT_LIMITS|.*_FILE)").fullmatch
    return {k: os.path.abspath(path) for k, path in environment.items() if path and is_path(k)}


class ReplicaProcess:
    """A replica and its present process, if any. Used from one event loop."""

    def __init__(
        self, replica: Replica, root: Path, run: str, write: Callable[[str, str], None]
    ) -> None:
        self.replica = replica
        self.identity: ProcessId | None = None
        self.num_starts = 0
        self.healthy = asyncio.Event()
        self.was_healthy = False
        self._root = root
        given = {name: value for name, value in replica.environment.items() if value}
        paths = from_the_root(inherited({}))
        self._environment = {**GRPC_LOGS, **inherited({**paths, **given, child.MARK: run})}
        self._write = write

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process; `live` waits for its end. Raises OSError where the system cannot."""
        self.num_starts += 1
        process = self._spawn(self.replica.command, subprocess.PIPE)
        try:
            self.identity = identify(process.pid)
        except OSError:  # it would run on beside the one that is started in its place
            self._reap(process)
            raise
        return process

    def _spawn(self, command: list[str], output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            child.tied(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self._root,
            env=self._environment,
            start_new_session=True,
        )

    async def live(self, process: subprocess.Popen[bytes]) -> int:
        """Copy the output until the process ends; return its exit status (negative: a signal)."""
        assert process.stdout is not None
        lines: Lines | None = None
        try:
            write = partial(self._write, self.replica.name)
            lines = Lines(process.stdout.fileno(), write)
            await ended(process.pid)
        finally:
            status = self._reap(process, lines)
        return status

    def _reap(self, process: subprocess.Popen[bytes], lines: Lines | None = None) -> int:
        kill_group(process.pid)  # before the pid is reaped: it cannot be a stranger's
        status = process.wait()
        if lines is not None:
            lines.close()
        assert process.stdout is not None
        process.stdout.close()
        self.identity = None
        self.healthy.clear()
        return status

    async def probe_until_healthy(self) -> None:
        """Run the file's own probe again and again until it succeeds."""
        while True:
            if await self._probe():
                break
            await asyncio.sleep(self.replica.probe_interval_s)
        self.was_healthy = True
        self.healthy.set()

    async def _probe(self) -> bool:
        if self.replica.probe is None:
            return True
        try:
            process = self._spawn(self.replica.probe, subprocess.DEVNULL)
        except OSError:  # as where a replica cannot be started
            return False
        try:
            async with asyncio.timeout(self.replica.probe_timeout_s):
                await ended(process.pid)  # not `wait_for`: Python 3.11's may forget a cancel
        except OSError:  # TimeoutError is one
            return False
        finally:
            process.kill()
            status = process.wait()
        return status == 0

    def terminate(self) -> None:
        """Ask the process to end."""
        if self.identity is not None:
            os.kill(self.identity.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process and its group at once."""
        if self.identity is not None:
            kill_group(self.identity.pid)


async def ended(pid: int) -> None:
    """Wait until a child of ours has ended; it stays to be reaped."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


class Lines:
    """Cuts what arrives on a pipe into lines, without ever blocking the loop."""

    def __init__(self, descriptor: int, write: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._write = write
        self._partial = b""
        with suppress(OSError):  # the user has as many as he may
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> bool:
        try:
            chunk = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return False
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            return False
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            self._write(line.decode(errors="replace"))
        return True

    def close(self) -> None:
        """Take what is left in the pipe and stop reading."""
        while self._read():
            pass
        asyncio.get_running_loop().remove_reader(self._descriptor)
        if self._partial:
            self._write(self._partial.decode(errors="replace"))
