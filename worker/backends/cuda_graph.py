"""Decoding as one graph launch: every sequence brings one token, padded to one of a few sizes.

A graph remembers addresses and sizes. So its inputs and buffers lie in a scratch of their own,
which never grows after the largest step was tried; a padded row has no tile, reads token 0, and
writes its key to a spare block. Anything else runs launch by launch, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from worker.backends.cuda_step import (
    INPUTS,
    MAX_AT_ONCE,
    CudaStep,
    HostStep,
    HostTiles,
    upload_step,
)
from worker.backends.gpu import Gpu, Graphs, Scratch
from worker.batch import Batch
from worker.kernels.structs import SPLIT

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of a graph."""

Forward = Callable[[Scratch, CudaStep], Any]
"""Launches a pass over a step, with buffers of a scratch; what it returns stays on the device."""


class DecodeGraphs:
    """The graphs of one runner, captured when they are first needed."""

    def __init__(
        self, gpu: Gpu, forward: Forward, num_blocks: int, block_size: int, width: int
    ) -> None:
        """Block `num_blocks` is the spare one; `width` is the length of the longest block table."""
        self._forward = forward
        self._spare_cell = num_blocks * block_size
        self._block_size = block_size
        self._width = width
        most_rows = min(num_blocks, BUCKETS[-1])  # each has a block of its own
        self._largest = next(size for size in BUCKETS if size >= most_rows)
        self._max_parts = num_blocks * block_size // SPLIT + self._largest
        self._scratch = Scratch(gpu)
        self._graphs = Graphs[Any](gpu, self._scratch)

    @property
    def num_bytes(self) -> int:
        return self._scratch.num_bytes

    def reserve(self) -> None:
        """Try the largest step once, so that no buffer moves afterwards."""
        step = self._inputs(None, self._largest, MAX_AT_ONCE)
        self._forward(self._scratch, upload_step(self._scratch, step))

    def run(self, batch: Batch) -> Any | None:
        """Return what the pass has returned, for the rows of a bucket; None when no graph fits."""
        count = len(batch.token_ids)
        if not self._fits(batch, count):
            return None
        parts = batch.positions // SPLIT + 1
        if int(parts.sum()) > self._max_parts:
            return None
        bucket = next(size for size in BUCKETS if size >= count)
        at_once = 1 << (min(int(parts.max()), MAX_AT_ONCE) - 1).bit_length()
        step = self._inputs(batch, bucket, at_once)
        key = (bucket, at_once)
        if key in self._graphs:
            self._scratch.write_all(INPUTS, step.arrays())
        else:
            on_device = upload_step(self._scratch, step)
            if not self._graphs.make(key, partial(self._forward, self._scratch, on_device)):
                return None
        return self._graphs.replay(key)

    def _fits(self, batch: Batch, count: int) -> bool:
        return (
            0 < count <= self._largest
            and len(batch.query_starts) == count + 1
            and len(batch.logit_rows) == count
            and not len(batch.state_rows)
            and batch.block_tables.shape[1] <= self._width
        )

    def _inputs(self, batch: Batch | None, bucket: int, at_once: int) -> HostStep:
        """Pad a batch to `bucket` rows.

        Block tables are as wide as rows of `at_once` parts need them.
        """
        width = self._width
        if at_once < MAX_AT_ONCE:
            width = min(width, at_once * SPLIT // self._block_size)
        columns, tables = np.zeros((3, bucket), np.int32), np.zeros((bucket, width), np.int32)
        tiles, offsets = np.zeros((bucket, 4), np.int32), np.zeros(bucket, np.int32)
        rows, none = np.arange(bucket, dtype=np.int32), np.zeros(0, np.int32)
        columns[2] = self._spare_cell
        if batch is not None:
            count = len(batch.token_ids)
            columns[:, :count] = batch.token_ids, batch.positions, batch.cells
            tables[:count, : batch.block_tables.shape[1]] = batch.block_tables
            tiles[:count, 0] = tiles[:count, 1] = rows[:count]  # one of its own for each row
            tiles[:count, 2] = 1
            tiles[:count, 3] = batch.positions
            np.cumsum(batch.positions[:-1] // SPLIT + 1, out=offsets[1:count])
        padded = Batch(
            token_ids=columns[0],
            positions=columns[1],
            cells=columns[2],
            query_starts=np.arange(bucket + 1, dtype=np.int32),
            block_tables=tables,
            logit_rows=rows,
            state_rows=none,
            block_size=self._block_size,
        )
        decode = HostTiles(tiles, offsets, self._max_parts, at_once)
        prefill = HostTiles(np.zeros((0, 4), np.int32), none, 0, 0)
        return HostStep(padded, rows, decode, prefill)
