"""Linears over a sweep of shapes at levels of libraries, compared bit for bit.

`python -m tests.support.linear_sweep LEVEL LIBRARY [LEVEL LIBRARY …]` in a process of its own: what
goes wrong inside a library ends the process and not the tests. Even numbers of outputs are gated,
too.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.operators import batch_of, compute, given
from worker.backends.cpu import CpuBackend
from worker.kernels.checks import Floats
from worker.kernels.library import Level, Library
from worker.kernels.packed import Format, PackedWeight

ROWS = (1, 5, 16, 17, 33, 50)
SHAPES = {
    (1, 1): ROWS,
    (64, 33): (*ROWS, 515),
    (130, 96): ROWS,
    (200, 177): ROWS,
    (1100, 16): ROWS,
    (1100, 64): (33, 50),
    (840, 1100): (17, 33),
    (3300, 40): (1, 2, 8),
}
"""Rows by (inputs, outputs): below and above a tile, an odd number of panels, more than a pass of
inputs (of few rows too) or of rows, more panels than a thread takes at a time, halves of whole
panels and others."""


def main(*words: str) -> None:
    """Print ok, or raise AssertionError that names the case."""
    rng = np.random.default_rng(0)
    for form, (inputs, outputs) in itertools.product(Format, SHAPES):
        weight = rng.standard_normal((outputs, inputs), np.float32)
        bias = rng.standard_normal(outputs, np.float32)
        backends = backends_of(words, form)
        packed = [ops.pack_linear([weight], [bias]) for ops in backends]
        for rows in SHAPES[inputs, outputs]:
            x = rng.standard_normal((rows, inputs), np.float32)
            for gates in (False, True)[: 2 - outputs % 2]:
                pairs = zip(backends, packed, strict=True)
                results = [linear(ops, one, x, gates=gates) for ops, one in pairs]
                for result in results[1:]:
                    case = (form.name, rows, inputs, outputs, gates)
                    assert np.array_equal(result, results[0]), case
    sys.stdout.write("ok\n")


def backends_of(words: Sequence[str], form: Format) -> list[CpuBackend]:
    """Return one for each LEVEL and LIBRARY."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [CpuBackend(Library(Path(path)), Level[name], form, 2) for name, path in pairs]


def linear(ops: CpuBackend, packed: PackedWeight, x: Floats, *, gates: bool) -> Floats:
    operator = ops.gated_linear if gates else ops.linear
    return compute(ops, lambda: operator(given(x), packed), batch_of(len(x)))


if __name__ == "__main__":
    main(*sys.argv[1:])
