"""Crew: a few threads that share out independent pieces of one operator.

Pieces are the same whoever computes them, so that no bit depends on the number of threads. Pieces
are pulled, not dealt: a thread that the system holds back costs at most the piece it is at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from worker.control_groups import groups, told


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


def available_cores(root: Path = Path("/")) -> int:
    """Return the cores that affinity and control groups leave to this process, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quotas = (_quota(group) for group in groups("cpu", root))
    return max(1, min((cores, *(quota for quota in quotas if quota is not None))))


def _quota(group: Path) -> int | None:
    """Return the whole cores of `group`; None where it says nothing, or that it has no bound."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # version 2, then 1
        if all(said := [told(group / name) for name in names]):
            quota, period = " ".join(said).split()
            return None if quota in ("max", "-1") else int(quota) // int(period)
    return None
