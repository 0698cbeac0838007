"""The audit finds each way in which the books can be wrong, and names who is concerned."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.roster import Roster
from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.sequence import Sequence, Status
from protos.worker import Add, Limits, StepResult


@pytest.fixture
def scheduler() -> Scheduler:
    """Slot 1 runs with guesses in flight, 2 waits, 3 is paused, 4 waits for its grammar."""
    scheduler = Scheduler(
        num_blocks=8, block_size=4, vocab_size=100, max_model_len=64, bounds=Bounds(1, 64, 8),
        prefix_key=b"m", propose=lambda tokens, most: [7] * min(most, 2),
    )  # fmt: skip
    for slot in (1, 2, 3, 4):
        limits = Limits(9, has_grammar=slot == 4)
        body = array("I", [slot] * 6).tobytes()
        scheduler.add(Add(1, slot, "r", body, limits, b""), 0.0)
    scheduler.pause(1, 3, 0.0)
    assert scheduler.schedule(0.0) is not None
    scheduler.apply(StepResult(1, (1,), (1,), (5,)), 0.0)
    assert scheduler.schedule(0.0) is not None
    return scheduler


def row(roster: Roster, slot: int) -> Sequence:
    found = roster.find(1, slot)
    assert found is not None
    return found


def forget(slot: int) -> Callable[[Roster], object]:
    return lambda roster: roster._sessions[1].pop(slot)


def spoil_guesses(roster: Roster) -> None:
    row(roster, 1).num_guesses = 9


def hold_in_vain(roster: Roster) -> None:
    row(roster, 2).is_paused = True


def lose_paused(roster: Roster) -> None:
    roster.paused.clear()


def lose_held(roster: Roster) -> None:
    roster.held.clear()


def change_status(roster: Roster) -> None:
    row(roster, 2).status = Status.RUNNING


def overrun(roster: Roster) -> None:
    row(roster, 1).num_planned = 99


def free_twice(roster: Roster) -> None:
    roster.layout.free(row(roster, 1).seq_id)


def leak(roster: Roster) -> None:
    roster.layout.allocate(77, 4)


def take_a_seat(roster: Roster) -> None:
    roster.seats["nobody"] += 1


def forget_a_tenant(roster: Roster) -> None:
    roster.tenants[""] -= 1


def overfill(roster: Roster) -> None:
    row(roster, 1).tokens.extend([1] * 99)


def keep_blocks(roster: Roster) -> None:
    row(roster, 2).block_ids = [3]


def idle_in_use(roster: Roster) -> None:
    roster.layout._idle[roster.layout.table(1)[0]] = None


def idle_and_worthless(roster: Roster) -> None:
    roster.layout._free.take(1, -1)
    roster.layout._idle[7] = None


def lose_a_block(roster: Roster) -> None:
    roster.layout._free.take(1, -1)


def free_in_use(roster: Roster) -> None:
    roster.layout._free.add(roster.layout.table(1)[0])


def cached_twice(roster: Roster) -> None:
    roster.cache._blocks[b"other"] = next(iter(roster.cache._keys))


def cached_as_another(roster: Roster) -> None:
    key = next(iter(roster.cache._blocks))
    roster.cache._blocks[key] = 6


def kept_for_nobody(roster: Roster) -> None:
    roster.layout.keep(roster.layout.table(1)[1])


ONE, TWO, THREE, FOUR = (f"sequence {n} (session 1, slot {n})" for n in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (forget(1), f"{ONE}: orphan"),
        (forget(2), f"{TWO}: orphan"),
        (forget(3), f"{THREE}: orphan"),
        (forget(4), f"{FOUR}: orphan"),
        (lose_paused, f"{THREE}: is PAUSED but not among them"),
        (lose_held, f"{FOUR}: is WAITING_FOR_GRAMMAR but not among them"),
        (change_status, f"{TWO}: is RUNNING but not among them"),
        (hold_in_vain, f"{TWO}: is to be held back and is WAITING"),
        (spoil_guesses, f"{ONE}: 9 guesses of"),
        (overrun, f"{ONE}: computed 6, planned 99 of"),
        (free_twice, "sequences [1] have a table or should have one, not both"),
        (leak, "sequences [77] have a table or should have one, not both"),
        (overfill, f"{ONE}: 106 tokens, 15 allowed"),
        (keep_blocks, f"{TWO}: is WAITING and holds 1 blocks"),
        (idle_in_use, "block 0 is idle and referenced"),
        (idle_and_worthless, "block 7 is idle, not kept"),
        (lose_a_block, "≠ 8 blocks"),
        (free_in_use, "block 0 is free and referenced"),
        (cached_twice, "2 keys for 1 cached blocks"),
        (cached_as_another, "block 0 is cached under a key of block 6"),
        (kept_for_nobody, "are kept or cached, not both"),
        (take_a_seat, "seats {'': 1, 'nobody': 1} are counted, {'': 1} are taken"),
        (forget_a_tenant, "tenants {'': 3} are counted, {'': 4} are live"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named(
    scheduler: Scheduler, spoil: Callable[[Roster], object], found: str
) -> None:
    assert scheduler.check() == ""
    spoil(scheduler._roster)
    assert found in scheduler.check()


def test_an_errand_that_nobody_waits_for_is_none_of_the_ledgers_business(
    scheduler: Scheduler,
) -> None:
    """Its answer still comes, and finds that all have ended."""
    scheduler.close_session(1, 0.0)
    assert scheduler.check() == "" and scheduler.num_errands == 1
