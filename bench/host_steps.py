"""What a GPU's worker does on the host for one decode step: planning excluded, arithmetic nothing.

A device that computes nothing stands where the GPU stands, so that what is left is the host's work:
admitting a plan, gathering inputs, launching two graphs, and entering the tokens. While a device
computes a step the host does this for the next one, so it costs nothing as long as it is shorter.

    python -m bench.host_steps --batch 1 64 256
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from millrace.project import DEMO_MODEL
from protos import common_pb2
from protos import worker as wire
from worker.backends.transfers import Download, Downloads, Uploads
from worker.build import load_model
from worker.flights import Flight
from worker.model_runner import ModelRunner

HALF_BYTES = 1 << 20
NUM_PROMPT = 640
CHAINS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top-p": {"temperature": 0.8, "top_p": 0.95, "top_k": 50},
}


class IdleMark:
    def wait(self) -> None:
        """Everything is done at once."""

    def seconds_until(self, later: Any) -> float:
        return 0.0


class IdleGpu:
    """Memory of the host, copies into it, and launches that do nothing: every token is 0."""

    name = "idle"
    driver = ""
    total_bytes = free_bytes = 1 << 34

    def __init__(self) -> None:
        self._uploads = Uploads(self, HALF_BYTES)
        self._downloads = Downloads(self)

    def trim(self) -> None:
        """Freed memory is the host's."""

    def empty(self, num_bytes: int) -> np.ndarray[Any, Any]:
        return np.zeros(num_bytes, np.uint8)

    def pinned(self, num_bytes: int) -> np.ndarray[Any, Any]:
        return np.zeros(num_bytes, np.uint8)

    def send(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        """A copy by the device costs the host nothing but the call."""

    def fetch(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        target[:] = 0

    def mark(self) -> IdleMark:
        return IdleMark()

    def write(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        self._uploads.write(target, source)

    def read(self, source: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return source.copy()

    def read_into(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        target[...] = source

    def wait(self) -> None:
        """Everything is done at once."""

    def read_later(self, source: np.ndarray[Any, Any]) -> Download:
        return self._downloads.begin(source)

    def launch(self, *arguments: Any) -> None:
        """Nothing is computed."""

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        launches()
        return lambda: None


def blocks_of(num_steps: int) -> int:
    """Return what a row takes, of 16 tokens each."""
    return -(-(NUM_PROMPT + num_steps) // 16)


def seconds_per_step(
    runner: ModelRunner, batch: int, chain: dict[str, Any], num_steps: int
) -> float:
    """Return the time of a step of `batch` rows, two under way, in the median."""
    params = common_pb2.SamplingParams(**{"seed": 1} | chain).SerializeToString()
    ids, width = np.zeros(NUM_PROMPT, "<u4").tobytes(), blocks_of(num_steps)
    starts = [
        wire.SequenceStart(
            i, ids, NUM_PROMPT, 0, NUM_PROMPT, tuple(range(width * i, width * (i + 1))), params
        )
        for i in range(batch)
    ]
    for step_id, start in enumerate(starts):
        runner.execute(wire.ExecutePlan(step_id, (start,)))
    steps = tuple(wire.SequenceStep(i, 1) for i in range(batch))
    flying: deque[Flight] = deque()
    times = []
    for step_id in range(num_steps):
        begin = time.perf_counter()
        flying.append(runner.begin(wire.ExecutePlan(step_id, (), steps), lambda: None))
        if len(flying) == 2:
            assert len(flying.popleft().result().token_ids) == batch
        times.append(time.perf_counter() - begin)
    flying.popleft().result()
    runner.execute(wire.ExecutePlan(0, finished=tuple(range(batch))))
    return float(np.median(times[num_steps // 4 :]))


def measure(batches: list[int], num_steps: int) -> list[dict[str, Any]]:
    """Return a row for each batch size and chain."""
    loaded = load_model(DEMO_MODEL, "cuda", "bfloat16", gpu=IdleGpu())
    runner = loaded.runner(blocks_of(num_steps) * max(batches))
    return [
        {
            "batch": batch,
            "chain": name,
            "us": seconds_per_step(runner, batch, chain, num_steps) * 1e6,
        }
        for batch in batches
        for name, chain in CHAINS.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    for row in measure(args.batch, args.steps):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
