"""Decoding as one graph launch: every sequence brings one token, padded to one of a few sizes.

A graph remembers addresses and sizes. So its inputs and buffers lie in an arena of their own, which
never grows after the largest step was tried; a padded row has no tile, reads token 0, and writes
its key to a spare block. Anything else runs launch by launch, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from worker.backends.cuda_step import MAX_AT_ONCE, CudaStep, HostTiles, cut, upload_step
from worker.backends.gpu import Arena, Gpu
from worker.batch import Batch
from worker.kernels.checks import Ints
from worker.kernels.structs import SPLIT

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of a graph."""

Forward = Callable[[Arena, CudaStep], Any]
"""Launches a pass over a step, with buffers of an arena; what it returns stays on the device."""


def parts_per_block(block_size: int) -> float:
    """Return how much the room for parts of attention grows with every block of a cache."""
    return block_size / SPLIT


class DecodeGraphs:
    """The graphs of one runner, captured when they are first needed."""

    def __init__(
        self, gpu: Gpu, forward: Forward, group: int, num_blocks: int, block_size: int, width: int
    ) -> None:
        """Block `num_blocks` is the spare one; `width` is the length of the longest block table."""
        self._gpu = gpu
        self._forward = forward
        self._group = group
        self._spare_cell = num_blocks * block_size
        self._block_size = block_size
        self._width = width
        most_rows = min(num_blocks, BUCKETS[-1])  # each has a block of its own
        self._largest = next(size for size in BUCKETS if size >= most_rows)
        self._max_parts = num_blocks * block_size // SPLIT + self._largest
        self._arena = Arena(gpu)
        self._graphs: dict[tuple[int, int], tuple[Callable[[], None], Any]] = {}

    @property
    def num_bytes(self) -> int:
        return self._arena.num_bytes

    def reserve(self) -> None:
        """Try the largest step once, so that no buffer moves afterwards."""
        tiles = HostTiles(
            np.zeros((self._largest, 4), np.int32),
            np.zeros(self._largest, np.int32),
            self._max_parts,
            MAX_AT_ONCE,
        )
        empty = self._padded(None, self._largest)
        self._forward(self._arena, self._upload(empty, tiles))

    def run(self, batch: Batch) -> Any | None:
        """Return what the pass has returned, for the rows of a bucket; None when no graph fits."""
        count = len(batch.token_ids)
        if not self._fits(batch, count):
            return None
        bucket = next(size for size in BUCKETS if size >= count)
        tiles = cut(batch, np.arange(count), self._group, 1)
        if tiles.num_parts > self._max_parts:
            return None
        at_once = 1 << (tiles.most_parts - 1).bit_length()
        missing = bucket - count
        padded = HostTiles(
            np.pad(tiles.tiles, ((0, missing), (0, 0))),
            np.pad(tiles.offsets, (0, missing)),
            self._max_parts,
            at_once,
        )
        step = self._upload(self._padded(batch, bucket), padded)
        key = (bucket, at_once)
        if key not in self._graphs:
            self._graphs[key] = self._capture(step)
        replay, outs = self._graphs[key]
        replay()
        return outs

    def _fits(self, batch: Batch, count: int) -> bool:
        return (
            0 < count <= self._largest
            and len(batch.query_starts) == count + 1
            and len(batch.logit_rows) == count
            and not len(batch.state_rows)
            and batch.block_tables.shape[1] <= self._width
        )

    def _capture(self, step: CudaStep) -> tuple[Callable[[], None], Any]:
        taken: list[Any] = []
        before = self._arena.num_allocations
        replay = self._gpu.capture(lambda: taken.append(self._forward(self._arena, step)))
        assert self._arena.num_allocations == before, "a captured step has moved a buffer"
        return replay, taken[0]

    def _upload(self, batch: Batch, tiles: HostTiles) -> CudaStep:
        none = HostTiles(np.zeros((0, 4), np.int32), np.zeros(0, np.int32), 0, 0)
        owners = np.arange(len(batch.token_ids), dtype=np.int32)
        return upload_step(self._arena, batch, owners, tiles, none)

    def _padded(self, batch: Batch | None, bucket: int) -> Batch:
        count = 0 if batch is None else len(batch.token_ids)
        tables = np.zeros((bucket, self._width), np.int32)
        if batch is not None:
            tables[:count, : batch.block_tables.shape[1]] = batch.block_tables
        none = np.zeros(0, np.int32)
        rest = bucket - count

        def column(values: Ints | None, filler: int) -> Ints:
            known = none if values is None else values
            return np.concatenate([known, np.full(rest, filler, np.int32)])

        return Batch(
            token_ids=column(batch and batch.token_ids, 0),
            positions=column(batch and batch.positions, 0),
            cells=column(batch and batch.cells, self._spare_cell),
            query_starts=np.arange(bucket + 1, dtype=np.int32),
            block_tables=tables,
            logit_rows=np.arange(bucket, dtype=np.int32),
            state_rows=none,
            block_size=self._block_size,
        )
