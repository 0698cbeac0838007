"""KvCache: the arrays that hold keys and values, in blocks of some tokens.

Knows sizes and bytes. Who owns which block is the scheduler's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from worker.arena import Arena, Piece
from worker.kernels.checks import Bytes, Ints
from worker.models.config import ModelConfig

if TYPE_CHECKING:  # a GPU's cache needs what is here where there is no msgspec
    from protos import worker as wire

BLOCK_SIZES = {"block": 16, "slot": 1, "static": 16}
"""Tokens per block, by layout."""
DTYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "bfloat16": np.uint16,
    "float16": np.uint16,
}
"""Bits of 16 stand in integers: NumPy has no bfloat16. float16 is a GPU's alone."""


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
        for run in copy_runs(copies, self.num_blocks):
            sources, targets = run.T
            for layer in self.layers:
                for pages in layer:
                    pages[targets] = pages[sources]


def copy_runs(copies: Sequence[wire.BlockCopy], num_blocks: int) -> Iterator[Ints]:
    """Cut `copies` into runs that may each be done at once, [n, 2] of source and target: no target
    is anything else in its run. Raises IndexError for a block that does not exist."""
    run: list[tuple[int, int]] = []
    sources, targets = set[int](), set[int]()
    for copy in copies:
        if not (0 <= copy.source < num_blocks and 0 <= copy.target < num_blocks):
            raise IndexError(f"{copy} outside 0..{num_blocks - 1}")
        if copy.source in targets or copy.target in targets or copy.target in sources:
            yield np.array(run, np.int32)
            run, sources, targets = [], set(), set()
        run.append((copy.source, copy.target))
        sources.add(copy.source)
        targets.add(copy.target)
    if run:
        yield np.array(run, np.int32)
