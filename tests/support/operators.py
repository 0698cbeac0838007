"""One operator of the compiled kernels by itself: record it, run it, return its result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from worker.backends.cpu import CpuBackend
from worker.backends.program import Program
from worker.batch import Batch
from worker.kernels.checks import Floats
from worker.kernels.library import Level, Library, load_library
from worker.kernels.packed import Format
from worker.kernels.records import Buffer, Rows


@cache
def library() -> Library:
    """The library as this machine compiles it; there is a compiler wherever tests run."""
    found = load_library()
    assert found is not None, "no C++ compiler"
    return found


def levels() -> list[Level]:
    """Every level of this machine."""
    return [level for level in Level if level <= library().highest_level]


@cache
def backend(
    level: Level | None = None,
    weights: Format = Format.F32,
    num_threads: int = 2,
) -> CpuBackend:
    chosen = library().highest_level if level is None else level
    return CpuBackend(library(), chosen, weights, num_threads)


def floats(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def given(array: Floats, rows: Rows = Rows.TOKENS) -> Buffer:
    """Make an operand of a float32 array [rows, width]; it must outlive the call."""
    return Buffer(rows, array.shape[1], given=array)


def batch_of(num_tokens: int, **columns: Any) -> Batch:
    """A batch of one sequence, from its beginning, in blocks 0, 1, …; columns may be replaced."""
    tokens = np.arange(num_tokens, dtype=np.int32)
    made = Batch(
        token_ids=tokens,
        positions=tokens,
        cells=tokens,
        query_starts=np.array([0, num_tokens], np.int32),
        block_tables=np.arange(-(-num_tokens // 16), dtype=np.int32)[None],
        logit_rows=tokens,
        state_rows=tokens,
        block_size=16,
    )
    return made._replace(**columns)


def compute(ops: CpuBackend, operator: Callable[[], Buffer], batch: Batch) -> Floats:
    """Record `operator` and run it over `batch`; return a copy of its result."""
    (result,) = Program(ops, lambda: [operator()]).run(batch)
    return result.copy()
