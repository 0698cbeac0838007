"""The control groups that bound this process: its own and those around it, of version 2 and 1."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

SILENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENODEV, errno.ESRCH)
"""Why a file says nothing; the last two are of a group, or a process, that has just ended."""


def told(path: Path) -> str:
    """Return what a file of the kernel's says; nothing where it is not there, or not for us.

    Raises OSError where it might say something, as when no descriptor is left to read it.
    """
    try:
        return path.read_text()
    except OSError as error:
        if error.errno in SILENT:
            return ""
        raise


def groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the folders that may bound `controller`, each group before the one around it.

    Not all need exist: a container without a namespace of its own sees its group as the top, and is
    told the path that the host has for it.
    """
    for line in told(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        number, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup"
        if controller in controllers.split(","):
            top /= controller
        elif number != "0":
            continue
        group = top / path.lstrip("/")
        yield from (one for one in (group, *group.parents) if one.is_relative_to(top))
