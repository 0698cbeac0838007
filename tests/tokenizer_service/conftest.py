"""Tiny model folders for this tier; real ones come from `reference_data`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from protos import limits
from protos.common_pb2 import EngineState
from tests.support.fake_engine import FakeLink
from tests.support.tiny_tokenizer import tiny_library, write_tiny_folder
from tests.tokenizer_service.stage import Build, Gateway, Stage
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.model_folder import read_model_folder
from tokenizer_service.pipeline import TextPipeline
from tokenizer_service.text_model import TextModel, load_text_model
from tokenizer_service.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(autouse=True)
def no_aftermath(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake says nothing of itself: what it has said since the loss is word enough."""
    monkeypatch.setattr(limits, "AFTERMATH_S", 0.0)


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


@pytest.fixture
async def build(tiny_folder: Path) -> AsyncIterator[Build]:
    models: list[TextModel] = []

    def make(folder: Path = tiny_folder, with_engine: bool = True, **options: Any) -> Stage:
        metrics = TokenizerMetrics(CollectorRegistry())
        model = load_text_model(folder, "tiny", metrics)
        models.append(model)
        states: list[EngineState] = []
        pipeline = TextPipeline(model, metrics, on_engine_state=states.append, **options)
        gateway, link = Gateway(), FakeLink()
        if with_engine:
            pipeline.attach_engine(link)
        return Stage(
            pipeline, model, gateway, pipeline.open_session(gateway, gateway.take), link, states
        )

    yield make
    for model in models:
        await model.close()
