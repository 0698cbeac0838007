"""Sampling: reference chains, the law of the draws, seeds, and logprobs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from protos import common_pb2
from protos.columns import pack
from tests.worker.sampling.rows import row, some_logits
from worker.sampler import Sampler


def test_a_seed_gives_the_same_token_alone_and_in_any_batch() -> None:
    sampler, logits = Sampler(24), some_logits(6)
    rows = [row(temperature=1.0, seed=s) for s in range(6)]
    together = [drawn.token_id for drawn in sampler.sample(logits, rows)]
    alone = [sampler.sample(logits[i : i + 1], rows[i : i + 1])[0].token_id for i in range(6)]
    backwards = [drawn.token_id for drawn in sampler.sample(logits[::-1].copy(), rows[::-1])]
    assert together == alone == backwards[::-1]


def test_choice_and_output_index_change_the_draw() -> None:
    sampler, logits = Sampler(24), np.zeros((1, 24), np.float32)

    def draws(**fields: Any) -> int:
        return sampler.sample(logits, [row(temperature=1.0, seed=5, **fields)])[0].token_id

    assert len({draws(choice=c) for c in range(20)}) > 5
    assert len({draws(prompt=(1,) * 20, num_prompt_tokens=n) for n in range(20)}) > 5


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    logits = np.array([[0, 3, 1, 3, 3]], np.float32)
    assert Sampler(5).sample(logits, [row(vocab_size=5)])[0].token_id == 1
    biased = row(vocab_size=5, logit_bias=[common_pb2.LogitBias(token_id=0, bias=3)])
    assert Sampler(5).sample(logits, [biased])[0].token_id == 0


def test_stop_ids_cannot_be_drawn_before_min_tokens() -> None:
    logits = np.array([[0, 9, 1, 8]], np.float32)
    fields: dict[str, Any] = {"vocab_size": 4, "min_tokens": 2, "stop_token_ids": (1, 3, 77)}
    assert Sampler(4).sample(logits, [row(**fields)])[0].token_id == 2
    longer = row(prompt=(1, 2, 3), num_prompt_tokens=1, **fields)
    assert Sampler(4).sample(logits, [longer])[0].token_id == 1


@pytest.mark.parametrize("chain", [{"min_p": 0.5}, {"top_p": 0.9}, {"top_k": 2}])
def test_what_is_forbidden_is_no_measure_of_what_is_left(chain: dict[str, Any]) -> None:
    logits = np.full((1, 24), -50, np.float32)
    logits[0, [7, 3]] = 90, 10
    budget = common_pb2.ThinkingBudget(max_tokens=0, end=pack([3]))
    drawn = Sampler(24).sample(logits, [row(temperature=1.0, thinking=budget, **chain)])[0]
    assert drawn.token_id == 3 and not drawn.error


def test_min_tokens_yields_when_nothing_else_is_left() -> None:
    """A complete grammar leaves stop ids only."""
    only = row(prompt=(1,), vocab_size=2, min_tokens=1, stop_token_ids=(0, 1))
    assert Sampler(2).sample(np.zeros((1, 2), np.float32), [only])[0].error is None


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_a_fault_of_their_row(poison: float) -> None:
    logits = some_logits(2)
    logits[0, 5] = poison
    drawn = Sampler(24).sample(logits, [row(), row()])
    assert "finite" in str(drawn[0].error) and drawn[1].error is None


def test_logprobs_are_of_the_raw_logits_likeliest_first() -> None:
    logits = np.array([[1, 2, 2, 0, -1]], np.float32)
    params = row(vocab_size=5, temperature=0.5, top_k=1, logprobs=3)
    logprobs = Sampler(5).sample(logits, [params])[0].logprobs
    assert logprobs is not None
    normaliser = math.log(sum(math.exp(x) for x in (1, 2, 2, 0, -1)))
    assert logprobs.token_ids[1:] == (1, 2, 0)
    assert logprobs.token_ids[0] in (1, 2)
    expected = [2 - normaliser, 2 - normaliser, 2 - normaliser, 1 - normaliser]
    assert logprobs.logprobs == pytest.approx(expected, abs=1e-12)
    assert (logprobs.key, logprobs.index) == (1, 0)


def test_zero_alternatives_still_tell_the_chosen_token() -> None:
    drawn = Sampler(24).sample(some_logits(1), [row(logprobs=0)])[0]
    assert drawn.logprobs is not None and drawn.logprobs.token_ids == (drawn.token_id,)
    assert Sampler(24).sample(some_logits(1), [row()])[0].logprobs is None


def test_neutral_parameters_need_no_stage() -> None:
    neutral = row(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0,
                  presence_penalty=0.0, frequency_penalty=0.0)  # fmt: skip
    assert neutral.draw.stages == () and not neutral.draw.is_greedy


def test_sampling_leaves_the_logits_alone() -> None:
    logits = some_logits(1)
    before = logits.copy()
    Sampler(24).sample(logits, [row(temperature=0.7, presence_penalty=1.0, min_p=0.2, logprobs=2)])
    assert np.array_equal(logits, before)
