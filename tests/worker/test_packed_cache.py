"""Packed weights kept in a file: the same bytes, and packed anew when anything does not fit."""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.random_model import write_random_model
from tests.support.operators import backend, levels, library
from tests.support.owners import give_away
from worker import build, packed_cache
from worker.backends.cpu import CpuBackend
from worker.build import load_model
from worker.kernels.checks import Bytes
from worker.kernels.packed import Format, PackedWeight
from worker.mapped_file import mapping_of
from worker.packed_cache import PackedCache, cache_path

WEIGHTS = [np.random.default_rng(n).standard_normal((40 + n, 200)).astype("f4") for n in range(3)]
BIAS = np.arange(40, dtype=np.float32)


def load(path: Path, form: Format = Format.INT4, count: int = 3) -> list[PackedWeight]:
    """Load a model of `count` linears; raise AssertionError if more is packed than asked for."""
    ops = CpuBackend(library(), library().highest_level, form)  # its own: loads run side by side
    ops.cache = PackedCache(path)
    try:
        packed = [
            ops.pack_linear([weight], [BIAS] if n == 0 else [])
            for n, weight in enumerate(WEIGHTS[:count])
        ]
        ops.cache.close()
    finally:
        ops.cache.abandon()
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


def test_a_process_without_umask_keeps_them_too(tmp_path: Path, packed_calls: list[int]) -> None:
    before = os.umask(0)
    try:
        first = load(tmp_path / "weights" / "a.packed")
        packed_calls.clear()
        assert same(first, load(tmp_path / "weights" / "a.packed")) and not packed_calls
    finally:
        os.umask(before)


def test_weights_are_the_pages_of_the_file_from_the_first_start_on(tmp_path: Path) -> None:
    for packed in load(tmp_path / "model.packed") + load(tmp_path / "model.packed"):
        assert mapping_of(packed.weight) is not None
        with pytest.raises(ValueError, match="read-only"):
            packed.weight[0] = 1


def test_packed_weights_compute_what_weights_in_memory_compute(tmp_path: Path) -> None:
    expected = [backend(weights=Format.INT4).pack_linear([weight]) for weight in WEIGHTS]
    for found in (load(tmp_path / "model.packed"), load(tmp_path / "model.packed")):
        for one, other in zip(found, expected, strict=True):
            assert np.array_equal(one.weight, other.weight) and one.num_bytes >= other.num_bytes
            assert np.array_equal(one.scales, other.scales)


def test_who_waits_for_a_file_in_the_making_takes_it(
    tmp_path: Path, packed_calls: list[int]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: load(tmp_path / "model.packed"), range(4)))
    assert len(packed_calls) == 3
    assert all(same(found[0], other) for other in found)


def test_a_damaged_or_foreign_file_is_written_again(
    tmp_path: Path, packed_calls: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.packed"
    expected = load(path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    wrong_table = whole[:-60] + b"7" + whole[-59:]
    cut = whole[: len(whole) - 4096]
    for broken in (flipped, wrong_table, cut, b"", whole[:10], b"\xff" * 4096):
        path.write_bytes(broken)
        packed_calls.clear()
        with caplog.at_level(logging.WARNING):
            assert same(load(path), expected)
        assert len(packed_calls) == 3 and "packed again" in caplog.text
        caplog.clear()
        assert path.read_bytes() == whole
    load(path, Format.INT8)
    packed_calls.clear()
    assert same(load(path), expected)
    assert len(packed_calls) == 3 and path.read_bytes() == whole


def test_a_file_that_cannot_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.packed"
    expected = load(path)
    map_bytes = packed_cache.map_bytes

    def refused(asked: Path) -> Bytes:
        if asked == path:
            assert path.exists()  # nor removed: others may be able to read it
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(asked))
        return map_bytes(asked)

    monkeypatch.setattr(packed_cache, "map_bytes", refused)
    with caplog.at_level(logging.WARNING):
        assert same(load(path), expected)
    assert "cannot be read" in caplog.text and "damaged" not in caplog.text


@pytest.mark.parametrize("kind", ["foreign folder", "open folder", "open file"])
def test_what_others_may_have_put_there_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed_calls: list[int],
    caplog: pytest.LogCaptureFixture, kind: str,
) -> None:  # fmt: skip
    """Its hash proves nothing: who writes the file writes that, too."""
    path = tmp_path / "weights" / "model.packed"
    expected = load(path)
    if kind == "open file":
        path.chmod(0o666)
    elif kind == "open folder":
        path.parent.chmod(0o1777)
    else:
        give_away(path.parent, monkeypatch)
    packed_calls.clear()
    with caplog.at_level(logging.WARNING):
        assert same(load(path), expected)
    assert len(packed_calls) == 3 and "packed weights cannot be read" in caplog.text
    if kind == "open file":  # ours took its place
        packed_calls.clear()
        assert same(load(path), expected) and not packed_calls
    else:
        assert "packed weights are not kept" in caplog.text


def test_a_file_of_a_model_that_begins_alike_is_written_again(
    tmp_path: Path, packed_calls: list[int]
) -> None:
    expected = load(tmp_path / "whole.packed")
    load(tmp_path / "model.packed", count=2)
    packed_calls.clear()
    assert same(load(tmp_path / "model.packed"), expected)
    assert len(packed_calls) == 1
    assert (tmp_path / "model.packed").read_bytes() == (tmp_path / "whole.packed").read_bytes()


def test_a_place_that_cannot_be_written_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        load(tmp_path / "file" / "model.packed")
    assert "not kept" in caplog.text


@pytest.mark.parametrize("writes", range(7))
def test_a_disk_that_is_full_costs_the_file_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    writes: int,
) -> None:
    expected = load(tmp_path / "whole.packed")
    (tmp_path / "full").mkdir()
    write_all, done = packed_cache._write_all, []

    def until_full(file: int, data: memoryview, start: int) -> None:
        if len(done) == writes:
            raise OSError(errno.ENOSPC, "no space is left")
        done.append(1)
        write_all(file, data, start)

    monkeypatch.setattr(packed_cache, "_write_all", until_full)
    with caplog.at_level(logging.WARNING):
        assert same(load(tmp_path / "full" / "model.packed"), expected)
    assert "not kept" in caplog.text
    assert list((tmp_path / "full").iterdir()) == []


def test_a_file_of_before_that_stays_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = load(tmp_path / "home-old.packed")
    unlink = Path.unlink

    def of_another_user(path: Path, missing_ok: bool = False) -> None:
        if path.name == "home-old.packed":
            raise PermissionError(errno.EPERM, "it is another user's")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", of_another_user)
    assert same(load(tmp_path / "home-new.packed"), old)
    assert {path.name for path in tmp_path.iterdir()} == {"home-old.packed", "home-new.packed"}


@pytest.mark.parametrize("mappings", range(4))
def test_a_limit_of_addresses_leaves_no_file_in_the_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mappings: int
) -> None:
    """`ulimit -v` left one as large as the weights, and a file that was whole went."""
    path = tmp_path / "model.packed"
    if mappings == 0:
        load(path)
    held, map_file = [], mmap.mmap

    def within(*given: Any, **named: Any) -> mmap.mmap:
        if len(held) == max(0, mappings - 1):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        held.append(map_file(*given, **named))
        return held[-1]

    monkeypatch.setattr("worker.mapped_file.mmap.mmap", within)
    if mappings == 3:  # the last one is not needed
        load(path)
    else:
        with pytest.raises(MemoryError, match="cannot be mapped: Cannot allocate memory"):
            load(path)
    assert [one.name for one in tmp_path.iterdir()] == ([path.name] if mappings in (0, 3) else [])


def test_loading_that_fails_leaves_no_file(tmp_path: Path) -> None:
    ops = backend(weights=Format.INT8)
    cache = ops.cache = PackedCache(tmp_path / "model.packed")
    ops.pack_linear([WEIGHTS[0]])
    ops.cache = None
    cache.abandon()
    assert list(tmp_path.iterdir()) == []


def test_large_models_are_kept_and_small_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_random_model(tmp_path / "tiny", "tiny")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load_model(folder, num_threads=1, quantization="int8")
    assert not list((tmp_path / "cache").glob("*/weights"))
    monkeypatch.setattr(build, "MIN_BYTES", 1)
    load_model(folder, num_threads=1, quantization="int8")
    assert len(list((tmp_path / "cache" / "millrace" / "weights").iterdir())) == 1


def test_the_name_follows_model_format_and_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("one")
    (tmp_path / "config.json").write_text("{}")
    name = cache_path(tmp_path, "abc", "INT8", tmp_path)
    assert name == cache_path(tmp_path, "abc", "INT8", tmp_path)
    assert name != cache_path(tmp_path, "abd", "INT8", tmp_path)
    assert name != cache_path(tmp_path, "abc", "INT4", tmp_path)
    (tmp_path / "consolidated.safetensors").symlink_to(tmp_path / "not downloaded")
    assert name == cache_path(tmp_path, "abc", "INT8", tmp_path)
    (tmp_path / "model.safetensors").write_text("other")
    assert name != cache_path(tmp_path, "abc", "INT8", tmp_path)
    assert name.name[:13] == cache_path(tmp_path, "abd", "INT8", tmp_path).name[:13]
    assert name.name[:13] != cache_path(tmp_path, "abc", "INT4", tmp_path).name[:13]
    (tmp_path / "config.json").write_text('{"rope_theta": 1}')
    assert name.name[:13] != cache_path(tmp_path, "abc", "INT8", tmp_path).name[:13]


def test_weights_of_the_same_size_and_time_are_others(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_text("one")
    (tmp_path / "config.json").write_text("{}")
    name, status = cache_path(tmp_path, "abc", "INT8", tmp_path), weights.stat()
    (tmp_path / "copy").write_text("two")
    os.utime(tmp_path / "copy", ns=(status.st_atime_ns, status.st_mtime_ns))
    (tmp_path / "copy").replace(weights)
    assert weights.stat().st_mtime_ns == status.st_mtime_ns
    assert name != cache_path(tmp_path, "abc", "INT8", tmp_path)


def test_a_layout_is_the_same_bytes_at_every_level() -> None:
    """Levels read each other's files, as far as these are of one name."""
    found: dict[str, PackedWeight] = {}
    for form in Format:
        for level in levels():
            ops = backend(level, form)
            packed = ops.pack_linear([WEIGHTS[0]])
            assert same([found.setdefault(ops.weight_layout, packed)], [packed]), level


def test_a_new_file_takes_the_place_of_the_one_before_and_of_what_was_left(tmp_path: Path) -> None:
    names = ["home-old.packed", "home-new.packed", "home2-x.packed", "other.packed"]
    old = load(tmp_path / names[0])
    load(tmp_path / names[2])
    load(tmp_path / names[3])
    (tmp_path / "partial-killed").write_text("half")
    assert same(load(tmp_path / names[1]), old)  # which is mapped still
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_a_cache_that_cannot_be_opened_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another process has made the file meanwhile, and there is no memory to map it."""
    path = tmp_path / "weights.packed"
    load(path)
    reads = iter([FileNotFoundError(), MemoryError()])

    def no_room(_: Path) -> Bytes:
        raise next(reads)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(packed_cache, "map_bytes", no_room)
        PackedCache(path)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)
