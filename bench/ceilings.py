"""What this machine can do at best, measured in the same run as what is compared with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from worker.backends.cpu import CpuBackend
from worker.kernels.library import Level
from worker.kernels.packed import Format, aligned_bytes

READ_BYTES = 1 << 30
"""Beyond what any cache keeps."""
MIN_RUNS = 4
MULTIPLY_S = 0.05


class Ceilings(NamedTuple):
    """The best of several runs on all threads."""

    read_gb_per_s: float
    multiply_tflop_per_s: float
    """bf16 tiles fed from the second cache at the AMX level, products of bf16 pairs where there are
    such instructions, else float32 fused multiply-adds."""

    def floor_s(self, num_bytes: float, num_operations: float, faster: float = 1.0) -> float:
        """Return the least time; `faster`: how many times the rate of `multiply` this kind has."""
        by_memory = num_bytes / (self.read_gb_per_s * 1e9)
        return max(by_memory, num_operations / (self.multiply_tflop_per_s * 1e12 * faster))


def integer_rate(level: Level, weights: Format) -> float:
    """Return how many times faster than `multiply` the products of these weights can be."""
    if weights not in (Format.INT8, Format.INT4):
        return 1.0
    return 2.0 if level >= Level.AVX512_BF16 else 4.0


class Machine:
    """Measures; keeps the memory it reads, so that the second look costs less."""

    def __init__(self, backend: CpuBackend) -> None:
        self._backend = backend
        self._memory = aligned_bytes(READ_BYTES, 1 << 21)
        self._memory[:] = 1
        factors = np.random.default_rng(0).standard_normal(backend.num_threads << 18, np.float32)
        self._factors = factors
        self._best = self.latest = Ceilings(0.0, 0.0)

    def look(self) -> Ceilings:
        """Measure again; return the best of all looks so far. `latest` is what this one saw."""
        library, pool, level = self._backend.library, self._backend.pool, self._backend.level
        address = self._memory.ctypes.data
        read_s = min(
            _timed(lambda: library.read(pool, level, address, READ_BYTES)) for _ in range(MIN_RUNS)
        )
        rate, count = 0.0, 1 << 12
        while True:
            begin = time.perf_counter()
            done = library.multiply(pool, level, self._factors.ctypes.data, count)
            wall_s = time.perf_counter() - begin
            rate = max(rate, done / wall_s / 1e12)
            if wall_s > MULTIPLY_S:
                break
            count *= 2
        self.latest = Ceilings(READ_BYTES / read_s / 1e9, rate)
        self._best = Ceilings(*map(max, self._best, self.latest))
        return self._best


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
