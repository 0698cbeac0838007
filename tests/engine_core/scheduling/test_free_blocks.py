"""Free blocks: none is lost, none is given twice, and those of a sequence lie side by side."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.pages import page_tables, pages_per_piece
from engine_core.scheduling.block_pool import BlockPool
from engine_core.scheduling.free_blocks import RUN, FreeBlocks


def test_sequences_that_grow_in_turn_have_runs_of_their_own() -> None:
    pool = BlockPool(4 * RUN, 1)
    for length in range(1, RUN + 1):
        for seq_id in (1, 2, 3):
            pool.allocate(seq_id, length)
    assert [pool.table(seq_id) for seq_id in (1, 2, 3)] == [
        [*range(RUN)], [*range(RUN, 2 * RUN)], [*range(2 * RUN, 3 * RUN)]
    ]  # fmt: skip


def test_a_sequence_goes_on_into_the_next_run_if_it_is_free() -> None:
    free = FreeBlocks(4 * RUN)
    assert free.take(RUN, last=-1) == [*range(RUN)]
    assert free.take(2, last=RUN - 1) == [RUN, RUN + 1]
    assert free.take(1, last=RUN - 1) == [2 * RUN], "that run is begun, so another one"
    assert free.take(2 * RUN, last=2 * RUN)[: RUN - 1] == [*range(2 * RUN + 1, 3 * RUN)]


def test_the_rest_of_a_run_is_taken_when_no_run_is_whole() -> None:
    free = FreeBlocks(2 * RUN + 1)
    one, other = free.take(1, last=-1), free.take(1, last=-1)
    assert (one, other) == ([0], [RUN])
    assert free.take(2, last=-1) == [2 * RUN, 1], "first what was left longest"
    assert len(free.take(len(free), last=1)) == 2 * RUN + 1 - 4
    assert len(free) == 0 and list(free) == []


@given(
    num_blocks=st.integers(1, 3 * RUN + 1),
    moves=st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(-1, 30)), max_size=40),
)
def test_it_is_a_set(num_blocks: int, moves: list[tuple[bool, int, int]]) -> None:
    free, expected = FreeBlocks(num_blocks), set(range(num_blocks))
    for is_taken, number, last in moves:
        if is_taken:
            taken = free.take(min(number, len(expected)), min(last, num_blocks - 1))
            assert len({*taken}) == min(number, len(expected)) and expected.issuperset(taken)
            expected.difference_update(taken)
        elif number < num_blocks and number not in expected:
            free.add(number)
            expected.add(number)
        assert list(free) == sorted(expected) and len(free) == len(expected)


def test_pages_stay_side_by_side_when_the_cache_is_full() -> None:
    """Requests have come and gone for long enough that every page was evicted some times."""
    tables = page_tables("served", count=16, num_pages=128, block_size=16)
    assert len({*tables.flat}) == tables.size == 16 * 128
    assert pages_per_piece(tables) > RUN / 2
    assert pages_per_piece(page_tables("shuffled", 16, 128, 16)) < 1.1
