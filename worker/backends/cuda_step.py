"""The inputs of one step on a GPU: token ids, cells, tables, and the tiles that attention works on.

A tile is up to 16 rows, (token, query head) of one key head; see worker/kernels/paged_attention.cu.
Sequences with few new tokens go by parts of their keys, the others by tiles, with equal bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from worker.backends.gpu import Array, Scratch
from worker.batch import SHORT_RUN, Batch
from worker.kernels.checks import Ints
from worker.kernels.structs import SPLIT, TILE_ROWS, WARPS

INPUTS = "inputs"
MAX_AT_ONCE = 64
"""Parts of a tile that run beside each other."""


class Tiles(NamedTuple):
    """int32 [n, 4] {sequence, first token, number of tokens, first position} on the device."""

    tiles: Array
    offsets: Array
    """int32 [n]: how many parts stand before those of tile i; only for decode."""
    num_tiles: int
    num_parts: int
    most_parts: int
    """Of any tile, and at most MAX_AT_ONCE."""


class CudaStep(NamedTuple):
    """One batch on the device, ready for every layer; arrays as in `Batch`."""

    token_ids: Array
    positions: Array
    cells: Array
    owners: Array
    """int32 [T]: row of `tables` of each token."""
    tables: Array
    logit_rows: Array
    state_rows: Array
    decode: Tiles
    prefill: Tiles
    num_tokens: int
    page_shift: int
    """Pages of 1 << page_shift tokens."""
    max_pages: int
    turns: list[Array]
    """cos and sin, float32 [T, D/2, 2]; none until the first layer has made them."""


class HostTiles(NamedTuple):
    """`Tiles` on their way to the device."""

    tiles: Ints
    offsets: Ints
    num_parts: int
    most_parts: int


class HostStep(NamedTuple):
    """`CudaStep` on its way to the device."""

    batch: Batch
    owners: Ints
    decode: HostTiles
    prefill: HostTiles

    def arrays(self) -> list[Ints]:
        """Return what the kernels read, in the order of the buffer INPUTS."""
        batch, tiles = self.batch, (self.decode, self.prefill)
        return [
            batch.token_ids,
            batch.positions,
            batch.cells,
            self.owners,
            batch.block_tables,
            batch.logit_rows,
            batch.state_rows,
            *(array for each in tiles for array in (each.tiles, each.offsets)),
        ]


def make_step(scratch: Scratch, batch: Batch, group: int) -> CudaStep:
    """Upload `batch` in one copy; `group` query heads share a key head."""
    counts = np.diff(batch.query_starts)
    few = counts <= SHORT_RUN
    decode = cut(batch, np.flatnonzero(few), group, 1)
    prefill = cut(batch, np.flatnonzero(~few), group, WARPS)
    owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return upload_step(scratch, HostStep(batch, owners, decode, prefill))


def upload_step(scratch: Scratch, step: HostStep) -> CudaStep:
    """Put all inputs of a step into one buffer of the device."""
    batch = step.batch
    token_ids, positions, cells, owners, tables, logit_rows, state_rows, *tiles = scratch.put_all(
        INPUTS, step.arrays()
    )
    return CudaStep(
        token_ids=token_ids,
        positions=positions,
        cells=cells,
        owners=owners,
        tables=tables,
        logit_rows=logit_rows,
        state_rows=state_rows,
        decode=_tiles(tiles[:2], step.decode),
        prefill=_tiles(tiles[2:], step.prefill),
        num_tokens=len(batch.token_ids),
        page_shift=batch.block_size.bit_length() - 1,
        max_pages=batch.block_tables.shape[1],
        turns=[],
    )


def _tiles(uploaded: list[Array], host: HostTiles) -> Tiles:
    tiles, offsets = uploaded
    return Tiles(tiles, offsets, len(host.tiles), host.num_parts, host.most_parts)


def cut(batch: Batch, sequences: Any, group: int, multiple: int) -> HostTiles:
    """Cut the new tokens of `sequences` into tiles, those of one sequence a `multiple` of."""
    per_tile = TILE_ROWS // group
    rows: list[tuple[int, int, int, int]] = []
    for b in sequences.tolist():
        start, stop = int(batch.query_starts[b]), int(batch.query_starts[b + 1])
        position = int(batch.positions[start])
        rows += [
            (b, token, min(per_tile, stop - token), position + token - start)
            for token in range(start, stop, per_tile)
        ]
        rows += [(b, 0, 0, 0)] * (-len(rows) % multiple)
    tiles: Ints = np.array(rows, np.int32).reshape(-1, 4)
    parts = np.where(tiles[:, 2] > 0, (tiles[:, 3] + tiles[:, 2] - 1) // SPLIT + 1, 0)
    offsets = (np.cumsum(parts) - parts).astype(np.int32)
    at_once = min(int(parts.max(initial=0)), MAX_AT_ONCE)
    return HostTiles(tiles, offsets, int(parts.sum()), at_once)
