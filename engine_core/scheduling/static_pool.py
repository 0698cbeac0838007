"""The STATIC layout: each sequence has one contiguous range of pages, reserved when it starts.

For batches of known length: nothing grows, so nothing runs out half-way, and nothing is shared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from engine_core.scheduling.kv_layout import Grant, OutOfBlocks, Unsupported


class StaticPool:
    """Ranges of pages; the first `allocate` of a sequence is all it ever gets."""

    growth = 1
    is_static = True
    num_idle = 0

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return self.num_blocks - sum(map(len, self._tables.values()))

    @property
    def num_available(self) -> int:
        return self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fits(self, num_tokens: int, known: Collection[int] = ()) -> bool:
        return max(map(len, self._gaps()), default=0) >= self.blocks_for(num_tokens)

    def table(self, seq_id: int) -> list[int]:
        return self._tables[seq_id]

    def holders(self) -> Iterable[int]:
        return self._tables.keys()

    def allocate(self, seq_id: int, num_tokens: int) -> Grant:
        """As KvLayout says; beyond what is reserved there is nothing."""
        count = self.blocks_for(num_tokens)
        if seq_id in self._tables:
            if count > len(self._tables[seq_id]):
                reserved = len(self._tables[seq_id])
                raise OutOfBlocks(f"{count} blocks asked, {reserved} are reserved")
            self._lengths[seq_id] = max(num_tokens, self._lengths[seq_id])
            return Grant(())
        gap = next((gap for gap in self._gaps() if len(gap) >= count), None)
        if gap is None:
            longest = max(map(len, self._gaps()), default=0)
            raise OutOfBlocks(f"{count} blocks asked, at most {longest} in a row are free")
        taken = gap[:count]
        self._tables[seq_id], self._lengths[seq_id] = list(taken), num_tokens
        return Grant(tuple(taken))

    def _gaps(self) -> list[range]:
        """Return the ranges that nobody has, in order."""
        gaps, begin = [], 0
        for taken in sorted(table for table in self._tables.values() if table):
            gaps.append(range(begin, taken[0]))
            begin = taken[-1] + 1
        return [*gaps, range(begin, self.num_blocks)]

    def free(self, seq_id: int) -> None:
        del self._tables[seq_id], self._lengths[seq_id]

    # ── positions ────────────────────────────────────────────────────────────────────────────

    def seq_cp(self, source: int, target: int, start: int = 0, end: int | None = None) -> None:
        raise Unsupported("STATIC shares nothing: a sequence has its own range (kv_layout=block)")

    def seq_rm(self, seq_id: int, start: int = 0, end: int | None = None) -> None:
        """As KvLayout says; the pages stay reserved."""
        length = self._lengths[seq_id]
        if end is not None and end < length:
            raise Unsupported(f"STATIC removes tails, not {start}..{end} of {length} positions")
        self._lengths[seq_id] = min(start, length)

    def seq_add(self, seq_id: int, start: int, end: int | None, delta: int) -> Grant:
        raise Unsupported("STATIC cannot move positions (kv_layout=slot)")

    def seq_keep(self, seq_id: int) -> None:
        for other in [one for one in self._tables if one != seq_id]:
            self.free(other)

    def seq_pos_max(self, seq_id: int) -> int:
        return self._lengths[seq_id] - 1

    def check(self) -> list[str]:
        problems, owners = list[str](), dict[int, int]()
        for seq_id, table in self._tables.items():
            if table and table != [*range(table[0], table[0] + len(table))]:
                problems.append(f"sequence {seq_id} has blocks {table}, not a range")
            for block_id in table:
                if owners.setdefault(block_id, seq_id) != seq_id:
                    other = owners[block_id]
                    problems.append(f"block {block_id} is of sequences {other} and {seq_id}")
                if not 0 <= block_id < self.num_blocks:
                    problems.append(f"sequence {seq_id} has block {block_id} of {self.num_blocks}")
        return problems
