"""Blocks: none is lost, none is given twice, a double free is caught."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.scheduling.block_pool import BlockPool, OutOfBlocks


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(3, 16)
    with pytest.raises(OutOfBlocks, match="4 blocks asked, 3 free of 3"):
        pool.allocate(4)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.num_free == 0
    assert [pool.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_double_free_is_caught() -> None:
    pool = BlockPool(2, 16)
    taken = pool.allocate(1)
    pool.free(taken)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(taken)
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.claim(taken)


def test_the_check_names_the_block() -> None:
    pool = BlockPool(2, 16)
    (block,) = pool.allocate(1)
    assert pool.check(Counter([block])) == []
    assert pool.check(Counter()) == ["block 0 has 1 references, 0 owners"]
    pool._free.append(block)
    assert "block 0 is free and referenced" in pool.check(Counter([block]))


def test_a_kept_block_idles_until_it_is_claimed_or_discarded() -> None:
    pool = BlockPool(3, 16)
    one, two = pool.allocate(2)
    pool.keep(one)
    pool.keep(two)
    pool.free([one, two])
    assert (pool.num_free, pool.num_idle, pool.num_available) == (1, 2, 3)
    assert pool.oldest_idle() == two, "the end of a prefix goes first"
    with pytest.raises(OutOfBlocks, match="2 blocks asked, 1 free"):
        pool.allocate(2)
    assert pool.available_beside([one]) == 2
    pool.claim([one])
    pool.discard(two)
    assert (pool.num_free, pool.num_idle) == (2, 0)
    assert pool.check(Counter([one])) == []


ACTIONS = ["allocate", "share", "free", "keep", "discard", "revive"]


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5))))
def test_books_stay_true(steps: list[tuple[str, int]]) -> None:
    pool, owners = BlockPool(8, 4), list[list[int]]()
    for action, size in steps:
        if action == "allocate" and size <= pool.num_free:
            owners.append(pool.allocate(size))
        elif action == "share" and owners:
            owners.append(list(owners[size % len(owners)]))
            pool.claim(owners[-1])
        elif action == "free" and owners:
            pool.free(owners.pop(size % len(owners)))
        elif action == "keep" and owners and owners[size % len(owners)]:
            pool.keep(owners[size % len(owners)][0])
        elif action == "discard" and pool.num_idle:
            pool.discard(pool.oldest_idle())
        elif action == "revive" and pool.num_idle:
            owners.append([pool.oldest_idle()])
            pool.claim(owners[-1])
        assert pool.check(Counter(b for blocks in owners for b in blocks)) == []
    for blocks in owners:
        pool.free(blocks)
    assert pool.num_available == 8
