"""Parity with outputs of `transformers`: logits, greedy ids and logprobs of the golden models."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worker.forward import alone
from tests.worker.plans import generate
from worker.build import LoadedModel, load_model
from worker.models.config import read_config
from worker.safetensors import SafetensorsFile

SMALL = [
    "qwen2-tied-f32",
    "qwen2-untied-bf16-sharded",
    "qwen2-gqa7-f16",
    "qwen2-headdim128-r1-bf16",
    "qwen2-sliding-window-f32",
    "qwen2-yarn-f32",
    "llama-rope3-f32",
    "qwen3-qknorm-bf16",
]


@cache
def loaded(folder: Path, dtype: str = "float32", kernel_level: str = "auto") -> LoadedModel:
    return load_model(folder, dtype=dtype, num_threads=1, kernel_level=kernel_level)


def golden(folder: Path) -> dict[str, Any]:
    story: dict[str, Any] = json.loads((folder / "golden.json").read_text())
    return story


@pytest.mark.parametrize("kernel_level", ["auto", "reference"])
@pytest.mark.parametrize("name", SMALL)
def test_logits_at_every_position(reference_data: Path, name: str, kernel_level: str) -> None:
    folder = reference_data / "golden" / name
    expected = SafetensorsFile(folder / "golden.safetensors")
    for i, prompt in enumerate(golden(folder)["prompts"]):
        logits = alone(loaded(folder, "float32", kernel_level), prompt["ids"])
        np.testing.assert_allclose(logits, expected.read(f"logits.{i}"), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in SMALL if "16" in name])
def test_in_the_dtype_of_the_folder(reference_data: Path, name: str) -> None:
    """Logits as near as `transformers` itself comes in that dtype, greedy ids up to a near tie."""
    folder = reference_data / "golden" / name
    story, expected = golden(folder), SafetensorsFile(folder / "golden.safetensors")
    bound = story["native_dtype_compute_max_abs_diff"]
    native = loaded(folder, "auto")
    for i, prompt in enumerate(story["prompts"]):
        logits = alone(native, prompt["ids"])
        np.testing.assert_allclose(logits, expected.read(f"logits.{i}"), rtol=0, atol=bound)
        ties = (k for k, gap in enumerate(prompt["greedy_margins"]) if gap < 2 * bound)
        sure = next(ties, 64)
        if sure:
            ids = generate(native.runner(16), {1: prompt["ids"]}, sure).token_ids[1]
            assert ids == prompt["greedy_ids"][:sure]


@pytest.mark.parametrize("name", SMALL)
def test_greedy_ids_of_all_prompts_together_in_chunks(reference_data: Path, name: str) -> None:
    """64 tokens each, from a pool with not a block to spare."""
    folder = reference_data / "golden" / name
    prompts = golden(folder)["prompts"]
    num_blocks = sum(-(-(len(p["ids"]) + 63) // 16) for p in prompts)
    runner = loaded(folder).runner(num_blocks)
    out = generate(runner, {i: p["ids"] for i, p in enumerate(prompts)}, 64, chunk=7, logprobs=5)
    for i, prompt in enumerate(prompts):
        assert out.token_ids[i] == prompt["greedy_ids"]
        chosen = [row.logprobs[0] for row in out.logprobs[i]]
        np.testing.assert_allclose(chosen, prompt["greedy_logprobs"], rtol=0, atol=2e-3)
        assert [row.index for row in out.logprobs[i]] == list(range(64))
        top5 = [{str(t): p for t, p in zip(r.token_ids[1:], r.logprobs[1:], strict=True)}
                for r in out.logprobs[i]]  # fmt: skip
        assert_top5(top5, prompt["greedy_top5"])


@pytest.mark.parametrize("layout", ["block", "slot"])
@pytest.mark.parametrize("max_tokens", [1, 7])
def test_greedy_ids_do_not_depend_on_passes_or_layout(
    reference_data: Path, layout: str, max_tokens: int
) -> None:
    folder = reference_data / "golden" / "qwen2-sliding-window-f32"
    prompts = golden(folder)["prompts"]
    model = load_model(folder, kv_layout=layout, max_ubatch_tokens=max_tokens)
    runner = model.runner(300 if layout == "block" else 4000)
    out = generate(runner, {i: prompt["ids"] for i, prompt in enumerate(prompts, 1)}, 16, chunk=50)
    assert out.token_ids == {i: prompt["greedy_ids"][:16] for i, prompt in enumerate(prompts, 1)}


def assert_top5(ours: list[dict[str, float]], theirs: list[Any]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        pairs = other.items() if isinstance(other, dict) else other
        expected = {str(token_id): logprob for token_id, logprob in pairs}
        np.testing.assert_allclose(list(mine.values()), list(expected.values()), rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", SMALL)
def test_teacher_forced_logprobs(reference_data: Path, name: str) -> None:
    folder = reference_data / "golden" / name
    for prompt in golden(folder)["prompts"]:
        ids = prompt["ids"] + prompt["greedy_ids"]
        logits = alone(loaded(folder), ids[:-1]).astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        own = logprobs[np.arange(len(ids) - 1), ids[1:]]
        expected = prompt["prompt_logprobs"][1:] + prompt["greedy_logprobs"]
        np.testing.assert_allclose(own, expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", ["qwen2-tied-f32", "qwen2-yarn-f32", "llama-rope3-f32"])
def test_both_spellings_of_a_config_say_the_same(
    reference_data: Path, name: str, tmp_path: Path
) -> None:
    folder = reference_data / "golden" / name
    newer = (folder / "config.transformers5.json").read_bytes()
    (tmp_path / "config.json").write_bytes(newer)
    assert read_config(folder) == read_config(tmp_path)


def test_real_vocabulary(reference_data: Path) -> None:
    folder = reference_data / "golden" / "qwen2-realvocab-bf16"
    story = golden(folder)
    cases = story["cases"]
    for case in cases:
        logits = alone(loaded(folder), case["ids"])[-1].astype(np.float64)
        logsumexp = np.log(np.exp(logits - logits.max()).sum()) + logits.max()
        assert logsumexp == pytest.approx(case["last_logsumexp"], abs=2e-3)
        sampled = logits[story["sampled_ids"]]
        np.testing.assert_allclose(sampled, case["last_logits_sampled"], rtol=0, atol=2e-3)
    runner = loaded(folder).runner(64)
    out = generate(runner, {i: c["ids"] for i, c in enumerate(cases)}, 48, chunk=16)
    for i, case in enumerate(cases):
        assert out.token_ids[i] == case["greedy_ids"]
