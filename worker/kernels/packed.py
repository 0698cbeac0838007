"""Weights as the C++ linears take them: packed once at load, addressed for ever.

Knows the layouts of `linear.h` and the dtypes of a checkpoint. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from worker.errors import KernelError
from worker.kernels.checks import F32, Floats
from worker.kernels.library import Library

PANEL = 16
BLOCK = 32

Stored = np.ndarray[Any, Any]
"""float32, float16, or bfloat16 as uint16: an array as it lies in a checkpoint."""
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Format(IntEnum):
    """How values are stored; as in `types.h`."""

    F32 = 0
    BF16 = 1
    F16 = 2
    INT8 = 3
    INT4 = 4


STORED_FORMATS = {
    np.dtype(np.float32): Format.F32,
    np.dtype(np.uint16): Format.BF16,
    np.dtype(np.float16): Format.F16,
}
ITEM_BYTES = {Format.F32: 4, Format.BF16: 2, Format.F16: 2}


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A linear of N outputs from K inputs; `weight` are its panels, see `linear.h`."""

    num_inputs: int
    num_outputs: int
    format: Format
    weight: Bytes
    bias: Floats | None

    @property
    def padded_inputs(self) -> int:
        return -(-self.num_inputs // BLOCK) * BLOCK

    @property
    def scratch_width(self) -> int:
        """Floats of scratch memory that one row takes."""
        return self.padded_inputs


def stored_format(operator: str, name: str, array: Stored) -> Format:
    """Return the format of a checkpoint's array, or raise KernelError."""
    found = STORED_FORMATS.get(array.dtype)
    if found is None:
        raise KernelError(f"{operator}: {name} has dtype {array.dtype}, expected a float format")
    return found


def to_float32(array: Stored) -> Floats:
    """Return `array` as float32, contiguous; bfloat16 is the upper half of a float32."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(array, np.float32)


def pack_weight(
    library: Library,
    pool: int,
    weights: Sequence[Stored],
    biases: Sequence[Stored],
    wanted: Format,
) -> PackedWeight:
    """Stack weights [Ni, K] and biases [Ni] along their outputs and pack them as `wanted`."""
    num_inputs = weights[0].shape[1]
    for weight in weights:
        stored_format("linear", "weight", weight)
        if weight.ndim != 2 or weight.shape[1] != num_inputs:
            raise KernelError(
                f"linear: weight has shape {weight.shape}, expected (n, {num_inputs})"
            )
    if any(weight.shape[0] % PANEL for weight in weights[:-1]):
        weights = [np.concatenate(weights)]  # no part but the last may end inside a panel
    num_outputs = sum(weight.shape[0] for weight in weights)
    padded = -(-num_inputs // BLOCK) * BLOCK
    panels = -(-num_outputs // PANEL)
    packed = aligned_bytes(panels * PANEL * padded * ITEM_BYTES[wanted])
    first = 0
    for weight in map(np.ascontiguousarray, weights):
        source = stored_format("linear", "weight", weight)
        library.pack(
            pool, weight.ctypes.data, source, *weight.shape, packed.ctypes.data, wanted, first
        )
        first += weight.shape[0]
    return PackedWeight(num_inputs, num_outputs, wanted, packed, _bias(biases, num_outputs, panels))


def _bias(biases: Sequence[Stored], num_outputs: int, panels: int) -> Floats | None:
    """Return the biases as float32, filled up to whole panels."""
    if not biases:
        return None
    joined = np.concatenate([to_float32(bias) for bias in biases])
    if joined.shape != (num_outputs,):
        raise KernelError(f"linear: bias has shape {joined.shape}, expected ({num_outputs},)")
    bias = np.zeros(panels * PANEL, F32)
    bias[:num_outputs] = joined
    return bias


def aligned_bytes(num_bytes: int, alignment: int = 64) -> Bytes:
    """Return uninitialised memory whose address is a multiple of `alignment`."""
    raw = np.empty(num_bytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + num_bytes]
