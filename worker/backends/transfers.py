"""Copies between host and device that nobody waits for, through pinned memory.

Whoever hands over an array may change it at once: it is copied before it is sent. Knows pinned
memory, and marks that tell when the device is done with it; knows no array library.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple, Protocol

import numpy as np

from worker.backends.gpu import ALIGNMENT, Array, Mark
from worker.kernels.checks import Bytes


class Stream(Protocol):
    """The order in which a device works; all of these return at once."""

    def pinned(self, num_bytes: int) -> Bytes:
        """Return host memory that a device may copy from and to by itself."""
        ...

    def send(self, target: Array, source: Bytes) -> None:
        """Copy pinned bytes to the device, when it comes to it."""
        ...

    def fetch(self, target: Bytes, source: Array) -> None:
        """Copy bytes of the device to pinned memory, when it comes to it."""
        ...

    def mark(self) -> Mark: ...


class Uploads:
    """Two halves of pinned memory: one is filled while the other is sent."""

    def __init__(self, stream: Stream, half_bytes: int) -> None:
        self._stream = stream
        self._half_bytes = half_bytes
        self._halves: list[Bytes] = []
        self._sent: list[Mark | None] = [None, None]
        self._half = 0
        self._used = 0

    def write(self, target: Array, source: np.ndarray[Any, Any]) -> None:
        """Begin to copy `source` to an array of the device of as many bytes."""
        if not self._halves:
            self._halves = [self._stream.pinned(self._half_bytes) for _ in range(2)]
        flat = target.reshape(-1).view(np.uint8)
        raw = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        start = 0
        while start < len(raw):
            if self._used >= self._half_bytes:
                self._turn()
            count = min(self._half_bytes - self._used, len(raw) - start)
            pinned = self._halves[self._half][self._used : self._used + count]
            pinned[:] = raw[start : start + count]
            self._stream.send(flat[start : start + count], pinned)
            self._used += -(-count // ALIGNMENT) * ALIGNMENT
            start += count

    def _turn(self) -> None:
        """Go over to the other half, once all that it held has been sent."""
        self._sent[self._half] = self._stream.mark()
        self._half ^= 1
        self._used = 0
        if (sent := self._sent[self._half]) is not None:
            sent.wait()


class Downloads:
    """Pinned memory for results on their way, used again and again."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._free: defaultdict[int, list[Bytes]] = defaultdict(list)  # by size

    def begin(self, source: Array) -> Download:
        """Begin to copy an array of the device, as it is after all launches so far."""
        num_bytes = int(source.nbytes)
        size = max(ALIGNMENT, 1 << (num_bytes - 1).bit_length())
        free = self._free[size]
        pinned = free.pop() if free else self._stream.pinned(size)
        if num_bytes:
            self._stream.fetch(pinned[:num_bytes], source.reshape(-1).view(np.uint8))
        return Download(source, pinned, self._stream.mark(), free)


class Download(NamedTuple):
    """A copy to the host that is under way."""

    source: Array
    pinned: Bytes
    done: Mark
    free: list[Bytes]

    def values(self) -> np.ndarray[Any, Any]:
        """Wait, and return the values; may be called once."""
        self.done.wait()
        raw = self.pinned[: int(self.source.nbytes)]
        values: np.ndarray[Any, Any] = raw.view(self.source.dtype).reshape(self.source.shape).copy()
        self.free.append(self.pinned)
        return values
