"""EmulatedGpu: the device interface of the CUDA backend over NumPy arrays and the emulator."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulator import KERNELS, Kernel, Library
from tests.emulator.recording import Recording
from tests.emulator.stream import EmulatedMark, EmulatedStream
from worker.backends.transfers import Download, Downloads, Uploads

DEFAULT_BYTES = 64 * 2**30
KERNEL_BYTES = 64 * 2**10
HALF_BYTES = 64 * 2**10
"""Of pinned memory: little, so that it is used again soon."""


class DeviceArray(np.ndarray[Any, Any]):
    """Memory of the device: it may be cut and viewed. Computing with it on the host, or copying it
    there behind the device's back, is a TypeError."""

    __array_ufunc__ = None  # type: ignore[assignment]

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} of memory of the device")

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(part, int | slice) for part in parts):
            raise TypeError(f"memory of the device is cut by {key!r}")
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("memory of the device is written by the host")

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("memory of the device is read by the host")

    astype = copy = tolist = item = tobytes = __float__ = __int__ = _refuse


class EmulatedGpu:
    """Fills what it allocates with 0xff, nan in every float type."""

    def __init__(
        self,
        folder: Path,
        kernels: Path = KERNELS,
        total_bytes: int = DEFAULT_BYTES,
        is_lazy: bool = False,
    ) -> None:
        """A device of `total_bytes`; a kernel takes KERNEL_BYTES of it with its first launch.

        `is_lazy`: it computes when it is waited for, not before.
        """
        self._stream = EmulatedStream(is_lazy)
        self._uploads = Uploads(self._stream, HALF_BYTES)
        self._downloads = Downloads(self._stream)
        self.total_bytes = total_bytes
        self._used_bytes = 0
        self._on_their_way: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self._library = Library(folder, kernels)
        self._kernels: dict[str, Kernel] = {}
        self.launches: list[str] = []
        self.replays: list[int] = []
        """How many launches each graph was."""
        self.recording: Recording | None = None
        self._captured: list[tuple[Any, ...]] | None = None

    @property
    def name(self) -> str:
        return "emulator"

    @property
    def driver(self) -> str:
        return "none"

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self._used_bytes

    def trim(self) -> None:
        """Freed memory is nobody's, once what uses it has run."""
        self._stream.run()

    def _take(self, num_bytes: int) -> None:
        if num_bytes > self.free_bytes:
            raise MemoryError(f"{num_bytes} bytes do not fit on {self.name}, "
                              f"{self.free_bytes} are free")  # fmt: skip
        self._used_bytes += num_bytes

    def _give_back(self, num_bytes: int) -> None:
        self._used_bytes -= num_bytes

    def empty(self, num_bytes: int) -> np.ndarray[Any, Any]:
        self._take(num_bytes)
        raw = np.full(num_bytes + 256, 0xFF, np.uint8)
        weakref.finalize(raw, self._give_back, num_bytes)
        start = -raw.ctypes.data % 256
        return raw[start : start + num_bytes].view(DeviceArray)

    def write(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        assert target.flags.c_contiguous and target.dtype == source.dtype
        self._uploads.write(target, source)

    def read(self, source: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        assert source.flags.c_contiguous
        self._stream.run()
        return source.view(np.ndarray).copy()

    def pinned(self, num_bytes: int) -> np.ndarray[Any, Any]:
        return self._stream.pinned(num_bytes)

    def read_into(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        """Not there before `wait`."""
        assert target.dtype == source.dtype and target.shape == source.shape
        self._on_their_way.append((target, self.read(source)))

    def wait(self) -> None:
        self._stream.run()
        for target, values in self._on_their_way:
            target[...] = values
        self._on_their_way.clear()

    def read_later(self, source: np.ndarray[Any, Any]) -> Download:
        assert source.flags.c_contiguous
        return self._downloads.begin(source)

    def mark(self) -> EmulatedMark:
        return self._stream.mark()

    def launch(
        self,
        symbol: str,
        grid: tuple[int, ...],
        num_threads: int,
        arguments: tuple[Any, ...],
        shared_bytes: int = 0,
    ) -> None:
        if self._captured is not None:
            self._captured.append((symbol, grid, num_threads, arguments, shared_bytes))
            return
        if symbol not in self._kernels:
            self._take(KERNEL_BYTES)
            self._kernels[symbol] = self._library.get_function(symbol)
        self.launches.append(symbol)
        for argument in arguments:
            if isinstance(argument, np.ndarray) and argument.ndim:
                assert argument.flags.c_contiguous, symbol
        values = tuple(_plain(argument) for argument in arguments)
        self._stream.add(lambda: self._run(symbol, grid, num_threads, values, shared_bytes))

    def _run(
        self,
        symbol: str,
        grid: tuple[int, ...],
        num_threads: int,
        values: tuple[Any, ...],
        shared_bytes: int,
    ) -> None:
        if self.recording is not None:
            self.recording.add(symbol, grid, num_threads, values, shared_bytes)
        self._kernels[symbol](grid, (num_threads,), values, shared_mem=shared_bytes)

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        self._captured = captured = []
        launches()
        self._captured = None

        def replay() -> None:
            self.replays.append(len(captured))
            for one in captured:
                self.launch(*one)

        return replay


def _plain(argument: Any) -> Any:
    """Return memory as an array of NumPy's, and a structure as a scalar."""
    if isinstance(argument, np.ndarray):
        return argument.view(np.ndarray) if argument.ndim else argument[()]
    return argument
