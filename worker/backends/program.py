"""Program: the records of one forward, their buffers, the one call that runs all. Live: one by one.

Knows capacities and addresses. Knows no operator.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from worker.batch import Batch, PassLimits, Workspace
from worker.errors import KernelError
from worker.kernels.checks import Bytes, Floats
from worker.kernels.packed import aligned_bytes
from worker.kernels.records import (
    Buffer,
    Capacity,
    CStep,
    Record,
    Recording,
    Rows,
    address_of,
    c_step,
)

Operators = Callable[[], Sequence[Buffer]]
"""Calls operators of a backend; returns the buffers that will hold their results."""


class Sink(Protocol):
    """Where the operators of a backend go: into a recording, or straight to the kernels."""

    def add(self, record: Record) -> None: ...


class Recorder(Protocol):
    """What a program asks of its backend."""

    def record(self, sink: Sink, operators: Operators) -> Sequence[Buffer]: ...
    def run(self, ops: int, num_ops: int, step: int) -> None: ...


class Program:
    """Records once. In a workspace the buffers have their places for good; without one they are
    placed anew when a batch is larger than any before."""

    def __init__(
        self, recorder: Recorder, operators: Operators, workspace: Workspace | None = None
    ) -> None:
        self._recorder = recorder
        self._recording = Recording()
        self._results = recorder.record(self._recording, operators)
        self._capacity: Capacity = (0,) * len(Rows)
        self._ops = b""
        self._arena = aligned_bytes(0)
        self._address = 0
        self._batch: Batch | None = None
        self._step: CStep
        self._outputs: list[Floats]
        self._is_fixed = workspace is not None
        if workspace is not None:
            self._place(most_of(workspace.limits), lambda num_bytes: workspace.memory[:num_bytes])

    @property
    def records(self) -> list[Record]:
        return self._recording.records

    def run(self, batch: Batch) -> list[Floats]:
        """Return the float32 results, [rows, width] each; valid until the next run.

        The same batch again, with whatever its arrays hold now, costs nothing but the kernels.
        """
        if batch is not self._batch:
            self._prepare(batch)
        self._recorder.run(self._address, len(self.records), ctypes.addressof(self._step))
        return self._outputs

    def _prepare(self, batch: Batch) -> None:
        counts = counts_of(batch)
        if any(count > most for count, most in zip(counts, self._capacity, strict=True)):
            if self._is_fixed:
                raise KernelError(f"a pass of {counts} rows, the workspace holds {self._capacity}")
            most = (max(n, now, 1) for n, now in zip(counts, self._capacity, strict=True))
            self._arena = aligned_bytes(0)  # let go of the old one first
            self._place(tuple(1 << (n - 1).bit_length() for n in most), aligned_bytes)
        self._batch, self._step = batch, c_step(batch)
        self._outputs = [self._view(one, counts) for one in self._results]

    def _view(self, buffer: Buffer, counts: Capacity) -> Floats:
        size = counts[buffer.rows] * buffer.width * 4
        raw = self._arena[buffer.offset : buffer.offset + size]
        view: Floats = raw.view(np.float32).reshape(counts[buffer.rows], buffer.width)
        return view

    def num_bytes(self, limits: PassLimits) -> int:
        """Return the memory that passes within `limits` work in."""
        return self._recording.place_buffers(most_of(limits), self._results)

    def _place(self, capacity: Capacity, take: Callable[[int], Bytes]) -> None:
        """Make room for `capacity` rows of each kind, and write the records' addresses."""
        self._capacity = capacity
        self._arena = take(self._recording.place_buffers(capacity, self._results))
        base = self._arena.ctypes.data
        self._ops = b"".join(record.pack(base) for record in self.records)
        self._address = address_of(self._ops)


class Live:
    """Runs every record as it comes, for one batch; each buffer becomes an array of its own."""

    def __init__(self, recorder: Recorder, batch: Batch) -> None:
        self.batch = batch
        self._recorder = recorder
        self._step = c_step(batch)
        self._counts = counts_of(batch)

    def add(self, record: Record) -> None:
        for word in record.words:
            if isinstance(word, Buffer) and word.given is None:
                shape = self._counts[word.rows], word.width
                size = 4 * shape[0] * shape[1]
                raw = aligned_bytes(size + word.fixed_bytes)[:size]
                word.given = raw.view(np.float32).reshape(shape)
        packed = record.pack(0)
        self._recorder.run(address_of(packed), 1, ctypes.addressof(self._step))


def most_of(limits: PassLimits) -> Capacity:
    return limits.max_tokens, limits.max_logits, limits.max_tokens


def counts_of(batch: Batch) -> Capacity:
    return len(batch.token_ids), len(batch.logit_rows), len(batch.state_rows)
