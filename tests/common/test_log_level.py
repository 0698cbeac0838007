"""All four tiers refuse a level that logging does not have."""

from __future__ import annotations

import importlib

import pytest

from common.settings import SERVICES, SettingsError, load

PACKAGES = ("api_gateway", "tokenizer_service", "engine_core", "worker")


@pytest.mark.parametrize(("service", "package"), [*zip(SERVICES, PACKAGES, strict=True)])
def test_a_wrong_log_level_is_refused(service: str, package: str) -> None:
    settings = importlib.import_module(f"{package}.settings").Settings
    model = ["--model=m"] if "model" in settings.__struct_fields__ else []
    assert load(settings, service, [*model, "--log-level=debug"], {}).log_level == "debug"
    with pytest.raises(SettingsError, match="log_level is .loud., expected: debug, "):
        load(settings, service, [*model, "--log-level=loud"], {})
