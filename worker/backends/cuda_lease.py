"""Which of a machine's GPUs this worker owns: one worker a device, whoever comes first.

A lease is an exclusive lock on a file named by the device's UUID. The system gives it back when the
process ends, however it ends. Containers share the folder by a volume.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from worker.kernels.compile import is_ours

SHARED = Path("/run/millrace/gpus")
"""Where deploy/ mounts the volume of leases; without it a folder of this machine's users."""

FOR_ALL = 0o1777
"""Everybody makes files, and nobody but the folder's owner removes those of others."""


class NoDeviceFree(Exception):
    """Every device has an owner, or leases cannot be told; the message says which."""


def lease_folder() -> Path:
    """Return where leases lie on this machine.

    Raises NoDeviceFree where its place in the folder of all users is taken by something else: what
    another user may exchange there, or a link to elsewhere.
    """
    if os.access(SHARED, os.W_OK):
        return SHARED
    folder = Path(tempfile.gettempdir(), "millrace-gpus")
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(FOR_ALL)  # mkdir's own mode would be cut by the umask
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and (is_ours(found) or stat.S_IMODE(found.st_mode) == FOR_ALL):
        return folder
    raise NoDeviceFree(f"{folder} is no folder of mode {FOR_ALL:o}, as leases need it: remove it")


def claim(uuids: Sequence[str], folder: Path) -> tuple[int, IO[bytes]]:
    """Return the place in `uuids` of the first device without an owner, and its lease.

    The lease lasts as long as the open file. Raises NoDeviceFree.
    """
    for place, uuid in enumerate(uuids):
        path = folder / f"{uuid}.lease"
        try:
            lease = _opened(path)
        except OSError as error:
            raise NoDeviceFree(f"the lease {path} does not open: {error.strerror}") from error
        try:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lease.close()
            continue
        return place, lease
    raise NoDeviceFree(f"all {len(uuids)} GPUs of this machine have a worker")


def _opened(path: Path) -> IO[bytes]:
    """Open a lock file that another user may own; the right to read it is enough.

    A link is not followed, which would make a file wherever another user wants it, and a pipe is
    not waited for.
    """

    def opener(name: str, flags: int) -> int:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            return os.open(name, flags)
        except FileNotFoundError:
            return os.open(name, flags | os.O_CREAT, 0o644)

    return open(path, "rb", opener=opener)
