"""Crew: every piece once, errors surface, cores as the system leaves them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from worker.kernels.crew import Crew, available_cores


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_every_piece_is_done_once(num_threads: int) -> None:
    lock, done = threading.Lock(), list[int]()

    def piece(place: int) -> None:
        with lock:
            done.append(place)

    Crew(num_threads).each(piece, 100)
    assert sorted(done) == list(range(100))


def test_another_thread_takes_part() -> None:
    """Both pieces wait for each other: one thread alone would never end."""
    barrier = threading.Barrier(2, timeout=20)
    Crew(2).each(lambda place: barrier.wait() and None, 2)


def test_an_error_in_any_thread_is_raised() -> None:
    def piece(place: int) -> None:
        if place == 7:
            raise ValueError("piece 7")

    with pytest.raises(ValueError, match="piece 7"):
        Crew(2).each(piece, 8)


def test_cores_are_bounded_by_the_control_group(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    everything = available_cores(limit)
    assert everything >= 1
    limit.write_text("max 100000\n")
    assert available_cores(limit) == everything
    limit.write_text("100000 100000\n")
    assert available_cores(limit) == 1
    limit.write_text("50000 100000\n")
    assert available_cores(limit) == 1
