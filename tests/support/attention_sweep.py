"""Attention over a sweep of cases at levels of libraries, compared bit for bit.

`python -m tests.support.attention_sweep LEVEL LIBRARY [LEVEL LIBRARY …]` in a process of its own,
as for the linears.
"""

from __future__ import annotations

import sys

import numpy as np

from tests.support.linear_sweep import backends_of
from tests.worker.kernels.test_attention_compiled import CASES, Case
from worker.kernels.packed import Format

SPANS = ((0, 70), (129, 130), (90, 99), (127, 129), (200, 260))
MORE = (
    Case(6, 1, 48, form="bf16", spans=SPANS),
    Case(17, 1, 64, block_size=1, window=100, form="bf16", spans=SPANS),
    Case(8, 2, 36, form="bf16", spans=((0, 40), (255, 256))),
    # Of a tile's rows the first sees a whole run of keys, and those after it do not.
    Case(2, 2, 32, window=33, form="bf16", spans=((0, 100), (64, 70))),
)


def main(*words: str) -> None:
    """Print ok, or raise AssertionError that names the case."""
    backends = backends_of(words, Format.F32)
    for case in (*(one for one in CASES if one.form == "bf16"), *MORE):
        first, *others = (case.run(ops) for ops in backends)
        for found in others:
            for b in first:
                assert np.array_equal(first[b], found[b]), (case, b)
    sys.stdout.write("ok\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
