"""The demo model's golden answers, given by this project's own engine."""

from __future__ import annotations

import json

import pytest

from millrace import LLM, SamplingParams
from millrace.project import DEMO_MODEL

GOLDEN = DEMO_MODEL / "golden.json"


def test_golden_answers() -> None:
    cases = json.loads(GOLDEN.read_text())
    assert len(cases) >= 40
    with LLM(kv_cache_memory="64MiB") as llm:
        outputs = llm.chat([case["messages"] for case in cases], SamplingParams(max_tokens=128))
    for case, output in zip(cases, outputs, strict=True):
        answer = output.outputs[0]
        assert answer.text == case["answer"], case["messages"]
        assert answer.finish_reason == "stop"
        if "prompt_ids" in case:
            assert output.prompt_token_ids == case["prompt_ids"]


@pytest.mark.parametrize("seed", [1, 2])
def test_its_defaults_are_greedy(seed: int) -> None:
    """The folder's generation_config.json makes a demo answer the same way every time."""
    question = [{"role": "user", "content": "What is 12 + 30?"}]
    with LLM(kv_cache_memory="64MiB") as llm:
        output = llm.chat(question, SamplingParams(max_tokens=64, seed=seed))[0]
    assert output.outputs[0].text == "12 + 30: 2+0=2, 1+3=4 → 42"
