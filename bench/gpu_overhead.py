"""What the host costs between the steps of a GPU: the part of a loop of steps without a graph
under way.

The loop is the worker's own, two steps at a time, with random weights and every row drawn on the
device. Where the packages of a worker are not installed it is a loop of bare passes, one at a time,
and the row says so: that hides nothing behind a step.

    python -m bench.gpu_overhead --shape qwen2.5-1.5b --batch 1 256 --json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, cast

import numpy as np

from bench.gpu import BLOCK_SIZE, SHAPES, Model, first_gpu
from worker.backends.gpu import Gpu, Mark

WORKER_NEEDS = ("msgspec", "google.protobuf")
WARM_STEPS = 4


class Stamped:
    """A device that notes when each graph began and ended, in its own time."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.spans: list[tuple[Mark, Mark]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gpu, name)

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        replay = self._gpu.capture(launches)

        def stamped() -> None:
            begin = self._gpu.mark()
            replay()
            self.spans.append((begin, self._gpu.mark()))

        return stamped

    def busy_seconds(self) -> float:
        """Return what all noted graphs took, and forget them."""
        spans, self.spans = self.spans, []
        return sum(begin.seconds_until(end) for begin, end in spans)


def passes(model: Model, batch: int, context: int) -> Callable[[], None]:
    """Return what computes a pass and waits for it."""
    inputs, token = model.batch([1] * batch, context), np.zeros(1, np.int32)
    place = model.gpu.empty(token.nbytes).view(np.int32)

    def step() -> None:
        model.forward(inputs)
        model.gpu.read(place)

    return step


def overhead_row(
    gpu: Gpu, shape_name: str, batch: int, context: int, num_steps: int
) -> dict[str, Any]:
    """Time `num_steps` steps by the host's clock and their graphs by the device's."""
    stamped = Stamped(gpu)
    room = batch * (-(-(context + num_steps + WARM_STEPS + 2) // BLOCK_SIZE)) * BLOCK_SIZE
    model = Model(cast(Gpu, stamped), SHAPES[shape_name], room)
    has_worker = all(find_spec(name.partition(".")[0]) is not None for name in WORKER_NEEDS)
    if has_worker:
        from bench.gpu_runner import Steps

        step = Steps(model, batch, context, num_steps + WARM_STEPS).step
    else:
        step = passes(model, batch, context)
    for _ in range(WARM_STEPS):
        step()
    gpu.wait()
    stamped.spans.clear()
    begin = time.perf_counter()
    for _ in range(num_steps):
        step()
    gpu.wait()
    seconds = time.perf_counter() - begin
    busy = stamped.busy_seconds()
    return {
        "kind": "overhead", "loop": "worker" if has_worker else "passes", "batch": batch,
        "context": context, "ms": seconds / num_steps * 1e3, "device_ms": busy / num_steps * 1e3,
        "host_share": 1 - busy / seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--context", type=int, default=640)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    gpu = first_gpu()
    for batch in args.batch:
        row = overhead_row(gpu, args.shape, batch, args.context, args.steps)
        row = {"device": gpu.name, "shape": args.shape} | row
        print(json.dumps(row) if args.json else row)


if __name__ == "__main__":
    main()
