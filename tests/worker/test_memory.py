"""Sizes as people write them, and free memory as host and control group tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.memory import default_kv_cache_bytes, free_bytes, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 2**29), ("2GiB", 2**31), ("1.5 kb", 1500), ("1000000", 10**6), (" 7 B ", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "12 parsecs", "-1MiB", "1e9"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: a number and one of"):
        parse_size(text)


def test_the_smaller_of_host_and_group_counts(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4096 kB\n")
    assert free_bytes(tmp_path) == 4096 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path) == 4096 * 1024
    (group / "memory.max").write_text("5000\n")
    assert free_bytes(tmp_path) == 4000


def test_the_default_is_bounded() -> None:
    assert 0 < default_kv_cache_bytes() <= 4 * 2**30
