"""What a pass must cost at least: bytes over a copy's speed, or products over the units' speed.

Both speeds are measured on the device, by our own kernels. An operation costs the larger of the
two; a pass costs the sum of its operations. Needs NumPy alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from worker.backends.gpu import Gpu

FLOPS_A_ROUND = 2 * 2 * 64 * 256 * 16
"""Of a block of kernels/ceilings.cu: two groups, a product and a sum counted apart."""
REPEAT = 10


class Shape(NamedTuple):
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    is_tied: bool


class Operation(NamedTuple):
    num_bytes: float
    flops: float


class Speeds(NamedTuple):
    """Measured: bytes per second of a copy, reads and writes; operations per second of products."""

    bandwidth: float
    matrix_rate: float
    """Of the fastest instruction there is."""
    mma_rate: float
    """Of the one that the kernels use."""

    def floor(self, operations: Iterable[Operation]) -> float:
        """Return the seconds that no kernel can beat."""
        return sum(max(n / self.bandwidth, f / self.matrix_rate) for n, f in operations)


def linears(shape: Shape) -> list[tuple[int, int]]:
    """Return (outputs, inputs) of a layer's linears."""
    heads = shape.num_heads * shape.head_dim
    qkv = heads + 2 * shape.num_kv_heads * shape.head_dim
    hidden, inner = shape.hidden_size, shape.intermediate_size
    return [(qkv, hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)]


def layer_weights(shape: Shape) -> int:
    """Return how many weights a token of a prompt is multiplied with: all but the head."""
    return shape.num_layers * sum(n * k for n, k in linears(shape))


def decode_operations(
    shape: Shape, batch: int, context: int, weight_bytes: float, kv_bytes: float
) -> list[Operation]:
    """Return what a token of each of `batch` sequences takes, `context` tokens after their first.

    weight_bytes: of one weight; kv_bytes: of one token, in all layers.
    """
    head = (shape.vocab_size, shape.hidden_size)
    each = [
        Operation(n * k * weight_bytes, 2.0 * n * k * batch) for n, k in [*linears(shape), head]
    ]
    seen = batch * (context + 1)
    flops = 4.0 * seen * shape.num_heads * shape.head_dim
    attention = Operation(seen * kv_bytes / shape.num_layers, flops)
    return [*(each[:-1] + [attention]) * shape.num_layers, each[-1]]


def prefill_flops(shape: Shape, tokens: int) -> float:
    """Return the products of a prompt: linears, the causal half of attention, one row of logits."""
    pairs = tokens * (tokens + 1) / 2
    attention = 4.0 * pairs * shape.num_heads * shape.head_dim * shape.num_layers
    return 2.0 * (layer_weights(shape) * tokens + shape.vocab_size * shape.hidden_size) + attention


def matrix_rate(gpu: Gpu, form: str, num_blocks: int, rounds: int) -> float:
    """Return operations per second of a kernel of ceilings.cu; 0 where the chip has no such.

    form: mma or wgmma. Whoever wrote nothing did nothing, whoever wrote wrong sums raises.
    """
    out = gpu.empty(num_blocks * 256 * 4).view(np.float32)
    gpu.write(out, np.zeros(num_blocks * 256, np.float32))
    best = float("inf")
    for _ in range(REPEAT):
        begin = time.perf_counter()
        gpu.launch(f"matrix_rate_{form}", (num_blocks,), 256, (out, np.int32(rounds)))
        gpu.read(out[:1])
        best = min(best, time.perf_counter() - begin)
    sums = gpu.read(out)
    if not sums.any():
        return 0.0
    if (sums != 128 * 16 * rounds).any():
        raise ValueError(f"matrix_rate_{form}: sums are {sums[:4]}, not {128 * 16 * rounds}")
    return num_blocks * rounds * FLOPS_A_ROUND / best


def copy_bandwidth(gpu: Gpu, num_bytes: int) -> float:
    """Return bytes per second of a copy on the device, reads and writes counted."""
    chunks = num_bytes // 16
    arena = gpu.empty(2 * num_bytes)
    copies = gpu.empty(8).view(np.int32)
    gpu.write(copies, np.array([0, 1], np.int32))
    pages = 1 << 14  # as pages of one plane: many small copies at once
    sizes = (np.int32(2 * pages), np.int32(chunks // pages))
    pairs = gpu.empty(8 * pages).view(np.int32)
    ends = np.stack([np.arange(pages), np.arange(pages) + pages], axis=1)
    gpu.write(pairs, ends.astype(np.int32).reshape(-1))
    best = 1e9
    for _ in range(REPEAT):
        begin = time.perf_counter()
        gpu.launch("page_copy", (pages, 1), 128, (arena, pairs, *sizes))
        gpu.read(copies)
        best = min(best, time.perf_counter() - begin)
    return 2 * num_bytes / best


def measured(gpu: Gpu, copy_bytes: int, num_blocks: int, rounds: int) -> Speeds:
    """Measure a device; `num_blocks` of `rounds` products each fill it many times over."""
    mma_rate = matrix_rate(gpu, "mma", num_blocks, rounds)
    fastest = max(mma_rate, matrix_rate(gpu, "wgmma", num_blocks, rounds))
    return Speeds(copy_bandwidth(gpu, copy_bytes), fastest, mma_rate)
