"""CupyGpu: one GPU through CuPy. Memory, copies, our own kernels' launches, graphs.

Imports CuPy when it is made. Loads machine code that was compiled before; nothing compiles at start
when a cubin fits the chip. Knows no operator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from worker.backends import cuda_driver
from worker.backends.cuda_lease import NoDeviceFree, claim, lease_folder
from worker.backends.transfers import Download, Downloads, Uploads
from worker.errors import DeviceLost
from worker.kernels.cubins import CubinError, find, target_of
from worker.kernels.instances import instances

HALF_BYTES = 16 * 2**20
"""Of the pinned memory that all copies to the device go through."""
PLAIN_SHARED_BYTES = 48 * 1024
"""More dynamic shared memory must be allowed kernel by kernel."""

GRAPHS_OVERLAP = 12_030
"""The driver from which on a graph may hold launches that overlap: CUDA 12.3."""

OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation."""


class GpuMissing(Exception):
    """CuPy, a driver or a device is not here; the message says which."""


class CupyGpu:
    """The first device that no other worker has, one stream."""

    def __init__(self) -> None:
        """Raises GpuMissing."""
        try:
            import cupy
        except ImportError as error:
            raise GpuMissing(f"cupy is not installed: {error}") from error
        try:
            count = cupy.cuda.runtime.getDeviceCount()
            ordinal, self._lease = claim([_key(cupy, i) for i in range(count)], lease_folder())
            self._device = cupy.cuda.Device(ordinal)
            self._device.use()
            self._stream = cupy.cuda.Stream(non_blocking=True)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise GpuMissing(f"no CUDA device: {error}") from error
        except NoDeviceFree as error:
            raise GpuMissing(str(error)) from error
        self._cupy = cupy
        self._cache = Path.home() / ".cache" / "millrace" / "cubins"  # of kernels compiled here
        self._target = target_of(self._device.compute_capability)
        self._stems = {instance.symbol: instance.stem for instance in instances()}
        self._modules: dict[str, tuple[Any, dict[str, str]]] = {}
        self._kernels: dict[str, Any] = {}
        self._shared_bytes: dict[str, int] = {}
        has_overlap = int(self._device.compute_capability) >= 90
        self._overlaps = has_overlap and cupy.cuda.runtime.driverGetVersion() >= GRAPHS_OVERLAP
        self._copies = _CupyStream(cupy, self._device, self._stream)
        self._uploads = Uploads(self._copies, HALF_BYTES)
        self._downloads = Downloads(self._copies)
        self._thread = threading.get_ident()

    @property
    def name(self) -> str:
        name: str = _properties(self._cupy, self._device.id)["name"].decode()
        return f"{name} {self._target}"

    @property
    def driver(self) -> str:
        return str(self._cupy.cuda.runtime.driverGetVersion())

    @property
    def total_bytes(self) -> int:
        return int(self._device.mem_info[1])

    @property
    def free_bytes(self) -> int:
        return int(self._device.mem_info[0])

    def trim(self) -> None:
        try:
            self._stream.synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceLost(f"device cuda has failed, a new process is needed: {error}") from error
        self._cupy.get_default_memory_pool().free_all_blocks()

    def _enter(self) -> None:
        """Make the device that of this thread: each thread has its own, the first one at first."""
        if (thread := threading.get_ident()) != self._thread:
            self._device.use()
            self._thread = thread

    def empty(self, num_bytes: int) -> Any:
        self._enter()
        try:
            return self._cupy.empty(num_bytes, np.uint8)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(
                f"{num_bytes} bytes do not fit on {self.name}, {self.free_bytes} are free"
            ) from error

    def write(self, target: Any, source: np.ndarray[Any, Any]) -> None:
        self._enter()
        self._uploads.write(target, source)

    def pinned(self, num_bytes: int) -> np.ndarray[Any, Any]:
        return self._copies.pinned(num_bytes)

    def read_into(self, target: np.ndarray[Any, Any], source: Any) -> None:
        source.get(stream=self._stream, out=target, blocking=False)

    def wait(self) -> None:
        self._stream.synchronize()

    def read(self, source: Any) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = self._cupy.asnumpy(source, stream=self._stream)
        self._stream.synchronize()
        return values

    def read_later(self, source: Any) -> Download:
        self._enter()
        return self._downloads.begin(source)

    def mark(self) -> _CupyMark:
        self._enter()
        return self._copies.mark()

    def launch(
        self,
        symbol: str,
        grid: tuple[int, ...],
        num_threads: int,
        arguments: tuple[Any, ...],
        shared_bytes: int = 0,
    ) -> None:
        self._enter()
        kernel = self._kernels.get(symbol) or self._load(symbol)
        if shared_bytes > self._shared_bytes.get(symbol, PLAIN_SHARED_BYTES):
            kernel.max_dynamic_shared_size_bytes = self._shared_bytes[symbol] = shared_bytes
        cuda_driver.launch(
            kernel.kernel.ptr,
            grid,
            num_threads,
            shared_bytes,
            self._stream.ptr,
            [self._bytes(argument) for argument in arguments],
            overlaps=self._overlaps,
        )

    def _bytes(self, argument: Any) -> bytes:
        if argument is None:
            return bytes(8)
        if isinstance(argument, self._cupy.ndarray):
            return int(argument.data.ptr).to_bytes(8, "little")
        raw: bytes = argument.tobytes()  # a NumPy scalar, or a structure of size one
        return raw

    def _load(self, symbol: str) -> Any:
        stem = self._stems[symbol]
        if stem not in self._modules:
            code = find(stem, self._target, self._cache)
            self._modules[stem] = (self._cupy.RawModule(path=str(code.path)), code.names)
        module, names = self._modules[stem]
        try:
            self._kernels[symbol] = kernel = module.get_function(names[symbol])
        except self._cupy.cuda.driver.CUDADriverError as error:
            raise CubinError(
                f"{self.name} does not load {stem}: {error}; a driver older than the compiler does "
                f"not know its code, this one is of CUDA {self.driver}"
            ) from error
        return kernel

    def load_all(self) -> None:
        """Load every kernel now, so that no step does."""
        for symbol in self._stems:
            self._load(symbol)

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        self._enter()
        self._stream.begin_capture()
        try:
            launches()
        finally:
            graph = self._end_capture()

        def replay() -> None:
            graph.launch(stream=self._stream)

        return replay

    def _end_capture(self) -> Any:
        try:
            graph = self._stream.end_capture()
            graph.upload(self._stream)  # its memory is taken now, and not by the first replay
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            raise MemoryError(f"a graph does not fit on {self.name}") from error
        return graph


def _key(cupy: Any, ordinal: int) -> str:
    """Return what tells a device from all others of a machine.

    CuPy cuts a UUID off at its first zero byte; the place on the bus is whole, and the UUID tells
    the slices of one device apart.
    """
    place = cupy.cuda.runtime.deviceGetPCIBusId(ordinal)
    return f"{place}-{_properties(cupy, ordinal)['uuid'].hex()}"


def _properties(cupy: Any, ordinal: int) -> dict[str, Any]:
    properties: dict[str, Any] = cupy.cuda.runtime.getDeviceProperties(ordinal)
    return properties


class _CupyStream:
    """Copies of a stream that return at once, which CuPy's own do only from pinned memory."""

    def __init__(self, cupy: Any, device: Any, stream: Any) -> None:
        self._cupy = cupy
        self._device = device
        self._stream = stream

    def pinned(self, num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        cuda = self._cupy.cuda
        try:
            # Not from CuPy's pool, which would keep it for ever.
            memory = cuda.PinnedMemoryPointer(cuda.PinnedMemory(num_bytes), 0)
        except cuda.runtime.CUDARuntimeError as error:
            raise MemoryError(f"{num_bytes} bytes of the host cannot be pinned: {error}") from error
        return np.frombuffer(memory, np.uint8, num_bytes)

    def send(self, target: Any, source: np.ndarray[Any, Any]) -> None:
        runtime = self._cupy.cuda.runtime
        kind = runtime.memcpyHostToDevice
        place = source.ctypes.data
        runtime.memcpyAsync(target.data.ptr, place, source.nbytes, kind, self._stream.ptr)

    def fetch(self, target: np.ndarray[Any, Any], source: Any) -> None:
        runtime = self._cupy.cuda.runtime
        kind = runtime.memcpyDeviceToHost
        place = target.ctypes.data
        runtime.memcpyAsync(place, source.data.ptr, target.nbytes, kind, self._stream.ptr)

    def mark(self) -> _CupyMark:
        event = self._cupy.cuda.Event(block=True)
        event.record(self._stream)
        return _CupyMark(self._cupy, self._device, event)


class _CupyMark:
    def __init__(self, cupy: Any, device: Any, event: Any) -> None:
        self._cupy = cupy
        self._device = device
        self.event = event

    def wait(self) -> None:
        self._device.use()  # a thread that waits for the first time knows no device
        self.event.synchronize()

    def seconds_until(self, later: _CupyMark) -> float:
        return float(self._cupy.cuda.get_elapsed_time(self.event, later.event)) / 1e3
