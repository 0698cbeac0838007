"""Model folders made once for this folder's tests, and an engine for its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support.fake_scheduler import FakeEngine
from tests.support.model_folders import write_folder
from worker.build import LoadedModel, load_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied float32 Qwen2 with two layers."""
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder, num_threads=1)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    engine.close()


@pytest.fixture
def sick(tmp_path: Path) -> Callable[[int | None], LoadedModel]:
    """As `tiny` with a head of its own; the states of one token, if any, are NaN."""

    def load(token_id: int | None) -> LoadedModel:
        folder = write_folder(tmp_path / f"sick-{token_id}", tie_word_embeddings=False)
        tensors = load_file(folder / "model.safetensors")
        if token_id is not None:
            tensors["model.embed_tokens.weight"][token_id] = np.nan
            save_file(tensors, folder / "model.safetensors")
        return load_model(folder, num_threads=1)

    return load
