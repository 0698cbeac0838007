"""The sampler's chain against reference cases: what survives, and how likely it is.

Every case becomes the SamplingParams of a request and goes through the sampler as a row would. The
small set in `tests/golden/sampling` is our own, worked out by hand; larger ones are found beside
the project when they are there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos import common_pb2
from tests.worker.plans import columns, sampling, start
from worker.kernels.checks import Floats
from worker.rows import Row
from worker.sampler import Sampler
from worker.sampling.chain import STAGES

OURS = Path(__file__).parent / "golden" / "sampling"


def reference_row(
    vocab_size: int,
    samplers: list[str],
    prompt: Sequence[int],
    output: Sequence[int],
    **fields: Any,
) -> Row:
    """Return a row whose history is `prompt` and `output` (any one token when both are empty)."""
    known = [*prompt, *output] or [0]
    params = sampling(**{"temperature": 1.0} | fields, samplers=samplers)
    num_prompt_tokens = len(known) - len(output)
    return Row(
        start(1, known, (), sampling=params, num_prompt_tokens=num_prompt_tokens), vocab_size
    )


def params_of(ops: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields and the order of a list of operations, in the words of a request."""
    fields: dict[str, Any] = {}
    samplers: list[str] = []
    for op in ops:
        name, value = op["op"], op["value"]
        if name == "logit_bias":
            value = [common_pb2.LogitBias(token_id=int(i), bias=b) for i, b in value.items()]
        fields[name] = value
        stage = "penalties" if name.endswith("_penalty") else name
        assert stage in STAGES, stage
        samplers += [stage] if stage not in samplers else []
    return fields | {"samplers": samplers}


def outcome(logits: Floats, row: Row) -> dict[int, float]:
    """Return the probabilities of what the row's chain leaves; greedy leaves one."""
    sampler = Sampler(len(logits))
    if row.draw.is_greedy:
        return {sampler.sample(logits[None], [row])[0].token_id: 1.0}
    left = sampler.survivors(logits, row.draw, row.history, float(logits.max()))
    weights = np.exp(left.logits - left.logits.max())
    shares = (weights / weights.sum()).tolist()
    return {i: p for i, p in zip(left.ids.tolist(), shares, strict=True) if p > 0}


def chain_cases(folder: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((folder / "chains.json").read_text())
    return cases


def check_chain(case: dict[str, Any]) -> None:
    logits = np.array(case["logits"], np.float32)
    row = reference_row(
        len(logits), prompt=case["prompt_ids"], output=case["output_ids"], **params_of(case["ops"])
    )
    got = outcome(logits, row)
    assert got.keys() == {int(i) for i in case["probs"]}, case["id"]
    assert len(got) == case["n_kept"], case["id"]
    for token_id, probability in case["probs"].items():
        assert got[int(token_id)] == pytest.approx(probability, rel=2e-5, abs=1e-12), case["id"]
    assert max(got, key=lambda i: (got[i], -i)) == case["argmax"], case["id"]


def test_our_own_chains() -> None:
    cases = chain_cases(OURS)
    assert {op["op"] for case in cases for op in case["ops"]} >= {"typical_p", "top_p", "min_p"}
    for case in cases:
        check_chain(case)


def test_reference_chains(reference_data: Path) -> None:
    cases = chain_cases(reference_data / "sampling")
    assert len(cases) >= 10
    for case in cases:
        check_chain(case)


def test_the_default_order_is_that_of_vllm(reference_data: Path) -> None:
    cases = [c for c in chain_cases(reference_data / "sampling") if c["orders"] == ["vllm"]]
    assert cases
    order = list(STAGES)
    for case in cases:
        samplers = params_of(case["ops"])["samplers"]
        assert samplers == sorted(samplers, key=order.index), case["id"]


# ── llama.cpp ────────────────────────────────────────────────────────────────────────────────


def llama_params(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the fields and the order of one of llama.cpp's samplers."""
    if name in ("temp", "temp_ext"):
        dynamic = {"range": params.get("delta", 0.0), "exponent": params.get("exponent", 1.0)}
        return {
            "samplers": ["temperature", "dynamic_temperature"],
            "temperature": params["temp"], "dynamic_temperature": dynamic,
        }  # fmt: skip
    if name == "penalties":
        values = (params["repeat"], params["presence"], params["frequency"])
        fields = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        return {"samplers": ["penalties"], **dict(zip(fields, values, strict=True))}
    if name == "xtc":
        return {"samplers": ["xtc"], "xtc": params}
    if name == "dry":
        words = ("multiplier", "base", "allowed_length")
        dry: dict[str, Any] = {word: params[word] for word in words}
        dry |= {"last_n": params["penalty_last_n"]} if params["penalty_last_n"] >= 0 else {}
        dry["breakers"] = [columns(b if isinstance(b, list) else [b]) for b in params["breakers"]]
        return {"samplers": ["dry"], "dry": dry}
    stage = {"typical": "typical_p"}.get(name, name)
    return {"samplers": [stage], stage: next(iter(params.values()))}


def single_cases(folder: Path) -> Iterator[dict[str, Any]]:
    yield from json.loads((folder / "llamacpp.json").read_text())["single"]


def check_single(case: dict[str, Any]) -> None:
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(case["probs"])).astype(np.float32)
    tokens = case.get("last_tokens", [])
    prompt, output = (tokens, []) if case["sampler"] == "dry" else ([], tokens)
    fields = llama_params(case["sampler"], case["params"])
    got = outcome(logits, reference_row(len(logits), prompt=prompt, output=output, **fields))
    wanted = np.array(sorted(p for p in case["expected_probs"] if p > 0), float)
    wanted /= wanted.sum()  # some of them are listed as they were before
    mine = sorted(got.values())[-len(wanted) :]
    np.testing.assert_allclose(mine, wanted, atol=1e-5, err_msg=str(case))
    assert sum(mine) > 1 - 1e-5, case


def test_our_own_single_stages() -> None:
    cases = list(single_cases(OURS))
    assert {case["sampler"] for case in cases} >= {"dry", "xtc", "top_n_sigma", "temp_ext"}
    for case in cases:
        check_single(case)


def test_llama_cpp_single(reference_data: Path) -> None:
    cases = list(single_cases(reference_data / "sampling"))
    assert cases
    for case in cases:
        check_single(case)


def test_llama_cpp_queue(reference_data: Path) -> None:
    cases = json.loads((reference_data / "sampling" / "llamacpp.json").read_text())["queue"]
    assert cases
    letters = {"k": "top_k", "p": "top_p", "m": "min_p"}
    for case in cases:
        with np.errstate(divide="ignore"):
            logits = np.log(np.arange(case["n_vocab"])).astype(np.float32)
        fields = {name: case[name] for name in letters.values()}
        samplers = [letters[letter] for letter in case["samplers"]]
        row = reference_row(len(logits), samplers, [], [], **fields)
        left = Sampler(len(logits)).survivors(logits, row.draw, row.history, float(logits.max()))
        first = case["expected_first_id"]
        assert left.ids.tolist() == list(range(first, case["n_vocab"])), case
        assert len(left.ids) == case["expected_size"]


# ── draws ────────────────────────────────────────────────────────────────────────────────────

DRAWS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_k": 8, "top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"temperature": 1.5, "typical_p": 0.8, "samplers": ["typical_p", "temperature"]},
    {"top_n_sigma": 1.5, "dynamic_temperature": {"range": 0.7, "exponent": 1.0}},
]


@pytest.mark.parametrize("params", DRAWS)
def test_draws_follow_the_chain(params: dict[str, Any]) -> None:
    """Chi-square of 3000 fixed seeds against the probabilities that the chain leaves."""
    sampler, rng = Sampler(24), np.random.default_rng(0)
    logits = (2 * rng.standard_normal((1, 24))).astype(np.float32)
    fields = {"samplers": [], "prompt": [1, 2, 3], "output": [], **params}
    left = outcome(logits[0], reference_row(24, **fields))
    expected = np.zeros(24)
    expected[list(left)] = 3000 * np.array(list(left.values()))
    counts = np.zeros(24)
    for seed in range(3000):
        counts[sampler.sample(logits, [reference_row(24, **fields, seed=seed)])[0].token_id] += 1
    assert counts[expected == 0].sum() == 0
    big = expected >= 5
    rare = expected[~big].sum()
    terms = ((counts[big] - expected[big]) ** 2 / expected[big]).sum()
    terms += (counts[~big].sum() - rare) ** 2 / rare if rare >= 5 else 0
    freedom = int(big.sum())
    assert terms < freedom + 4 * math.sqrt(2 * freedom) + 4
