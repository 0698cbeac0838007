"""The driver call that CuPy lacks: a launch with attributes, here programmatic dependent launch.

The next kernel of the stream may start while this one still runs; it waits by itself before it
reads (`wait_for_predecessor` in worker/kernels/device.cuh). Knows libcuda's C interface alone.
"""

from __future__ import annotations

import ctypes
from functools import cache

PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: id, padding to 8 bytes, a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


class DriverError(Exception):
    """The driver refused a launch."""


def launch(
    function: int,
    grid: tuple[int, ...],
    num_threads: int,
    shared_bytes: int,
    stream: int,
    arguments: list[bytes],
    overlaps: bool,
) -> None:
    """Launch a CUfunction; `arguments` are the parameters' bytes; raise DriverError.

    `overlaps` lets it start before its predecessor has ended; chips since 9.0 can.
    """
    buffers = [ctypes.create_string_buffer(value, len(value)) for value in arguments]
    pointers = (ctypes.c_void_p * len(buffers))(*(ctypes.addressof(buffer) for buffer in buffers))
    attribute = _Attribute(id=PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    config = _Config(
        grid=(*grid, 1, 1)[:3],
        block=(num_threads, 1, 1),
        shared_bytes=shared_bytes,
        stream=stream,
        attributes=ctypes.pointer(attribute),
        num_attributes=int(overlaps),
    )
    code = _library().cuLaunchKernelEx(
        ctypes.byref(config), ctypes.c_void_p(function), pointers, None
    )
    if code:
        raise DriverError(f"cuLaunchKernelEx returned {code}")


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
