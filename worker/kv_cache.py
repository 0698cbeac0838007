"""KvCache: the arrays that hold keys and values, in blocks of some tokens.

Knows sizes and bytes. Who owns which block is the scheduler's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from protos import worker as wire
from worker.arena import Arena, Piece
from worker.kernels.checks import Floats
from worker.models.config import ModelConfig

BLOCK_SIZES = {"block": 16, "slot": 1, "static": 16}
"""Tokens per block, by layout."""
DTYPE = np.float32
"""The CPU reference keeps float32, whatever dtype the weights are stored in."""


class LayerPages(NamedTuple):
    """float32 [num_blocks, block_size, num_kv_heads, head_dim] each."""

    keys: Floats
    values: Floats


def block_bytes(config: ModelConfig, block_size: int) -> int:
    """Return the bytes of one block over all layers, keys and values."""
    return 2 * config.num_layers * block_size * config.kv_size * np.dtype(DTYPE).itemsize


def kv_pieces(config: ModelConfig, num_blocks: int, block_size: int) -> list[Piece]:
    """Return the keys and values of every layer, one after the other."""
    shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
    return [Piece(shape, DTYPE)] * (2 * config.num_layers)


class KvCache:
    """One pair of arrays per layer."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, arena: Arena) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        sides = [arena.take("kv", piece) for piece in kv_pieces(config, num_blocks, block_size)]
        self.layers = [LayerPages(*sides[i : i + 2]) for i in range(0, len(sides), 2)]

    def copy(self, copies: Sequence[wire.BlockCopy]) -> None:
        """Copy whole blocks, in order; raise IndexError for a block that does not exist."""
        for copy in copies:
            if not (0 <= copy.source < self.num_blocks and 0 <= copy.target < self.num_blocks):
                raise IndexError(f"copy {copy} outside 0..{self.num_blocks - 1}")
            for layer in self.layers:
                for pages in layer:
                    pages[copy.target] = pages[copy.source]
