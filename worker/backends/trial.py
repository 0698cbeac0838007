"""The trial of a level: what its kernels say on this machine, against the portable ones.

All levels agree bit for bit. A processor, a hypervisor or a compiler that breaks this is found out
here, before it answers anybody. Knows operators of the CPU backend; knows no model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from worker.backends.cpu import CpuBackend, StepInputs
from worker.backends.program import Program
from worker.batch import Batch
from worker.kernels.checks import Floats
from worker.kernels.library import Level, Library
from worker.kernels.packed import Format
from worker.kernels.records import Buffer, Rows
from worker.kv_cache import LayerPages

log = logging.getLogger(__name__)

NUM_TOKENS = 40
"""Three blocks of keys; whole and broken tiles of rows."""
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 32
WIDTH = NUM_HEADS * HEAD_DIM
LINEAR_ROWS = (8, NUM_TOKENS)
"""Few rows and many go through the weights in different ways."""
NUM_INPUTS, NUM_OUTPUTS = 384, 76
"""More than one pass; panels that fill no tile, and columns that fill no panel."""


@cache
def trusted_level(library: Library) -> Level:
    """Return the highest level here whose results are those of the portable one.

    Takes some milliseconds; warns of a level that fails.
    """
    expected = results(library, Level.PORTABLE)
    for level in reversed(Level):
        if level > library.highest_level:
            continue
        wrong = differences(results(library, level), expected)
        if not wrong:
            return level
        log.warning(
            "SLOW: kernel level %s gives wrong bits here and is not used: %s",
            level.name.lower(), ", ".join(wrong),
        )  # fmt: skip
    return Level.PORTABLE


def differences(found: dict[str, Floats], expected: dict[str, Floats]) -> list[str]:
    """Return the names of results that are not equal bit for bit."""
    return [name for name, values in expected.items() if found[name].tobytes() != values.tobytes()]


def results(library: Library, level: Level) -> dict[str, Floats]:
    """Return the trial's results at a level: float32 [rows, width] by operator."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((NUM_TOKENS, NUM_INPUTS), dtype=np.float32)
    weight = rng.standard_normal((NUM_OUTPUTS, NUM_INPUTS), dtype=np.float32)
    q = rng.standard_normal((NUM_TOKENS, WIDTH), dtype=np.float32)
    rounded = (rng.standard_normal((2, 3, 16, NUM_KV_HEADS, HEAD_DIM), dtype=np.float32)
               .view(np.uint32) >> 16).astype(np.uint16)  # fmt: skip
    pages = LayerPages(*rounded)
    found = {}
    for form in (Format.BF16, Format.INT8, Format.INT4):
        ops = CpuBackend(library, level, form, num_threads=1)
        packed = ops.pack_linear([weight])
        for rows in LINEAR_ROWS:
            multiply = partial(ops.linear, _given(x[:rows]), packed)
            found[f"linear {form.name.lower()} x {rows}"] = _run(ops, multiply, rows)
    attend = partial(ops.paged_attention, _given(q), StepInputs(), pages)
    found["attention"] = _run(ops, attend, NUM_TOKENS)
    return found


def _given(x: Floats) -> Buffer:
    return Buffer(Rows.TOKENS, x.shape[1], given=x)


def _run(ops: CpuBackend, operator: Callable[[], Buffer], num_tokens: int) -> Floats:
    tokens = np.arange(num_tokens, dtype=np.int32)
    batch = Batch(
        token_ids=tokens,
        positions=tokens,
        cells=tokens,
        query_starts=np.array([0, num_tokens], np.int32),
        block_tables=np.arange(3, dtype=np.int32)[None],
        logit_rows=tokens,
        state_rows=tokens,
        block_size=16,
    )
    (result,) = Program(ops, lambda: [operator()]).run(batch)
    return np.array(result)
