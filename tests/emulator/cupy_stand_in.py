"""What CupyGpu asks of CuPy and of the driver, over the emulator: the code that drives a GPU runs.

Refuses what a device would: copies and allocations while a graph is captured, more shared memory
than a kernel was allowed, an empty grid, another stream. Says nothing of CuPy's own code.
"""

from __future__ import annotations

import ctypes
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.emulator import Library
from tests.emulator.device import DeviceArray
from worker.backends import cuda_device, cuda_driver
from worker.kernels.cubins import Code
from worker.kernels.instances import instances

STREAM = 0x51
PLAIN_SHARED_BYTES = 48 << 10
TOTAL_BYTES = 64 << 30


class CupyArray(DeviceArray):
    """An array with what CuPy's have and NumPy's have not."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, stream: Any, out: np.ndarray[Any, Any], blocking: bool) -> None:
        assert (out.dtype, out.shape) == (self.dtype, self.shape) and self.flags.c_contiguous
        assert stream.ptr == STREAM and not blocking
        np.copyto(out, self.view(np.ndarray))


class Function:
    """A kernel in a module; `kernel` is itself, as the loaded function of CuPy's RawKernel."""

    def __init__(self, symbol: str, place: int) -> None:
        self.symbol = symbol
        self.ptr = place
        self.max_dynamic_shared_size_bytes = PLAIN_SHARED_BYTES

    @property
    def kernel(self) -> Function:
        return self


class Event:
    def __init__(self, block: bool) -> None:
        assert block, "others spin"
        self.passed_at = 0.0

    def record(self, stream: Any) -> None:
        self.passed_at = time.perf_counter()

    def synchronize(self) -> None:
        assert self.passed_at


class CudaError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class DriverError(RuntimeError):
    pass


class Graph:
    def __init__(self, launch: Callable[..., None]) -> None:
        self.launch = launch

    def upload(self, stream: StandIn) -> None:
        assert stream.ptr == STREAM


class Device:
    id = 0

    def __init__(self, pool: Pool, capability: str) -> None:
        self._pool = pool
        self.compute_capability = capability

    def use(self) -> None:
        pass

    @property
    def mem_info(self) -> tuple[int, int]:
        return self._pool.mem_info


class Piece:
    """What the driver has given at once: `free` parts of it, and the number of those in use."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.free: list[int] = []
        self.num_taken = 0


class Pool:
    """Bytes of CuPy's pool: it cuts what is free for whoever asks for less, and only whole pieces
    go back to the driver."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.pieces: list[Piece] = []

    @property
    def mem_info(self) -> tuple[int, int]:
        taken = sum(piece.num_bytes for piece in self.pieces)
        return self.total_bytes - taken, self.total_bytes

    def take(self, num_bytes: int) -> tuple[Piece, int]:
        """Return a piece and the size of a part of it."""
        size = max(512, -(-num_bytes // 512) * 512)
        parts = [(part, piece) for piece in self.pieces for part in piece.free if part >= size]
        if not parts:
            if size > self.mem_info[0]:
                self.free_all_blocks()
            if size > self.mem_info[0]:
                raise MemoryError(f"{size} bytes")
            self.pieces.append(piece := Piece(size))
            piece.free.append(size)
            parts = [(size, piece)]
        part, piece = min(parts, key=lambda found: found[0])
        piece.free.remove(part)
        piece.num_taken += 1
        if part > size:
            piece.free.append(part - size)
        return piece, size

    def give_back(self, piece: Piece, size: int) -> None:
        piece.num_taken -= 1
        piece.free = [*piece.free, size] if piece.num_taken else [piece.num_bytes]

    def free_all_blocks(self) -> None:
        self.pieces = [piece for piece in self.pieces if piece.num_taken]


class StandIn:
    """CuPy and libcuda of one device."""

    def __init__(
        self, build_folder: Path, capability: str, driver: int, total_bytes: int = TOTAL_BYTES
    ) -> None:
        self.pool = Pool(total_bytes)
        self._library = Library(build_folder)
        self._capability = capability
        self._driver = driver
        self._functions: list[Function] = []
        self._captured: list[Callable[[], None]] | None = None
        self._arguments: list[bytes] = []
        self.overlaps: set[bool] = set()
        self.has_failed, self.knows_code = False, True
        self.num_graphs, self.most_graphs, self.num_refused = 0, -1, 0
        self.num_launches = self.num_replays = 0

    def install(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """Have `import cupy` and launches come here; leases lie in `folder`."""
        symbols = {instance.symbol: instance.symbol for instance in instances()}
        launch = cuda_driver.launch

        def launched(*arguments: Any, overlaps: bool) -> None:
            self._arguments = arguments[5]
            self.overlaps.add(overlaps)
            launch(*arguments, overlaps=overlaps)

        monkeypatch.setitem(sys.modules, "cupy", self._cupy())
        monkeypatch.setattr(cuda_driver, "launch", launched)
        monkeypatch.setattr(cuda_driver, "_library", lambda: self)
        monkeypatch.setattr(cuda_device, "find", lambda *_: Code(Path(), symbols))
        monkeypatch.setattr(cuda_device, "lease_folder", lambda: folder)

    def _cupy(self) -> Any:
        runtime = SimpleNamespace(
            CUDARuntimeError=CudaError,
            getDeviceCount=lambda: 1,
            deviceGetPCIBusId=lambda _: "0000:01:00.0",
            getDeviceProperties=lambda _: {"name": b"Stand-in", "uuid": bytes(16)},
            driverGetVersion=lambda: self._driver,
            memcpyAsync=self._copy,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
        )
        device = Device(self.pool, self._capability)
        cuda = SimpleNamespace(
            runtime=runtime,
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
            driver=SimpleNamespace(CUDADriverError=DriverError),
            Device=lambda _: device,
            Stream=lambda non_blocking: self,
            Event=Event,
            PinnedMemory=bytearray,
            PinnedMemoryPointer=lambda memory, _: memory,
            get_elapsed_time=lambda a, b: 1e3 * (b.passed_at - a.passed_at),
        )
        return SimpleNamespace(
            cuda=cuda,
            ndarray=CupyArray,
            empty=self._empty,
            asnumpy=self._asnumpy,
            RawModule=lambda path: self,
            get_default_memory_pool=lambda: self.pool,
        )

    def _empty(self, num_bytes: int, dtype: Any) -> CupyArray:
        assert self._captured is None
        place = self.pool.take(num_bytes)
        raw = np.full(num_bytes + 256, 0xFF, dtype)
        weakref.finalize(raw, self.pool.give_back, *place)
        start = -raw.ctypes.data % 256
        return raw[start : start + num_bytes].view(CupyArray)

    def _asnumpy(self, source: CupyArray, stream: StandIn) -> np.ndarray[Any, Any]:
        out = np.empty(source.shape, source.dtype)
        source.get(stream, out, blocking=False)
        return out

    def _copy(self, target: int, source: int, num_bytes: int, kind: int, stream: int) -> None:
        assert self._captured is None and stream == STREAM and kind in (1, 2)
        ctypes.memmove(target, source, num_bytes)

    # ── a module ─────────────────────────────────────────────────────────────────────────────

    def get_function(self, symbol: str) -> Function:
        if not self.knows_code:
            raise DriverError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
        self._functions.append(Function(symbol, len(self._functions) + 1))
        return self._functions[-1]

    # ── the stream ───────────────────────────────────────────────────────────────────────────

    ptr = STREAM

    def synchronize(self) -> None:
        assert self._captured is None
        if self.has_failed:
            raise CudaError(214)

    def begin_capture(self) -> None:
        self._captured = []

    def end_capture(self) -> Any:
        assert self._captured is not None
        launches, self._captured = self._captured, None
        if self.num_graphs == self.most_graphs:
            self.num_refused += 1
            raise CudaError(2)
        self.num_graphs += 1

        def launch(stream: StandIn) -> None:
            self.num_replays += 1
            for one in launches:
                one()

        graph = Graph(launch)
        weakref.finalize(graph, self._destroy)
        return graph

    def _destroy(self) -> None:
        self.num_graphs -= 1

    # ── the driver ───────────────────────────────────────────────────────────────────────────

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: None) -> int:
        told, kernel = config._obj, self._functions[function.value - 1]
        assert told.shared_bytes <= kernel.max_dynamic_shared_size_bytes, kernel.symbol
        assert told.stream == STREAM and len(parameters) == len(self._arguments)
        assert min(told.grid) > 0 and max(told.grid[1:]) < 1 << 16, kernel.symbol
        assert 0 < told.block[0] <= 1024, kernel.symbol
        if told.num_attributes:
            assert told.attributes[0].id == 6 and told.attributes[0].value[0] == 1
        sizes = (*told.grid, *told.block, told.shared_bytes)
        arguments = self._arguments

        def run() -> None:
            self.num_launches += 1
            buffers = [ctypes.create_string_buffer(value, len(value)) for value in arguments]
            places = [ctypes.addressof(buffer) for buffer in buffers]
            emulated = self._library.get_function(kernel.symbol)
            emulated.launch(sizes, (ctypes.c_void_p * len(places))(*places))

        if self._captured is None:
            run()
        else:
            self._captured.append(run)
        return 0
