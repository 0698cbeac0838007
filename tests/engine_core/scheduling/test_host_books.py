"""The scheduler's books of host memory, where the workers answer late."""

from __future__ import annotations

from engine_core.scheduling.errands import Errands
from engine_core.scheduling.host_tier import HostTier
from protos.worker import ErrandDone, LoadBlocks


def test_a_load_of_what_was_forgotten_is_not_good_where_the_key_is_held_again() -> None:
    """A row that failed takes back what it had stored; then another stores the same tokens."""
    errands = Errands()
    tier = HostTier(4, errands)
    for block_id, key in enumerate((b"a", b"b")):
        tier.evicted(key, block_id)
    tier.reserve([b"a", b"b"])
    good: list[int] = []
    tier.load([b"a", b"b"], [5, 6], lambda answer, now: good.append(answer.num_blocks))
    load = next(one for one in errands.take() if isinstance(one, LoadBlocks))
    tier.forget([b"b"])
    tier.evicted(b"b", 7)
    errands.done(ErrandDone(0, load.errand_id, num_blocks=2), 0.0)
    assert good == [1]
    assert tier.num_held([b"a", b"b"]) == 2 and not tier.is_coming(b"a")


def test_what_was_used_least_recently_makes_way() -> None:
    errands = Errands()
    tier = HostTier(2, errands)
    tier.evicted(b"a", 0)
    tier.evicted(b"b", 1)
    tier.evicted(b"a", 2)  # somebody has had it on the device since
    tier.evicted(b"c", 3)
    assert [tier.num_held([key]) for key in (b"a", b"b", b"c")] == [1, 0, 1]
    tier.reserve([b"a"])
    tier.load([b"a"], [5], lambda answer, now: None)
    load = next(one for one in errands.take() if isinstance(one, LoadBlocks))
    errands.done(ErrandDone(0, load.errand_id, num_blocks=1), 0.0)
    tier.evicted(b"d", 4)
    assert [tier.num_held([key]) for key in (b"a", b"c", b"d")] == [1, 0, 1]
