"""What is asked of the process that measures one system, and what it answers.

Standard library only: the interpreter of a peer imports this module and has none of ours.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from bench.windows import fastest_window

PREFILL_BUDGET_S = 12.0


@dataclass(frozen=True, slots=True)
class Task:
    """One system with one kind of weights; the same numbers for every system of a run."""

    folder: str
    """A random checkpoint: config.json and model.safetensors in bfloat16."""
    converted: str
    """Where a peer keeps the model in its own format."""
    weights: str
    batches: list[int]
    context: int
    """Tokens of every sequence before the first decoded one."""
    steps: int
    prompt: int
    """Tokens of the prefill; 0 measures none."""
    runs: int
    """Prefills of which the fastest counts; the first one touches the memory. None begins after
    `PREFILL_BUDGET_S`."""
    threads: int


@dataclass(slots=True)
class Answer:
    """What was measured until the process ended, in whatever way it did."""

    versions: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """Packages that are not installed; then nothing is measured."""
    facts: dict[str, str] = field(default_factory=dict)
    load_s: float = 0.0
    decode_tokens_per_s: dict[int, float] = field(default_factory=dict)
    prefill_tokens_per_s: float = 0.0


class System(Protocol):
    """A loaded model of one peer, or of ours."""

    def facts(self) -> dict[str, str]:
        """Return what a reader should know beside the figures."""
        ...

    def decode(self, batch: int) -> list[float]:
        """Return the seconds of each greedy step of `batch` sequences behind their contexts."""
        ...

    def prefill(self) -> float:
        """Return the seconds of one prefill of one prompt up to its first token."""
        ...


def write_answer(path: Path, answer: Answer) -> None:
    """Replace the file at once: a reader sees the old answer or the new one."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(answer)))
    partial.rename(path)


def read_answer(path: Path) -> Answer:
    """Return what the process wrote last, or an empty answer."""
    if not path.exists():
        return Answer()
    answer = Answer(**json.loads(path.read_text()))
    rates = answer.decode_tokens_per_s
    answer.decode_tokens_per_s = {int(batch): rate for batch, rate in rates.items()}
    return answer


def _prefills(system: System, runs: int) -> list[float]:
    """Return the seconds of `runs` prefills, of fewer if they are slow: a run has many systems."""
    times: list[float] = []
    while len(times) < runs and sum(times) < PREFILL_BUDGET_S:
        times.append(system.prefill())
    return times


def serve(packages: Sequence[str], load: Callable[[Task], System]) -> None:
    """Measure what the command line asks: the task as JSON, and the path of the answer.

    `packages` are the distributions whose versions belong to the result; `load` runs only if all
    are here. The answer is written after every figure: a later failure costs no earlier one.
    """
    task, path = Task(**json.loads(sys.argv[1])), Path(sys.argv[2])
    answer = Answer()
    for package in packages:
        try:
            answer.versions[package] = version(package)
        except PackageNotFoundError:
            answer.missing.append(package)
    write_answer(path, answer)
    if answer.missing:
        return
    begin = time.perf_counter()
    system = load(task)
    answer.load_s = time.perf_counter() - begin
    answer.facts = system.facts()
    write_answer(path, answer)
    for batch in task.batches:
        answer.decode_tokens_per_s[batch] = batch / fastest_window(system.decode(batch))
        write_answer(path, answer)
    if task.prompt:
        answer.prefill_tokens_per_s = task.prompt / min(_prefills(system, task.runs))
        write_answer(path, answer)
