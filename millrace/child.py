"""What runs between fork and exec of a replica, and beside the runner. Run by path, imports little.

`child.py exec PARENT COMMAND…` asks the kernel to kill this process when the runner dies, then
becomes COMMAND. `child.py watch RUN` waits until its standard input closes, which is when the
runner is gone for whatever reason, and then kills every process that carries the run's mark: the
children's own children, which the kernel's promise does not cover.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
MARK = "MILLRACE_RUN"
"""Environment variable that every process of a run inherits."""

_COMMAND = [sys.executable, "-I", "-S", os.path.abspath(__file__)]


def tied(command: list[str]) -> list[str]:
    """Return a command that becomes `command` and is killed when this process dies."""
    return [*_COMMAND, "exec", str(os.getpid()), *command]


def watching(run: str) -> list[str]:
    """Return the command of a guard of `run`; it lasts as long as its standard input is open."""
    return [*_COMMAND, "watch", run]


def become(parent: int, command: list[str]) -> None:
    """Tie this process to `parent` and replace it by `command`."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the runner is gone")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


def marked(run: str) -> list[int]:
    """Return the pids of all living processes of the run, this one excepted."""
    mark = f"{MARK}={run}\0".encode()
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if pid != os.getpid() and mark in _environment(pid)]


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read() + b"\0"
    except OSError:
        return b""  # ended meanwhile, or another user's: not of this run


def kill_marked(run: str) -> int:
    """Kill every process of the run until none is left; return how many it met."""
    killed: set[int] = set()
    while pids := marked(run):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        killed.update(pids)
    return len(killed)


def watch(run: str) -> None:
    """Wait for the end of the runner, then leave nothing of the run."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    kill_marked(run)


if __name__ == "__main__":
    if sys.argv[1] == "exec":
        become(int(sys.argv[2]), sys.argv[3:])
    else:
        watch(sys.argv[2])
