"""Crew: every piece once, errors surface, cores as the system leaves them."""

from __future__ import annotations

import os
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


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file system of a machine with 8 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_affinity_bounds_the_cores(root: Path) -> None:
    assert available_cores(root) == 8
    assert available_cores() <= 8


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("max 100000", 8),
        ("300000 100000", 3),
        ("399999 100000", 3),
        ("50000 100000", 1),
        ("900000 100000", 8),
    ],
)
def test_cores_are_bounded_by_the_control_group(root: Path, limit: str, cores: int) -> None:
    write(root / "sys/fs/cgroup/cpu.max", limit)
    assert available_cores(root) == cores, "without /proc"
    write(root / "proc/self/cgroup", "0::/")
    assert available_cores(root) == cores, "at the top, as in a container"


def test_every_group_around_this_process_bounds_the_cores(root: Path) -> None:
    top = root / "sys/fs/cgroup"
    write(root / "proc/self/cgroup", "0::/system.slice/millrace.service")
    write(top / "system.slice/cpu.max", "max 100000")
    write(top / "system.slice/millrace.service/cpu.max", "500000 100000")
    write(top / "system.slice/other.service/cpu.max", "100000 100000")
    assert available_cores(root) == 5, "its own, not its neighbour's"
    write(top / "system.slice/cpu.max", "200000 50000")
    assert available_cores(root) == 4, "the least of all"


def test_groups_of_version_1_bound_the_cores(root: Path) -> None:
    top = root / "sys/fs/cgroup/cpu"
    write(root / "proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/x\n3:cpuset:/s\n0::/")
    write(top / "cpu.cfs_quota_us", "-1")
    assert available_cores(root) == 8, "half of what is told is nothing"
    write(top / "cpu.cfs_period_us", "100000")
    assert available_cores(root) == 8
    write(top / "cpu.cfs_quota_us", "600000")
    assert available_cores(root) == 6, "a container sees its own group as the top"
    write(top / "docker/x/cpu.cfs_quota_us", "100000")
    write(top / "docker/x/cpu.cfs_period_us", "50000")
    write(root / "sys/fs/cgroup/memory/m/cpu.max", "100000 100000")
    assert available_cores(root) == 2
