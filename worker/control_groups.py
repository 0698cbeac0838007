"""The control groups that bound this process: its own and those around it, of version 2 and 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the folders that may bound `controller`, each group before the one around it.

    Not all need exist: a container without a namespace of its own sees its group as the top, and is
    told the path that the host has for it.
    """
    own = root / "proc/self/cgroup"
    for line in own.read_text().splitlines() if own.exists() else ["0::/"]:
        number, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup"
        if controller in controllers.split(","):
            top /= controller
        elif number != "0":
            continue
        group = top / path.lstrip("/")
        yield from (one for one in (group, *group.parents) if one.is_relative_to(top))
