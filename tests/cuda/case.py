"""One kernel test: random inputs, poisoned outputs, a launch, and the result on the host."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from worker.backends.cuda_loading import Loading
from worker.backends.cuda_weights import STORAGE, CudaLinear, from_storage, to_storage, upload
from worker.backends.gpu import Gpu
from worker.kernels.checks import Floats

Array = np.ndarray[Any, Any]
EPSILON = {"f32": 2.0**-22, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Largest relative error of rounding once to the dtype; float32 with room for its sums."""
i32, f32 = np.int32, np.float32


class Case:
    """Knows the device and a generator; NaN stands in whatever was not written."""

    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu = gpu
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))

    def normal(self, *shape: int) -> Floats:
        values: Floats = self.rng.standard_normal(shape, dtype=np.float32)
        return values

    def put(self, values: Array) -> Any:
        return upload(self.gpu, values)

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return an output full of NaN."""
        kind = np.dtype(STORAGE[dtype])
        count = int(np.prod(shape)) * kind.itemsize
        target = self.gpu.empty(max(count, 1))
        self.gpu.write(target, np.full(max(count, 1), 0xFF, np.uint8))
        return target[:count].view(kind).reshape(shape)

    def get(self, array: Any, dtype: str = "f32") -> Floats:
        """Return a device array as float32."""
        return from_storage(self.gpu.read(array), dtype)


def pack_linear(
    gpu: Gpu,
    dtype: str,
    weights: Sequence[Array],
    biases: Sequence[Array] = (),
    is_int8: bool = False,
) -> CudaLinear:
    """Put one linear on the device, as `Loading.linear` says, and wait for it."""
    loading = Loading(gpu)
    linear = loading.linear(dtype, weights, biases, is_int8)
    loading.finish()
    return linear


def rounded(values: Floats, dtype: str) -> Floats:
    """Return float32 values that `dtype` can hold."""
    return from_storage(to_storage(values, dtype), dtype)


def close(actual: Floats, expected: Array, dtype: str, scale: float = 1.0) -> None:
    """Compare with float64, to a few roundings of `dtype` relative to the size of the terms."""
    bound = 4 * EPSILON[dtype] * scale
    np.testing.assert_allclose(actual, expected, rtol=4 * EPSILON[dtype], atol=bound)
