"""Copies through pinned memory, on a device that works as late as it may; planted faults bite."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.stream import EmulatedMark, EmulatedStream
from worker.backends.transfers import Downloads, Uploads

SIZES = (1, 700, 300, 5000, 0, 256, 2047, 13, 4096)


def bytes_of(count: int, seed: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def what_arrives(half_bytes: int) -> bool:
    """Send arrays of many sizes, change each at once, and return whether all arrive unchanged."""
    stream = EmulatedStream(is_lazy=True)
    uploads = Uploads(stream, half_bytes)
    targets = [np.zeros(size, np.uint8) for size in SIZES]
    for seed, target in enumerate(targets):
        source = bytes_of(len(target), seed)
        uploads.write(target, source)
        source[:] = 0
    stream.run()
    return all(np.array_equal(target, bytes_of(len(target), i)) for i, target in enumerate(targets))


@pytest.mark.parametrize("half_bytes", [256, 1024, 2048, 1 << 20])
def test_what_is_sent_may_be_changed_at_once(half_bytes: int) -> None:
    assert what_arrives(half_bytes)


def test_a_half_that_is_filled_too_early_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedMark, "wait", lambda self: None)
    assert what_arrives(1 << 20)
    assert not what_arrives(1024)


def test_arrays_keep_their_shape_and_dtype() -> None:
    stream = EmulatedStream(is_lazy=True)
    target = np.zeros((3, 5), np.float32)
    source = np.arange(15, dtype=np.float32).reshape(5, 3).T
    Uploads(stream, 256).write(target, source)
    reading = Downloads(stream).begin(target)
    np.testing.assert_array_equal(reading.values(), source)


def test_a_result_is_what_stood_there_when_it_was_asked_for() -> None:
    stream = EmulatedStream(is_lazy=True)
    downloads, source = Downloads(stream), np.arange(4, dtype=np.int32)
    first = downloads.begin(source)
    stream.add(lambda: np.copyto(source, 9))
    second = downloads.begin(source)
    assert source.tolist() == [0, 1, 2, 3], "nothing has run"
    assert second.values().tolist() == [9] * 4
    assert first.values().tolist() == [0, 1, 2, 3]


def test_pinned_memory_is_used_again_when_its_result_is_taken() -> None:
    stream = EmulatedStream(is_lazy=True)
    downloads, source = Downloads(stream), np.arange(4, dtype=np.int32)
    first, second = downloads.begin(source), downloads.begin(source)
    assert first.pinned is not second.pinned
    kept = first.values()
    third = downloads.begin(source)
    assert third.pinned is first.pinned
    stream.add(lambda: np.copyto(source, 9))
    fourth = downloads.begin(source)
    assert fourth.values().tolist() == [9] * 4 and kept.tolist() == [0, 1, 2, 3]
    assert downloads.begin(source[:0]).values().tolist() == []


def test_a_mark_runs_what_stands_before_it_and_no_more() -> None:
    stream, done = EmulatedStream(is_lazy=True), []
    stream.add(lambda: done.append(1))
    mark = stream.mark()
    stream.add(lambda: done.append(2))
    later = stream.mark()
    mark.wait()
    assert done == [1]
    later.wait()
    assert done == [1, 2] and mark.seconds_until(later) >= 0
