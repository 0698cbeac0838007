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
QUANTIZED = (Format.INT8, Format.INT4)
INTEGER_TIMES = {Level.AVX512: 4.0, Level.AVX512_BF16: 2.0, Level.AMX: 2.0}
"""How many times as fast as `multiply` the products of bytes are;
at AVX2 they are measured, and the portable level has no more than its floats."""


class Ceilings(NamedTuple):
    """The best of several runs on all threads."""

    read_gb_per_s: float
    multiply_tflop_per_s: float
    """bf16 tiles fed from the second cache at the AMX level, products of bf16 pairs where there are
    such instructions, else float32 fused multiply-adds."""
    integer_tflop_per_s: float
    """The same of the backend's weights, where they are int8 or int4; else 0."""

    def floor_s(self, num_bytes: float, num_operations: float, weights: Format) -> float:
        """Return the least time for that many operations on such weights."""
        is_whole = weights in QUANTIZED
        rate = self.integer_tflop_per_s if is_whole else self.multiply_tflop_per_s
        return max(num_bytes / (self.read_gb_per_s * 1e9), num_operations / (rate * 1e12))


class Machine:
    """Measures; keeps the memory it reads, so that the second look costs less."""

    def __init__(self, backend: CpuBackend) -> None:
        self._backend = backend
        self._memory = aligned_bytes(READ_BYTES, 1 << 21)
        self._memory[:] = 1
        # On whole lines, as weights lie: from the middle of one, tiles come at half the rate.
        self._factors = aligned_bytes(backend.num_threads << 20)
        values = np.random.default_rng(0).standard_normal(self._factors.size // 2, np.float32)
        self._factors.view(np.uint16)[:] = values.view(np.uint16)[1::2]  # as bfloat16
        self._best = self.latest = Ceilings(0.0, 0.0, 0.0)

    def look(self) -> Ceilings:
        """Measure again; return the best of all looks so far. `latest` is what this one saw."""
        library, pool, level = self._backend.library, self._backend.pool, self._backend.level
        address = self._memory.ctypes.data
        read_s = min(
            _timed(lambda: library.read(pool, level, address, READ_BYTES)) for _ in range(MIN_RUNS)
        )
        rate, weights, integer_rate = self._multiply_rate(Format.F32), self._backend.weights, 0.0
        if weights in QUANTIZED:
            measured = self._multiply_rate(weights) if level == Level.AVX2 else rate
            integer_rate = measured * INTEGER_TIMES.get(level, 1.0)
        self.latest = Ceilings(READ_BYTES / read_s / 1e9, rate, integer_rate)
        self._best = Ceilings(*map(max, self._best, self.latest))
        return self._best

    def _multiply_rate(self, weights: Format) -> float:
        """Return 10^12 operations per second."""
        library, pool, level = self._backend.library, self._backend.pool, self._backend.level
        factors, rate, count = self._factors.ctypes.data, 0.0, 1 << 12
        while True:
            begin = time.perf_counter()
            done = library.multiply(pool, level, weights, factors, count)
            wall_s = time.perf_counter() - begin
            rate = max(rate, float(done) / wall_s / 1e12)
            if wall_s > MULTIPLY_S:
                return rate
            count *= 2


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
