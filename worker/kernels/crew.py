"""Crew: a few threads that share out independent pieces of one operator.

Pieces are the same whoever computes them, so that no bit depends on the number of threads. Pieces
are pulled, not dealt: a thread that the system holds back costs at most the piece it is at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class Crew:
    """`num_threads` threads, the caller's included; 0 = as many as cores available."""

    def __init__(self, num_threads: int = 1) -> None:
        self.num_threads = num_threads or available_cores()
        others = self.num_threads - 1
        self._others = ThreadPoolExecutor(others, "crew") if others else None

    def each(self, piece: Callable[[int], None], count: int) -> None:
        """Call piece(0) … piece(count - 1), in any order; raise the first error."""
        places = iter(range(count))  # drawing from it is atomic

        def work() -> None:
            for place in places:
                piece(place)

        if self._others is None or count < 2:
            return work()
        shares = [self._others.submit(work) for _ in range(min(self.num_threads, count) - 1)]
        work()
        for share in shares:
            if not share.cancel():
                share.result()


def available_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the cores that affinity and control group leave to this process, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    if cpu_max.exists():
        quota, _, period = cpu_max.read_text().partition(" ")
        if quota != "max":
            cores = min(cores, int(quota) // int(period))
    return max(1, cores)
