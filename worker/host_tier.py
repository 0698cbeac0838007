"""HostTier: copies of evicted blocks in host memory, by key, each with a checksum.

The scheduler keeps the same books (`engine_core/scheduling/host_tier.py`) and says what to store,
load and drop. What is not here, or not what was stored, is never given: it is computed again.
"""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from worker.arena import Arena, Piece
from worker.kv_cache import KvCache


def host_piece(num_blocks: int, block_bytes: int) -> Piece:
    """Return the memory of a tier of `num_blocks`."""
    return Piece((num_blocks, block_bytes), np.uint8)


class HostTier:
    """At most `num_blocks` blocks of `cache`; the one used least recently makes way."""

    def __init__(self, cache: KvCache, num_blocks: int, block_bytes: int, arena: Arena) -> None:
        self._cache = cache
        self._memory = arena.take("host", host_piece(num_blocks, block_bytes))
        self._free = list(range(num_blocks - 1, -1, -1))
        self._held: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # key → place, checksum
        self.events: Counter[str] = Counter()
        """Blocks stored, loaded and lost, since somebody last cleared it."""

    @property
    def num_bytes(self) -> int:
        """Memory that is in use."""
        return len(self._held) * int(self._memory.shape[1])

    def store(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> int:
        """Copy blocks here; return how many, all but for blocks that do not exist."""
        for count, (block_id, key) in enumerate(zip(block_ids, keys, strict=True)):
            if not 0 <= block_id < self._cache.num_blocks:
                return count
            if key not in self._held:
                place = self._free.pop() if self._free else self._held.popitem(last=False)[1][0]
                self._cache.read(block_id, self._memory[place])
                self._held[key] = place, zlib.crc32(self._memory[place])
                self.events["stored"] += 1
            self._held.move_to_end(key)
        return len(keys)

    def load(self, block_id: int, key: bytes) -> bool:
        """Fill a block; return whether what is held under `key` was what had been stored."""
        held = self._held.get(key)
        if held is not None and zlib.crc32(self._memory[held[0]]) == held[1]:
            self._cache.write(block_id, self._memory[held[0]])
            self._held.move_to_end(key)
            self.events["loaded"] += 1
            return True
        self.drop([key])
        self.events["lost"] += 1
        return False

    def drop(self, keys: Iterable[bytes]) -> None:
        """Forget; a key that is not held is no error."""
        for key in keys:
            held = self._held.pop(key, None)
            if held is not None:
                self._free.append(held[0])
