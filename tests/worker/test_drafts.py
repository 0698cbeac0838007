"""Guesses change no token: what comes out is what would have come without them, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import worker as wire
from protos.common_pb2 import LogitBias
from tests.worker.plans import EVERY_STAGE, Generation, generate, sampling, start
from worker.build import LoadedModel
from worker.model_runner import ModelRunner

PROMPT = list(range(5, 40))
NUM_NEW = 24
TEMPERED = {"temperature": 1.0, "seed": 77}
RECIPES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": TEMPERED,
    "narrowed": {**TEMPERED, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "repetition": {**TEMPERED, "repetition_penalty": 1.5},
    "greedy-counts": {"presence_penalty": 1.0, "frequency_penalty": 0.7},
    "counts": {**TEMPERED, "presence_penalty": 0.5, "frequency_penalty": -0.3},
    "bias": {**TEMPERED, "logit_bias": [LogitBias(token_id=7, bias=3.0)]},
    "every stage": EVERY_STAGE,
}
Proposer = Callable[[Sequence[int]], Sequence[int]]


def with_guesses(
    runner: ModelRunner, params: bytes, propose: Proposer, **fields: Any
) -> tuple[Generation, int]:
    """Generate with what `propose` makes of the output so far, beside a row without guesses."""
    out, num_steps = Generation(), 0
    out.token_ids, out.logprobs = {1: [], 2: []}, {1: [], 2: []}
    blocks = iter(np.random.default_rng(2).permutation(runner.num_blocks).tolist())
    own = [[next(blocks) for _ in range(80 // runner.block_size)] for _ in range(2)]
    starts = (
        start(1, PROMPT, own[0], sampling=params, **fields),
        start(2, PROMPT[:7], own[1], sampling=params, **fields),
    )
    plan = wire.ExecutePlan(0, starts)
    while len(out.token_ids[1]) < NUM_NEW:
        result = runner.execute(plan)
        assert not result.faults, result.faults
        place = 0
        for seq_id, count in zip(result.seq_ids, result.counts, strict=True):
            out.token_ids[seq_id] += result.token_ids[place : place + count]
            place += count
        for row in result.logprobs:
            out.logprobs[row.key].append(row)
        guesses = tuple(propose(out.token_ids[1]))
        steps = (
            wire.SequenceStep(1, 1 + len(guesses), (), guesses),
            wire.SequenceStep(2, 1),
        )
        num_steps += 1
        plan = wire.ExecutePlan(num_steps, steps=steps)
    runner.execute(wire.ExecutePlan(num_steps, finished=(1, 2)))
    return out, num_steps


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", ["right", "wrong", "two right, then wrong"])
def test_guesses_change_no_token(tiny: LoadedModel, recipe: str, kind: str) -> None:
    params = sampling(**RECIPES[recipe])
    fields = {"logprobs": 3, "min_tokens": 10, "stop_token_ids": (8, 9)}
    plain = generate(tiny.runner(20), {1: PROMPT}, NUM_NEW + 4, sampling=params, **fields)
    expected = plain.token_ids[1]

    def propose(output: Sequence[int]) -> list[int]:
        truth = expected[len(output) : len(output) + 4]
        wrong = {"right": 4, "wrong": 0, "two right, then wrong": 2}[kind]
        return truth[:wrong] + [(token_id + 1) % 96 for token_id in truth[wrong:]]

    out, num_steps = with_guesses(tiny.runner(20), params, propose, **fields)
    count = len(out.token_ids[1])
    assert out.token_ids[1] == expected[:count]
    assert out.logprobs[1] == plain.logprobs[1][:count]
    most = {"right": 1 + -(-NUM_NEW // 5), "wrong": NUM_NEW, "two right, then wrong": 9}[kind]
    assert num_steps <= most
    alone = generate(tiny.runner(20), {2: PROMPT[:7]}, num_steps, sampling=params, **fields)
    assert out.token_ids[2] == alone.token_ids[2]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_guesses_any_layout_any_passes(tiny: LoadedModel, data: st.DataObject) -> None:
    recipe = data.draw(st.sampled_from(sorted(RECIPES)))
    params = sampling(**RECIPES[recipe])
    expected = generate(tiny.runner(20), {1: PROMPT}, NUM_NEW + 6, sampling=params).token_ids[1]
    layout = data.draw(st.sampled_from(["block", "slot"]))
    passes = data.draw(st.sampled_from([1, 2, 3, 5, 40, 2048]))
    model = replace(tiny, layout=layout, max_ubatch_tokens=passes)

    def propose(output: Sequence[int]) -> list[int]:
        truth = expected[len(output) : len(output) + data.draw(st.integers(0, 6))]
        flips = data.draw(st.lists(st.booleans(), min_size=len(truth), max_size=len(truth)))
        return [(t + flip) % 96 for t, flip in zip(truth, flips, strict=True)]

    out, _ = with_guesses(model.runner(20 if layout == "block" else 200), params, propose)
    assert out.token_ids[1] == expected[: len(out.token_ids[1])]


def test_a_stop_among_the_guesses_is_the_schedulers_to_cut(tiny: LoadedModel) -> None:
    runner = tiny.runner(20)
    expected = generate(runner, {1: PROMPT}, 4).token_ids[1]
    first = start(1, PROMPT, range(5), stop_token_ids=(expected[1],))
    assert list(runner.execute(wire.ExecutePlan(0, (first,))).token_ids) == expected[:1]
    step = wire.SequenceStep(1, 3, (), tuple(expected[1:3]))
    result = runner.execute(wire.ExecutePlan(1, steps=(step,)))
    assert result.counts == (3,) and list(result.token_ids) == expected[1:]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (wire.SequenceStep(1, 2, (), (96,)), "guesses (96,), vocabulary is 96"),
        (wire.SequenceStep(1, 1, (), (5,)), "1 guesses, and a step that ends at 36 of 37"),
        (wire.SequenceStep(1, 3, (), (5,)), "step of 3 tokens after 35 of 37"),
        (wire.SequenceStep(1, 20, (), (5,) * 19), "55 tokens do not fit in 3 blocks"),
    ],
)
def test_guesses_that_cannot_be_are_a_fault(
    tiny: LoadedModel, step: wire.SequenceStep, words: str
) -> None:
    runner = tiny.runner(20)
    runner.execute(wire.ExecutePlan(0, (start(1, PROMPT, range(3)),)))
    (fault,) = runner.execute(wire.ExecutePlan(1, steps=(step,))).faults
    assert words in fault.message


def test_a_draw_that_fails_behind_good_ones_fails_alone_in_the_next_step(
    sick: Callable[[int | None], LoadedModel],
) -> None:
    expected = generate(sick(None).runner(20), {1: PROMPT}, 4).token_ids[1]
    assert expected[2] not in (*PROMPT, *expected[:2])
    runner = sick(expected[2]).runner(20)
    runner.execute(wire.ExecutePlan(0, (start(1, PROMPT, range(5)),)))
    step = wire.SequenceStep(1, 4, (), (*expected[1:3], 5))
    result = runner.execute(wire.ExecutePlan(1, steps=(step,)))
    assert list(result.token_ids) == expected[1:3] and not result.faults
    result = runner.execute(wire.ExecutePlan(2, steps=(wire.SequenceStep(1, 1),)))
    assert not result.token_ids and "not finite" in result.faults[0].message
