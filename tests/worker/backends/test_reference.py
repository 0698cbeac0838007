"""The CPU backend: one BLAS thread, tiles that were proven, a fingerprint without thread counts."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import numpy as np
import pytest

from worker.backends import blas
from worker.backends.reference import ReferenceBackend
from worker.kernels import linear
from worker.kernels.linear import TILES, proven_tile


def test_the_blas_has_one_thread() -> None:
    assert blas.use_one_thread().startswith("openblas=")
    library = ctypes.CDLL(str(blas._libraries()[0]))
    dialect = next(d for d in blas.DIALECTS if hasattr(library, d.format("get_num_threads")))
    assert getattr(library, dialect.format("get_num_threads"))() == 1


def test_an_unknown_blas_is_said_once_and_in_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blas, "_libraries", list[Path])
    with caplog.at_level(logging.WARNING):
        assert "unknown" in ReferenceBackend().fingerprint
    assert len(caplog.records) == 1


def test_the_fingerprint_names_the_tiles_in_use() -> None:
    backend = ReferenceBackend(3)
    backend.pack_linear([np.ones((4, 8), np.float32)])
    tiles = backend.fingerprint.split("tile=")[1].split()[0]
    assert int(tiles) in TILES
    alone = ReferenceBackend(1)
    alone.pack_linear([np.ones((4, 8), np.float32)])
    assert backend.fingerprint == alone.fingerprint


def test_a_tile_that_sees_its_place_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    real = linear._agrees
    monkeypatch.setattr(linear, "_agrees", lambda w, probe, tile: tile == 4 and real(w, probe, 4))
    assert proven_tile(weight) == 4
    monkeypatch.setattr(linear, "_agrees", lambda w, probe, tile: False)
    assert proven_tile(weight) == 1
