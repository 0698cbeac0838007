"""Logits of every position, straight from a loaded model, with any batch, chunking and blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worker.arena import Arena, num_bytes
from worker.batch import Batch
from worker.build import LoadedModel
from worker.kernels.checks import Floats
from worker.kv_cache import KvCache, kv_pieces


class Feeder:
    """Feeds pieces of sequences through the model, over one cache; block tables are given."""

    def __init__(
        self, loaded: LoadedModel, tables: Sequence[Sequence[int]], num_blocks: int
    ) -> None:
        self._loaded = loaded
        pieces = kv_pieces(loaded.config, num_blocks, loaded.block_size, loaded.kv_dtype)
        arena = Arena(num_bytes(pieces))
        self._cache = KvCache(loaded.config, num_blocks, loaded.block_size, arena, loaded.kv_dtype)
        self._forward = loaded.backend.bind(loaded.model, self._cache.layers)
        self._tables = tables
        self._done = [0] * len(tables)

    def feed(self, pieces: dict[int, Sequence[int]]) -> dict[int, Floats]:
        """Compute the next tokens of some sequences in one step; return their logits."""
        ids, positions, cells, starts, tables = [], [], [], [0], []
        size = self._loaded.block_size
        width = max(len(table) for table in self._tables)
        for b, piece in pieces.items():
            span = range(self._done[b], self._done[b] + len(piece))
            self._done[b] = span.stop
            ids += list(piece)
            positions += list(span)
            cells += [self._tables[b][p // size] * size + p % size for p in span]
            starts.append(len(ids))
            tables.append([*self._tables[b], *[0] * (width - len(self._tables[b]))])
        batch = Batch(
            *(np.array(column, np.int32) for column in (ids, positions, cells, starts, tables)),
            logit_rows=np.arange(len(ids), dtype=np.int32),
            state_rows=np.array([], np.int32),
            block_size=size,
        )
        parts = np.split(self._forward(batch).logits.copy(), starts[1:-1])
        return dict(zip(pieces, parts, strict=True))


def alone(loaded: LoadedModel, ids: Sequence[int], chunk: int = 10**9, first: int = 0) -> Floats:
    """Return the logits [len(ids), V] of one sequence by itself, in blocks first, first + 1, …"""
    count = -(-len(ids) // loaded.block_size)
    feeder = Feeder(loaded, [range(first, first + count)], first + count)
    parts = [feeder.feed({0: ids[i : i + chunk]})[0] for i in range(0, len(ids), chunk)]
    return np.concatenate(parts)
