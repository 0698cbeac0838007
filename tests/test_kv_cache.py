"""What a KV layout is: read this before engine_core/scheduling/kv_layout.py.

Every test says one thing in plain words. A sequence has a table that says in which cell of which
page each of its positions stands; a layout says who owns the pages. Sequences are numbers here, and
tokens do not occur.
"""

from __future__ import annotations

import pytest

from engine_core.scheduling.block_pool import BlockPool
from engine_core.scheduling.kv_layout import KvLayout, OutOfBlocks, Unsupported
from engine_core.scheduling.layouts import new_layout
from protos.worker import BlockCopy

ANNA, BERT, CARL = 1, 2, 3
"""Three sequences."""


@pytest.fixture(params=["block"])
def layout(request: pytest.FixtureRequest) -> KvLayout:
    """Room for 64 tokens in any layout."""
    num_blocks, block_size = {"block": (4, 16)}[request.param]
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
