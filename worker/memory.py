"""How much memory this process may take, and sizes as people write them.

Knows /proc and cgroup v2. Knows no model.
"""

from __future__ import annotations

import re
from pathlib import Path

KV_CACHE_SHARE = 0.25
"""Part of the free memory that keys and values take when no size is given."""
MAX_DEFAULT_BYTES = 4 * 2**30
FALLBACK_BYTES = 512 * 2**20
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


def parse_size(text: str) -> int:
    """Return the bytes of `512MiB`, `2GiB`, `1000000`; raise ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in UNITS:
        raise ValueError(f"size is {text!r}, allowed: a number and one of B KiB MiB GiB KB MB GB")
    return int(float(match[1]) * UNITS[match[2].upper()])


def default_kv_cache_bytes() -> int:
    """Return a quarter of the free memory, at most 4 GiB."""
    free = free_bytes()
    return FALLBACK_BYTES if free is None else min(int(free * KV_CACHE_SHARE), MAX_DEFAULT_BYTES)


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return what host and control group leave to this process; None where neither says."""
    left = [size for size in (_host_free(root), _group_free(root)) if size is not None]
    return min(left, default=None)


def _host_free(root: Path) -> int | None:
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return None
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _group_free(root: Path) -> int | None:
    limit, used = root / "sys/fs/cgroup/memory.max", root / "sys/fs/cgroup/memory.current"
    if not limit.exists() or not used.exists() or limit.read_text().strip() == "max":
        return None
    return max(0, int(limit.read_text()) - int(used.read_text()))
