"""The trial of levels: every level here passes it, and one with wrong bits is not used."""

from __future__ import annotations

import logging
from unittest import mock

import numpy as np
import pytest

from tests.support.operators import levels, library
from worker.backends import trial
from worker.backends.choice import choose_backend
from worker.backends.cpu import CpuBackend
from worker.kernels.checks import Floats
from worker.kernels.library import Level


def test_every_level_of_this_machine_passes() -> None:
    expected = trial.results(library(), Level.PORTABLE)
    assert len(expected) == 7
    for level in levels():
        assert trial.differences(trial.results(library(), level), expected) == []


@pytest.mark.parametrize("operator", ["linear int8 x 8", "attention"])
def test_a_level_with_one_wrong_bit_is_not_used(
    operator: str, caplog: pytest.LogCaptureFixture
) -> None:
    honest, highest = trial.results, library().highest_level
    if highest is Level.PORTABLE:
        pytest.skip("this machine has the portable level only")

    def results(of: object, level: Level) -> dict[str, Floats]:
        found = honest(library(), level)
        if level is highest:
            found[operator].view(np.uint32)[3, 5] ^= 1
        return found

    trial.trusted_level.cache_clear()
    with mock.patch.object(trial, "results", results), caplog.at_level(logging.WARNING):
        chosen = choose_backend("auto", "bfloat16")
        asked_for = choose_backend(highest.name.lower(), "bfloat16")
    trial.trusted_level.cache_clear()
    assert isinstance(chosen, CpuBackend) and isinstance(asked_for, CpuBackend)
    assert chosen.level == highest - 1
    assert asked_for.level is highest
    assert (
        f"{highest.name.lower()} gives wrong bits here and is not used: {operator}" in caplog.text
    )
