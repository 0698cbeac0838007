"""What every operator demands of its arrays, the one error that says what was wrong, and how
stored values become float32. NumPy is enough for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from worker.errors import KernelError

Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Stored = np.ndarray[Any, Any]
"""float32, float16, or bfloat16 as uint16: an array as it lies in a checkpoint."""

F32 = np.dtype(np.float32)
I32 = np.dtype(np.int32)


def require(
    operator: str,
    name: str,
    array: np.ndarray[Any, Any],
    dtype: np.dtype[Any],
    shape: tuple[int | None, ...],
) -> None:
    """Raise KernelError unless `array` has this dtype and shape (None = any) in C order."""
    if array.dtype != dtype:
        raise KernelError(f"{operator}: {name} has dtype {array.dtype}, expected {dtype}")
    if array.ndim != len(shape):
        raise KernelError(f"{operator}: {name} has shape {array.shape}, expected {shape}")
    for wanted, actual in zip(shape, array.shape, strict=True):
        if wanted is not None and wanted != actual:
            raise KernelError(f"{operator}: {name} has shape {array.shape}, expected {shape}")
    if not array.flags.c_contiguous:
        raise KernelError(f"{operator}: {name} is not C-contiguous")


def require_places(operator: str, name: str, places: Ints, count: int) -> None:
    """Raise KernelError unless `places` are int32 [n], each of 0 .. count - 1."""
    require(operator, name, places, I32, (None,))
    if places.size and not 0 <= int(places.min()) <= int(places.max()) < count:
        raise KernelError(f"{operator}: {name} outside 0..{count - 1}")


def to_float32(array: Stored) -> Floats:
    """Return `array` as float32, contiguous; bfloat16 is the upper half of a float32."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(array, np.float32)


def joined(parts: Sequence[Stored]) -> Stored:
    """Copy rows below each other; of several dtypes as float32, for NumPy knows no bfloat16."""
    is_mixed = len({part.dtype for part in parts}) > 1
    return np.concatenate([to_float32(part) for part in parts] if is_mixed else parts)
