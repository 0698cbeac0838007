"""Golden models of every family on a device: the ids that transformers gives.

In float32 all of them; in 16 bits, of models that are stored so, up to where two are as good.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.cuda.case import EPSILON
from tests.worker.plans import generate
from worker.backends.gpu import Gpu
from worker.build import load_model

OURS = ROOT / "tests" / "golden" / "qwen2-tiny-untied-bf16-sharded"
FAMILIES = (
    "llama-rope3-f32", "qwen2-gqa7-f16", "qwen2-headdim128-r1-bf16", "qwen2-sliding-window-f32",
    "qwen2-tied-f32", "qwen2-untied-bf16-sharded", "qwen2-yarn-f32", "qwen3-qknorm-bf16",
)  # fmt: skip
SLACK = 64
"""Roundings of a 16-bit number by which a logit may be off."""
pytestmark = pytest.mark.kernels


def stories(folder: Path) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads((folder / "golden.json").read_text())["prompts"]
    return told


def greedy(folder: Path, gpu: Gpu, dtype: str, wanted: list[dict[str, Any]]) -> list[list[int]]:
    """Return what the device adds to the prompts, all at once."""
    count = max(len(story["greedy_ids"]) for story in wanted)
    num_blocks = sum(-(-(len(story["ids"]) + count) // 16) for story in wanted)
    loaded = load_model(folder, "cuda", dtype, max_ubatch_tokens=256, gpu=gpu)
    prompts = {i: story["ids"] for i, story in enumerate(wanted)}
    out = generate(loaded.runner(num_blocks), prompts, count)
    return [out.token_ids[i] for i in prompts]


def test_our_own(gpu: Gpu) -> None:
    wanted = stories(OURS)
    for got, story in zip(greedy(OURS, gpu, "float32", wanted), wanted, strict=True):
        assert got == story["greedy_ids"]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_in_float32(reference_data: Path, gpu: Gpu, name: str) -> None:
    folder = reference_data / "golden" / name
    wanted = stories(folder)
    for got, story in zip(greedy(folder, gpu, "float32", wanted), wanted, strict=True):
        assert got[: len(story["greedy_ids"])] == story["greedy_ids"]


@pytest.mark.parametrize("name", [name for name in FAMILIES if "f16" in name])
def test_sixteen_bits_within_their_margins(reference_data: Path, gpu: Gpu, name: str) -> None:
    folder = reference_data / "golden" / name
    wanted, kind = stories(folder), "bf16" if "bf16" in name else "f16"
    for got, story in zip(greedy(folder, gpu, "auto", wanted), wanted, strict=True):
        pairs = zip(got, story["greedy_ids"], strict=False)
        parted = next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
        if parted is not None:
            assert story["greedy_margins"][parted] < SLACK * EPSILON[kind]
