"""The library's threads: every piece once, whatever the neighbours do, and asleep without work."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np

from tests.support.operators import batch_of, compute, given, library
from worker.backends.cpu import CpuBackend
from worker.kernels.library import Level
from worker.kernels.packed import Format

IDLE_S = 0.4


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def processor_s(ids: set[str]) -> float:
    """Return the seconds that threads of this process have run."""
    stats = [Path(f"/proc/self/task/{i}/stat").read_text().rpartition(")")[2].split() for i in ids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def test_threads_without_work_sleep() -> None:
    """A spin of 50 microseconds each, and nothing after, whatever other threads do here."""
    others = threads()
    ops = CpuBackend(library(), Level.PORTABLE, Format.F32, 4)
    packed, x = ops.pack_linear([np.ones((256, 64), np.float32)]), np.ones((4, 64), np.float32)
    compute(ops, lambda: ops.linear(given(x), packed), batch_of(4))
    pool = threads() - others
    assert pool
    time.sleep(0.01)
    before = processor_s(pool)
    time.sleep(IDLE_S)
    assert processor_s(pool) - before < IDLE_S / 10


def sleeps(ids: set[str]) -> int:
    """Return how often threads of this process have gone to sleep."""
    told = [Path(f"/proc/self/task/{i}/status").read_text() for i in ids]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in told)


def test_threads_that_sleep_are_woken_by_the_next_job() -> None:
    """Results would be right without them, and late."""
    others = threads()
    ops = CpuBackend(library(), Level.PORTABLE, Format.F32, 2)
    packed, x = ops.pack_linear([np.ones((256, 64), np.float32)]), np.ones((4, 64), np.float32)
    pool = threads() - others
    for _ in range(3):
        before, end = -1, time.monotonic() + 20
        while before != (before := sleeps(pool)) and time.monotonic() < end:
            time.sleep(0.05)
        compute(ops, lambda: ops.linear(given(x), packed), batch_of(4))
        while sleeps(pool) == before and time.monotonic() < end:
            time.sleep(0.01)
        assert sleeps(pool) > before


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
