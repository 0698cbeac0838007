"""PackedCache: the packed weights of a model in one format, kept from one start to the next.

The file is named by the hash of all that decides its bytes: the model's folder, the layout, and the
sources that define the layout. A new one takes the place of those before it. It is mapped, so that
the workers of a host share one copy, and every byte is checked against a hash first. Whoever writes
there can make that hash, too: folder and file have to be ours or root's. A linear that has to be
packed goes straight to the file and out of memory; when all are there the file is mapped, on the
first start as on any other.

    regions, each at a multiple of 4 KiB │ JSON table │ its sha256 │ 8 bytes: its length
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from worker import quantized
from worker.kernels.checks import Bytes, Stored
from worker.kernels.compile import NOT_FOR_ALL, SOURCES, check_ours
from worker.kernels.packed import PackedWeight, Shape, pack_bias
from worker.mapped_file import HUGE_PAGE, digests, in_huge_pages, map_bytes

log = logging.getLogger(__name__)

ALIGNMENT = 4096
MIN_BYTES = 64 << 20
"""Smaller models are packed faster than a file is found."""
LAYOUT_SOURCES = ("linear.h", "linear_pack.cpp", "linear_pack_body.h", "types.h")
READING = Path(quantized.__file__).parent
"""What makes floats of a folder that is quantised already."""
END_BYTES = 32 + 8
PARTIAL = "partial-"
"""Begin of the names of files in the making."""
NOTHING: Bytes = np.empty(0, np.uint8)

Entry = tuple[list[int], list[list[int]]]
"""The sizes of a linear; begin and bytes of its weight and of its scales."""


class Kept(NamedTuple):
    """A whole file: its bytes, and what lies where."""

    data: Bytes
    entries: list[Entry]


class PackedCache:
    """Hands out the packed linears of a model in the order in which they are asked for.

    Those that were packed now have their arrays when `close` returns.
    """

    def __init__(self, path: Path, num_threads: int = 1) -> None:
        self._path = path
        self._num_threads = num_threads
        self._writer: _Writer | None = None
        self._handed_out: list[PackedWeight] = []
        self._kept: Kept | None = None
        try:
            self._kept = self._read()
            if self._kept is None:
                self._start_writing()
        except BaseException:  # as no memory: the next one would wait for our lock for ever
            self.abandon()
            raise

    def _read(self) -> Kept | None:
        """Return the file if it is there, ours and whole; remove one that is not whole."""
        try:
            check_ours(self._path.parent)
            check_ours(self._path)
            data = map_bytes(self._path)
            entries = _checked(data, self._num_threads)
            return Kept(in_huge_pages(data), entries)
        except FileNotFoundError:
            return None
        except OSError as error:  # it may be whole, and of use to another
            log.warning("packed weights cannot be read", extra={"reason": str(error)})
            return None
        except ValueError as error:
            self._reject(error)
            return None

    def _reject(self, reason: Exception) -> None:
        log.warning("packed weights are packed again", extra={"reason": str(reason)})
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a damaged file stays", extra={"reason": str(error)})

    def _start_writing(self) -> None:
        """Begin a file, unless another process has made one while we waited for it."""
        try:
            self._writer = _Writer(self._path)
            self._kept = self._read()
        except OSError as error:
            log.warning("packed weights are not kept", extra={"reason": str(error)})
        if self._kept is not None:
            self._stop_writing()

    def take(
        self, shape: Shape, biases: Sequence[Stored], pack: Callable[[], PackedWeight]
    ) -> PackedWeight:
        """Return the next linear, from the file as long as it holds what is asked for."""
        packed = self._find(shape, biases)
        if packed is None:
            packed = pack()
            self._write(packed)
        self._handed_out.append(packed)
        return packed

    def _find(self, shape: Shape, biases: Sequence[Stored]) -> PackedWeight | None:
        if self._kept is None:
            return None
        try:
            sizes, places = self._kept.entries[len(self._handed_out)]
            if sizes != _sizes(shape):
                raise ValueError("a linear has another shape")
        except (ValueError, IndexError) as error:
            self._kept = None
            self._reject(error)
            self._start_writing()
            for packed in self._handed_out:
                self._write(packed)
            return None
        packed = PackedWeight(shape, NOTHING, NOTHING, pack_bias(biases, shape))
        _bind(packed, self._kept.data, places)
        return packed

    def _write(self, packed: PackedWeight) -> None:
        if self._writer is None:
            return
        try:
            self._writer.add(packed)
        except OSError as error:
            log.warning("packed weights are not kept", extra={"reason": str(error)})
            self._stop_writing()
        else:
            packed.weight = packed.scales = NOTHING

    def _stop_writing(self) -> None:
        """Give up the file; what is in it already stays mapped."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            if writer.entries:
                data = map_bytes(writer.path)
                for packed, (_, places) in zip(self._handed_out, writer.entries, strict=False):
                    _bind(packed, data, places)
        finally:
            writer.abandon()

    def close(self) -> None:
        """Finish the file that was begun, and map it."""
        if self._writer is None:
            return
        try:
            data = self._writer.finish(self._path, self._num_threads)
        except OSError as error:
            log.warning("packed weights are not kept", extra={"reason": str(error)})
            return self._stop_writing()
        for packed, (_, places) in zip(self._handed_out, self._writer.entries, strict=True):
            _bind(packed, data, places)
        self._writer = None

    def abandon(self) -> None:
        """Leave no unfinished file behind: loading has failed."""
        if self._writer is not None:
            self._writer.abandon()


class _Writer:
    """A file in the making, beside its place; one at a time in a folder, over all processes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(NOT_FOR_ALL, parents=True, exist_ok=True)
        check_ours(path.parent)
        self._lock = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            for left in path.parent.glob(f"{PARTIAL}*"):  # by a process that was killed
                left.unlink(missing_ok=True)
            self._file, name = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)
        except OSError:
            os.close(self._lock)
            raise
        self.path = Path(name)
        self.entries: list[Entry] = []
        self._end = 0

    def add(self, packed: PackedWeight) -> None:
        places = []
        for data in (packed.weight, packed.scales):
            _write_all(self._file, data.data, self._end)
            places.append([self._end, data.nbytes])
            self._end += -(-data.nbytes // ALIGNMENT) * ALIGNMENT
        self.entries.append((_sizes(packed.shape), places))

    def finish(self, target: Path, num_threads: int) -> Bytes:
        """Write the table, put the file in its place, so that nobody ever reads half of one."""
        os.ftruncate(self._file, self._end)
        found = digests(map_bytes(self.path), num_threads)
        raw = json.dumps([self.entries, found]).encode()
        tail = raw + hashlib.sha256(raw).digest() + len(raw).to_bytes(8, "little")
        _write_all(self._file, memoryview(tail), self._end)
        os.ftruncate(self._file, self._end + len(tail))
        data = map_bytes(self.path)
        os.replace(self.path, target)
        for old in _others(target):
            with suppress(OSError):  # of another user
                old.unlink()  # who has it mapped keeps it
        self._close()
        return data

    def abandon(self) -> None:
        self.path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        os.close(self._file)
        os.close(self._lock)


def cache_path(folder: Path, fingerprint: str, layout: str, model: Path) -> Path:
    """Return where the packed weights of `model` belong; its files' sizes and times count too.

    Of the times that of the last change, which nobody can set: `rsync -t`, images and some mounts
    give other weights of one size the same time of writing.
    The first half of the name stays the same for a folder, its config and a layout.
    """
    home = hashlib.sha256(f"{layout} {model.resolve()}".encode())
    home.update((model / "config.json").read_bytes())
    digest = hashlib.sha256(f"{fingerprint} {layout}".encode())
    for source in [*(SOURCES / name for name in LAYOUT_SOURCES), *sorted(READING.glob("*.py"))]:
        digest.update(source.read_bytes())
    for path in sorted(model.glob("*.safetensors")):
        if not path.exists():  # a link to nothing: a cache of downloads may hold parts of a folder
            continue
        status = path.stat()
        told = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        digest.update(f"{path.name} {told}".encode())
    name = f"{home.hexdigest()[:12]}-{digest.hexdigest()[:24]}.packed"
    return folder / "weights" / name


def _others(path: Path) -> list[Path]:
    """Return what was kept of the same folder, config and format before."""
    home, dash, _ = path.name.rpartition("-")
    return [one for one in path.parent.glob(f"{home}-*.packed") if dash and one != path]


def _sizes(shape: Shape) -> list[int]:
    return [shape.num_inputs, shape.num_outputs, int(shape.format), shape.group]


def _bind(packed: PackedWeight, data: Bytes, places: list[list[int]]) -> None:
    packed.weight, packed.scales = (data[start : start + count] for start, count in places)


def _checked(data: Bytes, num_threads: int) -> list[Entry]:
    """Return the table; raise ValueError for a file that is not what was written, byte by byte."""
    length = int.from_bytes(data[-8:].tobytes(), "little")
    if len(data) < END_BYTES or not 0 < length <= len(data) - END_BYTES:
        raise ValueError("the file is cut off")
    end = len(data) - END_BYTES
    raw = data[end - length : end].tobytes()
    if hashlib.sha256(raw).digest() != data[end : end + 32].tobytes():
        raise ValueError("the table is damaged")
    entries, wanted = json.loads(raw)
    if digests(data[: end - length], num_threads) != wanted:
        raise ValueError("the weights are damaged")
    return list(entries)


def _write_all(file: int, data: memoryview, start: int) -> None:
    """Write `data`, and zeros behind it up to a large page's end, which later data take the place
    of. What first comes in a smaller part than a large page, the system keeps in small ones for as
    long as the file stays in memory: 4 % of a decode step in int4."""
    zeros = memoryview(bytes(-(start + len(data)) % HUGE_PAGE))
    done = 0
    while done < len(data):
        done += os.pwritev(file, [data[done:], zeros], start + done)
