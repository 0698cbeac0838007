"""The SLOT layout: pages of one cell, each with its position and the set of who owns it.

Any range may be shared, removed or moved. `allocate` fails and never evicts. Knows no tokens: what
stays resident, and for whom, is the business of `residents.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import repeat
from operator import contains

from engine_core.scheduling.kv_layout import Grant, OutOfBlocks
from protos.worker import BlockCopy

HOLE = -1
"""Stands in a table where a position has no cell."""
_NOBODY: frozenset[int] = frozenset()
Owners = frozenset[int]


def _is_idle(owners: Owners) -> bool:
    return bool(owners) and max(owners) < 0


class SlotPool:
    """Cells of one token. A cell without owners is free.

    Owners below zero are residents: nobody computes with them, and a cell that has only such owners
    idles. Cells of one history share one owner set, so that a set costs nothing per cell.
    """

    block_size = 1
    growth = 16
    is_static = False

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_idle = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._positions = [HOLE] * num_blocks
        self._owners: list[Owners] = [_NOBODY] * num_blocks
        self._tables: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_available(self) -> int:
        return len(self._free) + self.num_idle

    def blocks_for(self, num_tokens: int) -> int:
        return num_tokens

    def fits(self, num_tokens: int, known: Collection[int] = ()) -> bool:
        needed = num_tokens - len(known)
        if needed <= len(self._free):
            return True
        if needed > self.num_available:
            return False
        return needed <= self.num_available - sum(_is_idle(self._owners[cell]) for cell in known)

    def table(self, seq_id: int) -> list[int]:
        return self._tables[seq_id]

    def holders(self) -> Iterable[int]:
        return self._tables.keys()

    def owners(self, seq_id: int) -> set[int]:
        """Return who owns cells of `seq_id`, itself among them."""
        sets = {self._owners[cell] for cell in self._tables[seq_id] if cell != HOLE}
        return set[int]().union(*sets)

    def allocate(self, seq_id: int, num_tokens: int) -> Grant:
        """As KvLayout says; positions that were removed in the middle stay without a cell."""
        table = self._tables.get(seq_id, [])
        new = self._take(max(num_tokens - len(table), 0))
        if not table:
            self._tables[seq_id] = table
        self._settle(seq_id, new, len(table))
        table += new
        return Grant(new)

    def _take(self, count: int) -> tuple[int, ...]:
        free = self._free
        if count > len(free):
            raise OutOfBlocks(f"{count} blocks asked, {len(free)} free of {self.num_blocks}")
        taken = tuple(free[: -count - 1 : -1])
        del free[len(free) - count :]
        return taken

    def _settle(self, seq_id: int, cells: Iterable[int], first: int) -> None:
        """Give free `cells` to `seq_id`, for the positions from `first` on."""
        positions, owners, alone = self._positions, self._owners, frozenset((seq_id,))
        for position, cell in enumerate(cells, first):
            positions[cell] = position
            owners[cell] = alone

    def free(self, seq_id: int) -> None:
        self._disown(seq_id, self._tables.pop(seq_id))

    def retain(self, seq_id: int, resident: int) -> None:
        """Let `resident`, a new number below zero, have all that `seq_id` has."""
        table = self._tables.pop(seq_id)
        self._tables[resident] = table
        mine, its = frozenset((seq_id,)), frozenset((resident,))
        self._change(table, lambda owners: owners - mine | its)

    # ── positions ────────────────────────────────────────────────────────────────────────────

    def seq_cp(self, source: int, target: int, start: int = 0, end: int | None = None) -> None:
        """As KvLayout says; positions before `start` have no cell."""
        assert target not in self._tables, f"sequence {target} has a table"
        cells = self._tables[source][start:end]
        self._tables[target] = table = [*[HOLE] * start, *cells]
        _trim(table)
        one = frozenset((target,))
        self._change(cells, lambda owners: owners | one)

    def seq_rm(self, seq_id: int, start: int = 0, end: int | None = None) -> None:
        table = self._tables[seq_id]
        cells = table[start:end]
        table[start:end] = [HOLE] * len(cells)
        _trim(table)
        self._disown(seq_id, cells)

    def seq_add(self, seq_id: int, start: int, end: int | None, delta: int) -> Grant:
        """As KvLayout says; raises ValueError when a position is taken, or would be below zero."""
        table = self._tables[seq_id]
        end = len(table) if end is None else min(end, len(table))
        end = max(start, end)  # nothing from beyond the last cell
        moving = table[start:end]
        rest = [*table[:start], *[HOLE] * len(moving), *table[end:]]
        place = slice(start + delta, end + delta)
        if place.start < 0 or any(cell != HOLE for cell in rest[place]):
            raise ValueError(f"{start}..{end} cannot move by {delta}: the place is not free")
        cells, grant = self._own_alone(seq_id, moving)
        rest += [HOLE] * (place.stop - len(rest))
        rest[place] = cells
        table[:] = rest
        _trim(table)
        for position, cell in enumerate(cells, place.start):
            if cell != HOLE:
                self._positions[cell] = position
        return grant

    def _own_alone(self, seq_id: int, cells: list[int]) -> tuple[list[int], Grant]:
        """Return `cells` with clones in place of those that others own, too."""
        shared = [cell for cell in cells if cell != HOLE and len(self._owners[cell]) > 1]
        clones = self._take(len(shared))
        self._settle(seq_id, clones, 0)
        self._disown(seq_id, shared)
        clone_of = dict(zip(shared, clones, strict=True))
        copies = tuple(BlockCopy(cell, clone) for cell, clone in clone_of.items())
        return [clone_of.get(cell, cell) for cell in cells], Grant(clones, copies)

    def seq_keep(self, seq_id: int) -> None:
        for other in [one for one in self._tables if one != seq_id]:
            self.free(other)

    def seq_pos_max(self, seq_id: int) -> int:
        return len(self._tables[seq_id]) - 1

    # ── owners ───────────────────────────────────────────────────────────────────────────────

    def _disown(self, seq_id: int, cells: Iterable[int]) -> None:
        """Take `seq_id` from the owners of `cells`, from the last to the first."""
        one = frozenset((seq_id,))
        self._change(reversed([*cells]), lambda owners: owners - one)

    def _change(self, cells: Iterable[int], change: Callable[[Owners], Owners]) -> None:
        """Give every cell `change` of its owners; holes are passed over."""
        owners, free, known = self._owners, self._free, dict[Owners, tuple[Owners, int]]()
        for cell in cells:
            if cell == HOLE:
                continue
            before = owners[cell]
            if before not in known:
                after = change(before)
                known[before] = after, _is_idle(after) - _is_idle(before)
            owners[cell], idle = known[before]
            self.num_idle += idle
            if not owners[cell]:
                self._positions[cell] = HOLE
                free.append(cell)

    def check(self) -> list[str]:
        if self._adds_up():
            return []
        return self._problems() or ["cells, owners and counts do not add up"]

    def _adds_up(self) -> bool:
        """Return whether the books are true, without a look at single cells: a step waits for it.

        Every table's cells name it and its positions, and there are no more names than such cells.
        """
        owners, num_named = self._owners, 0
        for seq_id, table in self._tables.items():
            cells, positions = table, list(range(len(table)))
            if HOLE in table:
                positions = [position for position in positions if table[position] != HOLE]
                cells = [table[position] for position in positions]
            if list(map(self._positions.__getitem__, cells)) != positions:
                return False
            if not all(map(contains, map(owners.__getitem__, cells), repeat(seq_id))):
                return False
            num_named += len(cells)
        kinds = Counter(owners)  # few: the cells of a history share one set
        free = self._free
        return (
            num_named == sum(len(kind) * count for kind, count in kinds.items())
            and self.num_idle == sum(count for kind, count in kinds.items() if _is_idle(kind))
            and len(set(free)) == len(free) == kinds[_NOBODY]
            and not any(map(owners.__getitem__, free))
        )

    def _problems(self) -> list[str]:
        """Return what is wrong, cell by cell."""
        problems, owned = list[str](), dict[int, set[int]]()
        for seq_id, table in self._tables.items():
            for position, cell in enumerate(table):
                if cell == HOLE:
                    continue
                owned.setdefault(cell, set()).add(seq_id)
                if self._positions[cell] != position:
                    told = self._positions[cell]
                    problems.append(f"cell {cell} is at {told}, {position} of sequence {seq_id}")
        for cell, owners in enumerate(self._owners):
            if owners != owned.get(cell, _NOBODY):
                problems.append(f"cell {cell} has owners {sorted(owners)}, not those of the tables")
        free = Counter(self._free)
        problems += [f"cell {cell} is free {n} times" for cell, n in free.items() if n > 1]
        problems += [f"cell {cell} is free and owned" for cell in free if self._owners[cell]]
        if len(free) + len(owned) != self.num_blocks:
            problems.append(f"{len(free)} free + {len(owned)} owned ≠ {self.num_blocks} cells")
        if self.num_idle != (idle := sum(map(_is_idle, self._owners))):
            problems.append(f"{self.num_idle} cells are counted as idle, {idle} are")
        return problems


def _trim(table: list[int]) -> None:
    while table and table[-1] == HOLE:
        table.pop()
