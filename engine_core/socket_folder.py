"""The folder of a replica's socket: of ours alone, and held by a lock that ends with its maker.

Whoever is killed before it could remove its folder leaves it to the next front of the same user,
who finds the lock free.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

import zmq

PREFIX = "millrace-ipc-"
NUMBER_BYTES = 10
"""What a replica's number may add to the path of its socket."""
SHORT = Path("/tmp")
"""Where the path of TMPDIR is too long for a socket's."""


class SocketFolder:
    """A fresh folder; raises OSError where none can be made."""

    def __init__(self) -> None:
        place = Path(tempfile.gettempdir())
        length = len(os.fsencode(place / PREFIX)) + 8 + 1 + NUMBER_BYTES
        place = place if length <= zmq.IPC_PATH_MAX_LEN else SHORT
        _remove_left(place)
        self.path, self._lock = _made(place)
        while not self.path.exists():  # another front took it for left
            os.close(self._lock)
            self.path, self._lock = _made(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it; a second time does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _made(place: Path) -> tuple[Path, int]:
    """Make a folder, and hold its lock where the file system has such."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return _made(place)
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_SH)
    return path, lock


def _remove_left(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or in use
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(folder)
            finally:
                os.close(lock)
