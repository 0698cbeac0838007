"""How much memory this process may take, and sizes as people write them.

Knows /proc and the files of control groups. Knows no model.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from worker.control_groups import groups, told

KV_CACHE_SHARE = 0.25
"""Part of the free memory that keys and values take when no size is given."""
MAX_DEFAULT_BYTES = 4 * 2**30
FALLBACK_BYTES = 512 * 2**20
GROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
LIMITS = tuple(limit for limit, _ in GROUP_FILES)
UNITS = {
    "": 1,
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}


class NoRoom(ValueError):
    """There is less memory than is asked for: now, that is, and maybe not later."""


def parse_size(field: str, text: str) -> int:
    """Return the bytes of `512MiB`, `2GiB`, `1000000`; raise ValueError that names the field."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in UNITS:
        raise ValueError(
            f"{field} is {text!r}, allowed: a number and one of B KiB MiB GiB KB MB GB"
        )
    return int(float(match[1]) * UNITS[match[2].upper()])


def kv_cache_bytes(asked: int | None, free: int | None, host_bytes: int = 0) -> int:
    """Return the memory for keys and values: what is asked, else a quarter of what is `free`.

    `host_bytes` of it are for evicted ones already. Raises NoRoom when there is less.
    """
    if free is not None:
        if host_bytes > free:
            raise NoRoom(
                f"host_kv_memory is {host_bytes} bytes, host, control group and "
                f"ulimit have {free} free: lower host_kv_memory"
            )
        free -= host_bytes
    if asked is not None and free is not None and asked > free:
        raise NoRoom(
            f"kv_cache_memory is {asked} bytes, host, control group and "
            f"ulimit have {free} free: lower kv_cache_memory"
        )
    if asked is not None:
        return asked
    return FALLBACK_BYTES if free is None else min(int(free * KV_CACHE_SHARE), MAX_DEFAULT_BYTES)


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return what host, control group and limit leave to this process; None where none says."""
    sizes = (_meminfo("MemAvailable", root), _group_free(root), _addresses_free(root))
    return min((size for size in sizes if size is not None), default=None)


def total_bytes(root: Path = Path("/")) -> int | None:
    """Return the most that host, control group and limit give; None where none says."""
    sizes = [_meminfo("MemTotal", root), _addresses(root)]
    sizes += [
        _number(group / name, r"(\d+)") for group in groups("memory", root) for name in LIMITS
    ]
    return min((size for size in sizes if size is not None), default=None)


class DeviceMemory(NamedTuple):
    """What computes, and its memory; bytes, 0 where nobody says."""

    name: str
    driver: str
    """Version; empty for a CPU."""
    read: Callable[[], tuple[int, int]]
    """Free and all bytes."""


def host_memory() -> DeviceMemory:
    """Return this machine's processors as a device, with the memory that this process may have."""
    return DeviceMemory(
        f"cpu {platform.machine()}", "", lambda: (free_bytes() or 0, total_bytes() or 0)
    )


def _addresses_free(root: Path) -> int | None:
    """Return what `ulimit -v` leaves: batch systems bound a job by its address space."""
    limit = _addresses(root)
    taken = _number(root / "proc/self/status", r"VmSize:\s+(\d+) kB")
    return None if limit is None else max(0, limit - (taken or 0) * 1024)


def _addresses(root: Path) -> int | None:
    return _number(root / "proc/self/limits", r"Max address space +(\d+)")


def _meminfo(name: str, root: Path = Path("/")) -> int | None:
    size = _number(root / "proc/meminfo", rf"{name}:\s+(\d+) kB")
    return None if size is None else size * 1024


def _number(path: Path, line: str) -> int | None:
    """Return the number in the first line that begins so; None where there is none."""
    match = re.search(f"^{line}", told(path), re.MULTILINE)
    return int(match[1]) if match else None


def _group_free(root: Path) -> int | None:
    """Return the least that this process's control group or one around it leaves."""
    left = (_left_in(group) for group in groups("memory", root))
    return min((size for size in left if size is not None), default=None)


def _left_in(group: Path) -> int | None:
    """Return limit - use + file pages that would make way; version 2, then 1."""
    for limit_name, used_name in GROUP_FILES:
        limit, used = told(group / limit_name).strip(), told(group / used_name).strip()
        if not limit.isdecimal() or not used.isdecimal():
            continue  # not there, not for us to read, or "max"
        idle = _number(group / "memory.stat", r"(?:total_)?inactive_file (\d+)") or 0
        return max(0, int(limit) - int(used) + idle)
    return None
