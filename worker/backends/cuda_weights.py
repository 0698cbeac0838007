"""Weights on a GPU, in the one layout that all kernels read: see worker/kernels/linear.cu.

Knows dtypes and packing; no operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from worker.backends.gpu import Array, Gpu
from worker.errors import NotFinite
from worker.kernels.checks import Floats, to_float32

TILE = 16
BLOCK_K = 32
PIECE = 1 << 16
"""Values."""
STORAGE = {"f32": np.float32, "bf16": np.uint16, "f16": np.uint16}


@dataclass(frozen=True, slots=True)
class CudaLinear:
    """weight [N, K]: packed tiles of 16-bit floats or int8, or rows of float32 or int8.

    Beside float32 activations stand rows.
    """

    weight: Array
    scale: Array | None
    """float32 [N] of int8 weights: each stands for weight * scale of its output."""
    bias: Array | None
    """float32 [N]."""
    num_inputs: int
    num_outputs: int
    """As the model has it."""
    num_padded: int
    """A multiple of 16; the rest is zeros."""
    is_gated: bool
    """Two halves, tile beside tile: a gate and an up projection."""

    @property
    def num_bytes(self) -> int:
        """What it takes on the device."""
        parts = (self.weight, self.scale, self.bias)
        return sum(int(part.nbytes) for part in parts if part is not None)


def to_storage(values: Floats, dtype: str) -> np.ndarray[Any, Any]:
    """Round float32 to the dtype's bits, to nearest, ties to even."""
    if dtype == "f32":
        return values
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(np.uint16)


def from_storage(stored: np.ndarray[Any, Any], dtype: str) -> Floats:
    """Return as float32 what `to_storage` has made."""
    return to_float32(stored.view(np.float16) if dtype == "f16" else stored)


def quantized(weight: Floats) -> tuple[np.ndarray[Any, np.dtype[np.int8]], Floats]:
    """Return int8 [N, K] and the scale [N] of each output: its largest size becomes 127.

    The rule, and its bits, are those of the CPU's packer (`linear_pack_body.h`). Raises NotFinite.
    """
    values = np.empty(weight.shape, np.int8)
    scale = np.empty(len(weight), np.float32)
    step = max(1, PIECE // weight.shape[1])  # rows that stay in the processor's cache
    for first in range(0, len(weight), step):
        rows = weight[first : first + step]
        most = np.max(np.abs(rows), axis=1, initial=np.float32(0))
        if not np.isfinite(most).all():
            raise NotFinite
        scale[first : first + step] = most / np.float32(127)
        inverse = np.divide(np.float32(127), most, where=most > 1e-30, out=np.zeros_like(most))
        steps = np.rint(rows * inverse[:, None])
        values[first : first + step] = np.clip(steps, -127, 127, out=steps)
    return values, scale


def pack_tiles(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[N, K] of 16 or 8 bits → [N / 16, K / 32, a tile of 16 outputs and 32 inputs]; 32 divides K.

    In a tile lie, of 16 bits: 2 halves of 8 outputs, 8 outputs, 32 inputs; of 8 bits: 8 outputs, 4
    times 8 inputs, 2 halves of outputs, and those 8 inputs in the order 0, 2, 1, 3, 4, 6, 5, 7.
    """
    num_outputs, num_inputs = weight.shape
    missing = -num_outputs % TILE
    padded = np.pad(weight, ((0, missing), (0, 0))) if missing else weight
    blocks = num_inputs // BLOCK_K
    if weight.dtype == np.int8:
        tiles = padded.reshape(-1, 2, 8, blocks, 4, 2, 2, 2).transpose(0, 3, 2, 4, 1, 5, 7, 6)
        return np.ascontiguousarray(tiles)
    tiles = padded.reshape(-1, 2, 8, blocks, BLOCK_K)
    return np.ascontiguousarray(tiles.transpose(0, 3, 1, 2, 4))


def interleaved(stacked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[gate; up] → tiles of 16 outputs, a tile of the gate before its tile of the up projection."""
    halves = stacked.reshape(2, -1, TILE, *stacked.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(0, 1)).reshape(stacked.shape)


def upload(gpu: Gpu, values: np.ndarray[Any, Any]) -> Array:
    """Return a copy on the device."""
    target = gpu.empty(values.nbytes).view(values.dtype).reshape(values.shape)
    gpu.write(target, np.ascontiguousarray(values))
    return target
