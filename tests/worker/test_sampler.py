"""Sampling: reference chains, the law of the draws, seeds, and logprobs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos import common_pb2
from tests.worker.plans import sampling, start
from worker.kernels.checks import Floats
from worker.noise import Doubles
from worker.rows import Row
from worker.sampler import Sampler
from worker.sampling_stages import (
    STAGES,
    Candidates,
    CountPenalties,
    History,
    LogitBias,
    MinP,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)

LATER = {"typical_p"}
"""Stages of the reference files that do not exist yet."""
LATER_LLAMA = {"temp_ext", "xtc", "typical", "dry", "top_n_sigma"}
NO_HISTORY = History(np.zeros(0, np.int32), np.zeros(0, np.int32))


def stage(op: dict[str, Any]) -> Any:
    """Return the stage of one reference operation; an unknown name is an error."""
    value = op["value"]
    table: dict[str, Any] = {
        "temperature": lambda: Temperature(value),
        "top_k": lambda: TopK(value),
        "top_p": lambda: TopP(value),
        "min_p": lambda: MinP(value),
        "repetition_penalty": lambda: RepetitionPenalty(value),
        "presence_penalty": lambda: CountPenalties(value, 0),
        "frequency_penalty": lambda: CountPenalties(0, value),
        "logit_bias": lambda: LogitBias([int(i) for i in value], list(value.values())),
    }
    return table[op["op"]]()


def probabilities(candidates: Candidates) -> Doubles:
    weights = np.exp(candidates.logits - candidates.logits.max())
    normalised: Doubles = weights / weights.sum()
    return normalised


def run_chain(case: dict[str, Any]) -> Candidates:
    logits = np.array(case["logits"], np.float32).astype(np.float64)
    left = Candidates(np.arange(len(logits)), logits)
    history = History(
        np.array(case["prompt_ids"], np.int32), np.array(case["output_ids"], np.int32)
    )
    for op in case["ops"]:
        left = stage(op)(left, history)
    return left


def test_reference_chains(reference_data: Path) -> None:
    cases = json.loads((reference_data / "sampling" / "chains.json").read_text())
    ours = [case for case in cases if not LATER & {op["op"] for op in case["ops"]}]
    assert len(ours) >= 60
    for case in ours:
        left = run_chain(case)
        kept = probabilities(left)
        got = {str(i): p for i, p in zip(left.ids, kept, strict=True) if p > 0}
        assert got.keys() == case["probs"].keys(), case["id"]
        assert len(got) == case["n_kept"], case["id"]
        for token_id, probability in case["probs"].items():
            assert got[token_id] == pytest.approx(probability, rel=2e-5, abs=1e-12), case["id"]
        assert left.ids[left.logits.argmax()] == case["argmax"], case["id"]


def test_the_order_of_the_table_is_that_of_vllm(reference_data: Path) -> None:
    names = {
        Temperature: "temperature", MinP: "min_p", TopK: "top_k", TopP: "top_p",
        RepetitionPenalty: "repetition_penalty", LogitBias: "logit_bias",
    }  # fmt: skip
    order = [names[cls] for cls in STAGES if cls in names]
    cases = json.loads((reference_data / "sampling" / "chains.json").read_text())
    theirs = [case["ops"] for case in cases if case["orders"] == ["vllm"]]
    assert len(theirs) >= 4
    for ops in theirs:
        chain = [op["op"] for op in ops if op["op"] in order]
        assert chain == sorted(chain, key=order.index)


def llama_stage(name: str, params: dict[str, Any]) -> Any:
    if name == "temp":
        return Temperature(params["temp"])
    if name == "top_k":
        return TopK(params["k"])
    if name == "top_p":
        return TopP(params["p"])
    if name == "min_p":
        return MinP(params["p"]) if params["p"] else lambda left, history: left
    raise AssertionError(f"unknown sampler {name}")


def test_llama_cpp_single(reference_data: Path) -> None:
    cases = json.loads((reference_data / "sampling" / "llamacpp.json").read_text())["single"]
    seen = 0
    for case in cases:
        if case["sampler"] in LATER_LLAMA:
            continue
        seen += 1
        left = Candidates(np.arange(len(case["probs"])), np.log(np.array(case["probs"])))
        if case["sampler"] == "penalties":  # theirs count prompt and output alike
            last, params = np.array(case["last_tokens"], np.int32), case["params"]
            history = History(last[:0], last)
            left = RepetitionPenalty(params["repeat"])(left, history)
            left = CountPenalties(params["presence"], params["frequency"])(left, history)
        else:
            left = llama_stage(case["sampler"], case["params"])(left, NO_HISTORY)
        got = probabilities(left)
        if case["sampler"] in ("top_k", "top_p"):
            got = np.sort(got)[::-1]
        np.testing.assert_allclose(np.sort(got), np.sort(case["expected_probs"]), atol=1e-5)
    assert seen == 13


def test_llama_cpp_queue(reference_data: Path) -> None:
    cases = json.loads((reference_data / "sampling" / "llamacpp.json").read_text())["queue"]
    assert cases
    for case in cases:
        with np.errstate(divide="ignore"):
            logits = np.log(np.arange(case["n_vocab"], dtype=np.float64))
        stages = {
            "k": TopK(case["top_k"]),
            "p": TopP(case["top_p"]),
            "m": MinP(case["min_p"]),
        }
        left = Candidates(np.arange(case["n_vocab"]), logits)
        for letter in case["samplers"]:
            if letter == "p" and case["top_p"] == 1:
                continue  # idle: it would not be created
            left = stages[letter](left, NO_HISTORY)
        first = case["expected_first_id"]
        assert left.ids.tolist() == list(range(first, case["n_vocab"])), case
        assert len(left.ids) == case["expected_size"]


# ── rows ─────────────────────────────────────────────────────────────────────────────────────


def row(prompt: Sequence[int] = (1, 2, 3), vocab_size: int = 24, **fields: Any) -> Row:
    known = common_pb2.SamplingParams.DESCRIPTOR.fields_by_name
    params = {k: v for k, v in fields.items() if k in known}
    rest = {k: v for k, v in fields.items() if k not in params}
    return Row(start(1, prompt, (), sampling=sampling(**params), **rest), vocab_size)


def some_logits(num_rows: int, vocab_size: int = 24, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    logits: Floats = (2 * rng.standard_normal((num_rows, vocab_size))).astype(np.float32)
    return logits


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_k": 8, "top_p": 0.9},
        {"temperature": 1.3, "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    ],
)
def test_draws_follow_the_chain(params: dict[str, Any]) -> None:
    """Chi-square of 4000 seeds against the probabilities that the chain leaves."""
    sampler, logits = Sampler(24), some_logits(1)
    left = sampler.survivors(logits[0], row(**params))
    expected = np.zeros(24)
    expected[left.ids] = 4000 * probabilities(left)
    counts = np.zeros(24)
    for seed in range(4000):
        counts[sampler.sample(logits, [row(**params, seed=seed)])[0].token_id] += 1
    assert counts[expected == 0].sum() == 0
    big = expected >= 5
    rare = expected[~big].sum()
    terms = ((counts[big] - expected[big]) ** 2 / expected[big]).sum()
    terms += (counts[~big].sum() - rare) ** 2 / rare if rare >= 5 else 0
    freedom = int(big.sum())
    assert terms < freedom + 4 * math.sqrt(2 * freedom) + 4


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


def test_a_row_without_any_allowed_token_fails_alone() -> None:
    logits = np.zeros((2, 2), np.float32)
    bad = row(prompt=(1,), vocab_size=2, min_tokens=1, stop_token_ids=(0, 1))
    drawn = Sampler(2).sample(logits, [bad, row(prompt=(1,), vocab_size=2)])
    assert "forbidden" in drawn[0].fault and drawn[1].fault == ""


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_a_fault_of_their_row(poison: float) -> None:
    logits = some_logits(2)
    logits[0, 5] = poison
    drawn = Sampler(24).sample(logits, [row(), row()])
    assert "finite" in drawn[0].fault and drawn[1].fault == ""


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


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_top_p_beyond_its_head_is_the_same_set(p: float) -> None:
    """A flat vocabulary needs more than the first look among the likeliest."""
    logits = some_logits(1, 5000, seed=4)[0].astype(np.float64) * 0.1
    left = TopP(p)(Candidates(np.arange(5000), logits), NO_HISTORY)
    falling = np.argsort(-logits, kind="stable")
    mass = np.cumsum(np.exp(logits[falling])) / np.exp(logits).sum()
    count = int(np.searchsorted(mass, p)) + 1
    assert left.ids.tolist() == sorted(falling[:count].tolist())


def test_neutral_parameters_need_no_stage() -> None:
    neutral = row(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0,
                  presence_penalty=0.0, frequency_penalty=0.0)  # fmt: skip
    assert neutral.draw.stages == () and not neutral.draw.is_greedy


def test_sampling_leaves_the_logits_alone() -> None:
    logits = some_logits(1)
    before = logits.copy()
    Sampler(24).sample(logits, [row(temperature=0.7, presence_penalty=1.0, min_p=0.2, logprobs=2)])
    assert np.array_equal(logits, before)
