"""Prompt logprobs: equal to the logits at every position, in any chunks, beside any company."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from protos import worker as wire
from tests.worker.forward import alone
from tests.worker.plans import start
from worker.build import LoadedModel, load_model

PROMPT = list(range(5, 40))


def told(
    model: LoadedModel, prompt: list[int], chunk: int, count: int = 3
) -> tuple[list[wire.Logprobs], int]:
    """Return what is told of the prompt, and the first token drawn, in chunks and in company."""
    runner = model.runner(40)
    found: list[wire.Logprobs] = []
    other = start(9, PROMPT[:3], range(33, 40))
    result = None
    for step_id, first in enumerate(range(0, len(prompt), chunk)):
        num_tokens = min(chunk, len(prompt) - first)
        if first == 0:
            begin = start(1, prompt, range(30), num_tokens, prompt_logprobs=count)
            plan = wire.ExecutePlan(step_id, starts=(other, begin))
        else:
            steps = (wire.SequenceStep(9, 1), wire.SequenceStep(1, num_tokens))
            plan = wire.ExecutePlan(step_id, steps=steps)
        result = runner.execute(plan)
        assert not result.faults and all(bulk.key == 1 for bulk in result.bulks)
        assert len(result.bulks) <= 1
        found += [row for bulk in result.bulks for row in bulk.prompt_logprobs]
    assert result is not None
    token_id = dict(zip(result.seq_ids, result.token_ids, strict=True))[1]
    step = wire.ExecutePlan(99, steps=(wire.SequenceStep(1, 1),))
    assert runner.execute(step).bulks == (), "the prompt is told once"
    return found, token_id


@pytest.mark.parametrize("chunk", [1, 7, 16, 34, 100])
def test_every_position_is_told_but_the_first(tiny: LoadedModel, chunk: int) -> None:
    found, token_id = told(tiny, PROMPT, chunk)
    assert [row.index for row in found] == list(range(1, len(PROMPT)))
    logits = alone(tiny, PROMPT).astype(np.float64)
    exact = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for row in found:
        assert row.key == 1 and row.token_ids[0] == PROMPT[row.index]
        before = exact[row.index - 1]
        assert list(row.token_ids[1:]) == np.argsort(-before, kind="stable")[:3].tolist()
        np.testing.assert_allclose(row.logprobs, before[list(row.token_ids)], atol=1e-5)
    assert token_id == int(logits[-1].argmax())


def test_chunks_change_no_bit(tiny: LoadedModel) -> None:
    assert told(tiny, PROMPT, 7) == told(tiny, PROMPT, 100) == told(tiny, PROMPT, 1)


def test_a_pass_takes_no_more_logits_than_it_may(tiny_folder: Path) -> None:
    """A long prompt is cut where its logits would not fit, and tells the same."""
    small = load_model(tiny_folder, num_threads=1, max_ubatch_tokens=5)
    whole = load_model(tiny_folder, num_threads=1)
    cut = small.runner(40).execute(
        wire.ExecutePlan(0, (start(1, PROMPT, range(30), prompt_logprobs=0),))
    )
    parts = [bulk.prompt_logprobs for bulk in cut.bulks]
    assert len(parts) == 7 and max(map(len, parts)) == 5
    assert [row for part in parts for row in part] == told(whole, PROMPT, 100, 0)[0]


def test_one_token_has_nothing_to_tell(tiny: LoadedModel) -> None:
    assert told(tiny, [7], 1)[0] == []


@pytest.mark.parametrize("name", ["qwen2-tied-f32", "qwen2-sliding-window-f32", "llama-rope3-f32"])
def test_reference_prompts(reference_data: Path, name: str) -> None:
    folder = reference_data / "golden" / name
    model = load_model(folder, num_threads=1)
    for story in json.loads((folder / "golden.json").read_text())["prompts"]:
        rows, _ = told(model, story["ids"], 64, 0)
        got = [row.logprobs[0] for row in rows]
        np.testing.assert_allclose(got, story["prompt_logprobs"][1:], atol=2e-3)
