"""The trace: what each stage has left, of exactly the token that is drawn without it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from protos import worker as wire
from tests.worker.plans import columns, sampling, start
from tests.worker.sampling.rows import row, some_logits
from worker.build import LoadedModel
from worker.sampler import Sampler

FIELDS: dict[str, Any] = {"temperature": 0.8, "top_k": 7, "top_p": 0.9, "bad_words": [columns([3])]}


def test_a_trace_tells_every_stage_in_order() -> None:
    logits = some_logits(1, 64)
    plain = Sampler(64).sample(logits, [row(vocab_size=64, **FIELDS)])[0]
    drawn = Sampler(64).sample(logits, [row(vocab_size=64, return_sampler_trace=True, **FIELDS)])[0]
    assert plain.trace == b"" and drawn.token_id == plain.token_id
    trace = json.loads(drawn.trace)
    assert (trace["index"], trace["token_id"]) == (0, drawn.token_id)
    stages = {stage["stage"]: stage for stage in trace["stages"]}
    assert list(stages) == ["logits", "bad_words", "temperature", "top_k", "top_p"]
    assert [s["count"] for s in trace["stages"]][:4] == [64, 63, 63, 7]
    assert len(stages["logits"]["top"]) == 20
    shares = np.exp(logits[0].astype(float)) / np.exp(logits[0].astype(float)).sum()
    first, probability = stages["logits"]["top"][0]
    assert first == int(logits[0].argmax()) and probability == pytest.approx(shares.max(), rel=1e-5)
    assert sum(p for _, p in stages["top_p"]["top"]) == pytest.approx(1, abs=1e-4)
    assert drawn.token_id in [token_id for token_id, _ in stages["top_p"]["top"]]


def test_a_greedy_trace_is_the_logits() -> None:
    drawn = Sampler(24).sample(some_logits(1), [row(return_sampler_trace=True)])[0]
    trace = json.loads(drawn.trace)
    assert trace["stages"][0]["top"][0][0] == trace["token_id"] == drawn.token_id


def test_every_token_of_a_step_has_its_trace(tiny: LoadedModel) -> None:
    params = sampling(return_sampler_trace=True, temperature=1.0, seed=3)
    runner = tiny.runner(4)
    result = runner.execute(wire.ExecutePlan(0, (start(4, [1, 2, 3], (0,), sampling=params),)))
    assert [bulk.key for bulk in result.bulks] == [4]
    trace = json.loads(result.bulks[0].trace)
    assert trace["token_id"] == result.token_ids[0] and result.bulks[0].prompt_logprobs == ()
