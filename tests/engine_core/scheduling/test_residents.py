"""Who finds whose cells: the most in common, of the same reader, and only what is computed."""

from __future__ import annotations

from array import array

from engine_core.scheduling.request import Request
from engine_core.scheduling.residents import Residents, common_prefix
from engine_core.scheduling.sequence import Room, Sequence
from engine_core.scheduling.slot_pool import SlotPool
from protos.worker import Limits


class Cells:
    """A pool of cells with its memory, and sequences that are told how far they are computed."""

    def __init__(self) -> None:
        self.pool = SlotPool(64)
        self.memory = Residents(self.pool)
        self.last = 0

    def new(self, tokens: str, tenant: str = "", salt: bytes = b"") -> Sequence:
        """Return a sequence of one token per letter."""
        self.last += 1
        limits = Limits(20, tenant=tenant, cache_salt=salt)
        prompt = array("I", map(ord, tokens))
        request = Request(1, 1, "r", prompt, (), limits, frozenset(), b"", 0, 0.0, None)
        return Sequence(self.last, request, 0, Room(100, 100))

    def start(self, sequence: Sequence) -> None:
        known = self.memory.find(sequence)
        self.memory.claim(sequence, known)
        self.pool.allocate(sequence.seq_id, len(sequence.tokens) + 1)
        self.memory.watch(sequence, known.num_tokens)

    def run(self, tokens: str, num_computed: int, **reader: str) -> Sequence:
        """Start a sequence, compute some of it, and let it leave."""
        sequence = self.new(tokens, **reader)
        self.start(sequence)
        self.memory.enter(sequence, num_computed)
        self.memory.retire(sequence, num_computed)
        self.check()
        return sequence

    def found(self, tokens: str, tenant: str = "", salt: bytes = b"") -> int:
        return self.memory.find(self.new(tokens, tenant, salt)).num_tokens

    def check(self) -> None:
        assert self.pool.check() == [] == self.memory.check()


def test_common_prefix() -> None:
    pairs = [(b"", b"a"), (b"abc", b"abc"), (b"abcd", b"abxd"), (b"ab", b"abc"), (b"x", b"y")]
    assert [common_prefix(*pair) for pair in pairs] == [0, 3, 2, 2, 0]


def test_the_most_in_common_is_found_not_the_latest() -> None:
    cells = Cells()
    for tokens in ("system a b c", "system a x", "system z", "other"):
        cells.run(tokens, len(tokens))
    assert cells.found("system a b d") == len("system a b ")
    assert cells.found("system q") == len("system ")
    assert cells.found("nothing") == 0


def test_the_last_token_is_always_computed() -> None:
    cells = Cells()
    cells.run("abcdef", 6)
    assert cells.found("abcdef") == 5


def test_only_what_is_computed_is_found() -> None:
    cells = Cells()
    cells.run("abcdefgh", 3)
    assert cells.found("abcdefghi") == 3
    assert cells.pool.num_idle == 3, "cells that were only reserved are free"
    cells.run("xyz", 9)  # overshot
    assert cells.found("xyzzz") == 3 and cells.pool.num_idle == 6


def test_tenant_and_salt_separate() -> None:
    cells = Cells()
    cells.run("abcdef", 6, tenant="a")
    assert cells.found("abcdef", tenant="b") == cells.found("abcdef", salt=b"s") == 0
    assert cells.found("abcdef", tenant="a") == 5


def test_a_running_prompt_is_found_once_it_is_computed() -> None:
    cells = Cells()
    elder = cells.new("abcdef")
    cells.start(elder)
    assert cells.found("abcxyz") == 0
    cells.memory.enter(elder, 5)
    assert cells.found("abcxyz") == 0
    cells.memory.enter(elder, 6)
    assert cells.found("abcxyz") == 3
    younger = cells.new("abcxyz")
    cells.start(younger)
    assert cells.pool.table(younger.seq_id)[:3] == cells.pool.table(elder.seq_id)[:3]
    cells.check()


def test_a_conversation_that_goes_on_replaces_its_beginning() -> None:
    cells = Cells()
    cells.run("abc", 3)
    cells.run("abcdef", 6)
    assert len([*cells.memory.holders()]) == 1 and cells.pool.num_idle == 6
    cells.run("abcd", 4)
    assert len([*cells.memory.holders()]) == 1, "what another covers is not kept twice"
    assert cells.pool.num_idle == 6


def test_the_least_recently_used_goes_first() -> None:
    cells = Cells()
    for tokens in ("aaaa", "bbbb", "cccc"):
        cells.run(tokens, 4)
    user = cells.new("aaaax")
    cells.start(user)  # uses the oldest
    assert cells.pool.num_free == 64 - 12 - 2
    cells.memory.evict(cells.pool.num_free + 1)
    assert [cells.found(one + "!") for one in ("aaaa", "bbbb", "cccc")] == [4, 0, 4]
    cells.memory.evict(64)
    assert cells.pool.num_free == 64 - 6 and cells.pool.num_idle == 0, "the user keeps its cells"
    cells.check()


def test_what_shares_a_cell_with_a_failed_row_is_not_found_again() -> None:
    cells = Cells()
    cells.run("abcdef", 6)
    failed, other = cells.new("abcxxx"), cells.new("abcyyy")
    for one in (failed, other):
        cells.start(one)
        cells.memory.enter(one, 6)
    cells.memory.distrust(failed)
    assert cells.found("abc!") == 0
    for one in (failed, other):
        cells.memory.retire(one, 6)
        assert cells.found("abc!") == 0
    assert cells.pool.num_free == 64
    cells.check()
