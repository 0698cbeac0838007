"""What a plan starts and what it lets wait, where random lives do not come or do not look."""

from __future__ import annotations

from array import array

from engine_core.scheduling.block_pool import BlockPool
from engine_core.scheduling.bounds import Bounds, TenantLimits
from engine_core.scheduling.prefix_cache import PrefixCache
from engine_core.scheduling.request import Request
from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.sequence import Room, Sequence
from protos.worker import Add, Limits, StepResult

BLOCK_SIZE = 4


def scheduler(layout: str = "block", **tenants: TenantLimits) -> Scheduler:
    return Scheduler(
        num_blocks=64, block_size=BLOCK_SIZE, vocab_size=100, max_model_len=64,
        bounds=Bounds(8, 256, 100, tenants=tenants), prefix_key=b"m", layout=layout,
    )  # fmt: skip


def add(to: Scheduler, slot: int, prompt: range, limits: Limits, *resumed: bytes) -> None:
    to.add(Add(1, slot, "r", array("I", prompt).tobytes(), limits, b"", resumed), 0.0)


def run(one: Scheduler) -> list[int]:
    """Run all that there is, a token a step; return of each end how many tokens were found."""
    found: list[int] = []
    while (plan := one.schedule(0.0)) is not None:
        ids = [row.seq_id for row in (*plan.starts, *plan.steps)]
        result = StepResult(plan.step_id, tuple(ids), (1,) * len(ids), (5,) * len(ids))
        ends = [event.finish for event in one.apply(result, 0.0)]
        found += [end.num_cached_tokens for end in ends if end is not None]
        assert one.check() == ""
    return found


def test_who_stands_behind_a_choice_that_waits_keeps_to_its_tenants_blocks() -> None:
    """The choice waits for its prompt, and would fit; the next in the queue would not."""
    one = scheduler(a=TenantLimits(blocks=11))
    add(one, 1, range(1, 20), Limits(2, n=2, tenant="a"))
    add(one, 3, range(20, 50), Limits(2, tenant="a"))
    plan = one.schedule(0.0)
    assert plan is not None and len(plan.starts) == 1


def test_choices_that_can_share_nothing_start_beside_each_other() -> None:
    one = scheduler("static")
    add(one, 1, range(1, 20), Limits(2, n=2))
    plan = one.schedule(0.0)
    assert plan is not None and len(plan.starts) == 2


def test_no_more_tokens_are_told_as_cached_than_the_prompt_has() -> None:
    """What a replay finds of its own answer is none of the prompt's."""
    one = scheduler()
    add(one, 1, range(1, 10), Limits(20))
    assert run(one) == [0]
    add(one, 2, range(1, 10), Limits(20), array("I", [5] * 10).tobytes())
    assert run(one) == [9]
    assert one.tally.num_prefix_hits == 16, "the whole blocks that were found"


def test_no_tenant_writes_its_salt_so_that_it_finds_anothers() -> None:
    one = scheduler()
    for slot, (tenant, salt) in enumerate((("ab", b"c"), ("a", b"bc"), ("", b"abc"))):
        add(one, slot, range(1, 20), Limits(2, tenant=tenant, cache_salt=salt))
        assert run(one) == [0]
    add(one, 4, range(1, 20), Limits(2, tenant="a", cache_salt=b"bc"))
    assert run(one) == [16]


def test_choices_are_one_look_into_the_cache() -> None:
    one = scheduler()
    add(one, 1, range(1, 20), Limits(2, n=3))
    assert len(run(one)) == 3
    assert (one.tally.num_found, one.tally.num_not_found) == (0, 1)
    assert one.tally.num_prefix_queries == 19


def test_what_was_computed_behind_the_end_is_not_kept() -> None:
    """A plan ahead, or guesses, reach over it; the last block is not whole then."""
    pool = BlockPool(8, BLOCK_SIZE)
    cache = PrefixCache(pool, b"m")
    prompt = array("I", range(1, 7))
    request = Request(1, 2, "r", prompt, (), Limits(4), frozenset(), b"", 0, 0.0, None)
    sequence = Sequence(1, request, 0, Room(100, 100))
    (first, _) = pool.allocate(1, 8).block_ids
    cache.watch(sequence, 0)
    cache.enter(sequence, 8)
    assert pool.kept() == {first}
