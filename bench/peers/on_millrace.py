"""Measures Millrace itself, the way `bench.cpu` does."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.cpu import Bench
from bench.peers.asking import Task, serve
from worker.backends.cpu import CpuBackend
from worker.build import LoadedModel, load_model

QUANTIZATION = {"bf16": "none", "int8": "int8", "int4": "int4"}


class OnMillrace:
    """A runner over the compiled kernels."""

    def __init__(self, loaded: LoadedModel, backend: CpuBackend, task: Task) -> None:
        self._backend = backend
        self._task = task
        options = argparse.Namespace(context=task.context, steps=task.steps)
        self._bench = Bench(loaded, backend, options)
        self._kv_dtype = loaded.kv_dtype

    def facts(self) -> dict[str, str]:
        """Return level, threads, keys and the ceiling that belongs to the figures."""
        return {
            "level": self._backend.level.name.lower(),
            "threads": str(self._backend.num_threads),
            "keys": self._kv_dtype,
            "best read": f"{self._bench.machine.look().read_gb_per_s:.1f} GB/s",
        }

    def decode(self, batch: int) -> list[float]:
        """Return the seconds of each step."""
        return self._bench.decode(batch)

    def prefill(self) -> float:
        """Return the seconds of one prefill."""
        return self._bench.prefill(self._task.prompt)


def load(task: Task) -> OnMillrace:
    """Load and quantise the folder, or read the cached packed weights."""
    loaded = load_model(
        Path(task.folder), num_threads=task.threads, quantization=QUANTIZATION[task.weights]
    )
    if not isinstance(loaded.backend, CpuBackend):
        sys.exit("the compiled kernels are not here")
    return OnMillrace(loaded, loaded.backend, task)


if __name__ == "__main__":
    serve(["millrace", "numpy"], load)
