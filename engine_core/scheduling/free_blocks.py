"""FreeBlocks: the free pages of the BLOCK layout, so that those of a sequence lie side by side.

Memory is read the faster the longer the pieces are: attention over pages in order was measured at
1.1 to 1.4 times the speed of pages in no order (`bench/results/2026-11-28-cpu-zen4-pages.md`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

RUN = 8
"""Blocks of a run, which begin at a multiple of it: longer ones were read hardly faster."""
_WHOLE = (1 << RUN) - 1


class FreeBlocks:
    """A set of blocks by number. Who takes one gets the one behind its last, or begins a run.

    So the rest of a run is left to who began it for as long as other runs are wholly free. After
    that others take it too, first what nobody has touched for longest: who began it has ended.
    """

    def __init__(self, num_blocks: int) -> None:
        self._count = num_blocks
        self._masks = [0] * -(-num_blocks // RUN)  # of each run: bit i says that block i is free
        # Runs that are free, the one freed last at the end; and those of which some is, likewise.
        self._whole: OrderedDict[int, None] = OrderedDict()
        self._partly: OrderedDict[int, None] = OrderedDict()
        for run in range(len(self._masks) - 1, -1, -1):
            self._set(run, _WHOLE >> max(0, (run + 1) * RUN - num_blocks))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for run, mask in enumerate(self._masks):
            yield from (run * RUN + i for i in range(RUN) if mask >> i & 1)

    def take(self, count: int, last: int) -> list[int]:
        """Return `count` blocks, which must be there; `last` is the one before them, or -1."""
        taken: list[int] = []
        while count > 0:
            run, start = divmod(last + 1, RUN)
            if not self._is_next(run, start):
                run, start = self._begin()
            mask, stop = self._masks[run], start + 1
            while stop < RUN and stop - start < count and mask >> stop & 1:
                stop += 1
            self._set(run, mask & ~((1 << stop) - (1 << start)))
            taken += range(run * RUN + start, run * RUN + stop)
            count -= stop - start
            last = taken[-1]
        self._count -= len(taken)
        return taken

    def add(self, block_id: int) -> None:
        run, bit = divmod(block_id, RUN)
        self._count += 1
        self._set(run, self._masks[run] | 1 << bit)

    def _is_next(self, run: int, start: int) -> bool:
        """Return whether that block may be taken because it is the next one."""
        if start == 0:
            return run in self._whole
        return self._masks[run] >> start & 1 == 1

    def _begin(self) -> tuple[int, int]:
        run = next(reversed(self._whole)) if self._whole else next(iter(self._partly))
        mask = self._masks[run]
        return run, (mask & -mask).bit_length() - 1

    def _set(self, run: int, mask: int) -> None:
        self._masks[run] = mask
        self._whole.pop(run, None)
        self._partly.pop(run, None)
        if mask == _WHOLE:
            self._whole[run] = None
        elif mask:
            self._partly[run] = None
