"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from millrace.project import HOME

TELLING_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd")


def hardware() -> str:
    """Return processor, cores, instruction sets, memory and system in a line."""
    text = Path("/proc/cpuinfo").read_text()
    found: dict[str, str] = dict(re.findall(r"(?m)^([\w ]+?)\s*: (.+)$", text))
    flags = set(found.get("flags", found.get("Features", "")).split())
    name = found.get("model name", platform.machine())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"{len(os.sched_getaffinity(0))} cores of {name}"
        f" ({' '.join(flag for flag in TELLING_FLAGS if flag in flags)}), {memory:.0f} GiB,"
        f" Linux {platform.release()}, Python {platform.python_version()}."
    )


def revision() -> str:
    """Return the revision of this tree, `+` behind it where files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+"]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
