"""HostTier: copies of evicted blocks in host memory, by key, each with a checksum.

The scheduler keeps the same books (`engine_core/scheduling/host_tier.py`) and says what to store,
load and drop. What is not here, or not what was stored, is never given: it is computed again.
"""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from worker.arena import Piece
from worker.kernels.checks import Bytes


def host_piece(num_blocks: int, block_bytes: int) -> Piece:
    """Return the memory of a tier of `num_blocks`."""
    return Piece((num_blocks, block_bytes), np.uint8)


class BlockStore(Protocol):
    """A cache, on the host or on a GPU, whose blocks can be copied out and back."""

    num_blocks: int

    def read(self, block_ids: Sequence[int], outs: Sequence[Bytes]) -> None: ...
    def write(self, block_ids: Sequence[int], contents: Sequence[Bytes]) -> None: ...


class HostTier:
    """At most as many blocks of `cache` as `memory` has rows; the one used least recently makes
    way."""

    def __init__(self, cache: BlockStore, memory: Bytes) -> None:
        """memory: uint8 [num_blocks, block_bytes]; of a GPU's cache it is pinned."""
        self._cache = cache
        self._memory = memory
        self._free = list(range(len(memory) - 1, -1, -1))
        self._held: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # key → place, checksum
        self.events: Counter[str] = Counter()
        """Blocks stored, loaded and lost, since somebody last cleared it."""

    @property
    def total_bytes(self) -> int:
        """Memory of all places."""
        return int(self._memory.nbytes)

    @property
    def num_bytes(self) -> int:
        """Memory that is in use."""
        return len(self._held) * int(self._memory.shape[1])

    def store(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> int:
        """Copy blocks here; return how many, all but for blocks that do not exist."""
        exist = [0 <= block_id < self._cache.num_blocks for block_id in block_ids]
        count = exist.index(False) if False in exist else len(exist)
        for start in range(0, count, len(self._memory)):  # no more at once than there is room
            stop = min(count, start + len(self._memory))
            self._store(block_ids[start:stop], keys[start:stop])
        return count

    def _store(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> None:
        places: dict[bytes, tuple[int, int]] = {}  # key → block, place
        for block_id, key in zip(block_ids, keys, strict=True):
            if key in self._held:
                self._held.move_to_end(key)
            elif key not in places:
                places[key] = block_id, self._place()
        rows = [self._memory[place] for _, place in places.values()]
        self._cache.read([block_id for block_id, _ in places.values()], rows)
        for (key, (_, place)), row in zip(places.items(), rows, strict=True):
            self._held[key] = place, zlib.crc32(row)
            self.events["stored"] += 1

    def _place(self) -> int:
        return self._free.pop() if self._free else self._held.popitem(last=False)[1][0]

    def load(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> int:
        """Fill blocks; return how many, all before the first whose content is not here or not what
        had been stored."""
        rows = []
        for key in keys:
            held = self._held.get(key)
            if held is None or zlib.crc32(self._memory[held[0]]) != held[1]:
                self.drop([key])
                self.events["lost"] += 1
                break
            self._held.move_to_end(key)
            rows.append(self._memory[held[0]])
        self._cache.write(block_ids[: len(rows)], rows)
        self.events["loaded"] += len(rows)
        return len(rows)

    def drop(self, keys: Iterable[bytes]) -> None:
        """Forget; a key that is not held is no error."""
        for key in keys:
            held = self._held.pop(key, None)
            if held is not None:
                self._free.append(held[0])
