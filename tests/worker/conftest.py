"""Model folders made once for this folder's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.model_folders import write_folder
from worker.build import LoadedModel, load_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied float32 Qwen2 with two layers."""
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder, num_threads=1)
