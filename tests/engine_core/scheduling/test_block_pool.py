"""Blocks: none is lost, none is given twice; what idles is found again or evicted, never silently.

What a newcomer should know of the layouts stands in tests/test_kv_cache.py.
"""

from __future__ import annotations

import pytest

from engine_core.scheduling.block_pool import BlockPool
from engine_core.scheduling.kv_layout import OutOfBlocks
from protos.worker import BlockCopy


def test_a_table_grows_in_place() -> None:
    pool = BlockPool(8, 16)
    assert pool.allocate(1, 20).block_ids == (0, 1)
    table = pool.table(1)
    assert pool.allocate(1, 32).block_ids == ()
    assert pool.allocate(1, 33).block_ids == (2,)
    assert pool.table(1) is table == [0, 1, 2]
    assert [pool.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_the_check_names_the_block_and_the_sequence() -> None:
    pool = BlockPool(2, 16)
    pool.allocate(7, 3)
    assert pool.check() == []
    pool._free.add(0)
    assert "block 0 is free and referenced" in pool.check()
    pool._free.add(0)
    assert "3 blocks are counted as free, 2 are" in pool.check()
    pool._free.take(1, last=-1)
    pool.table(7).append(1)
    assert "block 1 has 0 references, 1 owners" in pool.check()
    assert "sequence 7 has 2 blocks for 3 tokens" in pool.check()


def test_nobody_is_freed_twice_and_nothing_free_is_shared() -> None:
    pool = BlockPool(2, 16)
    pool.allocate(1, 3)
    pool.free(1)
    with pytest.raises(KeyError):
        pool.free(1)
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.adopt(2, [0])


def test_a_kept_block_idles_until_it_is_adopted_or_discarded() -> None:
    pool = BlockPool(3, 16)
    pool.allocate(1, 32)
    one, two = pool.table(1)
    pool.keep(one)
    pool.keep(two)
    pool.free(1)
    assert (pool.num_free, pool.num_idle, pool.num_available) == (1, 2, 3)
    assert pool.oldest_idle() == two, "the end of a prefix goes first"
    with pytest.raises(OutOfBlocks, match="2 blocks asked, 1 free"):
        pool.allocate(2, 32)
    assert pool.fits(48) and not pool.fits(64)
    assert pool.fits(48, known=[one]) and not pool.fits(64, known=[one])
    pool.adopt(3, [one])
    pool.discard(two)
    assert (pool.num_free, pool.num_idle) == (2, 0)
    assert pool.check() == []


def test_a_page_the_cache_knows_is_not_written_again_after_a_cut() -> None:
    pool = BlockPool(4, 4)
    pool.allocate(1, 8)
    pool.keep(1)
    pool.seq_rm(1, 6)
    grant = pool.allocate(1, 7)
    assert grant.copies == (BlockCopy(1, 2),) and pool.table(1) == [0, 2]
    assert pool.num_idle == 1 and pool.check() == []


def test_the_last_owner_of_a_cut_page_writes_in_place() -> None:
    pool = BlockPool(4, 4)
    pool.allocate(1, 6)
    pool.seq_cp(1, 2)
    pool.free(1)
    assert pool.allocate(2, 7).copies == ()
    assert pool.table(2) == [0, 1] and pool.check() == []


def test_who_borrows_a_page_copies_it_when_it_writes_and_not_before() -> None:
    pool = BlockPool(8, 16)
    pool.allocate(1, 20)
    pool.seq_cp(1, 2)
    assert pool.allocate(2, 20) == ((), ())
    assert pool.allocate(2, 21) == ((2,), (BlockCopy(1, 2),))


def test_who_begins_anew_has_borrowed_nothing() -> None:
    """A preempted sequence comes back under its number."""
    pool = BlockPool(8, 16)
    pool.allocate(1, 20)
    pool.seq_rm(1, 18)
    pool.free(1)
    assert pool.allocate(1, 20).copies == ()
    assert pool.check() == []
