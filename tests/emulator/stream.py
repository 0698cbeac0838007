"""EmulatedStream: the order in which an emulated device works, at once or as late as it may.

Lazy, nothing runs before somebody waits for it, and then only what stands before: whoever forgets
to wait, or reuses memory that is still to be copied from, finds nonsense.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class EmulatedStream:
    """Has what `worker.backends.transfers.Stream` asks for; work may run in any thread."""

    def __init__(self, is_lazy: bool = False) -> None:
        self._is_lazy = is_lazy
        self._lock = threading.RLock()
        self._queue: deque[Callable[[], None]] = deque()
        self._num_added = 0
        self._num_done = 0

    def add(self, work: Callable[[], None]) -> None:
        with self._lock:
            if not self._is_lazy:
                return work()
            self._queue.append(work)
            self._num_added += 1

    def run(self, until: int | None = None) -> None:
        """Work until so many pieces are done, all by default."""
        while True:
            with self._lock:
                if not self._queue or (until is not None and self._num_done >= until):
                    return
                self._queue.popleft()()
                self._num_done += 1

    def pinned(self, num_bytes: int) -> Array:
        return np.full(num_bytes, 0xFF, np.uint8)

    def send(self, target: Array, source: Array) -> None:
        self.add(lambda: np.copyto(target.view(np.ndarray), source.view(np.ndarray)))

    def fetch(self, target: Array, source: Array) -> None:
        self.send(target, source)

    def mark(self) -> EmulatedMark:
        mark = EmulatedMark(self)
        self.add(mark.pass_by)
        mark.place = self._num_added
        return mark


class EmulatedMark:
    def __init__(self, stream: EmulatedStream) -> None:
        self.place = 0
        self.passed_at = 0.0
        self._stream = stream

    def pass_by(self) -> None:
        self.passed_at = time.perf_counter()

    def wait(self) -> None:
        self._stream.run(self.place)

    def seconds_until(self, later: EmulatedMark) -> float:
        assert 0 < self.passed_at <= later.passed_at, "nobody has waited"
        return later.passed_at - self.passed_at
