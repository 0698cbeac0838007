"""Weights on a GPU, in the one layout that all kernels read: see worker/kernels/linear.cu.

Knows dtypes and packing; no operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worker.backends.gpu import Array, Gpu
from worker.errors import KernelError
from worker.kernels.checks import Floats

TILE = 16
BLOCK_K = 32
STORAGE = {"f32": np.float32, "bf16": np.uint16, "f16": np.uint16}


@dataclass(frozen=True, slots=True)
class CudaLinear:
    """weight [N, K]: packed tiles of 16-bit floats, or rows of float32; bias float32 [N]."""

    weight: Array
    bias: Array | None
    num_inputs: int
    num_outputs: int
    """As the model has it."""
    num_padded: int
    """A multiple of 16; the rest is zeros."""
    is_gated: bool
    """Two halves, tile beside tile: a gate and an up projection."""


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
    if dtype == "f32":
        return stored
    if dtype == "f16":
        return stored.view(np.float16).astype(np.float32)
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


def pack_tiles(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[N, K] → [N / 16, K / 32, 2 halves of 8 outputs, 8 outputs, 4 * 8 inputs]."""
    num_outputs, num_inputs = weight.shape
    if num_inputs % BLOCK_K:
        raise KernelError(f"linear: {num_inputs} inputs, the CUDA kernels take multiples of 32")
    missing = -num_outputs % TILE
    padded = np.pad(weight, ((0, missing), (0, 0))) if missing else weight
    tiles = padded.reshape(-1, 2, 8, num_inputs // BLOCK_K, BLOCK_K)
    return np.ascontiguousarray(tiles.transpose(0, 3, 1, 2, 4))


def pack_linear(
    gpu: Gpu, dtype: str, weights: Sequence[Floats], biases: Sequence[Floats]
) -> CudaLinear:
    """Stack weights [Ni, K]; two of one shape are a gate and an up projection, and interleaved."""
    num_outputs = sum(len(weight) for weight in weights)
    is_gated = dtype != "f32" and len(weights) == 2 and weights[0].shape == weights[1].shape
    is_gated = is_gated and len(weights[0]) % TILE == 0
    bias = np.concatenate(biases) if biases else None
    if dtype == "f32":
        packed: np.ndarray[Any, Any] = np.concatenate(weights)
        num_padded = num_outputs
    else:
        stored = to_storage(np.concatenate(weights), dtype)
        packed = pack_tiles(_interleaved(stored) if is_gated else stored)
        num_padded = len(packed) * TILE
        if bias is not None:
            bias = _interleaved(bias) if is_gated else np.pad(bias, (0, num_padded - num_outputs))
    return CudaLinear(
        weight=upload(gpu, packed),
        bias=None if bias is None else upload(gpu, bias),
        num_inputs=weights[0].shape[1],
        num_outputs=num_outputs,
        num_padded=num_padded,
        is_gated=is_gated,
    )


def _interleaved(stacked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[gate; up] → tiles of 16 outputs, a tile of the gate before its tile of the up projection."""
    halves = stacked.reshape(2, -1, TILE, *stacked.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(0, 1)).reshape(stacked.shape)


def upload(gpu: Gpu, values: np.ndarray[Any, Any]) -> Array:
    """Return a copy on the device."""
    target = gpu.empty(values.nbytes).view(values.dtype).reshape(values.shape)
    gpu.write(target, np.ascontiguousarray(values))
    return target
