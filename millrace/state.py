"""The folder .millrace/: who runs, since when, on which ports, and what it logs.

One runner at a time holds the lock for its whole life; the kernel drops it however the runner ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from millrace.errors import CommandError
from millrace.processes import ProcessId, is_alive


class ReplicaState(msgspec.Struct, frozen=True):
    name: str
    service: str
    process: ProcessId | None
    ports: dict[int, int]
    num_restarts: int
    healthy: bool


class RunState(msgspec.Struct, frozen=True):
    """One run of the stack, as its runner last wrote it."""

    run: str
    runner: ProcessId
    url: str
    model: str
    ready: bool
    replicas: list[ReplicaState]


class StateFolder:
    """Reads and writes one .millrace folder. Made when first written to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "logs" / "stack.log"
        self._file = folder / "state.json"

    def lock(self) -> int | None:
        """Take the runner's lock: a descriptor to keep open, or None when another runner has it.

        Raises CommandError where the folder cannot be written, or its file system has no locks.
        """
        another = "give another: --state FOLDER"
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            why = f"{self.folder} cannot be written: {error.strerror}; {another}"
            raise CommandError(why) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            why = f"{self.folder} cannot be locked: {error.strerror}; {another}"
            raise CommandError(why) from error
        return descriptor

    def write(self, state: RunState) -> None:
        """Replace the state in one step: a reader sees the old or the new one.

        Raises CommandError where it cannot be written.
        """
        fresh = self._file.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.json.encode(state))
            fresh.replace(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)  # `down` would leave it behind
            raise CommandError(f"{fresh} cannot be written: {error.strerror}") from error

    def mark_old(self) -> None:
        """Note that things have changed since the last `write`; that takes no room on a disk."""
        with contextlib.suppress(OSError):
            os.utime(self._file, (0, 0))

    def is_old(self) -> bool:
        """Tell whether a change could not be written."""
        try:
            return self._file.stat().st_mtime == 0
        except OSError:  # none, or no more: the runner ends meanwhile
            return False

    def read(self) -> RunState | None:
        """Return the last written state, None when nothing has run or all was stopped."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=RunState)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None  # never ran, or written by another version
        except OSError as error:
            raise CommandError(f"{self._file} cannot be read: {error.strerror}") from error

    def running(self) -> RunState | None:
        """Return the state of the stack when its runner lives."""
        state = self.read()
        return state if state is not None and is_alive(state.runner) else None

    def check_in_sight(self) -> None:
        """Raise CommandError when a runner that cannot be seen from here has the lock.

        Its pid means nothing here, and to kill its replicas would have it start others.
        """
        run = self.read()
        if run is not None and not is_alive(run.runner) and self._is_locked():
            raise CommandError(
                f"{run.url} (pid {run.runner.pid}) is run where it cannot be seen from here, as on "
                "another machine or in a container: stop it there"
            )

    def check_told(self) -> None:
        """Raise CommandError when a runner has the lock and nothing can be read of it."""
        if self.read() is None and self._is_locked():
            raise CommandError(
                f"{self.folder} is held by a run of which nothing can be read: it begins just now, "
                "or another version of millrace has started it"
            )

    def _is_locked(self) -> bool:
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDONLY)
        except OSError:  # none, or another user's
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
        finally:
            os.close(descriptor)
        return False

    def forget(self) -> None:
        """Note that nothing runs."""
        self._file.unlink(missing_ok=True)
