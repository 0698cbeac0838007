"""Blocks in host memory: what comes back is what was stored, or nothing does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from protos import worker as wire
from tests.worker.plans import start
from worker.build import LoadedModel
from worker.errands import BLOCKS_A_TURN, Errands
from worker.host_tier import HostTier
from worker.model_runner import ModelRunner

BLOCK_BYTES = 2 * 2 * 16 * 16 * 4


def with_tier(tiny: LoadedModel, num_blocks: int) -> tuple[ModelRunner, HostTier]:
    model = replace(tiny, host_kv_bytes=num_blocks * BLOCK_BYTES + 9)
    runner = model.runner(24)
    assert runner.host_tier is not None
    for layer in runner._cache.layers:
        for side in layer:
            side[:] = np.random.default_rng(1).integers(0, 100, side.shape)
    return runner, runner.host_tier


def content(runner: ModelRunner, block_id: int) -> bytes:
    out = np.zeros(BLOCK_BYTES, np.uint8)
    runner._cache.read([block_id], [out])
    return out.tobytes()


def test_what_comes_back_is_what_was_stored(tiny: LoadedModel) -> None:
    runner, tier = with_tier(tiny, 4)
    assert runner.memory["host"] == 4 * BLOCK_BYTES
    before = [content(runner, block_id) for block_id in range(3)]
    assert tier.store((0, 1, 2), (b"a", b"b", b"c")) == 3
    assert tier.load([9], [b"c"]) and tier.load([0], [b"b"])
    assert [content(runner, block_id) for block_id in (0, 1, 9)] == [
        before[1],
        before[1],
        before[2],
    ]
    assert tier.events == {"stored": 3, "loaded": 2} and tier.num_bytes == 3 * BLOCK_BYTES


def test_the_least_recently_used_makes_way(tiny: LoadedModel) -> None:
    _, tier = with_tier(tiny, 2)
    tier.store((0, 1), (b"a", b"b"))
    assert tier.load([5], [b"a"])
    tier.store((2, 0), (b"c", b"c"))
    assert tier.load([5], [b"a"]) and tier.load([5], [b"c"]) and not tier.load([5], [b"b"])
    tier.drop([b"a", b"zzz"])
    assert not tier.load([5], [b"a"])
    assert tier.store((99,), (b"d",)) == 0, "no such block"


def test_places_are_neither_lost_nor_taken_twice(tiny: LoadedModel) -> None:
    _, tier = with_tier(tiny, 2)
    tier.store((0, 1), (b"a", b"b"))
    tier.drop([b"a"])
    for _ in range(2):  # the second time it is held already
        tier.store((2,), (b"c",))
        assert tier.load([5], [b"b"]) and tier.load([5], [b"c"])


def test_nothing_is_stored_from_the_first_block_that_is_none_on(tiny: LoadedModel) -> None:
    _, tier = with_tier(tiny, 4)
    assert tier.store((23, 24, 1), (b"a", b"b", b"c")) == 1
    assert tier.load([5], [b"a"]) and not tier.load([5], [b"c"])


def test_a_flipped_bit_is_a_loss(tiny: LoadedModel) -> None:
    runner, tier = with_tier(tiny, 4)
    tier.store((0, 1), (b"a", b"b"))
    before = content(runner, 7)
    tier._memory[tier._held[b"a"][0], 17] ^= 4
    assert not tier.load([7], [b"a"]) and content(runner, 7) == before
    assert not tier.load([7], [b"a"]), "it is forgotten"
    assert tier.load([7], [b"b"]) and tier.events["lost"] == 2


@pytest.mark.parametrize("layout", ["slot", "static"])
def test_only_whole_pages_are_kept(tiny: LoadedModel, layout: str) -> None:
    model = replace(tiny, layout=layout, host_kv_bytes=10**6)
    assert model.facts(10**6).host_blocks == 0
    assert model.runner(24).host_tier is None


def errands_of(runner: ModelRunner) -> tuple[Errands, list[wire.ErrandDone]]:
    answers: list[wire.ErrandDone] = []
    return Errands(3, runner.host_tier, lambda sampling: "", answers.append), answers


def test_loads_take_turns_and_stop_at_a_loss(tiny: LoadedModel) -> None:
    runner, tier = with_tier(tiny, 12)
    errands, answers = errands_of(runner)
    blocks, keys = tuple(range(11)), tuple(bytes([i]) for i in range(11))
    errands.run(wire.StoreBlocks(1, blocks, keys))
    assert answers == [wire.ErrandDone(3, 1, num_blocks=11)]
    errands.run(wire.LoadBlocks(2, tuple(range(12, 23)), keys))
    assert errands.is_busy and tier.events["loaded"] == 0
    errands.turn()
    assert errands.is_busy and tier.events["loaded"] == BLOCKS_A_TURN
    errands.turn()
    assert not errands.is_busy and answers[1:] == [wire.ErrandDone(3, 2, num_blocks=11)]
    errands.run(wire.DropKeys((keys[1],)))
    errands.run(wire.LoadBlocks(3, (12, 13, 14), keys[:3]))
    errands.run(wire.LoadBlocks(4, (12,), keys[5:6]))
    errands.turn()
    assert answers[2:] == [wire.ErrandDone(3, 3, num_blocks=1), wire.ErrandDone(3, 4, num_blocks=1)]


def test_without_host_memory_an_errand_fails(tiny: LoadedModel) -> None:
    errands, answers = errands_of(tiny.runner(4))
    errands.run(wire.DropKeys((b"a",)))
    errands.run(wire.LoadBlocks(5, (1,), (b"a",)))
    assert answers == [wire.ErrandDone(3, 5, "there is no host memory")]
    assert not errands.is_busy


def test_a_block_may_be_stored_while_rows_run(tiny: LoadedModel) -> None:
    """What a prompt left in its blocks comes back into others, and serves as well."""
    runner, tier = with_tier(tiny, 4)
    prompt = list(range(5, 40))
    expected = runner.execute(wire.ExecutePlan(0, (start(1, prompt, (0, 1, 2)),))).token_ids
    tier.store((0, 1), (b"a", b"b"))
    runner.execute(wire.ExecutePlan(1, (start(2, [9] * 40, (0, 1, 2)),), finished=(1,)))
    assert tier.load([20], [b"a"]) and tier.load([3], [b"b"])
    again = start(3, prompt, (20, 3, 7), 3, num_computed=32)
    assert runner.execute(wire.ExecutePlan(2, (again,))).token_ids == expected
