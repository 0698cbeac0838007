"""The runner over CUDA kernels with int8 weights, against models of the numbers these stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.cuda.case import EPSILON
from tests.cuda.test_engine import FAMILIES, PROMPTS, SIZES, logprobs_of
from tests.emulator.device import EmulatedGpu
from tests.support.model_folders import write_folder, write_safetensors
from tests.worker.plain_model import PlainModel
from tests.worker.plans import generate
from worker.backends.cuda_weights import quantized
from worker.backends.gpu import Gpu
from worker.build import LoadedModel, load_model
from worker.kernels.checks import to_float32
from worker.models.config import read_config
from worker.models.decoder import EMBEDDING, HEAD, may_ignore, shapes
from worker.weights import FolderWeights

GOLDEN = ("qwen2-tiny-untied-bf16-sharded",)


def load(folder: Path, gpu: Gpu, dtype: str, layout: str = "block") -> LoadedModel:
    return load_model(folder, "cuda", dtype, kv_layout=layout, quantization="int8", gpu=gpu)


def as_int8_has_it(folder: Path, target: Path) -> Path:
    """Write a float32 model whose linears are what int8 makes of those in `folder`."""
    config = read_config(folder)
    expected = shapes(config)
    weights = FolderWeights(folder, expected, may_ignore(config))
    tensors = {name: to_float32(weights.read(name)).copy() for name in expected}
    heads = {EMBEDDING} if config.tie_word_embeddings else {HEAD}
    for name in expected:
        if name.endswith("_proj.weight") or name in heads:
            steps, scale = quantized(tensors[name])
            tensors[name] = steps * scale[:, None]
    target.mkdir()
    stored = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(stored | {"torch_dtype": "float32"}))
    write_safetensors(target / "model.safetensors", tensors)
    return target


@pytest.mark.kernels
@pytest.mark.parametrize("name", [*FAMILIES, *GOLDEN])
def test_float32_tokens_are_those_of_the_numbers_meant(tmp_path: Path, gpu: Gpu, name: str) -> None:
    if name in GOLDEN:
        folder = ROOT / "tests" / "golden" / name
        stories = json.loads((folder / "golden.json").read_text())["prompts"]
        prompts: dict[int, Any] = {i: story["ids"] for i, story in enumerate(stories)}
    else:
        folder, prompts = write_folder(tmp_path / "model", **SIZES | FAMILIES[name]), PROMPTS
    same = as_int8_has_it(folder, tmp_path / "same")
    wanted = generate(load_model(same, kernel_level="reference").runner(24), prompts, 8)
    got = generate(load(folder, gpu, "float32").runner(24), prompts, 8, chunk=16)
    assert got.token_ids == wanted.token_ids


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["qwen2", "llama", "qwen3"])
def test_bfloat16_stays_within_its_margins(tmp_path: Path, gpu: Gpu, name: str) -> None:
    """Each token is the likeliest of a float64 model of the same numbers, or nearly."""
    folder = write_folder(tmp_path / "model", **SIZES | FAMILIES[name])
    out = generate(load(folder, gpu, "bfloat16").runner(24), PROMPTS, 8)
    plain = PlainModel(as_int8_has_it(folder, tmp_path / "same"))
    for seq_id, prompt in PROMPTS.items():
        ids = list(prompt)
        for token_id in out.token_ids[seq_id]:
            logits = plain.logits(ids)[-1]
            assert logits[token_id] > logits.max() - 40 * EPSILON["bf16"]
            ids.append(token_id)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_bits_depend_on_neither_batch_nor_chunk_nor_layout(
    tmp_path: Path, gpu: Gpu, dtype: str
) -> None:
    folder = write_folder(tmp_path / "model", **SIZES)
    together = logprobs_of(load(folder, gpu, dtype).runner(24), PROMPTS, 1000)
    chunked = logprobs_of(load(folder, gpu, dtype).runner(24), PROMPTS, 7)
    slots = logprobs_of(load(folder, gpu, dtype, "slot").runner(300), PROMPTS, 33)
    assert together == chunked == slots
    for seq_id, prompt in PROMPTS.items():
        alone = logprobs_of(load(folder, gpu, dtype).runner(24), {seq_id: prompt}, 1000)
        assert alone[seq_id] == together[seq_id]


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_ledger_and_the_fingerprint_say_int8(
    tmp_path: Path, emulator_folder: Path, is_tied: bool
) -> None:
    """A byte a weight and a float32 an output; only a table that is no head keeps 16 bits."""
    folder = write_folder(tmp_path / "model", **SIZES, tie_word_embeddings=is_tied)
    loaded = load(folder, EmulatedGpu(emulator_folder), "bfloat16")
    plain = load_model(folder, "cuda", "bfloat16", gpu=EmulatedGpu(emulator_folder))
    hidden, inner, qkv, vocab = 64, 96, 64 + 2 * 32, 96
    outputs, weights = 2 * (qkv + hidden + 2 * inner + hidden) + vocab, vocab * hidden
    weights += 2 * (qkv * hidden + hidden * hidden + 2 * inner * hidden + hidden * inner)
    vectors = 4 * (5 * hidden + 2 * qkv)  # norms and biases
    table = 0 if is_tied else 2 * vocab * hidden
    assert loaded.backend.weight_bytes == weights + 4 * outputs + vectors + table
    assert plain.backend.weight_bytes == 2 * weights + vectors + table
    facts = [one.facts(1 << 20).fingerprint for one in (loaded, plain)]
    assert "bf16 int8" in facts[0]
    assert facts[0] != facts[1]


def test_a_step_runs_nothing_but_int8_linears(tmp_path: Path, emulator_folder: Path) -> None:
    gpu = EmulatedGpu(emulator_folder)
    runner = load(write_folder(tmp_path / "model", **SIZES), gpu, "float32").runner(24)
    gpu.launches.clear()
    generate(runner, PROMPTS, 2)
    linears = {name for name in gpu.launches if "linear" in name or "embedding" in name}
    assert linears == {"linear_f32_int8", "embedding_int8"}


def test_other_steps_are_refused_by_name(tmp_path: Path, emulator_folder: Path) -> None:
    folder = write_folder(tmp_path / "model", **SIZES)
    message = "quantization is 'int4', on cuda allowed: none, int8"
    with pytest.raises(ValueError, match=message):
        load_model(folder, "cuda", quantization="int4", gpu=EmulatedGpu(emulator_folder))
