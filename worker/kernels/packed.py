"""Weights as the C++ linears take them: packed once at load, addressed for ever.

Knows the layouts of `linear.h` and the dtypes of a checkpoint. Knows no model.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from worker.errors import KernelError, NotFinite
from worker.kernels.checks import F32, Bytes, Floats, Stored, joined, to_float32
from worker.kernels.library import Level, Library

PANEL = 16
BLOCK = 32


class Format(IntEnum):
    """How values are stored; as in `types.h`."""

    F32 = 0
    BF16 = 1
    F16 = 2
    INT8 = 3
    INT4 = 4


def groups_of(form: Format) -> tuple[int, ...]:
    """Return how many inputs may share a scale, most wanted first.

    INT8 has one scale per output, so only its activations share one: larger groups are less work,
    and 256 instead of 128 made the error of logits up to 7 % larger and lost no answer of the demo
    model. INT4 has scales of its weights as well.
    """
    return (256, 128, 64) if form is Format.INT8 else (128, 64)


STORED_FORMATS = {
    np.dtype(np.float32): Format.F32,
    np.dtype(np.uint16): Format.BF16,
    np.dtype(np.float16): Format.F16,
}
BITS = {Format.F32: 32, Format.BF16: 16, Format.F16: 16, Format.INT8: 8, Format.INT4: 4}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a packed linear of N outputs from K inputs."""

    num_inputs: int
    num_outputs: int
    format: Format
    group: int = 128

    @property
    def padded_inputs(self) -> int:
        """Inputs filled up to whole blocks, or groups."""
        unit = self.group if self.format in (Format.INT8, Format.INT4) else BLOCK
        return -(-self.num_inputs // unit) * unit

    @property
    def padded_outputs(self) -> int:
        return -(-self.num_outputs // PANEL) * PANEL

    @property
    def weight_bytes(self) -> int:
        return self.padded_outputs * self.padded_inputs * BITS[self.format] // 8

    @property
    def scale_bytes(self) -> int:
        """float32 per output for int8; bfloat16 per output and group for int4."""
        if self.format is Format.INT8:
            return self.padded_outputs * 4
        if self.format is Format.INT4:
            return self.padded_outputs * self.padded_inputs // self.group * 2
        return 0

    @property
    def scratch_width(self) -> int:
        """Floats of scratch memory that one row takes, at the level that takes most."""
        if self.format not in (Format.INT8, Format.INT4):
            return self.padded_inputs
        size = self.padded_inputs * 2 + self.padded_inputs // self.group * 8
        return -(-size // 64) * 16

    @property
    def scratch_rest(self) -> int:
        """Bytes of scratch memory beside the rows: tiles have 16 rows, however few there are."""
        return 16 * self.padded_inputs * 2


@dataclass(eq=False, slots=True)
class PackedWeight:
    """Panels, scales (empty for floats) and bias of a linear, see `linear.h`.

    While a model is loaded the arrays may lie elsewhere, or nowhere yet (`PackedCache`).
    """

    shape: Shape
    weight: Bytes
    scales: Bytes
    bias: Floats | None

    @property
    def num_bytes(self) -> int:
        bias = 0 if self.bias is None else self.bias.nbytes
        return self.shape.weight_bytes + self.shape.scale_bytes + bias


class PackArguments(ctypes.Structure):
    """As in `linear_pack.cpp`."""

    _fields_ = [
        ("rows", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("source_format", "num_rows", "num_inputs")),
        *((name, ctypes.c_void_p) for name in ("weight", "scales")),
        *((name, ctypes.c_int64) for name in ("format", "group", "first")),
    ]


def stored_format(operator: str, name: str, array: Stored) -> Format:
    """Return the format of a checkpoint's array, or raise KernelError."""
    found = STORED_FORMATS.get(array.dtype)
    if found is None:
        raise KernelError(f"{operator}: {name} has dtype {array.dtype}, expected a float format")
    return found


def shape_of(weights: Sequence[Stored], wanted: Format) -> Shape:
    """Check weights [Ni, K] that are to be stacked; raise KernelError.

    Groups have the first size of `groups_of` that leaves the fewest inputs to fill up.
    """
    num_inputs = weights[0].shape[1]
    for weight in weights:
        stored_format("linear", "weight", weight)
        if weight.ndim != 2 or weight.shape[1] != num_inputs:
            raise KernelError(
                f"linear: weight has shape {weight.shape}, expected (n, {num_inputs})"
            )
    group = min(groups_of(wanted), key=lambda size: -num_inputs % size)
    return Shape(num_inputs, sum(weight.shape[0] for weight in weights), wanted, group)


def pack_weight(
    library: Library,
    pool: int,
    level: Level,
    weights: Sequence[Stored],
    biases: Sequence[Stored],
    shape: Shape,
) -> PackedWeight:
    """Stack weights [Ni, K] and biases [Ni] along their outputs and pack them; raise NotFinite."""
    if any(weight.shape[0] % PANEL for weight in weights[:-1]):
        weights = [joined(weights)]  # no part but the last may end inside a panel
    packed, scales = aligned_bytes(shape.weight_bytes), aligned_bytes(shape.scale_bytes)
    first = 0
    for weight in map(np.ascontiguousarray, weights):
        arguments = PackArguments(
            weight.ctypes.data,
            stored_format("linear", "weight", weight),
            *weight.shape,
            packed.ctypes.data,
            scales.ctypes.data,
            shape.format,
            shape.group,
            first,
        )
        library.pack(pool, level, ctypes.addressof(arguments))
        first += weight.shape[0]
    _check_scales(scales, shape)
    return PackedWeight(shape, packed, scales, pack_bias(biases, shape))


def _check_scales(scales: Bytes, shape: Shape) -> None:
    """Raise NotFinite for a weight that integers cannot tell: its group's scale is not finite."""
    stored = np.float32 if shape.format is Format.INT8 else np.uint16
    if not np.isfinite(to_float32(scales.view(stored))).all():
        raise NotFinite


def pack_bias(biases: Sequence[Stored], shape: Shape) -> Floats | None:
    """Return biases as float32, filled up to whole panels; raise KernelError."""
    if not biases:
        return None
    whole = np.concatenate([to_float32(bias) for bias in biases])
    if whole.shape != (shape.num_outputs,):
        raise KernelError(f"linear: bias has shape {whole.shape}, expected ({shape.num_outputs},)")
    bias = np.zeros(shape.padded_outputs, F32)
    bias[: shape.num_outputs] = whole
    return bias


def aligned_bytes(num_bytes: int, alignment: int = 64) -> Bytes:
    """Return uninitialised memory whose address is a multiple of `alignment`."""
    raw = np.empty(num_bytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + num_bytes]
