"""One safetensors file, mapped read-only: header checked against the file before any use.

Knows the byte format, three float dtypes, and those that codes of weights are stored as. Knows no
model.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from common.model_folder import ModelFolderError
from worker.kernels.checks import Floats, Stored, to_float32

MAX_HEADER_BYTES = 100_000_000
STORED_AS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
}
CODES_AS: dict[str, np.dtype[Any]] = {
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "F8_E4M3": np.dtype("u1"),
}
"""Of linears that are quantised in the file."""
KNOWN = STORED_AS | CODES_AS


class Tensor(NamedTuple):
    """Where a tensor lies: byte offsets from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Stamp(NamedTuple):
    """What a file was when it was mapped."""

    path: Path
    inode: tuple[int, int]
    written: tuple[int, int]
    """Size and time of the last write."""

    @classmethod
    def of(cls, path: Path, status: os.stat_result) -> Stamp:
        return cls(path, (status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns))

    def was_written(self) -> bool:
        """Return whether the file was written to since. One that took its name is another one."""
        try:
            now = Stamp.of(self.path, os.stat(self.path))
        except OSError:
            return False
        return now.inode == self.inode and now.written != self.written


class SafetensorsFile:
    """The tensors of one file by name; each is upcast to float32 when read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                size = status.st_size
                header = _read_header(path, file, size)
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelFolderError(f"{path}: cannot be read: {error.strerror}") from error
        self.stamp = Stamp.of(path, status)
        self.tensors = _parse(path, header, size)

    def read(self, name: str) -> Floats:
        """Return tensor `name` as float32; float32 ones are views into the file."""
        return to_float32(self.read_stored(name))

    def check_dtype(self, name: str) -> str:
        """Return the type of a tensor; raise ModelFolderError for one that cannot be read."""
        if (dtype := self.tensors[name].dtype) not in STORED_AS:
            allowed = ", ".join(STORED_AS)
            raise ModelFolderError(
                f"{self.path}: tensor {name} has dtype {dtype}, allowed: {allowed}"
            )
        return dtype

    def read_stored(self, name: str) -> Stored:
        """Return tensor `name` as float32, float16, bfloat16 as uint16, or codes: a view into the
        file, or a copy where the file has it at an odd place."""
        tensor = self.tensors[name]
        dtype = KNOWN[tensor.dtype]
        raw = memoryview(self._bytes)[tensor.start : tensor.stop]
        aligned = raw if tensor.start % dtype.itemsize == 0 else bytes(raw)
        return np.frombuffer(aligned, dtype).reshape(tensor.shape)

    def let_go(self) -> None:
        """Forget the pages that were read; views stay, and read the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):  # not on every system
            self._bytes.madvise(mmap.MADV_DONTNEED)

    def sample(self, name: str, num_bytes: int) -> bytes:
        """Return the first bytes of a tensor, for a hash."""
        tensor = self.tensors[name]
        return bytes(self._bytes[tensor.start : min(tensor.stop, tensor.start + num_bytes)])


def _read_header(path: Path, file: IO[bytes], size: int) -> bytes:
    if len(prefix := file.read(8)) < 8:
        raise ModelFolderError(f"{path}: {size} bytes are too few for a safetensors file")
    if prefix == b"version ":
        raise ModelFolderError(f"{path}: a pointer of Git LFS and no weights; run git lfs pull")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise ModelFolderError(
            f"{path}: header of {length} bytes is longer than the {MAX_HEADER_BYTES} allowed"
        )
    if 8 + length > size:
        raise ModelFolderError(f"{path}: header of {length} bytes in a file of {size}: truncated")
    return file.read(length)


def _parse(path: Path, header: bytes, size: int) -> dict[str, Tensor]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"{path}: header is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise ModelFolderError(f"{path}: header is not an object")
    first_byte = 8 + len(header)
    return {
        name: _tensor(path, name, entry, first_byte, size)
        for name, entry in entries.items()
        if name != "__metadata__"
    }


def _tensor(path: Path, name: str, entry: Any, first_byte: int, size: int) -> Tensor:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        start, stop = (first_byte + int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFolderError(f"{path}: tensor {name}: malformed entry {entry!r}") from error
    if not first_byte <= start <= stop <= size:
        raise ModelFolderError(
            f"{path}: tensor {name} lies at bytes {start}..{stop} of a file of {size}: truncated"
        )
    stored = KNOWN.get(dtype)  # others may stand beside what is read
    is_full = stored is None or math.prod(shape) * stored.itemsize == stop - start
    if min(shape, default=0) < 0 or not is_full:
        raise ModelFolderError(
            f"{path}: tensor {name} {dtype} {list(shape)} does not fill its {stop - start} bytes"
        )
    return Tensor(dtype, shape, start, stop)
