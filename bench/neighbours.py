"""Busy neighbours: processes that take all the processor time they get."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run `count` of them while the block runs."""
    command = [sys.executable, "-S", "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def fair_share(num_threads: int, count: int, num_cores: int) -> float:
    """Return the part of their time that `num_threads` get beside `count` busy processes, when
    everybody gets the same."""
    return min(1.0, num_cores / (num_threads + count)) / min(1.0, num_cores / num_threads)
