"""Packed weights kept in a file: the same bytes, and packed anew when anything does not fit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.operators import backend
from worker import packed_cache
from worker.kernels.packed import Format, PackedWeight
from worker.packed_cache import PackedCache, cache_path

WEIGHTS = [np.random.default_rng(n).standard_normal((40 + n, 200)).astype("f4") for n in range(3)]
BIAS = np.arange(40, dtype=np.float32)


@pytest.fixture(autouse=True)
def every_model_is_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_cache, "MIN_BYTES", 1)


def load(path: Path, form: Format = Format.INT4, count: int = 3) -> list[PackedWeight]:
    """Load a model of `count` linears; raise AssertionError if more is packed than asked for."""
    ops = backend(weights=form)
    ops.cache = PackedCache(path)
    try:
        packed = [
            ops.pack_linear([weight], [BIAS] if n == 0 else [])
            for n, weight in enumerate(WEIGHTS[:count])
        ]
        ops.cache.close()
    finally:
        ops.cache = None
    return packed


def same(one: list[PackedWeight], other: list[PackedWeight]) -> bool:
    return all(
        a.shape == b.shape
        and np.array_equal(a.weight, b.weight)
        and np.array_equal(a.scales, b.scales)
        and (a.bias is None) == (b.bias is None)
        for a, b in zip(one, other, strict=True)
    )


@pytest.fixture
def packed_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every linear that is packed."""
    calls: list[int] = []
    take = PackedCache.take

    def counted(
        self: PackedCache, shape: object, biases: object, pack: Callable[[], PackedWeight]
    ) -> PackedWeight:
        def noted() -> PackedWeight:
            calls.append(1)
            return pack()

        return take(self, shape, biases, noted)  # type: ignore[arg-type]

    monkeypatch.setattr(PackedCache, "take", counted)
    return calls


@pytest.mark.parametrize("form", list(Format))
def test_a_second_load_packs_nothing(form: Format, tmp_path: Path, packed_calls: list[int]) -> None:
    path = tmp_path / "deep" / "model.packed"
    first = load(path, form)
    assert len(packed_calls) == 3
    second = load(path, form)
    assert len(packed_calls) == 3 and same(first, second)
    assert all(packed.weight.ctypes.data % 64 == 0 for packed in second)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_damaged_or_foreign_file_is_written_again(
    tmp_path: Path, packed_calls: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.packed"
    expected = load(path)
    whole = path.read_bytes()
    begin = len(whole) - 4096
    for broken in (whole[:begin], b"", whole[:100], b"\xff" * 4096,
                   whole[:4096] + b"\0" * 9000 + whole[13096:]):  # fmt: skip
        path.write_bytes(broken)
        packed_calls.clear()
        with caplog.at_level(logging.WARNING):
            assert same(load(path), expected)
        assert packed_calls and "packed again" in caplog.text
        caplog.clear()
        assert path.read_bytes() == whole
    load(path, Format.INT8)
    packed_calls.clear()
    load(path)
    assert len(packed_calls) == 3


def test_a_place_that_cannot_be_written_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        load(tmp_path / "file" / "model.packed")
    assert "not kept" in caplog.text


def test_small_models_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_cache, "MIN_BYTES", 1 << 30)
    load(tmp_path / "model.packed")
    assert list(tmp_path.iterdir()) == []


def test_the_name_follows_model_format_and_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("one")
    name = cache_path(tmp_path, "abc", "INT8", tmp_path)
    assert name == cache_path(tmp_path, "abc", "INT8", tmp_path)
    assert name != cache_path(tmp_path, "abd", "INT8", tmp_path)
    assert name != cache_path(tmp_path, "abc", "INT4", tmp_path)
    (tmp_path / "model.safetensors").write_text("other")
    assert name != cache_path(tmp_path, "abc", "INT8", tmp_path)
