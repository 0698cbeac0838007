"""PackedCache: the packed weights of a model in one format, kept from one start to the next.

The file is named by the hash of all that decides its bytes: the model's folder, the format, and the
sources that define the layout. It is read into memory of our own and not mapped: pages of a file
have 4 KiB, ours 2 MiB where the system gives them, and those read 12 to 23 % faster.

    8 bytes: length of the table │ JSON table │ padding │ regions, each at a multiple of 4 KiB
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from io import BufferedReader
from pathlib import Path

from worker.kernels.compile import SOURCES
from worker.kernels.packed import Bytes, PackedWeight, Shape, Stored, aligned_bytes, pack_bias

log = logging.getLogger(__name__)

ALIGNMENT = 4096
HUGE_PAGE = 2 << 20
SAMPLE_BYTES = 4096
MIN_BYTES = 64 << 20
"""Smaller models are packed faster than a file is found."""
LAYOUT_SOURCES = ("linear.h", "linear_pack.cpp", "linear_pack_body.h", "types.h")


Region = tuple[int, int, str]
"""Where it begins, its bytes, and a hash of its ends."""
Entry = tuple[list[int], list[Region]]
"""The sizes of a linear; its weight and its scales."""


class PackedCache:
    """Hands out the packed linears of a model in the order in which they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BufferedReader | None = None
        self._entries: list[Entry] = []
        self._handed_out: list[PackedWeight] = []
        self._is_complete = True
        try:
            self._file = path.open("rb")
            self._entries = _read_table(self._file)
        except FileNotFoundError:
            self._is_complete = False
        except (OSError, ValueError) as error:
            self._give_up(error)

    def _give_up(self, reason: Exception) -> None:
        log.warning("packed weights are packed again", extra={"reason": str(reason)})
        self._is_complete = False

    def take(
        self, shape: Shape, biases: Sequence[Stored], pack: Callable[[], PackedWeight]
    ) -> PackedWeight:
        """Return the next linear, from the file as long as it holds what is asked for."""
        packed = self._find(shape, biases) or pack()
        self._handed_out.append(packed)
        return packed

    def _find(self, shape: Shape, biases: Sequence[Stored]) -> PackedWeight | None:
        if self._file is None or not self._is_complete:
            return None
        try:
            sizes, (weight, scales) = self._entries[len(self._handed_out)]
            if sizes != _sizes(shape):
                raise ValueError("a linear has another shape")
            bias = pack_bias(biases, shape)
            return PackedWeight(shape, _read(self._file, *weight), _read(self._file, *scales), bias)
        except (OSError, ValueError, IndexError) as error:
            self._give_up(error)
            return None

    def close(self) -> None:
        """Write the file unless everything came out of it, or there is little of it."""
        if self._file is not None:
            self._file.close()
        size = sum(packed.num_bytes for packed in self._handed_out)
        if self._is_complete or size < MIN_BYTES:
            return
        try:
            _write(self._path, self._handed_out)
        except OSError as error:
            log.warning("packed weights are not kept", extra={"reason": str(error)})


def cache_path(folder: Path, fingerprint: str, format_name: str, model: Path) -> Path:
    """Return where the packed weights of `model` belong; its files' sizes and times count too."""
    digest = hashlib.sha256(f"{fingerprint} {format_name}".encode())
    for name in LAYOUT_SOURCES:
        digest.update((SOURCES / name).read_bytes())
    for path in sorted(model.glob("*.safetensors")):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
    return folder / "weights" / f"{digest.hexdigest()[:24]}.packed"


def _sizes(shape: Shape) -> list[int]:
    return [shape.num_inputs, shape.num_outputs, int(shape.format), shape.group]


def _sample(data: Bytes) -> str:
    """Hash the beginning and the end of a region."""
    ends = (data[:SAMPLE_BYTES], data[-SAMPLE_BYTES:])
    return hashlib.sha256(b"".join(end.tobytes() for end in ends)).hexdigest()[:16]


def _read_table(file: BufferedReader) -> list[Entry]:
    """Raise ValueError for a file that is not whole."""
    length = int.from_bytes(file.read(8), "little")
    size = os.fstat(file.fileno()).st_size
    if not 0 < length <= size - 8:
        raise ValueError("the table is cut off")
    entries: list[Entry] = json.loads(file.read(length))
    if any(start + count > size for _, regions in entries for start, count, _ in regions):
        raise ValueError("the file is cut off")
    return entries


def _read(file: BufferedReader, start: int, count: int, sample: str) -> Bytes:
    data = aligned_bytes(count, HUGE_PAGE if count >= HUGE_PAGE else 64)
    file.seek(start)
    if file.readinto(data.data) != count or _sample(data) != sample:
        raise ValueError("a region is damaged")
    return data


def _write(path: Path, complete: Sequence[PackedWeight]) -> None:
    """Write beside and rename, so that nobody ever reads half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table, regions, offset = [], [], ALIGNMENT * (1 + len(complete) // 8)
    for packed in complete:
        places = []
        for data in (packed.weight, packed.scales):
            places.append((offset, data.nbytes, _sample(data)))
            regions.append((offset, data))
            offset += -(-data.nbytes // ALIGNMENT) * ALIGNMENT
        table.append((_sizes(packed.shape), places))
    raw = json.dumps(table).encode()
    if 8 + len(raw) > regions[0][0]:
        raise OSError("the table has no room")
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for start, data in regions:
                file.seek(start)
                file.write(data.data)
            file.truncate(offset)
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
