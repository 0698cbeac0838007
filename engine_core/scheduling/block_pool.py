"""The BLOCK layout's ledger: which pages of `block_size` tokens are free, referenced, or kept idle.

`allocate` fails and never evicts: making room is the scheduler's explicit act. Knows no sequences
and no tokens: why a page is worth keeping is the prefix cache's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class OutOfBlocks(Exception):
    """Fewer blocks are free than asked for; nothing was taken."""


class BlockPool:
    """Reference counts over `num_blocks` pages.

    A page without references is idle when its content is kept, else free; free + idle + referenced
    are all pages.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the last freed is warmest
        self._references = [0] * num_blocks
        self._is_kept = [False] * num_blocks
        self._idle: dict[int, None] = {}  # in order of the last use, the oldest first

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_available(self) -> int:
        """Blocks that nobody holds: free ones, and idle ones that may be evicted."""
        return len(self._free) + len(self._idle)

    def available_beside(self, block_ids: Iterable[int]) -> int:
        """Return how many blocks would be available if `block_ids` were claimed."""
        return self.num_available - sum(block_id in self._idle for block_id in block_ids)

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each referenced once; raise OutOfBlocks and take none."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks asked, {len(self._free)} free of {self.num_blocks}")
        taken = [self._free.pop() for _ in range(count)]
        for block_id in taken:
            self._references[block_id] = 1
        return taken

    def claim(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; all must be referenced or idle."""
        for block_id in block_ids:
            if not self._references[block_id]:
                assert block_id in self._idle, f"block {block_id} is free, cannot be shared"
                del self._idle[block_id]
            self._references[block_id] += 1

    def free(self, block_ids: list[int]) -> None:
        """Drop one reference from each block; without any it is free, or idle when kept.

        From the last to the first: the end of a prefix is worth less than its beginning.
        """
        for block_id in reversed(block_ids):
            assert self._references[block_id] > 0, f"block {block_id} is freed twice"
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                if self._is_kept[block_id]:
                    self._idle[block_id] = None
                else:
                    self._free.append(block_id)

    def keep(self, block_id: int) -> None:
        """From now on `block_id` idles when its last reference goes; it must be referenced."""
        assert self._references[block_id] > 0, f"block {block_id} is not in use, cannot be kept"
        self._is_kept[block_id] = True

    def discard(self, block_id: int) -> None:
        """The content of `block_id` is worth nothing any more; an idle block becomes free."""
        self._is_kept[block_id] = False
        if block_id in self._idle:
            del self._idle[block_id]
            self._free.append(block_id)

    def oldest_idle(self) -> int:
        """Return the idle block that was used least recently; there must be one."""
        return next(iter(self._idle))

    def kept(self) -> set[int]:
        """Return the blocks whose content is kept."""
        return {block_id for block_id, is_kept in enumerate(self._is_kept) if is_kept}

    def check(self, owned: Counter[int]) -> list[str]:
        """Return what is wrong: `owned` are the references that ought to exist."""
        problems = [
            f"block {block_id} has {count} references, {owned[block_id]} owners"
            for block_id, count in enumerate(self._references)
            if count != owned[block_id]
        ]
        free = Counter(self._free)
        problems += [f"block {b} is free {n} times" for b, n in free.items() if n > 1]
        problems += [f"block {b} is free and referenced" for b in free if self._references[b]]
        problems += [f"block {b} is idle and referenced" for b in self._idle if self._references[b]]
        problems += [f"block {b} is idle, not kept" for b in self._idle if not self._is_kept[b]]
        referenced = sum(count > 0 for count in self._references)
        if len(free) + len(self._idle) + referenced != self.num_blocks:
            problems.append(
                f"{len(free)} free + {referenced} referenced + {len(self._idle)} cached "
                f"≠ {self.num_blocks} blocks"
            )
        return problems
