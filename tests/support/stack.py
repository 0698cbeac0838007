"""Drives the `millrace` command on a folder of its own, as a user would."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from millrace import child
from millrace.processes import free_port
from millrace.state import RunState, StateFolder

CLI = [sys.executable, "-m", "millrace.cli"]
FAKE_FILE = Path(__file__).resolve().parent / "fake-compose.yml"


MakeStack = Callable[..., "Stack"]


def eventually(what: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for something that other processes bring about and nobody announces."""
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class Stack:
    """One compose file run in one state folder. `close` leaves nothing, whatever the test did."""

    def __init__(self, folder: Path, file: Path, **variables: str) -> None:
        self.folder = StateFolder(folder / ".millrace")
        self.port = free_port()
        self._options = ["--file", str(file), "--state", str(self.folder.folder)]
        self.variables = {**os.environ, "PORT": str(self.port), **variables}
        self._foreground: list[subprocess.Popen[str]] = []
        self._runs: set[str] = set()

    def command(self, name: str, *options: str) -> list[str]:
        return [*CLI, name, *self._options, *options]

    def call(
        self, name: str, *options: str, closed_input: bool = False
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(name, *options)
        if closed_input:
            command = ["sh", "-c", f"exec {shlex.join(command)} <&-"]
        done = subprocess.run(
            command,
            env=self.variables, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        self.note()
        return done

    def up(self, *options: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start in the foreground; read its standard output for what happens."""
        process = subprocess.Popen(
            [*prefix, *self.command("up", *options)],
            env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._foreground.append(process)
        return process

    def until(self, process: subprocess.Popen[str], text: str) -> list[str]:
        """Read lines up to the one that contains `text`."""
        lines: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if text in line:
                self.note()
                return lines
        raise AssertionError(f"ended without {text!r}:\n{''.join(lines)}")

    def state(self) -> RunState:
        state = self.folder.read()
        assert state is not None
        return state

    def pid(self, name: str) -> int:
        process = next(r.process for r in self.state().replicas if r.name == name)
        assert process is not None
        return process.pid

    def note(self) -> None:
        """Remember the run, to look for what is left of it."""
        if (state := self.folder.read()) is not None:
            self._runs.add(state.run)

    def left(self) -> list[int]:
        return [pid for run in self._runs for pid in child.marked(run)]

    def close(self) -> None:
        self.note()
        for process in self._foreground:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()
        if (state := self.folder.running()) is not None:
            os.kill(state.runner.pid, signal.SIGKILL)
        for run in self._runs:
            child.kill_marked(run)
