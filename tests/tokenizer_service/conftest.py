"""Tiny model folders for this tier; real ones come from `reference_data`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_tokenizer import tiny_library, write_tiny_folder
from tokenizer_service.model_folder import read_model_folder
from tokenizer_service.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer(tiny_library())


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


@cache
def reference_tokenizer(folder: Path) -> Tokenizer:
    """Load a real tokenizer once for the whole run."""
    tokenizer = load_tokenizer(read_model_folder(folder))
    assert tokenizer is not None
    return tokenizer


def reference_cases(path: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(path.read_text())
    assert cases
    return cases
