"""What a KV layout is: read this before engine_core/scheduling/kv_layout.py.

Every test says one thing in plain words. A sequence has a table that says in which cell of which
page each of its positions stands; a layout says who owns the pages. Sequences are numbers here, and
tokens do not occur.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from engine_core.scheduling.block_pool import BlockPool
from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.kv_layout import KvLayout, OutOfBlocks, Unsupported
from engine_core.scheduling.layouts import new_layout
from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.slot_pool import HOLE, SlotPool
from engine_core.scheduling.static_pool import StaticPool
from protos.worker import Add, BlockCopy, ExecutePlan, Finished, Limits, StepResult

ANNA, BERT, CARL = 1, 2, 3
"""Three sequences."""


@pytest.fixture(params=["block", "slot", "static"])
def layout(request: pytest.FixtureRequest) -> KvLayout:
    """Room for 64 tokens in any layout."""
    num_blocks, block_size = {"block": (4, 16), "slot": (64, 1), "static": (4, 16)}[request.param]
    return new_layout(request.param, num_blocks, block_size, None)[0]


# ── every layout ─────────────────────────────────────────────────────────────────────────────


def test_a_sequence_has_a_cell_for_each_position_it_asked_for(layout: KvLayout) -> None:
    layout.allocate(ANNA, 20)
    assert layout.seq_pos_max(ANNA) == 19
    assert len(layout.table(ANNA)) == layout.blocks_for(20)


def test_what_it_has_stays_where_it_is_when_it_grows(layout: KvLayout) -> None:
    layout.allocate(ANNA, 20)
    before = list(layout.table(ANNA))
    layout.allocate(ANNA, 30)
    assert layout.table(ANNA)[: len(before)] == before


def test_allocate_fails_and_never_evicts(layout: KvLayout) -> None:
    layout.allocate(ANNA, 40)
    with pytest.raises(OutOfBlocks, match="blocks asked"):
        layout.allocate(BERT, 30)
    assert list(layout.holders()) == [ANNA], "the loser has got nothing, the winner lost nothing"
    assert layout.seq_pos_max(ANNA) == 39


def test_free_gives_everything_back(layout: KvLayout) -> None:
    layout.allocate(ANNA, 20)
    layout.free(ANNA)
    assert layout.num_free == layout.num_blocks
    assert layout.check() == []


def test_keeping_one_frees_all_others(layout: KvLayout) -> None:
    for one in (ANNA, BERT, CARL):
        layout.allocate(one, 10)
    layout.seq_keep(BERT)
    assert list(layout.holders()) == [BERT]
    assert layout.num_free == layout.num_blocks - layout.blocks_for(10)


def test_the_tail_of_a_sequence_can_be_taken_away(layout: KvLayout) -> None:
    layout.allocate(ANNA, 40)
    layout.seq_rm(ANNA, 17)
    assert layout.seq_pos_max(ANNA) == 16
    assert layout.check() == []


# ── BLOCK: pages of 16 ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def blocks() -> BlockPool:
    return BlockPool(num_blocks=8, block_size=16)


def test_block_shares_a_prefix_by_reference(blocks: BlockPool) -> None:
    blocks.allocate(ANNA, 40)
    blocks.seq_cp(ANNA, BERT)
    assert blocks.table(BERT) == blocks.table(ANNA)
    assert blocks.num_free == 8 - 3, "three pages, though two sequences read them"
    blocks.free(ANNA)
    assert blocks.num_free == 8 - 3, "a page lives as long as its last reader"
    blocks.free(BERT)
    assert blocks.num_free == 8


def test_block_copies_the_last_page_when_it_is_written(blocks: BlockPool) -> None:
    blocks.allocate(ANNA, 40)
    blocks.seq_cp(ANNA, BERT)
    shared = blocks.table(ANNA)[2]
    new, copies = blocks.allocate(BERT, 41)  # position 40 lies in a page that Anna reads
    assert copies == (BlockCopy(source=shared, target=new[0]),)
    assert blocks.table(BERT) == [*blocks.table(ANNA)[:2], new[0]]


def test_block_copies_nothing_when_the_shared_part_ends_with_a_page(blocks: BlockPool) -> None:
    blocks.allocate(ANNA, 40)
    blocks.seq_cp(ANNA, BERT, 0, 32)
    assert blocks.allocate(BERT, 33).copies == ()
    assert blocks.table(BERT)[:2] == blocks.table(ANNA)[:2]


def test_block_refuses_what_pages_cannot_do(blocks: BlockPool) -> None:
    """A position's place inside its page is fixed, so nothing moves and no hole closes."""
    blocks.allocate(ANNA, 40)
    with pytest.raises(Unsupported, match="removes tails"):
        blocks.seq_rm(ANNA, 4, 20)
    with pytest.raises(Unsupported, match="cannot move positions"):
        blocks.seq_add(ANNA, 20, None, -4)
    with pytest.raises(Unsupported, match="whole prefixes"):
        blocks.seq_cp(ANNA, BERT, 16)
    assert list(blocks.holders()) == [ANNA] and blocks.seq_pos_max(ANNA) == 39


# ── SLOT: pages of one cell ──────────────────────────────────────────────────────────────────


@pytest.fixture
def cells() -> SlotPool:
    return SlotPool(num_blocks=16)


def test_slot_shares_any_range_without_a_copy(cells: SlotPool) -> None:
    cells.allocate(ANNA, 6)
    cells.seq_cp(ANNA, BERT, 0, 5)
    assert cells.table(BERT) == cells.table(ANNA)[:5]
    assert cells.allocate(BERT, 6).copies == (), "position 5 is a cell of Bert's own"
    assert cells.table(BERT)[5] != cells.table(ANNA)[5]
    assert cells.num_free == 16 - 7


def test_slot_takes_a_range_out_of_the_middle(cells: SlotPool) -> None:
    cells.allocate(ANNA, 6)
    cells.seq_rm(ANNA, 2, 4)
    assert cells.table(ANNA)[2:4] == [HOLE, HOLE]
    assert cells.seq_pos_max(ANNA) == 5
    assert cells.num_free == 16 - 4


def test_slot_moves_positions_and_so_closes_the_gap(cells: SlotPool) -> None:
    """A context shift: two positions go, the later ones follow. Their keys must then be turned."""
    cells.allocate(ANNA, 6)
    first, second, _, _, fifth, sixth = cells.table(ANNA)
    cells.seq_rm(ANNA, 2, 4)
    cells.seq_add(ANNA, 4, None, -2)
    assert cells.table(ANNA) == [first, second, fifth, sixth]
    assert cells.seq_pos_max(ANNA) == 3


def test_slot_clones_a_cell_that_others_own_before_it_moves(cells: SlotPool) -> None:
    cells.allocate(ANNA, 4)
    cells.seq_cp(ANNA, BERT)
    before = list(cells.table(ANNA))
    cells.seq_rm(BERT, 0, 2)
    clones, copies = cells.seq_add(BERT, 2, None, -2)
    assert cells.table(BERT) == list(clones)
    assert copies == tuple(map(BlockCopy, before[2:], clones)), "what the workers copy first"
    assert cells.table(ANNA) == before, "Anna has noticed nothing"


def test_slot_moves_nothing_onto_another_position(cells: SlotPool) -> None:
    cells.allocate(ANNA, 6)
    for delta in (-1, -5):
        with pytest.raises(ValueError, match="the place is not free"):
            cells.seq_add(ANNA, 4, None, delta)


def test_slot_moves_nothing_from_beyond_the_last_cell(cells: SlotPool) -> None:
    cells.allocate(ANNA, 6)
    cells.seq_rm(ANNA, 3, 5)
    before = list(cells.table(ANNA))
    assert cells.seq_add(ANNA, 10, None, -7) == ((), ())
    assert cells.table(ANNA) == before and cells.check() == []


# ── STATIC: one range for each ───────────────────────────────────────────────────────────────


@pytest.fixture
def ranges() -> StaticPool:
    return StaticPool(num_blocks=8, block_size=16)


def test_static_gives_one_range_and_never_more(ranges: StaticPool) -> None:
    assert ranges.allocate(ANNA, 40).block_ids == (0, 1, 2)
    assert ranges.allocate(ANNA, 48).block_ids == ()
    with pytest.raises(OutOfBlocks, match="4 blocks asked, 3 are reserved"):
        ranges.allocate(ANNA, 49)


def test_static_needs_its_pages_in_a_row(ranges: StaticPool) -> None:
    for one, num_tokens in ((ANNA, 48), (BERT, 32), (CARL, 16)):
        ranges.allocate(one, num_tokens)
    ranges.free(ANNA)
    assert ranges.num_free == 5, "three before Bert, two behind Carl"
    assert ranges.fits(48) and not ranges.fits(64)
    with pytest.raises(OutOfBlocks, match="at most 3 in a row"):
        ranges.allocate(ANNA, 64)


def test_static_shares_and_moves_nothing(ranges: StaticPool) -> None:
    ranges.allocate(ANNA, 40)
    with pytest.raises(Unsupported, match="shares nothing"):
        ranges.seq_cp(ANNA, BERT)
    with pytest.raises(Unsupported, match="cannot move positions"):
        ranges.seq_add(ANNA, 20, None, -4)
    with pytest.raises(Unsupported, match="removes tails"):
        ranges.seq_rm(ANNA, 4, 20)


# ── What the scheduler makes of it ───────────────────────────────────────────────────────────


class Desk:
    """A scheduler whose worker says 7 every time."""

    def __init__(self, layout: str) -> None:
        block_size = 1 if layout == "slot" else 16
        self.scheduler = Scheduler(
            num_blocks=128 // block_size, block_size=block_size, vocab_size=256, max_model_len=64,
            bounds=Bounds(4, 64, 8), prefix_key=b"model", layout=layout,
        )  # fmt: skip
        self.slot = 0

    def ask(self, text: str, max_tokens: int = 2, **limits: Any) -> None:
        """Ask with one token per letter."""
        prompt = array("I", map(ord, text)).tobytes()
        self.slot += 1
        self.scheduler.add(Add(1, self.slot, "r", prompt, Limits(max_tokens, **limits), b""), 0.0)

    def step(self) -> ExecutePlan:
        plan = self.scheduler.schedule(0.0)
        assert plan is not None
        ids = tuple(row.seq_id for row in self.scheduler._in_flight[-1].rows)
        done = StepResult(plan.step_id, ids, (1,) * len(ids), (7,) * len(ids))
        self.events = self.scheduler.apply(done, 0.0)
        assert self.scheduler.check() == ""
        return plan

    def finish(self) -> Finished:
        """Run until somebody ends."""
        while True:
            self.step()
            for event in self.events:
                if event.finish is not None:
                    return event.finish


FIRST, SECOND = "You are a helpful assistant. Red?", "You are a helpful assistant. Ruby?"


@pytest.mark.parametrize(("layout", "num_cached"), [("block", 16), ("slot", 30), ("static", 0)])
def test_what_begins_alike_is_not_computed_again(layout: str, num_cached: int) -> None:
    """BLOCK finds whole pages, SLOT every token in common, STATIC nothing."""
    desk = Desk(layout)
    desk.ask(FIRST)
    desk.finish()
    desk.ask(SECOND)
    (start,) = desk.step().starts
    assert start.num_computed == num_cached
    assert desk.finish().num_cached_tokens == num_cached


def test_slot_finds_who_has_the_most_in_common_not_who_came_last() -> None:
    desk = Desk("slot")
    for text in (FIRST, "You are a pirate."):
        desk.ask(text)
        desk.finish()
    desk.ask(SECOND)
    assert desk.step().starts[0].num_computed == 30


@pytest.mark.parametrize("layout", ["block", "slot"])
def test_another_tenant_or_salt_finds_nothing(layout: str) -> None:
    desk = Desk(layout)
    desk.ask(FIRST, tenant="a")
    desk.finish()
    for reader in ({"tenant": "b"}, {"tenant": "a", "cache_salt": b"s"}):
        desk.ask(FIRST, **reader)
        assert desk.step().starts[0].num_computed == 0
        desk.finish()


@pytest.mark.parametrize(("layout", "num_prefills"), [("block", 1), ("slot", 1), ("static", 2)])
def test_two_choices_compute_their_prompt_once_if_they_can_share(
    layout: str, num_prefills: int
) -> None:
    desk = Desk(layout)
    desk.ask(FIRST, n=2, max_tokens=3)
    whole = [start for _ in range(2) for start in desk.step().starts if not start.num_computed]
    assert len(whole) == num_prefills


def test_static_reserves_prompt_and_answer_at_the_start_and_nothing_later() -> None:
    desk = Desk("static")
    desk.ask("a" * 20, max_tokens=30)
    (start,) = desk.step().starts
    assert start.block_ids == (0, 1, 2, 3)
    assert all(not row.new_block_ids for _ in range(28) for row in desk.step().steps)
    assert desk.finish().num_output_tokens == 30


@pytest.mark.parametrize("layout", ["block", "slot", "static"])
def test_a_full_context_is_the_end_or_loses_its_middle(layout: str) -> None:
    """The context has 64 tokens. With n_keep the first stay, half of the others go, and what is
    left is computed anew; all output counts."""
    desk = Desk(layout)
    desk.ask("a" * 60, max_tokens=20)
    assert desk.finish().num_output_tokens == 4
    desk.ask("b" * 60, max_tokens=20, n_keep=16)
    starts = [start for _ in range(5) for start in desk.step().starts]
    assert [len(start.token_ids) // 4 for start in starts] == [60, 64 - (64 - 16) // 2]
    assert desk.finish().num_output_tokens == 20


def test_slot_can_turn_keys_instead_of_computing_anew() -> None:
    desk = Desk("slot")
    desk.ask("b" * 60, max_tokens=20, n_keep=16, rotate_kv=True)
    plan = next(plan for _ in range(9) if (plan := desk.step()).shifts)
    (shift,), (start,) = plan.shifts, plan.starts
    assert shift.delta == -(64 - 16) // 2
    assert start.num_tokens == 1, "only the newest token is computed"
    desk.finish()
    assert desk.scheduler.pool.num_idle == 0, "turned keys are inexact: nobody may find them"


def test_cells_of_the_finished_make_way_when_they_are_needed() -> None:
    desk = Desk("slot")
    for text in "abc":
        desk.ask(text * 40)
        desk.finish()
    assert desk.scheduler.pool.num_idle > 0 == desk.scheduler.num_running
    desk.ask("d" * 60, max_tokens=1)
    desk.ask("e" * 60, max_tokens=1)
    desk.finish()
    assert desk.scheduler.tally.num_preemptions == 0
