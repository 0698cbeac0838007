"""A file as bytes in memory, in 2 MiB pages where the system gives them, and the hash of its bytes.

Whoever maps a file shares its pages and copies nothing. Whether they are large is up to kernel and
file system: `MADV_HUGEPAGE` has a fault read 2 MiB at once where the page cache can hold that.
Where they stay small and our own memory would not, a copy is worth its price: 3 to 20 % of
bandwidth.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from worker.kernels.checks import Bytes
from worker.kernels.packed import aligned_bytes
from worker.memory import free_bytes

HUGE_PAGE = 2 << 20
PIECE_BYTES = 16 << 20
"""What one thread hashes at a time."""
MADV_COLLAPSE = 25
"""Linux 6.1: make large pages of those that are there; the module mmap has no name for it."""
ENOUGH = 0.75
"""Part of a mapping in large pages below which a copy is better."""
OWN_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def map_bytes(path: Path) -> Bytes:
    """Return the bytes of a file, read-only; raise OSError, or ValueError for an empty one.

    MemoryError where a limit leaves no addresses for it: nothing is wrong with the file.
    """
    with path.open("rb") as file:
        try:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise MemoryError(f"{path.name} cannot be mapped: {error.strerror}") from error
            raise
    _advise(mapping, getattr(mmap, "MADV_HUGEPAGE", None))
    return np.frombuffer(mapping, np.uint8)


def digests(data: Bytes, num_threads: int) -> list[str]:
    """Return the sha256 of each piece of PIECE_BYTES; this also brings every page to memory."""
    pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
    with ThreadPoolExecutor(num_threads) as pool:  # hashing releases the interpreter's lock
        return list(pool.map(lambda piece: hashlib.sha256(piece.data).hexdigest(), pieces))


def in_huge_pages(data: Bytes) -> Bytes:
    """Return what `map_bytes` gave, whose pages are in memory, or a copy where only that gets large
    pages, and there is room for it: pages of files make way, a copy has the process killed."""
    if len(data) < HUGE_PAGE or huge_share(data) >= ENOUGH:
        return data
    if (mapping := mapping_of(data)) is not None:
        _advise(mapping, MADV_COLLAPSE)
    if huge_share(data) >= ENOUGH or not own_pages_are_huge():
        return data
    if (free := free_bytes()) is not None and free < len(data):
        return data
    own = aligned_bytes(len(data), HUGE_PAGE)
    own[:] = data
    return own


def mapping_of(data: Bytes) -> mmap.mmap | None:
    """Return the mapped file that `data` is a view of, None when it is our own memory."""
    base: Any = data
    while isinstance(base, np.ndarray):
        base = base.base
    found = base.obj if isinstance(base, memoryview) else base
    return found if isinstance(found, mmap.mmap) else None


def huge_share(data: Bytes, smaps: Path = Path("/proc/self/smaps")) -> float:
    """Return the part of a mapping that lies in large pages; 0 where nobody says."""
    place = data.ctypes.data
    kib = sum(size for first, end, size in _large(smaps) if first <= place < end)
    return kib * 1024 / max(1, len(data))


def own_pages_are_huge(said: Path = OWN_PAGES) -> bool:
    """Tell whether memory of a process gets large pages when it asks for them, as NumPy does."""
    return said.exists() and "[never]" not in said.read_text()


def _large(smaps: Path) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and KiB in large pages of every mapping that has such."""
    if not smaps.exists():
        return
    first = end = 0
    for line in smaps.read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first, end = int(found[1], 16), int(found[2], 16)
        elif found := re.match(r"(?:File|Shmem)PmdMapped: +([1-9]\d*) kB", line):
            yield first, end, int(found[1])


def _advise(mapping: mmap.mmap, advice: int | None) -> None:
    if advice is not None:
        with suppress(OSError):  # a wish; `huge_share` says what came of it
            mapping.madvise(advice)
