"""Gpu: what the CUDA backend needs of a device; one implementation drives CuPy, one an emulator.

Arrays are those of the device's own library, with NumPy's slicing and reshaping. 16-bit floats are
uint16 arrays of their bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

log = logging.getLogger(__name__)

Array = Any
ALIGNMENT = 256
"""Bytes."""
Out = TypeVar("Out")


class Mark(Protocol):
    """A place in the stream."""

    def wait(self) -> None:
        """Return when the device has come to it; in any thread, without spinning."""
        ...

    def seconds_until(self, later: Any) -> float:
        """Return how long the device took from here to another mark; both are passed."""
        ...


class Reading(Protocol):
    """A copy to the host that is under way."""

    @property
    def done(self) -> Mark: ...

    def values(self) -> np.ndarray[Any, Any]:
        """Wait, and return the values; may be called once."""
        ...


class Gpu(Protocol):
    """Memory and launches, in the order of one stream."""

    @property
    def name(self) -> str:
        """Chip and compute capability, e.g. "NVIDIA H200 sm_90"."""
        ...

    @property
    def driver(self) -> str:
        """Version of the driver, e.g. "13000"."""
        ...

    @property
    def total_bytes(self) -> int:
        """Memory of the device, whoever has it."""
        ...

    @property
    def free_bytes(self) -> int:
        """What nobody has; after `trim` also what this process has let go of."""
        ...

    def trim(self) -> None:
        """Give back what is no longer used; waits for the device. Raises DeviceLost."""
        ...

    def empty(self, num_bytes: int) -> Array:
        """Return uint8 [num_bytes] of undefined content, 256-byte aligned; raise MemoryError."""
        ...

    def write(self, target: Array, source: np.ndarray[Any, Any]) -> None:
        """Copy from the host, behind all launches so far; `source` may be reused at once.

        Waits for nothing, unless there is more than pinned memory holds.
        """
        ...

    def read(self, source: Array) -> np.ndarray[Any, Any]:
        """Wait for all launches so far and copy to the host."""
        ...

    def read_later(self, source: Array) -> Reading:
        """Begin to copy to the host, behind all launches so far; `source` may be reused at once."""
        ...

    def mark(self) -> Mark:
        """Return the place behind all launches so far."""
        ...

    def pinned(self, num_bytes: int) -> np.ndarray[Any, Any]:
        """Return uint8 [num_bytes] of the host that copies reach fastest; raise MemoryError."""
        ...

    def read_into(self, target: np.ndarray[Any, Any], source: Array) -> None:
        """Copy to pinned memory after all launches so far; it is there when `wait` returns."""
        ...

    def wait(self) -> None:
        """Return when all launches and copies so far are done."""
        ...

    def launch(
        self,
        symbol: str,
        grid: tuple[int, ...],
        num_threads: int,
        arguments: tuple[Any, ...],
        shared_bytes: int = 0,
    ) -> None:
        """Launch a kernel of `worker/kernels/instances.py`; None is a null pointer."""
        ...

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        """Run nothing, remember the launches with their arguments, and return what repeats them.

        Raises MemoryError.
        """
        ...


class Scratch:
    """Named buffers, each as large as it ever was asked for, so that steps allocate nothing.

    A name stands for one place: what is taken under it overwrites what was there.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._buffers: dict[str, Array] = {}
        self._host: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self.num_allocations = 0

    @property
    def num_bytes(self) -> int:
        return sum(int(buffer.nbytes) for buffer in self._buffers.values())

    def take(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the buffer `name` as an array of this shape; its content is what was there."""
        kind = np.dtype(dtype)
        num_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < num_bytes:
            self._buffers[name] = buffer = self._gpu.empty(max(num_bytes, 256))
            self.num_allocations += 1
        return buffer[:num_bytes].view(kind).reshape(shape)

    def put_all(self, name: str, values: Sequence[np.ndarray[Any, Any]]) -> list[Array]:
        """Take a buffer for all of `values`, fill it by one copy, return where each lies."""
        target = self.write_all(name, values)
        return [
            target[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            for start, array in zip(_starts(values), values, strict=False)
        ]

    def write_all(self, name: str, values: Sequence[np.ndarray[Any, Any]]) -> Array:
        """Fill the buffer again with arrays of the sizes that it was taken for; return it."""
        *starts, length = _starts(values)
        host = self._host.get(name)
        if host is None or len(host) < length:
            host = self._host[name] = np.zeros(length, np.uint8)
        for start, array in zip(starts, values, strict=True):
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            host[start : start + len(raw)] = raw
        target = self.take(name, (length,), np.uint8)
        self._gpu.write(target, host[:length])
        return target


def _starts(values: Sequence[np.ndarray[Any, Any]]) -> list[int]:
    """Return where each begins, and where the last one's room ends."""
    starts = [0]
    for array in values:
        starts.append(starts[-1] + -(-array.nbytes // ALIGNMENT) * ALIGNMENT)
    return starts


class Graphs(Generic[Out]):
    """Launches that were captured, by what they are for, with what they leave behind.

    How many there will be depends on what is asked. Where the device has no room for one more, all
    go, and those in use come back; where not even one has room, none is tried again.
    """

    def __init__(self, gpu: Gpu, scratch: Scratch) -> None:
        """Their buffers are all in `scratch` before the first is made."""
        self._gpu = gpu
        self._scratch = scratch
        self._made: dict[Hashable, tuple[Callable[[], None], Out]] = {}
        self._has_room = True

    def __contains__(self, key: Hashable) -> bool:
        return key in self._made

    def make(self, key: Hashable, launches: Callable[[], Out]) -> bool:
        """Capture `launches`; return whether there was room."""
        if not self._has_room:
            return False
        before, left = self._scratch.num_allocations, list[Out]()
        try:
            replay = self._gpu.capture(lambda: left.append(launches()))
        except MemoryError as error:
            log.warning("%s beside %d others", error, len(self._made))
            self._has_room = bool(self._made)
            self._gpu.trim()  # one may be running; and what the pool keeps is of more use here
            self._made.clear()
            return False
        assert self._scratch.num_allocations == before, "a captured step has moved a buffer"
        self._made[key] = (replay, left[0])
        return True

    def replay(self, key: Hashable) -> Out:
        """Repeat the launches of one that was made; return what they leave."""
        replay, left = self._made[key]
        replay()
        return left
