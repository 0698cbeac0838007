"""Sizes as people write them, and free memory as host, control group and limits tell it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from worker.kernels.crew import available_cores
from worker.memory import free_bytes, kv_cache_bytes, parse_size, total_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 2**29), ("2GiB", 2**31), ("1.5 kb", 1500), ("1000000", 10**6), (" 7 B ", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size("kv_cache_memory", text) == size


@pytest.mark.parametrize("text", ["", "lots", "12 parsecs", "-1MiB", "1e9", "9" * 400])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="host_kv_memory is .*, allowed: a number and one"):
        parse_size("host_kv_memory", text)


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
    assert total_bytes(tmp_path) == 9 * 1024
    (group / "memory.max").write_text("5000\n")
    assert free_bytes(tmp_path) == 4000
    assert total_bytes(tmp_path) == 5000, "or all but 4000 of the host's would seem to be used"


def test_the_group_of_this_process_and_those_around_it_count(tmp_path: Path) -> None:
    inner = tmp_path / "sys/fs/cgroup/a/b"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    for group, limit in ((inner, "max"), (inner.parent, "9000")):
        (group / "memory.max").write_text(limit)
        (group / "memory.current").write_text("5000")
    assert free_bytes(tmp_path) == 4000
    (inner.parent / "memory.stat").write_text("active_file 7\ninactive_file 600\n")
    assert free_bytes(tmp_path) == 4600, "pages of files make way"
    (inner / "memory.max").write_text("9500")
    assert free_bytes(tmp_path) == 4500, "the one that leaves least"


def test_a_limit_of_addresses_counts(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Name:\tx\nVmPeak:\t 9 kB\nVmSize:\t 3 kB\n")
    limits = tmp_path / "proc/self/limits"
    row = "Max data size  unlimited  unlimited  bytes\nMax address space   {}  unlimited   bytes\n"
    limits.write_text(row.format("unlimited"))
    assert free_bytes(tmp_path) is None
    limits.write_text(row.format(5000))
    assert free_bytes(tmp_path) == 5000 - 3 * 1024


def test_control_groups_of_version_1_count(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/memory/x"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,memory:/x\n3:cpuset:/y\n0::/\n")
    (group / "memory.limit_in_bytes").write_text("700")
    (group / "memory.usage_in_bytes").write_text("100")
    assert free_bytes(tmp_path) == 600


def test_a_file_that_is_not_for_us_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that hides its group; where a file might say something it is an error."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable:    4096 kB\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("5000\n")
    read, number = Path.read_text, errno.EACCES

    def refuse(path: Path) -> str:
        if path.name in ("memory.max", "cpu.max"):
            raise OSError(number, os.strerror(number))
        return read(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    (group / "cpu.max").write_text("50000 100000\n")
    assert free_bytes(tmp_path) == 4096 * 1024
    assert available_cores(tmp_path) == available_cores(tmp_path / "nowhere")
    number = errno.EMFILE
    with pytest.raises(OSError, match="Too many open files"):
        free_bytes(tmp_path)


def test_the_default_is_bounded() -> None:
    assert kv_cache_bytes(None, 8 * 2**30) == 2 * 2**30
    assert kv_cache_bytes(None, 2**40) == 4 * 2**30
    assert kv_cache_bytes(None, None) == 512 * 2**20


def test_what_is_asked_must_be_there() -> None:
    assert kv_cache_bytes(1000, 1000) == kv_cache_bytes(1000, None) == 1000
    with pytest.raises(ValueError, match="kv_cache_memory is 1001 bytes, .* have 1000 free"):
        kv_cache_bytes(1001, 1000)


def test_memory_for_evicted_blocks_counts_as_taken() -> None:
    assert kv_cache_bytes(None, 1000, host_bytes=200) == 200
    with pytest.raises(ValueError, match="kv_cache_memory is 900 bytes, .* 800 free"):
        kv_cache_bytes(900, 1000, host_bytes=200)
    with pytest.raises(ValueError, match="host_kv_memory is 2000 bytes, .* 1000 free"):
        kv_cache_bytes(None, 1000, host_bytes=2000)
