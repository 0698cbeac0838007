"""ModelRunner: plans, preemption, copies, and faults that stay with their row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protos import worker as wire
from tests.worker.plans import EVERY_STAGE, generate, sampling, start
from worker.arena import Arena, num_bytes
from worker.build import LoadedModel, load_model
from worker.errors import KernelError
from worker.kernels.pages import keys_of
from worker.kv_cache import KvCache, kv_pieces
from worker.model_runner import ModelRunner
from worker.warm_up import warm_up

PROMPT = list(range(5, 40))
TEMPERED = sampling(temperature=1.0, seed=77, top_k=20, repetition_penalty=1.2)
EVERYTHING = sampling(**EVERY_STAGE)


@pytest.fixture
def runner(tiny: LoadedModel) -> ModelRunner:
    return tiny.runner(24)


def plan(step_id: int, *starts: wire.SequenceStart, **fields: object) -> wire.ExecutePlan:
    return wire.ExecutePlan(step_id, starts, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [1, 7, 16, 1000])
@pytest.mark.parametrize("params", [sampling(), TEMPERED, EVERYTHING])
def test_chunks_and_company_change_no_token(tiny: LoadedModel, chunk: int, params: bytes) -> None:
    expected = generate(tiny.runner(6), {1: PROMPT}, 20, sampling=params).token_ids[1]
    prompts = {7: [3] * 20, 1: PROMPT, 4: [9, 8, 7]}
    out = generate(tiny.runner(12), prompts, 20, chunk, sampling=params)
    assert out.token_ids[1] == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize("params", [sampling(), TEMPERED])
def test_layouts_change_no_token(tiny: LoadedModel, params: bytes) -> None:
    expected = generate(tiny.runner(12), {1: PROMPT, 2: [5]}, 20, sampling=params).token_ids
    slots = replace(tiny, layout="slot").runner(90)
    assert generate(slots, {1: PROMPT, 2: [5]}, 20, 9, sampling=params).token_ids == expected


@pytest.mark.parametrize("params", [TEMPERED, EVERYTHING])
def test_a_preempted_sequence_goes_on_as_if_nothing_had_been(
    runner: ModelRunner, params: bytes
) -> None:
    undisturbed = generate(runner, {1: PROMPT}, 12, sampling=params).token_ids[1]
    first = generate(runner, {1: PROMPT}, 5, sampling=params).token_ids[1]
    again = start(1, PROMPT + first, range(20, 24), num_prompt_tokens=len(PROMPT), sampling=params)
    rest = list(runner.execute(plan(0, again)).token_ids)
    for step_id in range(1, 7):
        rest += runner.execute(
            wire.ExecutePlan(step_id, steps=(wire.SequenceStep(1, 1),))
        ).token_ids
    assert first + rest == undisturbed


def test_dropped_output_counts_for_the_noise(runner: ModelRunner) -> None:
    """A context shift has taken 10 tokens of output; the next one is still number 15."""
    params = sampling(temperature=5.0, seed=77)
    tokens, blocks = PROMPT, range(3)
    drawn = [
        runner.execute(
            plan(i, start(1, tokens, blocks, num_prompt_tokens=left, sampling=params, **dropped))
        ).token_ids
        for i, (left, dropped) in enumerate([(20, {}), (30, {"num_dropped_outputs": 10}), (30, {})])
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_row_that_is_not_at_its_end_does_not_appear(runner: ModelRunner) -> None:
    result = runner.execute(plan(3, start(1, PROMPT, range(3), 16)))
    assert (result.step_id, result.seq_ids, result.token_ids) == (3, (), ())
    result = runner.execute(wire.ExecutePlan(4, steps=(wire.SequenceStep(1, 19),)))
    assert (result.seq_ids, result.counts) == ((1,), (1,))
    assert result.forward_s > 0


def test_a_cached_prefix_is_not_computed_again(runner: ModelRunner) -> None:
    expected = runner.execute(plan(0, start(1, PROMPT, (0, 1, 2)))).token_ids
    shared = start(2, PROMPT, (0, 1, 3), 3, num_computed=32)
    assert runner.execute(plan(1, shared, finished=(1,))).token_ids == expected


def test_blocks_are_copied_before_anything_is_computed(runner: ModelRunner) -> None:
    expected = runner.execute(plan(0, start(1, PROMPT, (0, 1, 2)))).token_ids
    copies = (wire.BlockCopy(0, 10), wire.BlockCopy(1, 11), wire.BlockCopy(11, 12))
    copied = start(2, PROMPT, (10, 12, 13), 3, num_computed=32)
    assert runner.execute(plan(1, copied, copies=copies)).token_ids == expected


def test_copies_are_made_in_order_however_many(tiny: LoadedModel) -> None:
    """In bulk, but as if one by one: chains and targets written twice included."""
    rng = np.random.default_rng(5)
    config = tiny.config
    cache = KvCache(config, 12, 1, Arena(num_bytes(kv_pieces(config, 12, 1))))
    for layer in cache.layers:
        layer.keys[:], layer.values[:] = rng.random(layer.keys.shape), rng.random(layer.keys.shape)
    expected = [[side.copy() for side in layer] for layer in cache.layers]
    pairs = rng.integers(0, 12, (200, 2)).tolist()
    cache.copy([wire.BlockCopy(source, target) for source, target in pairs])
    for layer, sides in zip(cache.layers, expected, strict=True):
        for side, wanted in zip(layer, sides, strict=True):
            for source, target in pairs:
                wanted[target] = wanted[source]
            assert np.array_equal(side, wanted)


@pytest.mark.parametrize("layout", ["block", "slot"])
def test_shifted_keys_are_near_those_of_their_new_positions(tiny: LoadedModel, layout: str) -> None:
    """In the first layer a key depends on its token and position alone."""
    model = replace(tiny, layout=layout)
    runner, other = model.runner(48), model.runner(48)
    blocks = range(48 if layout == "slot" else 3)
    runner.execute(plan(0, start(1, PROMPT, blocks)))
    other.execute(plan(0, start(1, PROMPT[:10] + PROMPT[16:], blocks)))
    cells = np.arange(16, len(PROMPT), dtype="<u4")
    before = runner._cache.layers[0].values.copy()
    runner.execute(wire.ExecutePlan(1, shifts=(wire.Shift(1, cells.tobytes(), -6),)))
    keys, wanted = (
        keys_of(one._cache.layers[0].keys, np.arange(48))[:, 0] for one in (runner, other)
    )
    assert np.allclose(keys[cells], wanted[cells - 6], atol=1e-5)
    assert np.array_equal(keys[:10], wanted[:10])
    assert not np.allclose(keys[cells], wanted[cells], atol=1e-2)
    assert np.array_equal(runner._cache.layers[0].values, before)


def test_a_shift_of_no_cell_fails_the_step(runner: ModelRunner) -> None:
    with pytest.raises(KernelError, match="rope_shift: cells outside"):
        runner.execute(plan(0, shifts=(wire.Shift(1, b"\xff\xff\0\0", 1),)))


def test_an_empty_plan_is_a_step(runner: ModelRunner) -> None:
    assert runner.execute(wire.ExecutePlan(9)).step_id == 9


BAD_STARTS = {
    "token id 96": start(2, [1, 96], (9,)),
    "blocks of 16": start(2, PROMPT, (8, 9)),
    "block ids": start(2, [1, 2], (24,)),
    "cannot be used: DecodeError": start(2, [1, 2], (9,), sampling=b"\xff\xff\xff"),
    "said to be computed": start(2, [1, 2], (9,), num_computed=2),
    "0 tokens after": start(2, [1, 2], (9,), 0),
    "3 tokens after": start(2, [1, 2], (9,), 3),
    "of 0 tokens are said": start(2, [], (9,)),
}


@pytest.mark.parametrize("words", BAD_STARTS)
def test_a_bad_row_is_a_fault_and_the_others_are_good(runner: ModelRunner, words: str) -> None:
    expected = runner.execute(plan(0, start(1, PROMPT, range(3)))).token_ids
    result = runner.execute(plan(1, start(1, PROMPT, range(3)), BAD_STARTS[words]))
    assert result.token_ids == expected and result.seq_ids == (1,)
    assert [fault.seq_id for fault in result.faults] == [2]
    assert words in result.faults[0].message


def test_a_failed_row_is_reported_once(runner: ModelRunner) -> None:
    runner.execute(plan(0, start(2, [1, 96], (9,)), start(1, PROMPT, range(3))))
    steps = (wire.SequenceStep(2, 1), wire.SequenceStep(1, 1))
    result = runner.execute(wire.ExecutePlan(1, steps=steps))
    assert result.faults == () and result.seq_ids == (1,)
    result = runner.execute(wire.ExecutePlan(2, steps=steps, finished=(2,)))
    assert [fault.seq_id for fault in result.faults] == [2]
    assert "never started" in result.faults[0].message


def test_a_copy_of_no_block_fails_the_step(runner: ModelRunner) -> None:
    with pytest.raises(IndexError):
        runner.execute(plan(0, copies=(wire.BlockCopy(0, 99),)))


def test_a_row_whose_logits_are_nan_fails_alone_and_leaves_clean_blocks(
    sick: Callable[[int | None], LoadedModel],
) -> None:
    runner = sick(50).runner(8)
    expected = generate(runner, {1: PROMPT[:12]}, 3).token_ids[1]
    result = runner.execute(plan(0, start(2, [50, 1, 2], (3,)), start(1, PROMPT[:12], range(3))))
    assert [fault.seq_id for fault in result.faults] == [2]
    assert list(result.token_ids) == expected[:1]
    again = start(1, PROMPT[:12], (3,))  # in the sick row's block
    assert list(runner.execute(plan(1, again)).token_ids) == expected[:1]


def test_nothing_of_a_dropped_row_remains(runner: ModelRunner) -> None:
    runner.execute(plan(0, start(1, PROMPT, range(3)), start(2, PROMPT, range(3, 6))))
    assert runner.num_sequences == 2
    runner.execute(wire.ExecutePlan(1, finished=(1, 2, 3)))
    assert runner.num_sequences == 0


@pytest.mark.parametrize("num_blocks", [1, 24])
def test_warm_up_leaves_nothing(tiny: LoadedModel, num_blocks: int) -> None:
    runner = tiny.runner(num_blocks)
    warm_up(runner)
    assert runner.num_sequences == 0


def test_the_memory_for_keys_and_values_makes_blocks(tiny: LoadedModel) -> None:
    facts = tiny.facts(1_000_000)
    assert facts.max_blocks == 1_000_000 // (2 * 2 * 16 * 16 * 4)
    assert tiny.runner(facts.max_blocks).memory["kv"] <= 1_000_000
    assert (facts.vocab_size, facts.block_size, facts.max_position_embeddings) == (96, 16, 256)
    assert facts.fingerprint.startswith("cpu f32 ")
    with pytest.raises(ValueError, match="kv_cache_memory is 4095 bytes and 16 tokens take 4096"):
        tiny.facts(4095)


def test_a_device_or_dtype_that_does_not_exist_is_named(tiny_folder: object) -> None:
    with pytest.raises(ValueError, match="device is 'tpu', allowed: cpu"):
        load_model(Path(str(tiny_folder)), device="tpu")
    with pytest.raises(ValueError, match="dtype is 'int3'"):
        load_model(Path(str(tiny_folder)), dtype="int3")


def test_a_dtype_the_device_lacks_is_one_log_line(
    tiny_folder: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load_model(Path(str(tiny_folder)), dtype="bfloat16", kernel_level="reference")
    assert [r.message for r in caplog.records] == ["the cpu reference computes in float32"]


def test_a_long_generation_grows_its_row(tiny: LoadedModel) -> None:
    out = generate(tiny.runner(12), {1: [1]}, 150).token_ids[1]
    assert len(out) == 150 and len(set(out)) > 10
