"""SLOT's memory: what a sequence has computed stays in its cells when it leaves.

A new sequence shares the cells of the one that has the most first tokens in common with it, of the
same tenant and salt. Found by order: among sorted byte strings the longest common prefix with a new
one is that of a neighbour of its place, so a look-up is one bisection. Prompts of sequences that
run are found, too, once they are computed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from engine_core.scheduling.reuse import Known
from engine_core.scheduling.sequence import Sequence
from engine_core.scheduling.slot_pool import SlotPool

_BYTES = 4
"""Of a token id."""


class Entry(NamedTuple):
    """The first tokens of `owner`, as bytes; their keys and values stand in its first cells."""

    tokens: bytes
    owner: int


Reader = tuple[str, bytes]
"""Tenant and salt: who may find an entry."""


def common_prefix(one: bytes, other: bytes) -> int:
    """Return how many first bytes are equal."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # the first `low` bytes are equal, more than `high` are not
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Residents:
    """Whose tokens stand in which sequence's cells. A resident is a number below zero."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._sorted: dict[Reader, list[Entry]] = {}
        self._entries: dict[int, tuple[Reader, Entry]] = {}
        # In order of the last use, the oldest first; why no dict, `block_pool.py` says.
        self._residents: OrderedDict[int, None] = OrderedDict()
        self._last = 0
        self._tainted = set[int]()  # sequences with cells that are not to be trusted

    def find(self, sequence: Sequence) -> Known:
        entries = self._sorted.get(_reader(sequence))
        if not entries:
            return Known()
        tokens = sequence.tokens.tobytes()
        place = bisect_left(entries, (tokens,))
        near = entries[max(place - 1, 0) : place + 1]
        length, owner = max((common_prefix(tokens, entry.tokens), entry.owner) for entry in near)
        count = min(length // _BYTES, len(sequence.tokens) - 1)
        return Known(count, tuple(self._pool.table(owner)[:count]), owner) if count else Known()

    def claim(self, sequence: Sequence, known: Known) -> None:
        if known.owner is None:
            return
        self._pool.seq_cp(known.owner, sequence.seq_id, 0, known.num_tokens)
        if known.owner in self._residents:
            self._residents.move_to_end(known.owner)

    def watch(self, sequence: Sequence, num_known: int) -> None:
        """All it knows now is entered when it is computed, and not again before it leaves."""
        sequence.enter_at = len(sequence.tokens)

    def enter(self, sequence: Sequence, num_computed: int) -> None:
        if num_computed < sequence.enter_at or not self._is_good(sequence):
            return
        tokens = sequence.tokens[: sequence.enter_at].tobytes()
        self._insert(_reader(sequence), Entry(tokens, sequence.seq_id))
        sequence.enter_at = sequence.max_total + 1

    def retire(self, sequence: Sequence, num_computed: int) -> None:
        """Keep its cells as a resident, unless another has the same and more."""
        seq_id, resident = sequence.seq_id, self._last - 1
        self._remove(seq_id)
        tokens = sequence.tokens[:num_computed].tobytes()
        self._pool.seq_rm(seq_id, len(tokens) // _BYTES)  # overshot, or not yet written
        is_good = self._is_good(sequence)
        self._tainted.discard(seq_id)
        if is_good and tokens and self._insert(_reader(sequence), Entry(tokens, resident)):
            self._pool.retain(seq_id, resident)
            self._residents[resident] = None
            self._last = resident
        else:
            self._pool.free(seq_id)

    def _is_good(self, sequence: Sequence) -> bool:
        return not sequence.is_inexact and sequence.seq_id not in self._tainted

    def distrust(self, sequence: Sequence) -> None:
        """Everything that owns one of its cells is forgotten."""
        if sequence.seq_id in self._pool.holders():
            for owner in self._pool.owners(sequence.seq_id):
                self._forget(owner)
                if owner > 0:
                    self._tainted.add(owner)

    def exclude(self, sequence: Sequence) -> None:
        sequence.is_inexact = True
        self._remove(sequence.seq_id)

    def evict(self, num_free: int) -> None:
        while self._pool.num_free < num_free and self._pool.num_idle:
            self._forget(next(iter(self._residents)))

    def holders(self) -> Iterable[int]:
        return self._residents.keys()

    def _insert(self, reader: Reader, entry: Entry) -> bool:
        """Enter `entry`; return False when another covers it. Drop the resident it continues."""
        entries = self._sorted.setdefault(reader, [])
        place = bisect_left(entries, (entry.tokens,))
        if place < len(entries) and entries[place].tokens.startswith(entry.tokens):
            return False
        before = entries[place - 1] if place else None
        entries.insert(place, entry)
        self._entries[entry.owner] = reader, entry
        if before and entry.tokens.startswith(before.tokens) and before.owner in self._residents:
            self._forget(before.owner)
        return True

    def _remove(self, owner: int) -> None:
        """Let nobody find `owner` any more."""
        if owner not in self._entries:
            return
        reader, entry = self._entries.pop(owner)
        entries = self._sorted[reader]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self._sorted[reader]

    def _forget(self, owner: int) -> None:
        """Let nobody find `owner`; the cells of a resident are given up."""
        self._remove(owner)
        if owner in self._residents:
            del self._residents[owner]
            self._pool.free(owner)

    def check(self) -> list[str]:
        """Every entry stands in its list once and has its cells; every resident has an entry."""
        listed = {entry.owner: entry for entries in self._sorted.values() for entry in entries}
        problems = []
        if listed != {owner: entry for owner, (_, entry) in self._entries.items()}:
            problems.append(f"{len(listed)} beginnings are sorted, {len(self._entries)} entered")
        for owner, entry in listed.items():
            if len(entry.tokens) // _BYTES > self._pool.seq_pos_max(owner) + 1:
                problems.append(f"sequence {owner} is found for more tokens than it has cells")
        if strays := self._residents.keys() - listed.keys():
            problems.append(f"residents {sorted(strays)} cannot be found")
        return problems


def _reader(sequence: Sequence) -> Reader:
    return sequence.tenant, sequence.request.limits.cache_salt
