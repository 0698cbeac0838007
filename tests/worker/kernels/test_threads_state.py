"""What a thread brings along, of its own or of other libraries, decides no bit of a result."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.support.operators import backend, batch_of, compute, floats, given, levels, library
from worker.backends.cpu import CpuBackend
from worker.kernels.checks import Floats
from worker.kernels.packed import Format, PackedWeight

UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
"""FE_UPWARD of fenv.h."""


@contextmanager
def rounding_up() -> Iterator[None]:
    """Have this thread, and threads it makes, round as another library may have left them."""
    libm = ctypes.CDLL(None)
    assert libm.fesetround(UPWARD) == 0
    try:
        yield
    finally:
        libm.fesetround(0)


def linear(x: Floats, weight: Floats, form: Format, threads: int) -> list[Floats]:
    """Return x @ weight.T at every level; of panels enough for every thread."""
    results = []
    for level in levels():
        ops = backend(level, form, threads)
        packed = ops.pack_linear([weight])
        results.append(multiplied(ops, packed, x))
    return results


def multiplied(ops: CpuBackend, packed: PackedWeight, x: Floats) -> Floats:
    return compute(ops, lambda: ops.linear(given(x), packed), batch_of(len(x)))


@pytest.mark.parametrize("form", Format)
def test_who_packs_a_panel_decides_no_bit(form: Format) -> None:
    """Squares of such weights are denormal: some threads flushed them, and chose other scales."""
    x, weight = floats(3, 256), floats(640, 256, seed=1) * np.float32(1e-19)
    first, *others = (one for threads in (1, 3) for one in linear(x, weight, form, threads))
    for other in others:
        assert np.array_equal(other, first)


def test_every_thread_flushes_what_is_denormal() -> None:
    x, weight = floats(9, 256) * np.float32(1e-20), floats(640, 256, seed=1) * np.float32(1e-20)
    for threads in (1, 3):
        for result in linear(x, weight, Format.F32, threads):
            assert not result.any()


@pytest.mark.skipif(UPWARD is None, reason="needs to know how this processor rounds upward")
@pytest.mark.parametrize("form", Format)
def test_a_library_that_changes_how_numbers_are_rounded_changes_no_result(form: Format) -> None:
    x, weight = floats(9, 256), floats(640, 256, seed=1)
    expected = linear(x, weight, form, 2)[0]
    with rounding_up():
        made_now = CpuBackend(library(), levels()[-1], form, 3)
        packed = made_now.pack_linear([weight])
        results = [*linear(x, weight, form, 2), multiplied(made_now, packed, x)]
    for result in results:
        assert np.array_equal(result, expected)


FORK = """
import os, sys, time
from pathlib import Path
import numpy as np
from tests.support.operators import batch_of, compute, floats, given
from worker.backends.cpu import CpuBackend
from worker.kernels.library import Library, Level
from worker.kernels.packed import Format

ops = CpuBackend(Library(Path(sys.argv[1])), Level.PORTABLE, Format.F32, 4)
packed = ops.pack_linear([floats(640, 64)])
multiply = lambda: compute(ops, lambda: ops.linear(given(floats(9, 64)), packed), batch_of(9))
expected = multiply()
time.sleep(0.05)  # the threads are asleep, and so is none at a lock
child = os.fork()
if child == 0:
    sys.exit(0 if np.array_equal(multiply(), expected) else 3)
assert np.array_equal(multiply(), expected)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_computes_without_the_threads_and_ends() -> None:
    """It waited for threads that it has not, when the pool was closed, and died of that."""
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(library().path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
