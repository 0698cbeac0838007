"""The portable level on 64-bit ARM: it compiles, and gives the bits that it gives here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.operators import backend, batch_of, compute, given
from worker.kernels.compile import SOURCES, compile_library
from worker.kernels.library import Level, default_cache_dir
from worker.kernels.packed import Format, shape_of

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
MAIN = Path(__file__).with_name("linear_main.cpp")


@pytest.fixture(scope="module")
def library() -> Path:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not here (Debian: g++-aarch64-linux-gnu)")
    return compile_library(default_cache_dir() / "tests", COMPILER)


def test_every_kernel_compiles(library: Path) -> None:
    header = library.read_bytes()[:20]
    assert header[:4] == b"\x7fELF" and header[18] == 183, "not a library for aarch64"


@pytest.fixture(scope="module")
def program(library: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a linear on the emulated machine."""
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"{EMULATOR} is not here (Debian: qemu-user)")
    built = tmp_path_factory.mktemp("aarch64") / "linear"
    subprocess.run(
        [COMPILER, "-std=c++17", "-O1", f"-I{SOURCES}", str(MAIN), str(library),
         f"-Wl,-rpath,{library.parent}", "-o", str(built)],
        check=True,
    )  # fmt: skip
    return [EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(built)]


@pytest.mark.parametrize("form", list(Format))
def test_a_linear_has_the_bits_of_this_machine(program: list[str], form: Format) -> None:
    rng = np.random.default_rng(int(form))
    weight = rng.standard_normal((50, 200), np.float32)
    for num_rows in (1, 7):
        x = rng.standard_normal((num_rows, 200), np.float32)
        shape = shape_of([weight], form)
        scratch = num_rows * shape.scratch_width * 4 + shape.scratch_rest
        sizes = (200, 50, num_rows, int(form), shape.group)
        room = (shape.weight_bytes, shape.scale_bytes, scratch)
        done = subprocess.run(
            [*program, *map(str, (*sizes, *room))],
            input=weight.tobytes() + x.tobytes(), capture_output=True, check=True,
        )  # fmt: skip
        found = np.frombuffer(done.stdout, np.float32).reshape(num_rows, 50)
        ops = backend(Level.PORTABLE, form)
        packed = ops.pack_linear([weight])
        wanted = compute(ops, lambda: ops.linear(given(x), packed), batch_of(num_rows))  # noqa: B023
        assert np.array_equal(found, wanted)
