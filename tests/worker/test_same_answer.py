"""The same answer: logits are equal bit for bit in any batch, chunking, order and blocks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.model_folders import write_folder
from tests.worker.forward import Feeder, alone
from worker.build import LoadedModel, load_model
from worker.kernels.checks import Floats

SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "odd-sizes": {
        "hidden_size": 42, "intermediate_size": 57, "num_attention_heads": 7,
        "num_key_value_heads": 1, "vocab_size": 101,
    },
    "wide": {
        "hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 6, "vocab_size": 512,
    },
    "own-head-dim": {
        "hidden_size": 48, "head_dim": 32, "tie_word_embeddings": False, "num_key_value_heads": 4,
    },
    "windows": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "head-norm": {
        "architectures": ["Qwen3ForCausalLM"], "head_dim": 6,
        "layer_types": ["sliding_attention"] * 2, "sliding_window": 66,
        "use_sliding_window": True,
    },
}  # fmt: skip
LENGTHS = (1, 5, 16, 17, 63, 64, 65, 130)


MODELS = [(name, "auto") for name in SHAPES]
MODELS += [("odd-sizes", "reference"), ("windows", "reference")]


@pytest.fixture(scope="session", params=MODELS, ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    name, kernel_level = request.param
    folder = write_folder(tmp_path_factory.mktemp(name), **SHAPES[name])
    return load_model(folder, num_threads=1, kernel_level=kernel_level)


def prompts(vocab_size: int) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, vocab_size, length).tolist() for length in LENGTHS]


def expectations(model: LoadedModel) -> list[Floats]:
    return [alone(model, ids) for ids in prompts(model.config.vocab_size)]


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_chunks_do_not_matter(model: LoadedModel, chunk: int) -> None:
    for ids, expected in zip(prompts(model.config.vocab_size), expectations(model), strict=True):
        assert np.array_equal(alone(model, ids, chunk), expected)


def test_blocks_do_not_matter(model: LoadedModel) -> None:
    ids = prompts(model.config.vocab_size)[-1]
    expected = alone(model, ids)
    table = np.random.default_rng(1).permutation(40)[:9].tolist()
    scattered = Feeder(model, [table], 40).feed({0: ids})[0]
    assert np.array_equal(scattered, expected)
    assert np.array_equal(alone(model, ids, first=11), expected)


@pytest.mark.parametrize("layout", ["slot", "static"])
def test_layouts_do_not_matter(model: LoadedModel, layout: str) -> None:
    other = replace(model, layout=layout)
    for ids, expected in zip(prompts(model.config.vocab_size), expectations(model), strict=True):
        assert np.array_equal(alone(other, ids, 16, first=3), expected)
    cells = np.random.default_rng(1).permutation(200)[:130].tolist()
    if layout == "slot":
        assert np.array_equal(Feeder(other, [cells], 200).feed({0: ids})[0], expected)


@pytest.mark.parametrize("seed", range(3))
def test_batch_order_and_mixture_do_not_matter(model: LoadedModel, seed: int) -> None:
    """All prompts at once, in shuffled order and random chunks, prefill beside decode."""
    rng = np.random.default_rng(seed)
    texts = prompts(model.config.vocab_size)
    tables = rng.permutation(100)[: 9 * len(texts)].reshape(len(texts), 9).tolist()
    feeder = Feeder(model, tables, 100)
    got: dict[int, list[Floats]] = {b: [] for b in range(len(texts))}
    left = {b: list(ids) for b, ids in enumerate(texts)}
    while left:
        pieces = {}
        for b in rng.permutation(list(left)).tolist():
            count = int(rng.choice([1, 1, 2, 9, 40]))
            pieces[b], left[b] = left[b][:count], left[b][count:]
        for b, logits in feeder.feed(pieces).items():
            got[b].append(logits)
        left = {b: ids for b, ids in left.items() if ids}
    for b, expected in enumerate(expectations(model)):
        assert np.array_equal(np.concatenate(got[b]), expected)


def test_threads_do_not_matter(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", **SHAPES["wide"] | {"intermediate_size": 1024})
    one, three = (load_model(folder, num_threads=n) for n in (1, 3))
    ids = np.random.default_rng(0).integers(0, 512, 100).tolist()
    assert np.array_equal(alone(one, ids), alone(three, ids))
    assert one.backend.fingerprint == three.backend.fingerprint


@cache
def reference_model(folder: Path) -> LoadedModel:
    return load_model(folder, num_threads=1)


@pytest.mark.parametrize("name", ["qwen2-tied-f32", "qwen2-gqa7-f16", "qwen2-headdim128-r1-bf16"])
def test_golden_models(reference_data: Path, name: str) -> None:
    model = reference_model(reference_data / "golden" / name)
    ids = prompts(model.config.vocab_size)[-1]
    expected = alone(model, ids)
    for chunk in (1, 7, 16):
        assert np.array_equal(alone(model, ids, chunk, first=3), expected)


@pytest.mark.parametrize("left_over", [1e30, np.nan, -np.inf])
def test_what_a_former_owner_left_does_not_matter(tiny: LoadedModel, left_over: float) -> None:
    ids = prompts(96)[3]
    expected = alone(tiny, ids)
    feeder = Feeder(tiny, [[0, 1, 2]], 3)
    for layer in feeder._cache.layers:
        layer.keys[:] = left_over
        layer.values[:] = left_over
    with np.errstate(invalid="ignore"):
        parts = [feeder.feed({0: ids[:11]})[0], feeder.feed({0: ids[11:]})[0]]
    assert np.array_equal(np.concatenate(parts), expected)
