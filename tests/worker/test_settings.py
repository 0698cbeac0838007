"""The worker's settings: defaults, and what they refuse."""

from __future__ import annotations

import pytest

from common.settings import SettingsError, load
from worker.settings import Settings


def test_defaults() -> None:
    settings = load(Settings, "worker", ["--model=m"], {})
    assert (settings.engine, settings.device, settings.dtype) == ("127.0.0.1:7202", "cpu", "auto")
    assert (settings.threads, settings.metrics_port) == (0, 7301)


@pytest.mark.parametrize(
    "argument", ["--device=abacus", "--dtype=int3", "--threads=-1", "--metrics-port=70000"]
)
def test_refusals(argument: str) -> None:
    with pytest.raises(SettingsError):
        load(Settings, "worker", ["--model=m", argument], {})


def test_a_model_is_required() -> None:
    with pytest.raises(SettingsError, match="model"):
        load(Settings, "worker", [], {})
