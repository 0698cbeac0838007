"""Where log lines go: into the log file, and to the terminal with a coloured prefix."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import BinaryIO

from common.settings import inherited
from millrace.errors import CommandError

MAX_LOG_BYTES = 64 * 2**20
BYTES_PER_LINE = 512
"""A first guess, for finding the last lines."""
_COLOURS = (36, 33, 35, 32, 34, 31)
RUNNER = "millrace"
MAX_UNSHOWN = 1000
"""Lines that wait for a terminal which takes none."""
LAST_LOOK_S = 1.0
"""How long a terminal may take to show what waits at the end."""


def is_terminal() -> bool:
    """Tell whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def has_colours() -> bool:
    """Tell whether standard output shows colours, and is to (NO_COLOR, no-color.org)."""
    return is_terminal() and not is_dumb() and not inherited({}).get("NO_COLOR")


def is_dumb() -> bool:
    """Tell whether the terminal, if there is one, shows escape sequences as they are."""
    return inherited({}).get("TERM", "dumb") == "dumb"


def coloured(line: str) -> str:
    """Return a stored line (`worker-1 | text`) with its prefix in the service's colour."""
    prefix, bar, text = line.partition(" | ")
    if not bar:
        return line
    service = prefix.strip().rpartition("-")[0]
    colour = _COLOURS[sum(service.encode()) % len(_COLOURS)]
    return f"\x1b[{colour}m{prefix} |\x1b[0m {text}"


def tail(path: Path, num_lines: int) -> list[str]:
    """Return the last lines of a log, none when there is no such file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        *lines, partial = last_lines(file, num_lines)
    lines += [partial] if partial else []
    return [line.decode(errors="replace") for line in lines[max(0, len(lines) - num_lines) :]]


def last_lines(file: BinaryIO, num_lines: int) -> list[bytes]:
    """Read a log to its end; return the last lines, and at last what has no end of line yet."""
    end, size = file.seek(0, os.SEEK_END), BYTES_PER_LINE * (num_lines + 1)
    while True:
        file.seek(max(0, end - size))
        *lines, partial = file.read().split(b"\n")
        if size >= end or len(lines) > num_lines:  # the first one may have lost its beginning
            return [*lines[max(0, len(lines) - num_lines) :], partial]
        size *= 2


class Echo:
    """Copies lines to standard output from a thread of its own.

    A terminal that is halted (Ctrl-S), or a pager, blocks whoever writes to it. If that were the
    runner, nobody would empty the replicas' pipes, and all of them would stand still.
    """

    def __init__(self) -> None:
        self._waiting: Queue[bytes | None] = Queue(MAX_UNSHOWN)
        self._num_left_out = 0
        self._thread = Thread(target=self._show, name="echo", daemon=True)
        if sys.stdout is not None:
            self._descriptor = sys.stdout.fileno()
            self._encoding = sys.stdout.encoding
            self._thread.start()

    def put(self, line: str) -> None:
        """Show `line` some time; leave it out when too many wait, and say so later."""
        if not self._thread.is_alive():
            return
        if missing := self._num_left_out:
            line = f"({missing} lines were not shown here; `millrace logs` has them)\n{line}"
        try:
            self._waiting.put_nowait(f"{line}\n".encode(self._encoding, "replace"))
            self._num_left_out = 0
        except Full:
            self._num_left_out += 1

    def close(self) -> None:
        """Wait a moment for what is not shown yet."""
        if self._thread.is_alive():
            with contextlib.suppress(Full):  # nobody reads
                self._waiting.put_nowait(None)
                self._thread.join(LAST_LOOK_S)

    def _show(self) -> None:
        """Write until `close`, or until the reader has gone: that ends the echo, not the run.

        Not by `print`: the interpreter waits at its end for a thread that holds its buffer.
        """
        with contextlib.suppress(OSError):
            while rest := self._waiting.get():
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]


class Console:
    """Writes prefixed lines to the log file and, when `echo`, to standard output."""

    def __init__(self, path: Path, names: Iterable[str], echo: bool) -> None:
        """Begin a fresh log. Raises CommandError where it cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                path.replace(path.with_suffix(".log.1"))
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}") from error
        self._path = path
        self._rest = b""
        """Of a line that the disk took a part of."""
        self._width = max(map(len, [RUNNER, *names]))
        self._echo = Echo() if echo else None
        self._colours = has_colours()

    def write(self, name: str, text: str) -> None:
        """Write one line of replica `name`.

        A full disk costs the line, not the run.
        """
        line = f"{name:<{self._width}} | {text}"
        with contextlib.suppress(OSError):
            self._keep(line.encode(errors="replace") + b"\n")
        if self._echo is not None:
            self._echo.put(coloured(line) if self._colours else line)

    def _keep(self, line: bytes) -> None:
        if self._file.tell() > MAX_LOG_BYTES:
            with contextlib.suppress(FileNotFoundError):  # somebody has removed it
                os.replace(self._path, self._path.with_suffix(".log.1"))
            fresh = self._path.open("ab", buffering=0)
            self._file.close()
            self._file = fresh
        line = self._rest + line
        self._rest = line[self._file.write(line) :]

    def say(self, text: str) -> None:
        """Write a line of the runner itself."""
        self.write(RUNNER, text)

    def close(self) -> None:
        if self._echo is not None:
            self._echo.close()
        self._file.close()
