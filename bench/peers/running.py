"""Runs one candidate in a process of its own and says how it ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from bench.peers.asking import Answer, Task, read_answer
from bench.peers.candidates import Candidate
from millrace.project import HOME

MAX_REASON = 200


class Outcome(NamedTuple):
    """What became of one candidate."""

    candidate: Candidate
    answer: Answer
    problem: str
    """Why figures are missing; empty when none is."""
    load: float
    """Runnable processes of the machine when it began, averaged over a minute."""


def run(candidate: Candidate, task: Task, python: str, limit_s: float) -> Outcome:
    """Measure; every end of the process is an outcome, and its output stays in a log."""
    folder = Path(task.converted)
    folder.mkdir(parents=True, exist_ok=True)
    stem = candidate.title.replace(" ", "-").lower()
    path, log = folder / f"{stem}.json", folder / f"{stem}.log"
    path.unlink(missing_ok=True)
    load = os.getloadavg()[0]
    argv = [python, "-m", candidate.module, json.dumps(asdict(task)), str(path)]
    with log.open("wb") as output:
        problem = _end(argv, output.fileno(), _environment(), limit_s)
    answer = read_answer(path)
    if answer.missing:
        problem = f"not installed: {', '.join(answer.missing)}"
    elif problem.startswith("exit"):
        problem = f"{problem}: {_last_line(log)}"
    return Outcome(candidate, answer, problem, load)


def _end(argv: list[str], output: int, environment: dict[str, str], limit_s: float) -> str:
    """Return how the process ended, empty if well; nothing of it is left."""
    try:
        process = subprocess.Popen(
            argv, cwd=HOME, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"cannot start {argv[0]}: {error.strerror}"
    try:
        ended = _ends_within(process.pid, limit_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        code = process.wait()
    if not ended:
        return f"not done after {limit_s:g} s"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit {code}" if code else ""


def _ends_within(pid: int, limit_s: float) -> bool:
    """Wait without `Popen.wait(limit)`: a signal's exception there can leave its lock taken."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], limit_s)[0])
    finally:
        os.close(descriptor)


def _environment() -> dict[str, str]:
    """Return ours without thread counts, which every system is told by its own interface."""
    counts = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    kept = {name: value for name, value in os.environ.items() if name not in counts}
    return kept | {"PYTHONPATH": str(HOME), "HF_HUB_OFFLINE": "1"}


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "no output")[:MAX_REASON]
