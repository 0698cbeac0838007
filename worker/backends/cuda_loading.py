"""Weights on their way to a GPU: a strip is sent while the next one is read and packed.

A thread reads rows where they lie in their file and packs them, one strip ahead of the sender. So
the host holds a few strips at a time, whatever the size of the model. Knows packing; no file.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple

import numpy as np

from worker.backends.cuda_weights import (
    BLOCK_K,
    STORAGE,
    TILE,
    CudaLinear,
    interleaved,
    pack_tiles,
    quantized,
    to_storage,
)
from worker.backends.gpu import Array, Gpu
from worker.errors import KernelError
from worker.kernels.checks import Stored, joined, to_float32

STRIP_BYTES = 16 << 20
"""Of float32, as large as any step of packing makes of it."""


class Plan(NamedTuple):
    """How a linear is packed: its weights one below the other, [Ni, K] each."""

    weights: Sequence[Stored]
    dtype: str
    is_int8: bool
    is_gated: bool

    @property
    def num_inputs(self) -> int:
        return int(self.weights[0].shape[1])

    @property
    def num_outputs(self) -> int:
        return sum(len(weight) for weight in self.weights)

    @property
    def strip(self) -> int:
        """Outputs of a strip: whole tiles of a gate and of what is beside it."""
        step = 2 * TILE
        return max(step, STRIP_BYTES // (4 * self.num_inputs) // step * step)


class Loading:
    """What is still to be sent; `finish` sends it. Counts seconds by what they went for."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._strips: list[Iterator[tuple[Array, Stored]]] = []
        self.seconds: dict[str, float] = defaultdict(float)
        """read and pack in a thread, send beside them."""

    def linear(
        self, dtype: str, weights: Sequence[Stored], biases: Sequence[Stored], is_int8: bool
    ) -> CudaLinear:
        """Give a linear its place on the device; its weights are there after `finish`.

        Two weights of one shape are a gate and an up projection, and interleaved. dtype: of the
        activations, and of weights that are not to be int8. Raises KernelError, MemoryError.
        """
        is_gated = dtype != "f32" and len(weights) == 2 and weights[0].shape == weights[1].shape
        is_gated = is_gated and len(weights[0]) % TILE == 0
        plan = Plan(weights, dtype, is_int8, is_gated)
        num_outputs, num_inputs = plan.num_outputs, plan.num_inputs
        if dtype != "f32" and num_inputs % BLOCK_K:
            raise KernelError(f"linear: {num_inputs} inputs, the CUDA kernels take multiples of 32")
        num_padded = num_outputs if dtype == "f32" else -(-num_outputs // TILE) * TILE
        kind = np.dtype(np.int8 if is_int8 else STORAGE[dtype])
        place = self._gpu.empty(num_padded * num_inputs * kind.itemsize).view(kind)
        weight = place.reshape(num_padded, num_inputs)
        scale = self._vector(num_padded) if is_int8 else None
        self._strips.append(self._pack(plan, weight, scale))
        bias = self._vector(num_padded) if biases else None
        if bias is not None:
            self._strips.append(iter([(bias, _bias(biases, num_padded, is_gated))]))
        return CudaLinear(weight, scale, bias, num_inputs, num_outputs, num_padded, is_gated)

    def _vector(self, length: int) -> Array:
        return self._gpu.empty(4 * length).view(np.float32)

    def _pack(
        self, plan: Plan, weight: Array, scale: Array | None
    ) -> Iterator[tuple[Array, Stored]]:
        for start in range(0, plan.num_outputs, plan.strip):
            begin = time.perf_counter()
            rows = _rows(plan, start, min(start + plan.strip, plan.num_outputs))
            middle = time.perf_counter()
            values, scales = _packed(rows, plan)
            self.seconds["read"] += middle - begin
            self.seconds["pack"] += time.perf_counter() - middle
            target = weight[start : start + values.size // plan.num_inputs]
            yield target, values.reshape(target.shape)
            if scale is not None and scales is not None:
                yield scale[start : start + len(scales)], scales

    def finish(self) -> None:
        """Send all that was promised; whatever goes wrong with it is raised here."""
        if not self._strips:
            return
        strips = chain.from_iterable(self._strips)
        with ThreadPoolExecutor(1, "pack") as thread:
            ahead = thread.submit(next, strips, None)
            while (strip := ahead.result()) is not None:
                ahead = thread.submit(next, strips, None)
                begin = time.perf_counter()
                self._gpu.write(*strip)
                self.seconds["send"] += time.perf_counter() - begin
                del strip  # or it would be held while the next one is awaited
        self._strips.clear()


def _rows(plan: Plan, start: int, stop: int) -> Stored:
    """Copy the rows that become outputs `start` to `stop`; those of a gate before the others."""
    if plan.is_gated:
        return joined([weight[start // 2 : stop // 2] for weight in plan.weights])
    parts, first = [], 0
    for weight in plan.weights:
        part = weight[max(0, start - first) : max(0, stop - first)]
        parts.append(part)
        first += len(weight)
    return joined([part for part in parts if len(part)])


def _packed(rows: Stored, plan: Plan) -> tuple[Stored, Stored | None]:
    """Return rows in the kernels' layout, padded to tiles, and the scales of int8."""
    scales: Stored | None = None
    if plan.is_int8:
        values, scales = quantized(to_float32(rows))
    elif (rows.dtype, plan.dtype) in ((np.uint16, "bf16"), (np.float16, "f16")):
        values = rows.view(np.uint16)
    else:
        values = to_storage(to_float32(rows), plan.dtype)
    if plan.dtype == "f32":
        return values, scales
    if scales is not None:
        scales = np.pad(scales, (0, -len(scales) % TILE))
        scales = interleaved(scales) if plan.is_gated else scales
    return pack_tiles(interleaved(values) if plan.is_gated else values), scales


def _bias(biases: Sequence[Stored], num_padded: int, is_gated: bool) -> Stored:
    stacked = np.concatenate([to_float32(bias) for bias in biases])
    padded = np.pad(stacked, (0, num_padded - len(stacked)))
    return interleaved(padded) if is_gated else padded
