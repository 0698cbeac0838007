"""Parity with the second implementation of tools/make_golden.py, for those without other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.worker.forward import alone
from tests.worker.plans import generate
from worker.build import LoadedModel, load_model

GOLDEN = ROOT / "tests" / "golden"
NAMES = ["qwen2-tiny-tied-f32", "qwen2-tiny-untied-bf16-sharded"]


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / str(request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(folder, dtype="float32", num_threads=1)


@pytest.fixture(scope="module")
def stories(folder: Path) -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = json.loads((folder / "golden.json").read_text())["prompts"]
    return prompts


def test_last_logits(model: LoadedModel, stories: list[dict[str, Any]]) -> None:
    for story in stories:
        logits = alone(model, story["ids"])[-1]
        np.testing.assert_allclose(logits, story["last_logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("chunk", [7, 1000])
def test_greedy_ids(model: LoadedModel, stories: list[dict[str, Any]], chunk: int) -> None:
    num_blocks = sum(-(-(len(s["ids"]) + 31) // 16) for s in stories)
    prompts = {i: s["ids"] for i, s in enumerate(stories)}
    out = generate(model.runner(num_blocks), prompts, 32, chunk)
    for i, story in enumerate(stories):
        assert out.token_ids[i] == story["greedy_ids"]


def test_the_set_is_small() -> None:
    files = [path for name in NAMES for path in (GOLDEN / name).iterdir()]
    assert sum(path.stat().st_size for path in files) < 400_000
