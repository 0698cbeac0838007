"""The library's threads: every piece once, whatever the neighbours do, and asleep without work."""

from __future__ import annotations

import threading
import time

import numpy as np

from tests.support.operators import batch_of, compute, given, library
from worker.backends.cpu import CpuBackend
from worker.kernels.library import Level
from worker.kernels.packed import Format

IDLE_S = 0.4


def test_threads_without_work_sleep() -> None:
    """A spin of 50 microseconds each, and nothing after."""
    ops = CpuBackend(library(), Level.PORTABLE, Format.F32, 4)
    packed, x = ops.pack_linear([np.ones((256, 64), np.float32)]), np.ones((4, 64), np.float32)
    compute(ops, lambda: ops.linear(given(x), packed), batch_of(4))
    time.sleep(0.01)
    before = time.process_time()
    time.sleep(IDLE_S)
    assert time.process_time() - before < IDLE_S / 10


def test_many_small_jobs_from_many_pools_at_once() -> None:
    """More threads than cores, jobs far shorter than a time slice: nothing lost, nothing twice."""
    weight = np.random.default_rng(0).standard_normal((640, 32)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((9, 32)).astype(np.float32)
    wrong: list[int] = []

    def work(num_threads: int) -> None:
        ops = CpuBackend(library(), library().highest_level, Format.F32, num_threads)
        packed = ops.pack_linear([weight])
        expected = compute(ops, lambda: ops.linear(given(x), packed), batch_of(9))
        for number in range(300):
            result = compute(ops, lambda: ops.linear(given(x), packed), batch_of(9))
            if not np.array_equal(result, expected):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
