"""Which of a machine's GPUs this worker owns: one worker a device, whoever comes first.

A lease is an exclusive lock on a file named by the device's UUID. The system gives it back when the
process ends, however it ends. Containers share the folder by a volume.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

SHARED = Path("/run/millrace/gpus")
"""Where deploy/ mounts the volume of leases; without it a folder of this machine's users."""


class NoDeviceFree(Exception):
    """Every device has an owner; the message says how many there are."""


def lease_folder() -> Path:
    """Return where leases lie on this machine."""
    if os.access(SHARED, os.W_OK):
        return SHARED
    folder = Path(tempfile.gettempdir(), "millrace-gpus")
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)  # mkdir's own mode would be cut by the umask
    return folder


def claim(uuids: Sequence[str], folder: Path) -> tuple[int, IO[bytes]]:
    """Return the place in `uuids` of the first device without an owner, and its lease.

    The lease lasts as long as the open file. Raises NoDeviceFree.
    """
    for place, uuid in enumerate(uuids):
        lease = _opened(folder / f"{uuid}.lease")
        try:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lease.close()
            continue
        return place, lease
    raise NoDeviceFree(f"all {len(uuids)} GPUs of this machine have a worker")


def _opened(path: Path) -> IO[bytes]:
    """Open a lock file that another user may own; the right to read it is enough."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return path.open("ab")
