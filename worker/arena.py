"""Arena: the memory a runner writes to, allocated once at start; nothing is added later.

Knows bytes and purposes. What stands in a piece is its taker's business.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector."""
PAGE = 4096
"""Bytes of memory, which hardware does not fetch across. What is taken first begins with one: the
blocks of the cache."""


class Piece(NamedTuple):
    """The shape of one array, and the type of its elements."""

    shape: tuple[int, ...]
    dtype: type[np.generic]

    @property
    def num_bytes(self) -> int:
        """Bytes it takes of an arena, the gap behind it included."""
        size = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        return -(-size // ALIGNMENT) * ALIGNMENT


def num_bytes(pieces: Iterable[Piece]) -> int:
    """Return the bytes of an arena that holds `pieces` and nothing else."""
    return sum(piece.num_bytes for piece in pieces)


class Arena:
    """`num_bytes` of zeros; the system commits them as they are first written."""

    def __init__(self, num_bytes: int) -> None:
        memory = np.zeros(num_bytes + PAGE, np.uint8)
        first = -memory.ctypes.data % PAGE
        self._memory = memory[first : first + num_bytes]
        self.num_bytes = num_bytes
        self._taken = 0
        self.bytes_by_purpose: Counter[str] = Counter()

    def take(self, purpose: str, piece: Piece) -> np.ndarray[Any, Any]:
        """Return an array of zeros, aligned to ALIGNMENT; raise MemoryError if it lacks room."""
        left = len(self._memory) - self._taken
        if piece.num_bytes > left:
            raise MemoryError(f"{purpose} asks for {piece.num_bytes} bytes, {left} are left of "
                              f"{len(self._memory)}")  # fmt: skip
        start = self._taken
        self._taken += piece.num_bytes
        self.bytes_by_purpose[purpose] += piece.num_bytes
        size = math.prod(piece.shape) * np.dtype(piece.dtype).itemsize
        return self._memory[start : start + size].view(piece.dtype).reshape(piece.shape)
