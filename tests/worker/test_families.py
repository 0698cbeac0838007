"""Each family and each rope against a second implementation, for those without other data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.model_folder import ModelFolderError
from tests.support.model_folders import write_folder
from tests.worker.forward import alone
from tests.worker.plain_model import PlainModel
from tests.worker.plans import generate
from worker.build import load_model

LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
LLAMA3 = {
    "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen2-window": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "qwen2-wide-window": {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 0},
    "qwen2-yarn": {"rope_scaling": YARN, "head_dim": 32},
    "llama": LLAMA,
    "llama-biased": LLAMA | {"attention_bias": True, "mlp_bias": True},
    "llama-linear": LLAMA | {"rope_scaling": {"type": "linear", "factor": 3.0}},
    "llama-3": LLAMA | {"rope_scaling": LLAMA3, "head_dim": 16, "tie_word_embeddings": False},
    "mistral": LLAMA | {"architectures": ["MistralForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 20, "rope_theta": 1e6},
    "qwen3-biased": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": True,
        "head_dim": 8,
    },
}
TOKEN_IDS = np.random.default_rng(8).integers(0, 96, 150).tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / name, **FAMILIES[name])
    expected = PlainModel(folder).logits(TOKEN_IDS)
    assert np.ptp(expected, axis=1).min() > 1  # such that a wrong term would show
    got = alone(load_model(folder, num_threads=1), TOKEN_IDS, chunk=64)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["qwen2-window", "qwen2-yarn", "llama-3", "qwen3"])
def test_greedy_ids_in_a_batch(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / name, **FAMILIES[name])
    model, plain = load_model(folder, num_threads=1), PlainModel(folder)
    prompts = {1: TOKEN_IDS[:7], 2: TOKEN_IDS[:66]}
    out = generate(model.runner(16), prompts, 8, chunk=5)
    for seq_id, prompt in prompts.items():
        ids = list(prompt)
        for token_id in out.token_ids[seq_id]:
            logits = plain.logits(ids)[-1]
            assert logits[token_id] > logits.max() - 1e-3
            ids.append(token_id)


def test_a_scaling_changes_the_answer(tmp_path: Path) -> None:
    """Each variant differs from the plain model of the same weights: none is ignored."""
    plain = alone(load_model(write_folder(tmp_path / "plain")), TOKEN_IDS)[-1]
    for name, change in {
        "window": FAMILIES["qwen2-window"],
        "yarn": {"rope_scaling": YARN},
        "llama3": {"rope_scaling": LLAMA3},
        "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}},
    }.items():
        changed = alone(load_model(write_folder(tmp_path / name, **change)), TOKEN_IDS)[-1]
        assert np.abs(changed - plain).max() > 0.1, name


def test_heads_that_are_too_wide_are_refused_at_load(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "wide", head_dim=512)
    with pytest.raises(ModelFolderError, match=r"json: head_dim is 512, allowed: at most 256"):
        load_model(folder, num_threads=1)
    assert load_model(folder, num_threads=1, kernel_level="reference").config.head_dim == 512
