"""Any operations on any layout: every sequence reads back what it wrote, and the books stay true.

A page table is right when following it finds the right content, so the content is kept here, moved
only as the layout says, and read back after every operation.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine_core.scheduling.kv_layout import Grant, OutOfBlocks, Unsupported
from engine_core.scheduling.layouts import new_layout

NUM_TOKENS = 48
PICKS = st.integers(0, 5)
POSITIONS = st.integers(0, 12)


class AnyOperations(RuleBasedStateMachine):
    layout_name, block_size = "block", 4

    def __init__(self) -> None:
        super().__init__()
        num_blocks = NUM_TOKENS // self.block_size
        self.layout, _ = new_layout(self.layout_name, num_blocks, self.block_size, None)
        self.written: dict[int, dict[int, int]] = {}  # seq_id → position → what it wrote there
        self.memory: dict[int, int] = {}  # cell → what stands there
        self.fresh, self.seq_ids = itertools.count(), itertools.count(1)

    def cell(self, seq_id: int, position: int) -> int:
        page, offset = divmod(position, self.block_size)
        return self.layout.table(seq_id)[page] * self.block_size + offset

    def copy(self, grant: Grant) -> None:
        for source, target in ((copy.source, copy.target) for copy in grant.copies):
            for offset in range(self.block_size):
                if (content := self.memory.get(source * self.block_size + offset)) is not None:
                    self.memory[target * self.block_size + offset] = content

    def some(self, pick: int) -> int:
        return [*self.written][pick % len(self.written)]

    @rule(count=st.integers(1, 14))
    def begin(self, count: int) -> None:
        self.grow_by(next(self.seq_ids), 0, count)

    @precondition(lambda self: self.written)
    @rule(pick=PICKS, count=st.integers(1, 9))
    def grow(self, pick: int, count: int) -> None:
        seq_id = self.some(pick)
        self.grow_by(seq_id, self.layout.seq_pos_max(seq_id) + 1, count)

    def grow_by(self, seq_id: int, begin: int, count: int) -> None:
        try:
            self.copy(self.layout.allocate(seq_id, begin + count))
        except OutOfBlocks:
            assert self.layout_name == "static" or self.layout.num_free <= count
            return
        mine = self.written.setdefault(seq_id, {})
        for position in range(begin, begin + count):
            mine[position] = self.memory[self.cell(seq_id, position)] = next(self.fresh)

    @precondition(lambda self: self.written)
    @rule(pick=PICKS)
    def free(self, pick: int) -> None:
        seq_id = self.some(pick)
        del self.written[seq_id]
        self.layout.free(seq_id)

    @precondition(lambda self: self.written)
    @rule(pick=PICKS, start=st.just(0) | POSITIONS, end=POSITIONS)
    def share(self, pick: int, start: int, end: int) -> None:
        source, taker = self.some(pick), next(self.seq_ids)
        try:
            self.layout.seq_cp(source, taker, start, end)
        except Unsupported:
            assert self.layout_name == "static" or (self.layout_name == "block" and start)
            return
        shared = {p: it for p, it in self.written[source].items() if start <= p < end}
        self.written[taker] = shared

    @precondition(lambda self: self.written)
    @rule(pick=PICKS, start=POSITIONS, count=st.none() | st.integers(0, 9))
    def cut(self, pick: int, start: int, count: int | None) -> None:
        seq_id = self.some(pick)
        length = self.layout.seq_pos_max(seq_id) + 1
        end = None if count is None else start + count
        try:
            self.layout.seq_rm(seq_id, start, end)
        except Unsupported:
            assert self.layout_name != "slot" and end is not None and end < length
            return
        stop = length if end is None else end
        mine = self.written[seq_id].items()
        self.written[seq_id] = {p: it for p, it in mine if not start <= p < stop}

    @precondition(lambda self: self.written)
    @rule(
        pick=PICKS, start=POSITIONS, count=st.none() | st.integers(0, 9), delta=st.integers(-8, 4),
        makes_room=st.booleans(),
    )  # fmt: skip
    def move(self, pick: int, start: int, count: int | None, delta: int, makes_room: bool) -> None:
        seq_id = self.some(pick)
        if makes_room and delta < 0 <= start + delta:
            self.cut(pick, start + delta, -delta)
        end = None if count is None else start + count
        try:
            self.copy(self.layout.seq_add(seq_id, start, end, delta))
        except Unsupported:
            assert self.layout_name != "slot"
            return
        except (ValueError, OutOfBlocks):
            return
        length = max(self.written[seq_id], default=-1) + 1
        stop = length if end is None else end
        self.written[seq_id] = {
            p + delta if start <= p < stop else p: it for p, it in self.written[seq_id].items()
        }

    @precondition(lambda self: len(self.written) > 2)
    @rule(pick=PICKS)
    def keep(self, pick: int) -> None:
        seq_id = self.some(pick)
        self.layout.seq_keep(seq_id)
        self.written = {seq_id: self.written[seq_id]}

    @invariant()
    def everybody_reads_what_it_wrote(self) -> None:
        assert self.layout.check() == []
        assert set(self.layout.holders()) == self.written.keys()
        for seq_id, mine in self.written.items():
            assert self.layout.seq_pos_max(seq_id) == max(mine, default=-1)
            found = {position: self.memory[self.cell(seq_id, position)] for position in mine}
            assert found == mine

    def teardown(self) -> None:
        for seq_id in list(self.written):
            self.layout.free(seq_id)
        assert self.layout.num_free == self.layout.num_blocks
        assert self.layout.check() == []


class AnyOperationsOnSlots(AnyOperations):
    layout_name, block_size = "slot", 1


class AnyOperationsOnRanges(AnyOperations):
    layout_name, block_size = "static", 4


NUM_LIVES = {AnyOperations: 50, AnyOperationsOnSlots: 80, AnyOperationsOnRanges: 20}


def live(lives: type[AnyOperations], max_examples: int) -> None:
    few = settings(max_examples=max_examples, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(lives, settings=few)


@pytest.mark.parametrize("lives", NUM_LIVES, ids=lambda lives: lives.layout_name)
def test_any_operations(lives: type[AnyOperations]) -> None:
    live(lives, NUM_LIVES[lives])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lives", NUM_LIVES, ids=lambda lives: lives.layout_name)
def test_thousands_of_operations(lives: type[AnyOperations]) -> None:
    live(lives, 2000)


def test_a_range_that_is_free_again_is_taken_again() -> None:
    layout, _ = new_layout("static", 6, 4, None)
    for seq_id, pages in ((1, (0, 1)), (2, (2, 3)), (3, (4, 5))):
        assert layout.allocate(seq_id, 8).block_ids == pages
    assert not layout.fits(1)
    layout.free(1)
    layout.free(3)
    assert layout.fits(8) and not layout.fits(9), "four are free, two side by side"
    with pytest.raises(OutOfBlocks, match="at most 2 in a row"):
        layout.allocate(4, 9)
    assert layout.allocate(4, 8).block_ids == (0, 1)
    layout.free(2)
    assert layout.allocate(5, 16).block_ids == (2, 3, 4, 5)


def test_a_layout_has_a_name_and_pages_of_its_size() -> None:
    with pytest.raises(ValueError, match="kv_layout is 'ring', allowed: block, slot, static"):
        new_layout("ring", 4, 16, None)
    with pytest.raises(ValueError, match="pages of one cell, not of 16"):
        new_layout("slot", 4, 16, None)
