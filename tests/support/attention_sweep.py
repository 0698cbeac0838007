"""Attention over a sweep of cases at the levels of one library, compared bit for bit.

`python -m tests.support.attention_sweep LIBRARY LEVEL [LEVEL …]` in a process of its own, as for
the linears.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.worker.kernels.test_attention_compiled import CASES, Case
from worker.backends.cpu import CpuBackend
from worker.kernels.library import Level, Library
from worker.kernels.packed import Format

SPANS = ((0, 70), (129, 130), (90, 99), (127, 129), (200, 260))
MORE = (
    Case(6, 1, 48, form="bf16", spans=SPANS),
    Case(17, 1, 64, block_size=1, window=100, form="bf16", spans=SPANS),
    Case(8, 2, 36, form="bf16", spans=((0, 40), (255, 256))),
    # Of a tile's rows the first sees a whole run of keys, and those after it do not.
    Case(2, 2, 32, window=33, form="bf16", spans=((0, 100), (64, 70))),
)


def main(path: str, *names: str) -> None:
    """Print ok, or raise AssertionError that names the case."""
    library = Library(Path(path))
    backends = [CpuBackend(library, Level[name], Format.F32, 2) for name in names]
    for case in (*(one for one in CASES if one.form == "bf16"), *MORE):
        first, *others = (case.run(ops) for ops in backends)
        for found in others:
            for b in first:
                assert np.array_equal(first[b], found[b]), (case, b)
    sys.stdout.write("ok\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
