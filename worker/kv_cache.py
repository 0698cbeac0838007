"""KvCache: the arrays that hold keys and values, in blocks of some tokens.

Knows sizes and bytes. Who owns which block is the scheduler's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from protos import worker as wire
from worker.arena import Arena, Piece
from worker.kernels.checks import Bytes
from worker.models.config import ModelConfig

BLOCK_SIZES = {"block": 16, "slot": 1, "static": 16}
"""Tokens per block, by layout."""
DTYPES: dict[str, type[np.generic]] = {"float32": np.float32, "bfloat16": np.uint16}
"""NumPy has no bfloat16: its bits stand in integers."""


class LayerPages(NamedTuple):
    """[num_blocks, block_size, num_kv_heads, head_dim] each, float32 or bfloat16.

    The order inside a block is the backend's (`kernels/pages.py`); blocks move as bytes.
    """

    keys: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]


def block_bytes(config: ModelConfig, block_size: int, dtype: str = "float32") -> int:
    """Return the bytes of one block over all layers, keys and values."""
    return 2 * config.num_layers * block_size * config.kv_size * np.dtype(DTYPES[dtype]).itemsize


def kv_pieces(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: str = "float32"
) -> list[Piece]:
    """Return the keys and values of every layer, one after the other."""
    shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
    return [Piece(shape, DTYPES[dtype])] * (2 * config.num_layers)


class KvCache:
    """One pair of arrays per layer."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        arena: Arena,
        dtype: str = "float32",
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        pieces = kv_pieces(config, num_blocks, block_size, dtype)
        sides = [arena.take("kv", piece) for piece in pieces]
        self.layers: Sequence[LayerPages] = [
            LayerPages(*sides[i : i + 2]) for i in range(0, len(sides), 2)
        ]

    def read(self, block_ids: Sequence[int], outs: Sequence[Bytes]) -> None:
        """Copy blocks out of all layers, each to uint8 [block_bytes]."""
        for block_id, out in zip(block_ids, outs, strict=True):
            start = 0
            for part in self._parts(block_id):
                out[start : start + part.nbytes] = part.reshape(-1).view(np.uint8)
                start += part.nbytes

    def write(self, block_ids: Sequence[int], contents: Sequence[Bytes]) -> None:
        """Fill blocks of all layers with what `read` has given."""
        for block_id, content in zip(block_ids, contents, strict=True):
            start = 0
            for part in self._parts(block_id):
                part.reshape(-1).view(np.uint8)[:] = content[start : start + part.nbytes]
                start += part.nbytes

    def _parts(self, block_id: int) -> Iterator[np.ndarray[Any, Any]]:
        return (side[block_id] for layer in self.layers for side in layer)

    def copy(self, copies: Sequence[wire.BlockCopy]) -> None:
        """Copy whole blocks, in order; raise IndexError for a block that does not exist."""
        for run in _runs(copies):
            sources, targets = np.array(run).T
            if (
                min(sources.min(), targets.min()) < 0
                or max(sources.max(), targets.max()) >= self.num_blocks
            ):
                raise IndexError(f"copies {run} outside 0..{self.num_blocks - 1}")
            for layer in self.layers:
                for pages in layer:
                    pages[targets] = pages[sources]


def _runs(copies: Sequence[wire.BlockCopy]) -> Iterator[list[tuple[int, int]]]:
    """Cut `copies` into runs that may each be done at once: none reads or writes what one before
    it has written."""
    run: list[tuple[int, int]] = []
    written: set[int] = set()
    for copy in copies:
        if copy.source in written or copy.target in written:
            yield run
            run, written = [], set()
        run.append((copy.source, copy.target))
        written.add(copy.target)
    if run:
        yield run
