"""What the idle stack takes of a core: `python -m bench.idle [--seconds 60]`.

Starts `millrace up` with any further options, waits until it has settled, and reads what the kernel
has counted for every thread of every process of the run, its runner and guard included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.tiers import end_on_sigterm
from millrace import child
from millrace.processes import free_port
from millrace.state import RunState, StateFolder

SETTLE_S = 5.0
Spent = dict[str, tuple[float, int]]
"""Seconds on a processor and number of times it began to run, by process."""


def spent(pids: dict[str, int]) -> Spent:
    """Return what each process has taken so far."""
    found = {}
    for name, pid in pids.items():
        seconds, times = 0.0, 0
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):  # a thread that has ended
                on_core_ns, _, slices = path.read_text().split()
                seconds, times = seconds + int(on_core_ns) / 1e9, times + int(slices)
        found[name] = (seconds, times)
    return found


def processes(state: RunState) -> dict[str, int]:
    """Return the pids of a run by name: the replicas, what they have started, runner and guard."""
    replicas = {r.process.pid: r.name for r in state.replicas if r.process is not None}
    pids = [state.runner.pid, *child.marked(state.run), *children(state.runner.pid)]
    return {replicas.get(pid) or f"{command(pid)} {pid}": pid for pid in dict.fromkeys(pids)}


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


def command(pid: int) -> str:
    """Return the words of a command line that tell most."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return next((w for w in words[1:] if w and not w.startswith(("-", "/"))), Path(words[0]).name)


@contextmanager
def stack(*options: str) -> Iterator[RunState]:
    """Run `millrace up` with these options; it is ready, and ends with the block."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        cli = [sys.executable, "-m", "millrace.cli"]
        port = str(free_port())
        up = [*cli, "up", "--detach", "--state", str(state), "--port", port, *options]
        try:
            subprocess.run(up, check=True, stdout=subprocess.DEVNULL)
            found = StateFolder(state).running()
            if found is None:
                raise RuntimeError("the stack does not run")
            yield found
        finally:
            subprocess.run([*cli, "down", "--state", str(state)], stdout=subprocess.DEVNULL)


def main() -> None:
    """Print a line per process, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    args, options = parser.parse_known_args()
    end_on_sigterm()
    with stack(*options) as state:
        time.sleep(SETTLE_S)
        pids = processes(state)
        before, began = spent(pids), time.monotonic()
        time.sleep(args.seconds)
        after, seconds = spent(pids), time.monotonic() - began
    rows = {
        name: (
            round((after[name][0] - before[name][0]) / seconds * 100, 3),
            round((after[name][1] - before[name][1]) / seconds, 1),
        )
        for name in pids
    }
    total = round(sum(share for share, _ in rows.values()), 3)
    if args.json:
        print(json.dumps({"percent_of_a_core": total, "processes": rows}))
        return
    for name, (share, wake_ups) in rows.items():
        print(f"{name:30} {share:7.3f} % of a core  {wake_ups:7.1f} wake-ups/s")
    print(f"{'all':30} {total:7.3f} % of a core")


if __name__ == "__main__":
    main()
