"""Operator records and step inputs as C reads them; mirrors `types.h`.

Knows bytes, addresses and the lifetime of intermediate buffers. Knows no operator's meaning.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from worker.batch import Batch

MAX_WORDS = 14
ALIGNMENT = 64


class Kind(IntEnum):
    """The operators, in the order of `types.h`."""

    LINEAR = 0
    EMBEDDING = 1
    TAKE_ROWS = 2
    RMS_NORM = 3
    ADD_RMS_NORM = 4
    ROPE = 5
    ATTENTION = 6
    SILU_MUL = 7
    HEAD_NORM = 8
    ROPE_SHIFT = 9
    ROTATION = 10


class Rows(IntEnum):
    """What an operator runs over: the tokens of a step, or those that want logits, or states."""

    TOKENS = 0
    LOGITS = 1
    STATES = 2


Capacity = tuple[int, ...]
"""The most rows of each kind, in the order of `Rows`."""


class CStep(ctypes.Structure):
    """Step of `types.h`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_logit_rows", "num_state_rows")),
        *((name, ctypes.c_int64) for name in ("num_sequences", "table_width", "block_size")),
        *((name, ctypes.c_void_p) for name in ("token_ids", "positions", "cells")),
        *((name, ctypes.c_void_p) for name in ("query_starts", "block_tables", "logit_rows")),
        ("state_rows", ctypes.c_void_p),
    ]


def c_step(batch: Batch) -> CStep:
    """Point at the arrays of `batch`, which must outlive the step."""
    num_sequences, table_width = batch.block_tables.shape
    return CStep(
        len(batch.token_ids),
        len(batch.logit_rows),
        len(batch.state_rows),
        num_sequences,
        table_width,
        batch.block_size,
        *(array.ctypes.data for array in (batch.token_ids, batch.positions, batch.cells)),
        *(array.ctypes.data for array in (batch.query_starts, batch.block_tables)),
        *(array.ctypes.data for array in (batch.logit_rows, batch.state_rows)),
    )


@dataclass(eq=False, slots=True)
class Buffer:
    """An intermediate, float32 [rows, width], that no one has computed yet."""

    rows: Rows
    width: int
    fixed_bytes: int = 0
    """Bytes beside the rows, for what does not grow with them."""
    given: np.ndarray[Any, Any] | None = None
    """Where it lies, when it is somebody's array and not a place in the arena."""
    first_use: int = -1
    last_use: int = -1
    offset: int = -1

    def num_bytes(self, capacity: Capacity) -> int:
        size = capacity[self.rows] * self.width * 4 + self.fixed_bytes
        return -(-size // ALIGNMENT) * ALIGNMENT


Word = Buffer | np.ndarray[Any, Any] | int | float | None
"""An address (array, buffer, None = null), an int64 or a double."""


@dataclass(frozen=True, slots=True)
class Record:
    """One operator to run."""

    kind: Kind
    rows: Rows
    words: tuple[Word, ...]

    def pack(self, base: int) -> bytes:
        """Return the bytes of Op, buffers lying at `base` plus their offset."""
        raw = [_word(word, base) for word in self.words]
        raw += [b"\0" * 8] * (MAX_WORDS - len(raw))
        return struct.pack("<ii", self.kind, self.rows) + b"".join(raw)


def address_of(raw: bytes) -> int:
    """Return where `raw` lies; valid as long as it lives."""
    return ctypes.cast(ctypes.c_char_p(raw), ctypes.c_void_p).value or 0


def _word(word: Word, base: int) -> bytes:
    if isinstance(word, float):
        return struct.pack("<d", word)
    if isinstance(word, Buffer):
        given = word.given
        return struct.pack("<q", base + word.offset if given is None else given.ctypes.data)
    if isinstance(word, np.ndarray):
        return struct.pack("<q", word.ctypes.data)
    return struct.pack("<q", word or 0)


@dataclass(slots=True)
class Recording:
    """Records in order, and through them who needs which buffer when."""

    records: list[Record] = field(default_factory=list)

    def add(self, record: Record) -> None:
        place = len(self.records)
        self.records.append(record)
        for word in record.words:
            if isinstance(word, Buffer) and word.given is None:
                word.first_use = place if word.first_use < 0 else word.first_use
                word.last_use = place

    def place_buffers(self, capacity: Capacity, results: Sequence[Buffer]) -> int:
        """Give every buffer an offset where nobody alive lies; return the bytes of the arena."""
        for result in results:
            result.last_use = len(self.records)
        words = [word for record in self.records for word in record.words]
        buffers = dict.fromkeys(w for w in words if isinstance(w, Buffer) and w.given is None)
        placed: list[Buffer] = []
        for buffer in buffers:
            alive = [other for other in placed if other.last_use >= buffer.first_use]
            buffer.offset = _first_gap(alive, buffer.num_bytes(capacity), capacity)
            placed.append(buffer)
        return max(buffer.offset + buffer.num_bytes(capacity) for buffer in placed)


def _first_gap(alive: Sequence[Buffer], num_bytes: int, capacity: Capacity) -> int:
    offset = 0
    for other in sorted(alive, key=lambda buffer: buffer.offset):
        if other.offset - offset >= num_bytes:
            break
        offset = max(offset, other.offset + other.num_bytes(capacity))
    return offset
