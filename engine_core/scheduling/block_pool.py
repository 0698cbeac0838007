"""The BLOCK layout: pages of some tokens, shared by reference; which are free, held, or kept idle.

`allocate` fails and never evicts: making room is the scheduler's explicit act. Knows no tokens: why
a page is worth keeping is the prefix cache's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import compress

from engine_core.scheduling.free_blocks import RUN, FreeBlocks
from engine_core.scheduling.kv_layout import Grant, OutOfBlocks, Unsupported
from protos.worker import BlockCopy


class BlockPool:
    """Tables of pages, and a count of references to each page.

    A page without references is idle when its content is kept, else free; free + idle + referenced
    are all pages. Only whole prefixes are shared, and only tails are taken away: a position never
    moves to another place of its page.
    """

    growth = 1
    is_static = False

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = FreeBlocks(num_blocks)
        self._references = [0] * num_blocks
        self._is_kept = [False] * num_blocks
        # In order of the last use, the oldest first. The first of a dict is searched for among the
        # places of all that were first before it, which costs milliseconds a step in a large pool.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._borrowers = set[int]()  # sequences whose last page is not theirs to write to

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._idle)

    @property
    def reserve(self) -> int:
        """Pages to be free beyond those asked for, so that sequences find runs (`free_blocks.py`):
        what is left of theirs on average. None where it would cost more than a few prefixes."""
        reserve = RUN // 2 * len(self._tables)
        return reserve if reserve <= self.num_blocks // 32 else 0

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fits(self, num_tokens: int, known: Collection[int] = ()) -> bool:
        evictable = len(self._idle) - sum(block_id in self._idle for block_id in known)
        return self.blocks_for(num_tokens) - len(known) <= len(self._free) + evictable

    def table(self, seq_id: int) -> list[int]:
        return self._tables[seq_id]

    def holders(self) -> Iterable[int]:
        return self._tables.keys()

    def allocate(self, seq_id: int, num_tokens: int) -> Grant:
        table = self._tables.get(seq_id, [])
        if seq_id in self._borrowers and num_tokens > self._lengths[seq_id]:
            return self._allocate_apart(seq_id, table, num_tokens)
        new = self._take(-(-num_tokens // self.block_size) - len(table), table)
        if not table:
            self._tables[seq_id], self._lengths[seq_id] = table, 0
        table += new
        if num_tokens > self._lengths[seq_id]:
            self._lengths[seq_id] = num_tokens
        return Grant(new, ())

    def _allocate_apart(self, seq_id: int, table: list[int], num_tokens: int) -> Grant:
        """Allocate behind a last page that may be shared, and is then replaced by a copy."""
        last, copies = table[-1], list[BlockCopy]()
        count = self.blocks_for(num_tokens) - len(table)
        if self._references[last] > 1 or self._is_kept[last]:
            new = self._take(count + 1, table)
            copies.append(BlockCopy(last, new[0]))
            table.pop()
            self._release([last])
        else:
            new = self._take(count, table)
        table += new
        self._lengths[seq_id] = num_tokens
        self._borrowers.discard(seq_id)
        return Grant(new, tuple(copies))

    def _take(self, count: int, table: list[int]) -> tuple[int, ...]:
        """Return `count` free blocks to stand behind `table`, each referenced once.

        Raises OutOfBlocks and takes none.
        """
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks asked, {len(self._free)} free of {self.num_blocks}")
        taken = self._free.take(count, table[-1] if table else -1)
        for block_id in taken:
            self._references[block_id] = 1
        return tuple(taken)

    def free(self, seq_id: int) -> None:
        del self._lengths[seq_id]
        self._borrowers.discard(seq_id)
        self._release(self._tables.pop(seq_id))

    def _release(self, block_ids: list[int]) -> None:
        """Drop one reference from each block; without any it is free, or idle when kept.

        From the last to the first: the end of a prefix is worth less than its beginning.
        """
        for block_id in reversed(block_ids):
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                if self._is_kept[block_id]:
                    self._idle[block_id] = None
                else:
                    self._free.add(block_id)

    # ── positions ────────────────────────────────────────────────────────────────────────────

    def seq_cp(self, source: int, target: int, start: int = 0, end: int | None = None) -> None:
        if start:
            raise Unsupported(f"BLOCK shares whole prefixes, not from position {start} on")
        length = self._lengths[source]
        end = length if end is None else min(end, length)
        self.adopt(target, self._tables[source][: self.blocks_for(end)])
        self._set_length(target, end)

    def seq_rm(self, seq_id: int, start: int = 0, end: int | None = None) -> None:
        length = self._lengths[seq_id]
        if end is not None and end < length:
            raise Unsupported(f"BLOCK removes tails, not {start}..{end} of {length} positions")
        if start < length:
            table, count = self._tables[seq_id], self.blocks_for(start)
            self._release(table[count:])
            del table[count:]
            self._set_length(seq_id, start)

    def _set_length(self, seq_id: int, length: int) -> None:
        self._lengths[seq_id] = length
        if length % self.block_size:
            self._borrowers.add(seq_id)
        else:
            self._borrowers.discard(seq_id)

    def seq_add(self, seq_id: int, start: int, end: int | None, delta: int) -> Grant:
        raise Unsupported("BLOCK cannot move positions: a page holds fixed ones (kv_layout=slot)")

    def seq_keep(self, seq_id: int) -> None:
        for other in [one for one in self._tables if one != seq_id]:
            self.free(other)

    def seq_pos_max(self, seq_id: int) -> int:
        return self._lengths[seq_id] - 1

    # ── pages worth keeping ──────────────────────────────────────────────────────────────────

    def adopt(self, seq_id: int, block_ids: Sequence[int]) -> None:
        """Let the new `seq_id` begin with these whole pages; all must be referenced or idle."""
        assert seq_id not in self._tables, f"sequence {seq_id} has a table"
        for block_id in block_ids:
            if not self._references[block_id]:
                assert block_id in self._idle, f"block {block_id} is free, cannot be shared"
                del self._idle[block_id]
            self._references[block_id] += 1
        self._tables[seq_id] = list(block_ids)
        self._lengths[seq_id] = len(block_ids) * self.block_size

    def keep(self, block_id: int) -> None:
        """From now on `block_id` idles when its last reference goes; it must be referenced."""
        assert self._references[block_id] > 0, f"block {block_id} is not in use, cannot be kept"
        self._is_kept[block_id] = True

    def discard(self, block_id: int) -> None:
        """The content of `block_id` is worth nothing any more; an idle block becomes free."""
        self._is_kept[block_id] = False
        if block_id in self._idle:
            del self._idle[block_id]
            self._free.add(block_id)

    def oldest_idle(self) -> int:
        """Return the idle block that was used least recently; there must be one."""
        return next(iter(self._idle))

    def kept(self) -> set[int]:
        """Return the blocks whose content is kept."""
        return set(compress(range(self.num_blocks), self._is_kept))

    def check(self) -> list[str]:
        """A step waits meanwhile: all blocks are compared at once, and looked at when unequal."""
        references, problems = self._references, list[str]()
        owned = [0] * self.num_blocks
        for table in self._tables.values():
            for block_id in table:
                owned[block_id] += 1
        if owned != references:
            problems += [
                f"block {block_id} has {count} references, {owned[block_id]} owners"
                for block_id, count in enumerate(references)
                if count != owned[block_id]
            ]
        problems += [
            f"sequence {seq_id} has {len(table)} blocks for {self._lengths[seq_id]} tokens"
            for seq_id, table in self._tables.items()
            if len(table) != self.blocks_for(self._lengths[seq_id])
        ]
        free, idle = set(self._free), self._idle
        if len(free) != len(self._free):
            problems.append(f"{len(self._free)} blocks are counted as free, {len(free)} are")
        problems += [f"block {b} is free and referenced" for b in free if references[b]]
        problems += [f"block {b} is idle and referenced" for b in idle if references[b]]
        problems += [f"block {b} is idle, not kept" for b in idle if not self._is_kept[b]]
        referenced = self.num_blocks - references.count(0)
        if len(free) + len(self._idle) + referenced != self.num_blocks:
            problems.append(
                f"{len(free)} free + {referenced} referenced + {len(self._idle)} cached "
                f"≠ {self.num_blocks} blocks"
            )
        return problems
