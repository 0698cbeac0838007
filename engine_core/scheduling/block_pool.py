"""The BLOCK layout's ledger: which pages of `block_size` tokens are free, which are referenced.

`allocate` fails and never evicts: making room is the scheduler's explicit act. Knows no sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class OutOfBlocks(Exception):
    """Fewer blocks are free than asked for; nothing was taken."""


class BlockPool:
    """Reference counts over `num_blocks` pages; a page is free exactly when its count is 0."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the last freed is warmest
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each referenced once; raise OutOfBlocks and take none."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks asked, {len(self._free)} free of {self.num_blocks}")
        taken = [self._free.pop() for _ in range(count)]
        for block_id in taken:
            self._references[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; all must be referenced already."""
        for block_id in block_ids:
            assert self._references[block_id] > 0, f"block {block_id} is free, cannot be shared"
            self._references[block_id] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """Drop one reference from each block; the last one returns it to the pool."""
        for block_id in block_ids:
            assert self._references[block_id] > 0, f"block {block_id} is freed twice"
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                self._free.append(block_id)

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
        referenced = sum(count > 0 for count in self._references)
        if len(free) + referenced != self.num_blocks:
            problems.append(f"{len(free)} free + {referenced} used ≠ {self.num_blocks} blocks")
        return problems
