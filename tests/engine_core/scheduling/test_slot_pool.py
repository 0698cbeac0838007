"""The audit of SLOT looks at sums first; each way to be wrong must still be found and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine_core.scheduling.slot_pool import SlotPool


@pytest.fixture
def pool() -> SlotPool:
    """Sequence 1 has 6 cells, 2 shares the first 4 and misses the second, a resident has 3."""
    pool = SlotPool(16)
    pool.allocate(1, 6)
    pool.seq_cp(1, 2, 0, 4)
    pool.seq_rm(2, 1, 2)
    pool.allocate(3, 3)
    pool.retain(3, -1)
    return pool


def lose_an_owner(pool: SlotPool) -> None:
    pool._owners[pool.table(2)[0]] = frozenset({1})


def add_an_owner(pool: SlotPool) -> None:
    pool._owners[pool.table(1)[5]] = frozenset({1, 2})


def move_a_cell(pool: SlotPool) -> None:
    pool._positions[pool.table(1)[2]] = 5


def take_a_cell_twice(pool: SlotPool) -> None:
    pool.table(2)[2] = pool.table(2)[3]


def free_twice(pool: SlotPool) -> None:
    pool._free.append(pool._free[0])


def free_a_used_one(pool: SlotPool) -> None:
    pool._free[0] = pool.table(1)[0]


def leak(pool: SlotPool) -> None:
    pool._free.pop()


def miscount(pool: SlotPool) -> None:
    pool.num_idle += 1


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lose_an_owner, "has owners [1], not those of the tables"),
        (add_an_owner, "has owners [1, 2], not those of the tables"),
        (move_a_cell, "is at 5, 2 of sequence 1"),
        (take_a_cell_twice, "of sequence 2"),
        (free_twice, "is free 2 times"),
        (free_a_used_one, "is free and owned"),
        (leak, "6 free + 9 owned ≠ 16 cells"),
        (miscount, "4 cells are counted as idle, 3 are"),
    ],
)
def test_what_is_wrong_is_named(
    pool: SlotPool, spoil: Callable[[SlotPool], None], found: str
) -> None:
    assert pool.check() == []
    spoil(pool)
    assert any(found in problem for problem in pool.check()), pool.check()
