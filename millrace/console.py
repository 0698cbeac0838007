"""Where log lines go: into the log file, and to the terminal with a coloured prefix."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

MAX_LOG_BYTES = 64 * 2**20
BYTES_PER_LINE = 512
"""A guess, for finding the last lines."""
_COLOURS = (36, 33, 35, 32, 34, 31)
RUNNER = "millrace"


def is_terminal() -> bool:
    """Tell whether standard output is a terminal that shows colours."""
    return sys.stdout is not None and sys.stdout.isatty()


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
        file.seek(max(0, path.stat().st_size - BYTES_PER_LINE * num_lines))
        return file.read().decode(errors="replace").splitlines()[-num_lines:]


class Console:
    """Writes prefixed lines to the log file and, when `echo`, to standard output."""

    def __init__(self, path: Path, names: Iterable[str], echo: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.replace(path.with_suffix(".log.1"))
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._width = max(map(len, [RUNNER, *names]))
        self._echo = echo
        self._colours = is_terminal()

    def write(self, name: str, text: str) -> None:
        """Write one line of replica `name`.

        A reader that went away ends the echo, a full disk costs the line: neither ends the run.
        """
        line = f"{name:<{self._width}} | {text}"
        with contextlib.suppress(OSError):
            self._keep(line.encode(errors="replace") + b"\n")
        if self._echo:
            try:
                print(coloured(line) if self._colours else line, flush=True)
            except OSError:
                self._echo = False

    def _keep(self, line: bytes) -> None:
        if self._file.tell() > MAX_LOG_BYTES:
            os.replace(self._path, self._path.with_suffix(".log.1"))
            fresh = self._path.open("ab", buffering=0)
            self._file.close()
            self._file = fresh
        self._file.write(line)

    def say(self, text: str) -> None:
        """Write a line of the runner itself."""
        self.write(RUNNER, text)

    def close(self) -> None:
        self._file.close()
